//! A run as it is seen: one value that every screen shows, made from the journal and nothing else.
//!
//! Invariant: pure. The clock, and whether anybody still holds the run's lock, come in as values. Its size is bounded,
//! however long the journal: curves are thinned and of events the latest are kept. What a resume has undone
//! is not in the curves of losses; memory and time that were really used stay.

mod chronicle;
mod course;
mod curve;
mod fold;
mod ledger;
mod line;
mod tail;
mod told;
mod trainer;
pub(crate) mod words;

use std::collections::BTreeMap;

use plimsoll_machine::Bytes;
use serde::Serialize;

pub use chronicle::{EventLine, Tone};
pub use course::Split;
pub use tail::Tail;

use crate::{Record, number};
use curve::Curve;
use fold::Fold;

/// What is seen of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// When this was seen, in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// How the run stands.
    pub status: Status,
    /// Since when it stands so.
    pub since_unix_ms: Option<u64>,
    /// Why it stopped or died, as far as the journal knows.
    pub why: Option<String>,
    /// When the journal's last line was written.
    pub last_unix_ms: Option<u64>,
    /// What the run is.
    pub run: Option<RunFacts>,
    /// The trainer that is guarded, where it is not our own.
    pub trainer: Option<TrainerView>,
    /// Steps that are done and count.
    pub step: u64,
    /// Steps to do; 0 while nobody has said.
    pub total_steps: u64,
    /// Time left at the pace since the worker began, evaluations and saves included; only of a running run.
    pub eta_seconds: Option<f64>,
    /// Time in which a worker was there, interruptions left out.
    pub running_seconds: f64,
    /// The rate over the latest steps.
    pub tokens_per_second: Option<f64>,
    /// Seconds a step since the worker began, evaluations and saves included.
    pub seconds_per_step: Option<f64>,
    /// The last step, where it was not undone.
    pub latest: Option<Latest>,
    /// The last evaluation that counts.
    pub evaluated: Option<Evaluated>,
    /// Training loss by step, thinned: `[step, loss]`.
    pub losses: Vec<(f64, f64)>,
    /// Evaluation loss by step, thinned: `[step, loss]`.
    pub evals: Vec<(f64, f64)>,
    /// Memory: used, planned, allowed.
    pub memory: Memory,
    /// Where the time went, since the run began.
    pub time: Split,
    /// Where the time of the latest steps went.
    pub time_lately: Split,
    /// How often what happened.
    pub counts: Counts,
    /// Incidents by kind.
    pub incident_kinds: BTreeMap<String, u64>,
    /// What the plan chose.
    pub choices: Option<Choices>,
    /// What happened, in order, the latest last.
    pub events: Vec<EventLine>,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Somebody holds its lock, or has just written.
    Running,
    /// It stopped and said so; it can be resumed.
    Stopped,
    /// All steps are done.
    Finished,
    /// Neither stopped nor finished, and nobody is there.
    Dead,
}

/// What the run said of itself when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunFacts {
    /// The program's version.
    pub version: String,
    /// Samples per weight update.
    pub effective_batch: u64,
    /// Engine threads.
    pub threads: u64,
    /// The SIMD level that the kernels use.
    pub simd: String,
}

/// Somebody else's trainer, as it was last started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrainerView {
    /// Its name, and what launches it.
    pub name: String,
    /// Which start this is, from 1.
    pub start: u64,
    /// Samples per rank and forward pass.
    pub batch: Option<u64>,
    /// Micro-batches per weight update.
    pub accumulation: Option<u64>,
    /// What differs from the user's own command.
    pub changes: Vec<String>,
    /// Its processes when last looked at, the largest first.
    pub processes: Vec<ProcessView>,
}

/// A process of somebody else's trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    /// What it does: `rank 0`, `loader of rank 0`, `launcher`.
    pub role: String,
    /// Its number.
    pub pid: u32,
    /// In RAM, shared pages counted in full.
    pub rss_bytes: Bytes,
    /// Its fair share of RAM.
    pub pss_bytes: Option<Bytes>,
    /// On the cards.
    pub vram_bytes: Option<Bytes>,
}

/// The last step that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latest {
    /// Which, from 1.
    pub step: u64,
    /// Mean loss over its target tokens.
    #[serde(with = "number")]
    pub loss: f64,
    /// The learning rate; 0 where the optimizer takes its own.
    #[serde(with = "number")]
    pub lr: f64,
    /// The gradient's norm before clipping.
    #[serde(with = "number::option")]
    pub grad_norm: Option<f64>,
    /// Its wall time.
    #[serde(with = "number")]
    pub seconds: f64,
}

/// An evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluated {
    /// After which step.
    pub step: u64,
    /// Mean loss over the target tokens.
    #[serde(with = "number")]
    pub loss: f64,
    /// BLEU-4, 0 to 100, where answers were generated.
    #[serde(with = "number::option")]
    pub bleu: Option<f64>,
    /// Share of answers that are exactly right, 0 to 1.
    #[serde(with = "number::option")]
    pub exact: Option<f64>,
    /// Share of classes that are right, 0 to 1, of series.
    #[serde(with = "number::option")]
    pub accuracy: Option<f64>,
    /// The mean of the F1 of the classes, 0 to 1.
    #[serde(with = "number::option")]
    pub macro_f1: Option<f64>,
}

/// Memory: used, planned, allowed. What nobody has measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// RAM in use, all processes, when last looked at.
    pub used_bytes: Option<Bytes>,
    /// The most that any record of the journal saw in use.
    pub seen_peak_bytes: Option<Bytes>,
    /// The planned peak.
    pub planned_bytes: Option<Bytes>,
    /// The budget that the plan was made for; of somebody else's trainer, the limit of its cgroup.
    pub budget_bytes: Option<Bytes>,
    /// The smallest plan with the same results.
    pub smallest_bytes: Option<Bytes>,
    /// What could still be taken, under all limits.
    pub headroom_bytes: Option<Bytes>,
    /// The worker's swap.
    pub swap_bytes: Option<Bytes>,
    /// On the card, all included.
    pub vram_bytes: Option<Bytes>,
    /// The machine's swapping, in and out, per second.
    pub swapping_bytes_per_second: Option<Bytes>,
    /// PSI `some avg10`, percent.
    pub stall_some: Option<f64>,
    /// PSI `full avg10`, percent.
    pub stall_full: Option<f64>,
    /// Free on the run folder's file system.
    pub disk_free_bytes: Option<Bytes>,
    /// RAM in use, thinned: `[running seconds, bytes]`.
    pub used: Vec<(f64, f64)>,
    /// The plans that held one after another.
    pub plans: Vec<PlanFrom>,
    /// The lines of the plan, in its order.
    pub parts: Vec<PartView>,
}

/// A plan and from when it held.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanFrom {
    /// From when, in running seconds.
    pub from_seconds: f64,
    /// The planned peak; absent where nobody planned.
    pub planned_bytes: Option<Bytes>,
    /// The budget, where it is known.
    pub budget_bytes: Option<Bytes>,
}

/// A line of the plan, beside what was measured of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartView {
    /// Its name.
    pub name: String,
    /// Planned; absent for what was measured without being planned.
    pub planned_bytes: Option<Bytes>,
    /// Measured last; absent where nobody can measure it alone.
    pub used_bytes: Option<Bytes>,
}

/// How often what happened, over the whole journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Updates skipped for numbers that were not finite, and not undone by a resume.
    pub skipped: u64,
    /// Workers that the supervisor started again by itself.
    pub restarts: u64,
    /// Deaths and failures of a worker.
    pub incidents: u64,
    /// Checkpoints.
    pub saved: u64,
    /// Saves that were not done.
    pub not_saved: u64,
    /// Checkpoints and models that are whole at the mirror.
    pub mirrored: u64,
    /// Times that the mirror could not be reached.
    pub mirror_troubles: u64,
    /// Evaluations.
    pub evaluations: u64,
    /// Warnings.
    pub warnings: u64,
    /// Lines of the journal that are no record.
    pub unreadable: u64,
}

/// What the plan chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Choices {
    /// Samples per micro-batch.
    pub micro_batch: u64,
    /// Micro-batches per update.
    pub accumulation: u64,
    /// Blocks computed twice.
    pub recompute: u64,
    /// Whether checkpoints are written in the background.
    pub snapshot: bool,
}

impl View {
    /// The view that a whole journal gives. `plan` has the plan's lines in their order (the journal's are by name);
    /// `alive` says whether somebody holds the run's lock.
    pub fn of(records: &[Record], plan: &[(String, Bytes)], now_unix_ms: u64, alive: bool) -> View {
        let mut fold = Fold::default();
        records.iter().for_each(|record| fold.take(record));
        fold.view(plan, now_unix_ms, alive)
    }

    /// How long the journal of a running run has been silent.
    pub fn silent_seconds(&self) -> f64 {
        self.last_unix_ms.map_or(0.0, |last| self.now_unix_ms.saturating_sub(last) as f64 / 1e3)
    }
}

#[cfg(test)]
#[path = "view/view_test.rs"]
mod tests;
