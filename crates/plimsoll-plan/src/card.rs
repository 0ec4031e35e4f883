//! The choice of a plan on a card: the fastest that fits its memory, at the same effective batch.
//!
//! Tapes are short to write and to place, so candidates are written out; how much is recomputed is found by halving, since
//! more of it never takes more memory. Seconds are a roofline: products at the card's rate, all else by the bytes it moves.

mod cost;
mod explain;
mod series;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choices::Choices;
use crate::choose::{Decision, Pins, Plan, Terms, Verdict};
use crate::dtype::Dtype;
use crate::footprint::{self, Beside, CardOverheads, Footprint};
use crate::program::{Job, Program, compile};
use crate::search::loader_threads;
use crate::snapshot::snapshot_bytes;
use crate::spec::{ModelSpec, SeriesSpec};
use cost::{flops_per_update, seconds};
pub(crate) use explain::remedies;

/// What is known of a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardTerms {
    /// Memory of the card that the run may use, context and all.
    pub vram: Bytes,
    /// Memory that the card has: a budget above it is no remedy.
    pub vram_there: Bytes,
    /// What it holds besides the arena.
    pub overheads: CardOverheads,
    /// How fast it is.
    pub rates: CardRates,
    /// Streaming multiprocessors.
    pub processors: usize,
}

/// How fast a card is, a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardRates {
    /// Floating-point operations of large products in the form of activations.
    pub flops: f64,
    /// Bytes to and from its memory.
    pub bandwidth: f64,
    /// Launches out of a graph.
    pub launches: f64,
    /// Bytes from pinned RAM to the card.
    pub to_card: f64,
    /// And back.
    pub from_card: f64,
}

impl CardRates {
    fn all(&self) -> [f64; 5] {
        [self.flops, self.bandwidth, self.launches, self.to_card, self.from_card]
    }

    /// Whether a card can be like this.
    pub fn validate(&self) -> bool {
        self.all().iter().all(|rate| rate.is_finite() && *rate >= 1.0)
    }

    /// Each to the nearest eighth of an octave, so that noise seldom changes a plan. Cards repeat themselves to a few percent.
    pub fn rounded(&self) -> CardRates {
        let eighth = |rate: f64| ((rate.log2() * 8.0).round() / 8.0).exp2();
        let [flops, bandwidth, launches, to_card, from_card] = self.all().map(eighth);
        CardRates { flops, bandwidth, launches, to_card, from_card }
    }
}

/// Rows of a micro-batch that are enough for any card, and few enough for every grid.
const MOST_ROWS: usize = 1 << 17;

/// Rows of logits that are tried.
const CHUNKS: [usize; 5] = [4096, 2048, 512, 128, 64];

/// Of two plans whose seconds are nearer than this the smaller is taken. Unlike RAM, what is left of a card serves nobody, so it
/// is only what the model of costs cannot tell apart.
const SLACK: f64 = 1.005;

struct Candidate {
    choices: Choices,
    vram: Bytes,
    seconds: f64,
}

/// Chooses a plan on a card.
pub(crate) fn decide(job: &Job, terms: &Terms, card: &CardTerms) -> Decision {
    let pins = terms.held.unwrap_or(terms.pins);
    let search = Search { job, card, pins };
    let frames = frames(job, &pins, 1);
    let smallest = search.smallest(&frames);
    let (free, found) = match smallest.vram.0 > card.vram.0 + card.vram.0 / NEARLY {
        true => (None, None),
        false => search.within(frames),
    };
    let mut chosen = found.unwrap_or(smallest);
    // Of the host's threads, those that keep the card fed; no tape depends on them.
    let tokens =
        (job.effective_batch * (job.source_len + if job.spec.decoder().is_some() { 0 } else { job.target_len })) as f64;
    let wanted =
        || loader_threads(tokens / chosen.seconds, terms.loader_rate, job.threads.min(terms.most_loader_threads));
    let threads = pins.loader_threads.unwrap_or_else(wanted);
    chosen.choices.loader_threads = threads;
    let program = compile(job, &chosen.choices);
    let mut plan = describe(job, terms, card, &chosen, &program);
    let as_free = |free: &Candidate| Choices { loader_threads: threads, ..free.choices } == chosen.choices;
    let again = [pins.recompute, pins.recompute_attention, pins.recompute_feed_forward, pins.lstm_every];
    let pinned = again.iter().any(Option::is_some);
    if let Some(free) = free.filter(|free| plan.verdict == Verdict::Fits && !pinned && !as_free(free)) {
        plan.cuts = explain::cuts(job, &free, &chosen);
        plan.next_faster = explain::next_faster(&free, &chosen, card.vram);
    }
    Decision { plan, program, job: job.clone() }
}

/// A budget that the smallest plan misses by more than one part in so many is missed by every plan: which one is the smallest
/// is known without trying all of them, but for what the sizes of tables and tiles add.
const NEARLY: u64 = 50;

struct Search<'a> {
    job: &'a Job,
    card: &'a CardTerms,
    pins: Pins,
}

impl Search<'_> {
    fn candidate(&self, choices: Choices) -> Candidate {
        let program = compile(self.job, &choices);
        let vram = footprint::vram(&program, &self.card.overheads, self.card.vram).peak;
        Candidate { choices, vram, seconds: seconds(self.job, &program, self.card) }
    }

    /// A frame with less and less kept for the backward pass.
    fn levels(&self, frame: Choices) -> Vec<Choices> {
        if let Some(spec) = self.job.spec.series() {
            return series::levels(spec, &self.pins, frame);
        }
        let blocks = self.job.spec.blocks();
        let Pins { recompute, recompute_attention, recompute_feed_forward, .. } = self.pins;
        match (recompute, recompute_attention, recompute_feed_forward) {
            (None, None, None) => (0..=2 * blocks).map(|level| frame.on_card_rung(level, blocks)).collect(),
            (recompute, attention, feed_forward) => {
                let recompute = recompute.unwrap_or(0).min(blocks);
                let recompute_feed_forward = feed_forward.unwrap_or(0).min(blocks - recompute);
                let recompute_attention = attention.unwrap_or(0).min(blocks - recompute - recompute_feed_forward);
                vec![Choices { recompute, recompute_attention, recompute_feed_forward, ..frame }]
            }
        }
    }

    /// The plan that keeps the least of the fewest samples.
    fn smallest(&self, frames: &[Choices]) -> Candidate {
        let size = |frame: &Choices| (frame.micro_batch, frame.loss_chunk);
        // Not every micro-batch can be swept, so the least of each way may be another.
        let kept = [false, true].into_iter().flat_map(|swept| {
            let of_way = frames.iter().filter(move |frame| frame.optimizer_in_backward == swept);
            let least = of_way.clone().map(size).min();
            of_way.filter(move |frame| Some(size(frame)) == least).filter_map(|frame| self.levels(*frame).pop())
        });
        let smallest = kept.map(|choices| self.candidate(choices)).min_by_key(|candidate| candidate.vram);
        smallest.expect("there is at least one frame")
    }

    /// The least recompute with which a frame fits.
    fn fit(&self, frame: Choices) -> Option<Candidate> {
        let levels = self.levels(frame);
        let fits = |candidate: &Candidate| candidate.vram <= self.card.vram;
        let mut found = self.candidate(*levels.last()?);
        if !fits(&found) {
            return None;
        }
        // More recompute takes no more memory.
        let (mut low, mut high) = (0, levels.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            let candidate = self.candidate(levels[middle]);
            if fits(&candidate) {
                (found, high) = (candidate, middle);
            } else {
                low = middle + 1;
            }
        }
        Some(found)
    }

    /// The fastest plan of all, and the smallest within reach of the fastest that fits.
    fn within(&self, frames: Vec<Choices>) -> (Option<Candidate>, Option<Candidate>) {
        let mut free: Vec<Candidate> = frames.into_iter().map(|frame| self.candidate(frame)).collect();
        free.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let (mut fitting, mut fastest): (Vec<Candidate>, f64) = (Vec::new(), f64::INFINITY);
        for frame in &free {
            // Recompute only adds to what a frame takes: this one and all that follow are too slow.
            if frame.seconds > fastest * SLACK {
                break;
            }
            let Some(candidate) = self.fit(frame.choices) else { continue };
            fastest = fastest.min(candidate.seconds);
            fitting.push(candidate);
        }
        let near = fitting.into_iter().filter(|c| c.seconds <= fastest * SLACK);
        (free.into_iter().next(), near.min_by_key(|c| c.vram))
    }
}

/// Everything that is chosen but recompute.
fn frames(job: &Job, pins: &Pins, loader_threads: usize) -> Vec<Choices> {
    let batch = job.effective_batch;
    let rows = job.source_len.max(job.target_len);
    let micro: Vec<usize> = match pins.micro_batch {
        Some(n) => vec![n],
        // Where the micro-batch is part of the result, it is the whole batch.
        None if job.spec.series().is_some_and(SeriesSpec::batch_matters) => vec![batch],
        None => (1..=batch).rev().filter(|n| batch.is_multiple_of(*n) && (*n == 1 || n * rows <= MOST_ROWS)).collect(),
    };
    let mut list = Vec::new();
    for micro_batch in micro {
        // In f16 a gradient may overflow in any step: none of them may have been used before all have been seen.
        let late = job.clip || job.device.cuda().is_none_or(|form| form.activations != Dtype::F16);
        let may = late && job.may_update_in_backward(micro_batch);
        let ways = match pins.optimizer_in_backward {
            Some(on) => vec![on && may],
            None if may => vec![false, true],
            None => vec![false],
        };
        let rows = micro_batch * job.target_len;
        let mut chunks: Vec<usize> = match pins.loss_chunk {
            // A loss without rows of logits has no chunks.
            _ if job.spec.series().is_some() => vec![rows],
            Some(n) => vec![n.min(rows)],
            None => CHUNKS.iter().map(|c: &usize| rows.min(*c)).collect(),
        };
        chunks.dedup();
        let leans = pins.lean.map_or(vec![false, true], |lean| vec![lean]);
        let norms = match (&job.spec, pins.keep_norms) {
            (ModelSpec::T5(_) | ModelSpec::Series(_), _) => vec![false],
            (_, Some(keep)) => vec![keep],
            (_, None) => vec![false, true],
        };
        for optimizer_in_backward in ways {
            for loss_chunk in &chunks {
                for keep_norms in &norms {
                    list.extend(leans.iter().map(|lean| Choices {
                        micro_batch,
                        recompute: 0,
                        recompute_attention: 0,
                        recompute_feed_forward: 0,
                        loss_chunk: *loss_chunk,
                        optimizer_in_backward,
                        loader_threads,
                        lean: *lean,
                        keep_norms: *keep_norms,
                        lstm_every: 0,
                    }));
                }
            }
        }
    }
    list
}

fn describe(job: &Job, terms: &Terms, card: &CardTerms, chosen: &Candidate, program: &Program) -> Plan {
    let choices = chosen.choices;
    let vram = footprint::vram(program, &card.overheads, card.vram);
    let loader = (terms.loader)(job.staged(&choices), choices.loader_threads);
    let ram_with = |snapshot: bool| {
        let snapshot = snapshot.then(|| snapshot_bytes(&program.store));
        let beside = Beside { loader, loader_threads: choices.loader_threads, snapshot };
        footprint::host_ram(program, &beside, &terms.overheads, terms.ram)
    };
    // A copy that is written while the card goes on, where saves happen and there is room; else the card waits for them.
    let asked = terms.held.unwrap_or(terms.pins).snapshot;
    let snapshot = terms.saves && asked.unwrap_or_else(|| ram_with(true).peak <= terms.ram);
    let ram = ram_with(snapshot);
    let disk = footprint::disk(program, &terms.disk_facts, terms.disk);
    let short = |f: &Footprint| f.peak.saturating_sub(f.budget);
    let missing = [&vram, &ram, &disk].into_iter().map(short).find(|bytes| *bytes > Bytes::ZERO);
    let verdict = if missing.is_some() { Verdict::TooBig } else { Verdict::Fits };
    Plan {
        verdict,
        effective_batch: job.effective_batch,
        micro_batch: choices.micro_batch,
        accumulation: job.effective_batch / choices.micro_batch,
        choices,
        snapshot,
        blocks: job.spec.blocks(),
        threads: job.threads,
        simd: job.simd,
        source_len: job.source_len,
        target_len: job.target_len,
        one_side: job.spec.t5().is_none(),
        windows: job.spec.series().is_some(),
        smallest: ram_with(terms.saves && terms.pins.snapshot == Some(true)).peak,
        ram,
        vram,
        disk,
        flops_per_update: flops_per_update(job, program),
        seconds_per_update: chosen.seconds,
        cuts: Vec::new(),
        next_faster: None,
        rungs: Vec::new(),
        shortfall: missing,
        would_fit: Vec::new(),
    }
}
