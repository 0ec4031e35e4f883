//! The search: candidates, each a full set of same-result choices, all of them judged by outlines of the tapes that the
//! engine would run.
//!
//! A candidate's size is a lower bound until it is placed; the placement has the last word. Only those are placed that
//! the decision rests on: the fastest that fits, the smallest near it, the smallest of all.

mod series;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use plimsoll_machine::Bytes;

use crate::choices::Choices;
use crate::choose::{Pins, Terms};
use crate::cost::{Scale, Work};
use crate::evaluated::Evaluation;
use crate::family;
use crate::footprint::{self, Beside, Footprint};
use crate::outline::{Judged, Outline};
use crate::program::{Job, Program, compile, other_forms_workspace, rows_of, store_of, update_workspace};
use crate::snapshot::snapshot_bytes;
use crate::tape::Store;
use crate::tiles::Tiles;
use crate::uniform::Way;

/// Slack against the fastest plan that is traded for memory.
pub(crate) const SLACK: f64 = 1.03;
/// Rows of logits that are tried.
const CHUNKS: [usize; 7] = [2048, 1024, 512, 256, 128, 64, 32];
/// A loader that is not twice ahead is waited for now and then: more than the slack, so that it is never chosen for its
/// size alone.
const WAITED: f64 = 1.04;

/// One candidate with its lower bound of RAM and its time.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub choices: Choices,
    pub least: Bytes,
    pub seconds: f64,
}

/// A candidate that was placed, with its RAM.
pub(crate) struct Found {
    pub choices: Choices,
    pub program: Program,
    pub ram: Footprint,
    pub snapshot: bool,
}

/// A candidate whose RAM is known from its placement.
#[derive(Clone, Copy)]
pub(crate) struct Sized {
    pub choices: Choices,
    pub peak: Bytes,
    pub seconds: f64,
}

/// Loader threads that keep twice ahead of what the engine eats; one at least, and no more than the cores.
pub fn loader_threads(tokens_per_second: f64, rate_of_one: f64, cores: usize) -> usize {
    ((2.0 * tokens_per_second / rate_of_one.max(1.0)).ceil() as usize).clamp(1, cores.max(1))
}

/// Stores and tapes of one way to update.
struct Updating {
    store: Store,
    way: Way,
    /// The update's work, where it is apart.
    update: Work,
}

/// A search over one job's choices.
pub(crate) struct Search<'a> {
    pub job: &'a Job,
    pub terms: &'a Terms<'a>,
    /// What is held fixed.
    pins: Pins,
    /// Gradients kept, and not.
    updating: [OnceCell<Updating>; 2],
    evaluation: OnceCell<Option<Evaluation>>,
    /// By micro-batch, and whether the update is in the backward pass.
    outlines: RefCell<HashMap<(usize, bool), Rc<Outline>>>,
    candidates: OnceCell<Vec<Candidate>>,
    /// What placing came to.
    sizes: RefCell<HashMap<Choices, Bytes>>,
    /// The one placed last: it is often the one that is asked for.
    last: Cell<Option<Found>>,
}

impl<'a> Search<'a> {
    pub fn new(job: &'a Job, terms: &'a Terms<'a>, pins: Pins) -> Search<'a> {
        Search {
            job,
            terms,
            pins,
            updating: Default::default(),
            evaluation: OnceCell::new(),
            outlines: RefCell::default(),
            candidates: OnceCell::new(),
            sizes: RefCell::default(),
            last: Cell::new(None),
        }
    }

    fn updating(&self, in_backward: bool) -> &Updating {
        self.updating[usize::from(in_backward)].get_or_init(|| {
            let (job, store) = (self.job, store_of(self.job, in_backward));
            let tiles = Tiles::of(job.simd);
            let (mut workspace, mut update) = (other_forms_workspace(&store), Work::default());
            if !in_backward {
                let scale = Scale { store: &store, rows: rows_of(&job.shape(1)), tiles, threads: job.threads };
                family::update_tape(&store).ops.iter().for_each(|op| update += scale.work(op));
                workspace = workspace.max(update_workspace(job, &store));
            }
            Updating { way: Way::new(in_backward, tiles, workspace), store, update }
        })
    }

    pub fn outline(&self, choices: &Choices) -> Rc<Outline> {
        let key = (choices.micro_batch, choices.optimizer_in_backward);
        if let Some(outline) = self.outlines.borrow().get(&key) {
            return outline.clone();
        }
        let Updating { store, way, update } = self.updating(choices.optimizer_in_backward);
        let eval = self.evaluation.get_or_init(|| Evaluation::of(self.job));
        let eval = eval.as_ref().map(|e| e.at(self.job, choices.micro_batch));
        let outline = Rc::new(Outline::of(self.job, store, way, choices, *update, eval));
        self.outlines.borrow_mut().insert(key, outline.clone());
        outline
    }

    fn scale(&self, choices: &Choices) -> Scale<'_> {
        let Updating { store, way, .. } = self.updating(choices.optimizer_in_backward);
        Scale { store, rows: way.rows(self.job, choices.micro_batch), tiles: way.tiles, threads: self.job.threads }
    }

    /// Work of one update.
    pub fn work(&self, choices: &Choices) -> Work {
        if self.series().is_some() {
            return self.series_work(choices);
        }
        let outline = self.outline(choices);
        outline.work(&outline.judge(choices), &self.scale(choices), choices.loss_chunk)
    }

    /// One candidate by itself.
    pub fn judge(&self, choices: Choices) -> Candidate {
        if self.series().is_some() {
            return self.series_candidate(choices);
        }
        let outline = self.outline(&choices);
        let judged = outline.judge(&choices);
        self.weigh(&outline, &judged, choices)
    }

    fn weigh(&self, outline: &Outline, judged: &Judged, choices: Choices) -> Candidate {
        let scale = self.scale(&choices);
        let words = outline.least(judged, self.job, &scale, choices.loss_chunk);
        let beside = self.beside(&choices, scale.store, self.snapshot_held());
        let least = footprint::ram_total(Bytes(words as u64 * 4), &beside, self.job.threads, &self.terms.overheads);
        let compute = outline.work(judged, &scale, choices.loss_chunk).seconds(&self.terms.rates);
        Candidate { choices, least, seconds: self.with_loading(compute, choices.loader_threads) }
    }

    /// Seconds of an update with the waits for this many loader threads.
    fn with_loading(&self, compute: f64, threads: usize) -> f64 {
        if threads >= self.wanted_threads(compute) {
            return compute;
        }
        let load = self.tokens() / (self.terms.loader_rate.max(1.0) * threads as f64);
        compute.max(load) * WAITED
    }

    /// Tokens of one update with full lengths.
    pub fn tokens(&self) -> f64 {
        let job = self.job;
        let each = if job.spec.t5().is_some() { job.source_len + job.target_len } else { job.source_len };
        (job.effective_batch * each) as f64
    }

    fn wanted_threads(&self, compute: f64) -> usize {
        let wanted = || {
            let most = self.job.threads.min(self.terms.most_loader_threads);
            loader_threads(self.tokens() / compute, self.terms.loader_rate, most)
        };
        self.pins.loader_threads.unwrap_or_else(wanted)
    }

    fn beside(&self, choices: &Choices, store: &Store, snapshot: bool) -> Beside {
        let loader = (self.terms.loader)(self.job.staged(choices), choices.loader_threads);
        let snapshot = snapshot.then(|| snapshot_bytes(store));
        Beside { loader, loader_threads: choices.loader_threads, snapshot }
    }

    /// Every candidate has a snapshot; a run that never saves on the way needs none.
    fn snapshot_held(&self) -> bool {
        self.terms.saves && self.pins.snapshot == Some(true)
    }

    pub fn blocks(&self) -> usize {
        self.job.spec.blocks()
    }

    /// Micro-batches that the pins leave.
    fn micro_batches(&self) -> Vec<usize> {
        let (pins, batch) = (&self.pins, self.job.effective_batch);
        match pins.micro_batch {
            Some(n) => vec![n],
            None => (1..=batch).rev().filter(|n| batch.is_multiple_of(*n)).collect(),
        }
    }

    /// Ways to update that the pins leave: in the backward pass, or behind it.
    fn ways(&self, micro_batch: usize) -> Vec<bool> {
        let may = self.job.may_update_in_backward(micro_batch);
        match self.pins.optimizer_in_backward {
            Some(on) => vec![on && may],
            None if may => vec![true, false],
            None => vec![false],
        }
    }

    /// Rungs of recompute that the pins leave.
    fn rungs(&self, frame: Choices) -> Vec<Choices> {
        match (self.pins.recompute, self.pins.recompute_attention) {
            (None, None) => (0..=2 * self.blocks()).map(|level| frame.on_rung(level, self.blocks())).collect(),
            (recompute, attention) => {
                let recompute = recompute.unwrap_or(0).min(self.blocks());
                let recompute_attention = attention.unwrap_or(0).min(self.blocks() - recompute);
                vec![Choices { recompute, recompute_attention, ..frame }]
            }
        }
    }

    /// Every candidate that the pins leave.
    pub fn candidates(&self) -> &[Candidate] {
        self.candidates.get_or_init(|| {
            if let Some(spec) = self.series() {
                return self.series_candidates(spec);
            }
            let mut list = Vec::new();
            for micro_batch in self.micro_batches() {
                let rows = micro_batch * self.job.target_len;
                let mut chunks: Vec<usize> = match self.pins.loss_chunk {
                    Some(n) => vec![n.min(rows)],
                    None => CHUNKS.iter().map(|c: &usize| rows.min(*c)).collect(),
                };
                chunks.dedup();
                for optimizer_in_backward in self.ways(micro_batch) {
                    let frame = Choices {
                        micro_batch,
                        recompute: 0,
                        recompute_attention: 0,
                        recompute_feed_forward: 0,
                        loss_chunk: chunks[0],
                        optimizer_in_backward,
                        loader_threads: 1,
                        lean: false,
                        keep_norms: false,
                        lstm_every: 0,
                    };
                    let outline = self.outline(&frame);
                    for rung in self.rungs(frame) {
                        let judged = outline.judge(&rung);
                        for loss_chunk in &chunks {
                            self.with_loaders(
                                &outline,
                                &judged,
                                Choices { loss_chunk: *loss_chunk, ..rung },
                                &mut list,
                            );
                        }
                    }
                }
            }
            list
        })
    }

    /// A candidate with each number of loader threads.
    fn with_loaders(&self, outline: &Outline, judged: &Judged, choices: Choices, list: &mut Vec<Candidate>) {
        let compute = outline.work(judged, &self.scale(&choices), choices.loss_chunk).seconds(&self.terms.rates);
        for loader_threads in self.loaders(compute) {
            list.push(self.weigh(outline, judged, Choices { loader_threads, ..choices }));
        }
    }

    /// Loader threads that are tried: as many as an update of so many seconds wants, and one.
    fn loaders(&self, compute: f64) -> impl Iterator<Item = usize> {
        let wanted = self.wanted_threads(compute);
        let one = (wanted > 1 && self.pins.loader_threads.is_none()).then_some(1);
        std::iter::once(wanted).chain(one)
    }

    /// What a candidate needs, as far as it is known.
    fn size(&self, candidate: &Candidate) -> Bytes {
        self.sizes.borrow().get(&candidate.choices).copied().unwrap_or(candidate.least)
    }

    /// Places a candidate unless it was: its size, and whether that was known.
    fn sized(&self, candidate: &Candidate) -> (Sized, bool) {
        let Candidate { choices, seconds, .. } = *candidate;
        let known = self.sizes.borrow().get(&choices).copied();
        let peak = known.unwrap_or_else(|| {
            let found = self.place(choices);
            let peak = found.ram.peak;
            self.last.set(Some(found));
            peak
        });
        (Sized { choices, peak, seconds }, known.is_some() || peak == candidate.least)
    }

    /// The program of a candidate.
    pub fn place(&self, choices: Choices) -> Found {
        let last = self.last.take().filter(|found| found.choices == choices);
        last.unwrap_or_else(|| {
            let program = compile(self.job, &choices);
            let snapshot = self.snapshot_held();
            let ram = self.ram(&choices, &program, snapshot);
            self.sizes.borrow_mut().insert(choices, ram.peak);
            Found { choices, program, ram, snapshot }
        })
    }

    fn ram(&self, choices: &Choices, program: &Program, snapshot: bool) -> Footprint {
        let beside = self.beside(choices, &program.store, snapshot);
        footprint::ram(program, &beside, &self.terms.overheads, self.terms.ram)
    }

    /// Adds a snapshot where saves happen and there is room for it. It comes last, so that it makes no step slower.
    pub fn with_snapshot(&self, found: Found) -> Found {
        if found.snapshot || !self.terms.saves || self.pins.snapshot.is_some() {
            return found;
        }
        let ram = self.ram(&found.choices, &found.program, true);
        if ram.peak <= self.terms.ram { Found { ram, snapshot: true, ..found } } else { found }
    }

    /// The one that is least by a measure among those that a test lets pass, placed. A size that placing corrects may let
    /// another one win.
    fn settle<K: PartialOrd>(
        &self,
        pass: impl Fn(Bytes, f64) -> bool,
        measure: impl Fn(Bytes, f64) -> K,
    ) -> Option<Sized> {
        loop {
            let mut best: Option<(K, Candidate)> = None;
            for candidate in self.candidates() {
                let size = self.size(candidate);
                if !pass(size, candidate.seconds) {
                    continue;
                }
                let key = measure(size, candidate.seconds);
                if best.as_ref().is_none_or(|(least, _)| key < *least) {
                    best = Some((key, *candidate));
                }
            }
            let (sized, final_size) = self.sized(&best?.1);
            if final_size {
                return Some(sized);
            }
        }
    }

    /// The smallest plan within `SLACK` of the fastest that needs no more than `ram`.
    pub fn within(&self, ram: Bytes) -> Option<Sized> {
        let fastest = self.settle(|size, _| size <= ram, |size, seconds| (seconds, size))?;
        let limit = fastest.seconds * SLACK;
        self.settle(|size, seconds| size <= ram && seconds <= limit, |size, seconds| (size, seconds))
    }

    /// The plan below which nothing is found: one byte less than it needs is too little.
    pub fn least(&self) -> Sized {
        self.settle(|_, _| true, |size, seconds| (size, seconds)).expect("there is at least one candidate")
    }

    /// The fastest plan without a budget; the smallest of them.
    pub fn fastest(&self) -> Sized {
        self.settle(|_, _| true, |size, seconds| (seconds, size)).expect("there is at least one candidate")
    }

    /// The smallest plan that needs more than `ram` and is faster by more than the slack.
    pub fn next_faster(&self, ram: Bytes, seconds: f64) -> Option<Sized> {
        self.settle(|size, s| size > ram && s * SLACK < seconds, |size, s| (size, s))
    }
}
