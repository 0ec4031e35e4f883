//! The choice: the smallest plan within 3 % of the fastest that fits, at the same effective batch.
//!
//! What the search finds becomes a plan: with the knobs that were turned, and, where it does not fit, what would.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::cost::Rates;
use crate::footprint::{self, DiskFacts, Footprint, Overheads};
use crate::program::{Job, Program};
use crate::search::Search;
pub use crate::search::loader_threads;
use crate::t5::Choices;
use crate::tiles::Simd;
use crate::train::OptimizerSpec;

/// Choices that the user holds fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Samples in a micro-batch.
    pub micro_batch: Option<usize>,
    /// Blocks computed again.
    pub recompute: Option<usize>,
    /// Rows of logits at a time.
    pub loss_chunk: Option<usize>,
    /// Updates inside the backward pass.
    pub optimizer_in_backward: Option<bool>,
    /// Threads of the loader.
    pub loader_threads: Option<usize>,
}

/// What a plan is made from, besides the job.
pub struct Terms<'a> {
    /// RAM that the run may use.
    pub ram: Bytes,
    /// RAM that the machine can give now: a budget above it is no remedy.
    pub ram_there: Bytes,
    /// Disk that the run may use.
    pub disk: Bytes,
    /// Disk that there is.
    pub disk_there: Bytes,
    /// What the run leaves on disk.
    pub disk_facts: DiskFacts,
    /// What was measured or stated.
    pub overheads: Overheads,
    /// The machine's rates.
    pub rates: Rates,
    /// Tokens a second that one loader thread makes.
    pub loader_rate: f64,
    /// What the user holds fixed.
    pub pins: Pins,
    /// Heap of the loader for a micro-batch and a number of threads.
    pub loader: &'a dyn Fn(usize, usize) -> Bytes,
}

/// Does it fit?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Yes.
    Fits,
    /// No, by any same-result choice.
    TooBig,
}

/// One knob turned away from the fastest setting, with what it saved and cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// What was done.
    pub what: String,
    /// RAM saved.
    pub saved: i64,
    /// Time added, in percent.
    pub slower_percent: f64,
}

/// A change that would make the job fit; the planner tried it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What to change.
    pub change: String,
    /// RAM that the job would need then.
    pub ram_peak: Bytes,
}

/// What will be done, and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Does it fit?
    pub verdict: Verdict,
    /// Samples per update.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per update.
    pub accumulation: usize,
    /// Every choice.
    pub choices: Choices,
    /// Blocks of the model, to read `choices.recompute` against.
    pub blocks: usize,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set level.
    pub simd: Simd,
    /// Longest source, in tokens.
    pub source_len: usize,
    /// Longest target, in tokens.
    pub target_len: usize,
    /// RAM over all processes.
    pub ram: Footprint,
    /// Video memory; empty on the CPU.
    pub vram: Footprint,
    /// Disk.
    pub disk: Footprint,
    /// Floating-point operations of one update with full lengths.
    pub flops_per_update: f64,
    /// Seconds of one update by the cost model.
    pub seconds_per_update: f64,
    /// Knobs turned, against the fastest plan without a budget.
    pub cuts: Vec<Cut>,
    /// When too big: by how much, at the least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<Bytes>,
    /// When too big: what would make it fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_fit: Vec<Remedy>,
}

/// What a plan leaves to the engine: the same choices, placed.
pub struct Decision {
    /// For people and files.
    pub plan: Plan,
    /// For the engine.
    pub program: Program,
}

/// Chooses. A plan that does not fit has the verdict `TooBig`, and the program of the smallest candidate.
pub fn choose(job: &Job, terms: &Terms) -> Decision {
    let mut decision = decide(job, terms);
    if decision.plan.verdict == Verdict::TooBig {
        decision.plan.would_fit = remedies(job, terms, &decision.plan);
    }
    decision
}

/// Chooses without asking what else would fit.
pub fn decide(job: &Job, terms: &Terms) -> Decision {
    let search = Search::new(job, terms);
    let found = search.within(terms.ram).unwrap_or_else(|| search.least());
    let disk = footprint::disk(&found.program, &terms.disk_facts, terms.disk);
    let fits = found.ram.peak <= terms.ram && disk.peak <= terms.disk;
    let verdict = if fits { Verdict::Fits } else { Verdict::TooBig };
    Decision { plan: describe(&search, found.choices, found.ram, disk, verdict), program: found.program }
}

fn describe(search: &Search, choices: Choices, ram: Footprint, disk: Footprint, verdict: Verdict) -> Plan {
    let (job, terms) = (search.job, search.terms);
    let accumulation = job.effective_batch / choices.micro_batch;
    let work = search.work(&choices);
    // RAM first: a plan that is short of both says by how much it is short of what it names.
    let short = |f: &Footprint| f.peak.saturating_sub(f.budget);
    let missing = if short(&ram) > Bytes::ZERO { short(&ram) } else { short(&disk) };
    let shortfall = (verdict == Verdict::TooBig).then_some(missing);
    Plan {
        verdict,
        effective_batch: job.effective_batch,
        micro_batch: choices.micro_batch,
        accumulation,
        choices,
        blocks: search.blocks(),
        threads: job.threads,
        simd: job.simd,
        source_len: job.source_len,
        target_len: job.target_len,
        ram,
        vram: Footprint::default(),
        disk,
        flops_per_update: work.flops,
        seconds_per_update: work.seconds(&terms.rates),
        cuts: cuts(search, choices),
        shortfall,
        would_fit: Vec::new(),
    }
}

/// The knobs in which a choice differs from the fastest frame, one after the other.
fn cuts(search: &Search, chosen: Choices) -> Vec<Cut> {
    let fastest = search.frames().into_iter().map(|f| search.judge(f)).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(fastest) = fastest else { return Vec::new() };
    let mut now = fastest;
    let mut list = Vec::new();
    let mut turn = |what: String, choices: Choices| {
        if choices == now.choices {
            return;
        }
        let next = search.judge(choices);
        let saved = now.least.0 as i64 - next.least.0 as i64;
        list.push(Cut { what, saved, slower_percent: (next.seconds / now.seconds - 1.0) * 100.0 });
        now = next;
    };
    let batch = search.job.effective_batch;
    // A smaller micro-batch brings its own largest chunk and, with accumulation, gradients that are kept.
    let mut step = fastest.choices;
    step.micro_batch = chosen.micro_batch;
    step.optimizer_in_backward &= search.job.may_update_in_backward(chosen.micro_batch);
    step.loss_chunk = step.loss_chunk.min(chosen.micro_batch * search.job.target_len);
    turn(format!("micro-batch {} x {} accumulated", chosen.micro_batch, batch / chosen.micro_batch), step);
    step.optimizer_in_backward = chosen.optimizer_in_backward;
    let how =
        if chosen.optimizer_in_backward { "update in the backward pass" } else { "update after the backward pass" };
    turn(how.to_string(), step);
    step.loss_chunk = chosen.loss_chunk;
    turn(format!("loss {} rows at a time", chosen.loss_chunk), step);
    step.recompute = chosen.recompute;
    turn(format!("recompute {} of {} blocks", chosen.recompute, search.blocks()), step);
    list
}

/// What a remedy must leave over: the next planning measures program and heap anew, and some 200 KiB apart.
const SPARE: Bytes = Bytes::mib(1);

/// RAM that a job would need if it fits.
fn fits(job: &Job, terms: &Terms) -> Option<Bytes> {
    let found = Search::new(job, terms).within(terms.ram.saturating_sub(SPARE))?;
    (footprint::disk(&found.program, &terms.disk_facts, terms.disk).peak <= terms.disk).then_some(found.ram.peak)
}

/// Changes that would make the job fit, each tried.
fn remedies(job: &Job, terms: &Terms, plan: &Plan) -> Vec<Remedy> {
    let mut list = Vec::new();
    let mut offer = |change: String, job: &Job, terms: &Terms| {
        let ram_peak = fits(job, terms);
        list.extend(ram_peak.map(|ram_peak| Remedy { change, ram_peak }));
        ram_peak.is_some()
    };
    let (ram, disk) = (enough(plan.ram.peak), enough(plan.disk.peak));
    let (more_ram, more_disk) = (plan.ram.peak > terms.ram, plan.disk.peak > terms.disk);
    let wanted = [("RAM", more_ram, ram, terms.ram_there), ("disk", more_disk, disk, terms.disk_there)];
    let wanted = wanted.into_iter().filter(|(_, more, ..)| *more).map(|(what, _, enough, there)| {
        if enough <= there {
            format!("a {what} budget of {}", in_mib(enough))
        } else {
            format!("{} of free {what} (there are {} now)", in_mib(enough), in_mib(there))
        }
    });
    let budget = wanted.collect::<Vec<_>>().join(" and ");
    let larger = |now: Bytes, enough: Bytes, more: bool| if more { enough } else { now };
    offer(
        budget,
        job,
        &Terms { ram: larger(terms.ram, ram, more_ram), disk: larger(terms.disk, disk, more_disk), ..*terms },
    );
    if terms.disk_facts.keep > 1 && more_disk {
        offer("keep 1".into(), job, &Terms { disk_facts: DiskFacts { keep: 1, ..terms.disk_facts }, ..*terms });
    }
    if terms.pins != Pins::default() {
        offer("no pinned choices".into(), job, &Terms { pins: Pins::default(), ..*terms });
    }
    if matches!(job.optimizer, OptimizerSpec::AdamW { .. }) {
        let other = Job { optimizer: OptimizerSpec::adafactor(1e-3), ..job.clone() };
        offer("optimizer adafactor (another result)".into(), &other, terms);
    }
    if job.clip {
        offer("no clip_norm (another result)".into(), &Job { clip: false, ..job.clone() }, terms);
    }
    if job.eval.is_some() {
        offer("no evaluation during the run".into(), &Job { eval: None, ..job.clone() }, terms);
    }
    // The longest lengths, by halves, that fit.
    let (mut source, mut target) = (job.source_len, job.target_len);
    while source > 8 || target > 8 {
        (source, target) = ((source / 2).max(8.min(source)), (target / 2).max(8.min(target)));
        let shorter = Job { source_len: source, target_len: target, ..job.clone() };
        if offer(format!("max_len source {source}, target {target} (another result)"), &shorter, terms) {
            break;
        }
    }
    list
}

/// A little more than what is needed, in whole MiB.
fn enough(bytes: Bytes) -> Bytes {
    Bytes((bytes + SPARE).0.next_multiple_of(1 << 20))
}

/// In full, so that what is printed is enough: two decimals of a GiB can hide 5 MiB.
fn in_mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.0 >> 20)
}
