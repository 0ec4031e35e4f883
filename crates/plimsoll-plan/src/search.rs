//! The search: candidates, each a full set of same-result choices, judged by the tape that the engine would run.
//!
//! A candidate is first judged without placing, by a lower bound; the placement has the last word. Outlines of tapes are
//! kept for the length of a search: T5-base is planned, its smallest plan included, in 20 to 30 ms
//! (`planning_t5_base_is_timed` of the binary's contract tests; on busy cores).

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

use plimsoll_machine::Bytes;

use crate::choices::Choices;
use crate::choose::{Pins, Terms};
use crate::cost::Work;
use crate::footprint::{self, Beside, Footprint};
use crate::outline::Outline;
use crate::program::{Job, Program, compile, store_of};
use crate::snapshot::snapshot_bytes;
use crate::tape::Store;

/// Slack against the fastest plan that is traded for memory.
const SLACK: f64 = 1.03;

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

/// The smallest candidate, and what it needs.
#[derive(Clone, Copy)]
pub(crate) struct Least {
    pub choices: Choices,
    pub peak: Bytes,
}

/// Loader threads that keep twice ahead of what the engine eats; one at least, and no more than the cores.
pub fn loader_threads(tokens_per_second: f64, rate_of_one: f64, cores: usize) -> usize {
    ((2.0 * tokens_per_second / rate_of_one.max(1.0)).ceil() as usize).clamp(1, cores.max(1))
}

/// A search over one job's choices.
pub(crate) struct Search<'a> {
    pub job: &'a Job,
    pub terms: &'a Terms<'a>,
    /// What is held fixed.
    pins: Pins,
    /// Threads of the loader.
    loader_threads: usize,
    /// With gradients, and without.
    stores: [OnceCell<Store>; 2],
    /// By micro-batch, recompute, and whether the update is in the backward pass.
    outlines: RefCell<HashMap<(usize, usize, bool), Outline>>,
}

impl<'a> Search<'a> {
    pub fn new(job: &'a Job, terms: &'a Terms<'a>, pins: Pins) -> Search<'a> {
        let (stores, outlines) = (Default::default(), RefCell::default());
        let mut search = Search { job, terms, pins, loader_threads: 1, stores, outlines };
        search.loader_threads = pins.loader_threads.unwrap_or_else(|| {
            let seconds = search.work(&search.smallest()).seconds(&terms.rates);
            let tokens = (job.effective_batch * (job.source_len + job.target_len)) as f64;
            loader_threads(tokens / seconds, terms.loader_rate, job.threads)
        });
        search
    }

    fn outlined<R>(&self, choices: &Choices, read: impl FnOnce(&Outline, &Store) -> R) -> R {
        let in_backward = choices.optimizer_in_backward;
        let store = self.stores[usize::from(in_backward)].get_or_init(|| store_of(self.job, in_backward));
        let mut outlines = self.outlines.borrow_mut();
        let key = (choices.micro_batch, choices.recompute, in_backward);
        read(outlines.entry(key).or_insert_with(|| Outline::of(self.job, store, choices)), store)
    }

    /// Work of one update.
    pub fn work(&self, choices: &Choices) -> Work {
        let accumulation = self.job.effective_batch / choices.micro_batch;
        self.outlined(choices, |outline, store| outline.work(store, choices.loss_chunk, accumulation))
    }

    pub fn judge(&self, choices: Choices) -> Candidate {
        let (words, beside) = self.outlined(&choices, |outline, store| {
            (outline.least(self.job, store, choices.loss_chunk), self.beside(&choices, store, self.snapshot_held()))
        });
        let seconds = self.work(&choices).seconds(&self.terms.rates);
        let least = footprint::ram_total(Bytes(words as u64 * 4), &beside, self.job.threads, &self.terms.overheads);
        Candidate { choices, least, seconds }
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

    /// Every combination but recompute, which is searched.
    pub fn frames(&self) -> Vec<Choices> {
        let pins = &self.pins;
        let mut frames = Vec::new();
        for micro_batch in self.micro_batches() {
            let rows = micro_batch * self.job.target_len;
            let mut chunks: Vec<usize> = match pins.loss_chunk {
                Some(n) => vec![n.min(rows)],
                None => [2048, 1024, 512, 256, 128, 64, 32].iter().map(|c: &usize| rows.min(*c)).collect(),
            };
            chunks.dedup();
            let may = self.job.may_update_in_backward(micro_batch);
            let ways: Vec<bool> = match pins.optimizer_in_backward {
                Some(on) => vec![on && may],
                None if may => vec![true, false],
                None => vec![false],
            };
            for loss_chunk in &chunks {
                for optimizer_in_backward in &ways {
                    frames.push(Choices {
                        micro_batch,
                        recompute: pins.recompute.unwrap_or(0),
                        recompute_attention: 0,
                        loss_chunk: *loss_chunk,
                        optimizer_in_backward: *optimizer_in_backward,
                        loader_threads: self.loader_threads,
                    });
                }
            }
        }
        frames
    }

    /// The least recompute with which a frame's lower bound fits.
    fn least_that_fits(&self, frame: Choices, ram: Bytes) -> Option<Candidate> {
        let fits = |c: &Candidate| c.least <= ram;
        let none = self.judge(frame);
        if fits(&none) {
            return Some(none);
        }
        if self.pins.recompute.is_some() {
            return None;
        }
        let all = self.judge(Choices { recompute: self.blocks(), ..frame });
        if !fits(&all) {
            return None;
        }
        let (mut low, mut high, mut best) = (0, self.blocks(), all);
        while high - low > 1 {
            let middle = self.judge(Choices { recompute: (low + high) / 2, ..frame });
            if fits(&middle) {
                (high, best) = (middle.choices.recompute, middle);
            } else {
                low = middle.choices.recompute;
            }
        }
        Some(best)
    }

    /// The most recompute that stays within `limit` seconds: less memory for time that we are willing to give.
    fn most_within(&self, from: Candidate, limit: f64) -> Candidate {
        if self.pins.recompute.is_some() || from.choices.recompute >= self.blocks() {
            return from;
        }
        let next = self.judge(Choices { recompute: from.choices.recompute + 1, ..from.choices });
        let each = next.seconds - from.seconds;
        if each <= 0.0 || from.seconds + each > limit {
            return from;
        }
        let more = ((limit - from.seconds) / each) as usize;
        let target = (from.choices.recompute + more).min(self.blocks());
        let most = self.judge(Choices { recompute: target, ..from.choices });
        if most.seconds <= limit && most.least < from.least { most } else { from }
    }

    pub fn place(&self, choices: Choices) -> Found {
        let program = compile(self.job, &choices);
        let snapshot = self.snapshot_held();
        let ram = self.ram(&choices, &program, snapshot);
        Found { choices, program, ram, snapshot }
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

    /// The smallest plan within `SLACK` of the fastest that needs no more than `ram`.
    pub fn within(&self, ram: Bytes) -> Option<Found> {
        let fitting: Vec<Candidate> = self.frames().into_iter().filter_map(|f| self.least_that_fits(f, ram)).collect();
        let fastest = fitting.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
        let limit = fastest * SLACK;
        let quick = fitting.iter().filter(|c| c.seconds <= limit);
        let mut ranked: Vec<Candidate> = quick.map(|c| self.most_within(*c, limit)).collect();
        ranked.sort_by(|a, b| a.least.cmp(&b.least).then(a.seconds.total_cmp(&b.seconds)));
        let mut rest: Vec<Candidate> = fitting.iter().filter(|c| c.seconds > limit).copied().collect();
        rest.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        for candidate in ranked.into_iter().chain(rest) {
            // Placement can need a little more than its lower bound: then a little more is computed again.
            let from = candidate.choices.recompute;
            let most = if self.pins.recompute.is_some() { from } else { self.blocks().min(from + 2) };
            for recompute in from..=most {
                let found = self.place(Choices { recompute, ..candidate.choices });
                if found.ram.peak <= ram {
                    return Some(found);
                }
            }
        }
        Some(self.place(self.smallest())).filter(|found| found.ram.peak <= ram)
    }

    /// The plan below which nothing is found: one byte less than it needs is too little. No program is kept meanwhile.
    pub fn least(&self) -> Least {
        let of = |found: Found| Least { choices: found.choices, peak: found.ram.peak };
        let mut least = of(self.place(self.smallest()));
        while let Some(smaller) = self.within(Bytes(least.peak.0 - 1)).map(of) {
            least = smaller;
        }
        least
    }

    /// The choices that should need the least memory, as far as they are free.
    fn smallest(&self) -> Choices {
        let pins = &self.pins;
        // A whole batch whose gradients never exist together can be smaller than one sample whose gradients are kept.
        let of = |micro_batch: usize| {
            let may = self.job.may_update_in_backward(micro_batch);
            Choices {
                micro_batch,
                recompute: pins.recompute.unwrap_or(self.blocks()),
                recompute_attention: 0,
                loss_chunk: pins.loss_chunk.unwrap_or(32).min(micro_batch * self.job.target_len),
                optimizer_in_backward: pins.optimizer_in_backward.unwrap_or(may) && may,
                loader_threads: self.loader_threads,
            }
        };
        let sizes = self.micro_batches();
        let ends = [sizes[sizes.len() - 1], sizes[0]];
        ends.into_iter().map(of).min_by_key(|c| self.judge(*c).least).expect("there is at least one size")
    }
}
