//! The choice: the smallest plan within 3 % of the fastest that fits, at the same effective batch.
//!
//! What the search finds becomes a plan: with the knobs that were turned, and, where it does not fit, what would.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::choices::Choices;
use crate::cost::Rates;
use crate::footprint::{self, DiskFacts, Footprint, Overheads};
use crate::program::{Job, Program};
pub use crate::remedy::Remedy;
use crate::remedy::remedies;
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
    /// Rows of logits at a time.
    pub loss_chunk: Option<usize>,
    /// Updates inside the backward pass.
    pub optimizer_in_backward: Option<bool>,
    /// Threads of the loader.
    pub loader_threads: Option<usize>,
    /// Checkpoints are written in the background, from a copy; heeded where the run saves on its way.
    pub snapshot: Option<bool>,
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
    /// What an earlier plan chose, where the run goes on under it: holds in place of `pins`.
    pub held: Option<Pins>,
    /// The run saves on its way, not only at its end.
    pub saves: bool,
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
    let search = Search::new(job, terms, terms.held.unwrap_or(terms.pins));
    let least = match terms.held {
        None => search.least(),
        Some(_) => Search::new(job, terms, terms.pins).least(),
    };
    let found = search.within(terms.ram).unwrap_or_else(|| {
        let choices = if terms.held.is_none() { least.choices } else { search.least().choices };
        search.place(choices)
    });
    // The search goes by bounds: what was found can be a little below its least.
    let smallest = if terms.held.is_none() { least.peak.min(found.ram.peak) } else { least.peak };
    let found = search.with_snapshot(found);
    let disk = footprint::disk(&found.program, &terms.disk_facts, terms.disk);
    let plan = describe(&search, &found, disk, smallest);
    Decision { plan, program: found.program }
}

fn describe(search: &Search, found: &Found, disk: Footprint, smallest: Bytes) -> Plan {
    let (choices, ram) = (found.choices, found.ram.clone());
    let fits = ram.peak <= ram.budget && disk.peak <= disk.budget;
    let verdict = if fits { Verdict::Fits } else { Verdict::TooBig };
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
        snapshot: found.snapshot,
        blocks: search.blocks(),
        threads: job.threads,
        simd: job.simd,
        source_len: job.source_len,
        target_len: job.target_len,
        ram,
        smallest,
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
