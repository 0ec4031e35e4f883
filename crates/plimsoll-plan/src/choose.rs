//! The choice: the smallest plan within 3 % of the fastest that fits, at the same effective batch.
//!
//! What the search finds becomes a plan: with the knobs that were turned, and, where it does not fit, what would.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::card::{self, CardTerms};
use crate::choices::Choices;
use crate::cost::Rates;
use crate::device::Device;
use crate::explain::{self, cuts, next_faster};
pub use crate::explain::{Cut, NextFaster};
use crate::footprint::{self, DiskFacts, Footprint, Overheads};
use crate::program::{Job, Program};
pub use crate::remedy::Remedy;
use crate::remedy::remedies;
pub use crate::rung::{Variant, adapts, quantises, variants, with_rungs};
pub use crate::search::loader_threads;
use crate::search::{Found, Search};
use crate::tiles::Simd;

/// Choices that are held fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Samples in a micro-batch.
    pub micro_batch: Option<usize>,
    /// Blocks computed again.
    pub recompute: Option<usize>,
    /// Blocks behind those whose attention alone is; none where only `recompute` is held.
    pub recompute_attention: Option<usize>,
    /// Blocks behind those whose feed-forward part alone is, on a card; none where only `recompute` is held.
    pub recompute_feed_forward: Option<usize>,
    /// Rows of logits at a time.
    pub loss_chunk: Option<usize>,
    /// Updates inside the backward pass.
    pub optimizer_in_backward: Option<bool>,
    /// Threads of the loader.
    pub loader_threads: Option<usize>,
    /// Checkpoints are written in the background, from a copy; heeded where the run saves on its way.
    pub snapshot: Option<bool>,
    /// Compute threads; where they are not held, a job that does not fit is tried with fewer than it names.
    pub threads: Option<usize>,
    /// Weights are written out for each product, on a card.
    pub lean: Option<bool>,
    /// Outputs of norms stay for the backward pass, on a card.
    pub keep_norms: Option<bool>,
    /// How many steps apart an LSTM keeps its cells; 0: it keeps its gates.
    pub lstm_every: Option<usize>,
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
    /// Threads that the loader may have at most; the cores bound it too.
    pub most_loader_threads: usize,
    /// What the user holds fixed.
    pub pins: Pins,
    /// What an earlier plan chose, where the run goes on under it: holds in place of `pins`.
    pub held: Option<Pins>,
    /// The run saves on its way, not only at its end.
    pub saves: bool,
    /// Heap of the loader for a micro-batch and a number of threads.
    pub loader: &'a dyn Fn(usize, usize) -> Bytes,
    /// The card, for a job that runs on one.
    pub card: Option<CardTerms>,
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

fn is_false(said: &bool) -> bool {
    !said
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
    /// Checkpoints are written in the background, from a copy that the RAM has a line for.
    #[serde(default)]
    pub snapshot: bool,
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
    /// Samples have one side: source and target are the same tokens.
    #[serde(default)]
    pub one_side: bool,
    /// Samples are windows of series: `source_len` steps of numbers, no tokens.
    #[serde(default, skip_serializing_if = "is_false")]
    pub windows: bool,
    /// RAM over all processes.
    pub ram: Footprint,
    /// RAM of the smallest plan with the same result that the user's pins leave: what planning anew could come down to.
    #[serde(default)]
    pub smallest: Bytes,
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
    /// The smallest plan that is faster by more than a little and does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_faster: Option<NextFaster>,
    /// Changes of the result that were allowed and are taken, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rungs: Vec<String>,
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
    /// What is trained: the job as it was given, or as the plan's rungs changed it.
    pub job: Job,
}

/// Chooses. A plan that does not fit has the verdict `TooBig`, and the program of the smallest candidate.
pub fn choose(job: &Job, terms: &Terms) -> Decision {
    let mut decision = decide(job, terms);
    if decision.plan.verdict == Verdict::TooBig {
        decision.plan.would_fit = match terms.card.as_ref().filter(|_| job.device != Device::Cpu) {
            Some(card) => card::remedies(&decision.job, terms, card, &decision.plan),
            None => remedies(&decision.job, terms, &decision.plan),
        };
    }
    decision
}

/// Chooses without asking what else would fit. What the job allows is tried where nothing with the same result fits; a plan
/// that is held was chosen with it.
pub fn decide(job: &Job, terms: &Terms) -> Decision {
    let mut best = decide_same(job, terms);
    if best.plan.verdict == Verdict::Fits || terms.held.is_some() {
        return best;
    }
    for Variant { rungs, job } in variants(job) {
        let mut next = decide_same(&job, terms);
        next.plan.rungs = rungs;
        if next.plan.verdict == Verdict::Fits {
            return next;
        }
        let size = |plan: &Plan| (plan.vram.peak, plan.ram.peak);
        if size(&next.plan) < size(&best.plan) {
            best = next;
        }
    }
    best
}

/// The choice among plans with the same result. Every thread has a workspace of its own; half of them cost twice the time,
/// more than most other choices do, so fewer are looked at only where the plan is as slow as that, or does not fit.
fn decide_same(job: &Job, terms: &Terms) -> Decision {
    if let Some(card) = terms.card.as_ref().filter(|_| job.device.cuda().is_some()) {
        return card::decide(job, terms, card);
    }
    let mut counts = thread_counts(job, terms).into_iter();
    let (job, terms) = &at_threads(job, terms, counts.next().unwrap_or(job.threads));
    let (mut best, fastest) = decide_on(job, terms);
    let fewest = terms.pins.threads.unwrap_or(1);
    if terms.held.is_some() || fewest != job.threads {
        let (job, terms) = at_threads(job, terms, fewest);
        best.plan.smallest = Search::new(&job, &terms, terms.pins).least().peak;
    }
    for threads in counts {
        let fits = best.plan.ram.peak <= terms.ram;
        if fits && best.plan.seconds_per_update <= fastest * (job.threads as f64 / threads as f64) {
            break;
        }
        let (job, terms) = at_threads(job, terms, threads);
        let (mut next, _) = decide_on(&job, &terms);
        let better = match fits {
            true => next.plan.ram.peak <= terms.ram && next.plan.seconds_per_update < best.plan.seconds_per_update,
            false => next.plan.ram.peak < best.plan.ram.peak,
        };
        if better {
            let cut = explain::fewer_threads(&job, &best.plan, &next.plan);
            next.plan.cuts = std::mem::take(&mut best.plan.cuts);
            next.plan.cuts.push(cut);
            next.plan.smallest = best.plan.smallest;
            best = next;
        }
    }
    best
}

/// Numbers of threads that are tried, the most first: those that are held, or the job's, half of them, and so on.
pub(crate) fn thread_counts(job: &Job, terms: &Terms) -> Vec<usize> {
    match terms.held.unwrap_or(terms.pins).threads {
        Some(held) => vec![held],
        None => std::iter::successors(Some(job.threads), |n| Some(n / 2)).take_while(|n| *n > 0).collect(),
    }
}

/// The job on fewer threads; the machine is taken to be slower in proportion.
pub(crate) fn at_threads<'a>(job: &Job, terms: &Terms<'a>, threads: usize) -> (Job, Terms<'a>) {
    let rates = terms.rates.scaled(threads as f64 / job.threads as f64);
    (Job { threads, ..job.clone() }, Terms { rates, ..*terms })
}

/// The choice for this many threads, and the seconds of the fastest plan without a budget.
fn decide_on(job: &Job, terms: &Terms) -> (Decision, f64) {
    let search = Search::new(job, terms, terms.held.unwrap_or(terms.pins));
    let (least, fastest) = (search.least(), search.fastest());
    let smallest = least.peak;
    let within = search.within(terms.ram);
    let chosen = within.unwrap_or(least);
    let found = search.with_snapshot(search.place(chosen.choices));
    let cuts = cuts(&search, fastest, chosen);
    let next_faster = within.and_then(|chosen| next_faster(&search, chosen));
    let disk = footprint::disk(&found.program, &terms.disk_facts, terms.disk);
    let plan = Plan { cuts, next_faster, smallest, ..describe(&search, &found, chosen.seconds, disk) };
    (Decision { plan, program: found.program, job: job.clone() }, fastest.seconds)
}

fn describe(search: &Search, found: &Found, seconds_per_update: f64, disk: Footprint) -> Plan {
    let (choices, ram) = (found.choices, found.ram.clone());
    let fits = ram.peak <= ram.budget && disk.peak <= disk.budget;
    let verdict = if fits { Verdict::Fits } else { Verdict::TooBig };
    let job = search.job;
    // RAM first: a plan that is short of both says by how much it is short of what it names.
    let short = |f: &Footprint| f.peak.saturating_sub(f.budget);
    let missing = if short(&ram) > Bytes::ZERO { short(&ram) } else { short(&disk) };
    let shortfall = (verdict == Verdict::TooBig).then_some(missing);
    Plan {
        verdict,
        effective_batch: job.effective_batch,
        micro_batch: choices.micro_batch,
        accumulation: job.effective_batch / choices.micro_batch,
        choices,
        snapshot: found.snapshot,
        blocks: search.blocks(),
        threads: job.threads,
        simd: job.simd,
        source_len: job.source_len,
        target_len: job.target_len,
        one_side: job.spec.t5().is_none(),
        windows: job.spec.series().is_some(),
        ram,
        smallest: Bytes::ZERO,
        vram: Footprint::default(),
        disk,
        flops_per_update: search.work(&choices).flops,
        seconds_per_update,
        cuts: Vec::new(),
        next_faster: None,
        rungs: Vec::new(),
        shortfall,
        would_fit: Vec::new(),
    }
}
