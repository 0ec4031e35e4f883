//! The diagnosis: what `doctor --json` prints and what the text is made from.
//!
//! Every key is always there; what is not known is `null` or empty. Kinds of causes, confidences and sources have the
//! names that the journal uses.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_launch::failure::FailureKind;
use plimsoll_launch::swap::SwapVerdict;
use plimsoll_machine::Bytes;
use plimsoll_recover::cause::{Confidence, Source};
use plimsoll_watch::Member;
use serde::Serialize;

/// What happened, why, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The run folder or the log.
    pub subject: PathBuf,
    /// When that was asked, in milliseconds since 1970; of a log, nothing.
    pub asked_unix_ms: Option<u64>,
    /// How it stands.
    pub status: Status,
    /// The story in one sentence.
    pub headline: String,
    /// How far it came; of a log, nothing.
    pub progress: Option<Progress>,
    /// Why it ended, where it ended badly.
    pub cause: Option<Finding>,
    /// What mattered, in order.
    pub timeline: Vec<Happening>,
    /// Work that has to be done again.
    pub lost: Option<Lost>,
    /// What was done about what happened.
    pub done: Vec<String>,
    /// Where the time went.
    pub pace: Option<Pace>,
    /// What to change, the most useful first.
    pub advice: Vec<Advice>,
    /// Whether swap would have helped, where memory was short.
    pub swap: Option<SwapVerdict>,
    /// The trainer that was guarded, where it is not our own.
    pub trainer: Option<TrainerStory>,
    /// The command that goes on.
    pub next: Option<String>,
    /// What is odd about the evidence itself.
    pub remarks: Vec<String>,
}

/// How a run stands, or what a log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A process of the run is alive.
    Running,
    /// All steps are done.
    Finished,
    /// It stopped as it was asked to, and can go on.
    Stopped,
    /// It died, and something tells why.
    Died,
    /// It is dead, and nothing tells why.
    DeadWithoutAWitness,
    /// It ended before a worker recorded anything.
    NotStarted,
    /// The log tells of a death.
    LogOfADeath,
    /// The log tells of none.
    LogWithoutADeath,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The last step that was done.
    pub step: u64,
    /// Steps to do.
    pub total_steps: Option<u64>,
    /// The newest whole checkpoint's step; 0 for none.
    pub saved_step: u64,
    /// When the journal was last written to.
    pub last_unix_ms: Option<u64>,
}

/// A cause and its grounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind, as the journal names it.
    pub kind: String,
    /// The kind in words.
    pub told: String,
    /// How sure that is.
    pub confidence: Confidence,
    /// Who found it.
    pub found_by: FoundBy,
    /// The process that it began with, of somebody else's trainer.
    pub culprit: Option<String>,
    /// The kind with its details, of somebody else's trainer.
    pub detail: Option<FailureKind>,
    /// The facts.
    pub because: Vec<Ground>,
    /// What was looked for and not found, or could not be looked at.
    pub missing: Vec<String>,
}

/// Who found a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// The supervisor, when it happened.
    Supervisor,
    /// The worker's own last words in the journal.
    Journal,
    /// This program, from what the machine still shows.
    Doctor,
    /// This program, from a log.
    Log,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ground {
    /// Who says so, where that is known.
    pub source: Option<Source>,
    /// The log.
    pub file: Option<PathBuf>,
    /// The line of it.
    pub line: Option<usize>,
    /// What.
    pub text: String,
}

/// Something that mattered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Happening {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// After which step, where that is known.
    pub step: Option<u64>,
    /// The sort: `start`, `plan`, `resume`, `pressure`, `death`, `decision`, `failed`, `skipped`, `not_saved`,
    /// `mirror`, `warning`, `stop`, `finish`, `gap`.
    pub what: &'static str,
    /// In words.
    pub text: String,
    /// How often in a row.
    pub times: u64,
}

/// Steps after the newest whole checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lost {
    /// How many.
    pub steps: u64,
    /// After which step; 0 for all.
    pub after_step: u64,
    /// How long they had taken.
    pub seconds: f64,
}

/// Something to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What, and why.
    pub text: String,
    /// The key of the job, or the knob of somebody else's trainer, that would do it.
    pub key: Option<&'static str>,
    /// Its new value.
    pub value: Option<String>,
}

/// The story of somebody else's trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainerStory {
    /// Its name, and what launches it.
    pub name: String,
    /// The command as the user typed it.
    pub command: String,
    /// Where it runs.
    pub folder: Option<PathBuf>,
    /// Its starts, in order.
    pub starts: Vec<Start>,
    /// What was asked for and is not so.
    pub not_as_asked: Vec<String>,
    /// What it is set to since the last start, by our names.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Its processes when last looked at.
    pub processes: Vec<Member>,
    /// What they took together then.
    pub ram_bytes: Option<Bytes>,
    /// The most that was seen.
    pub peak_ram_bytes: Option<Bytes>,
    /// Why there is no further start, where it was given up.
    pub given_up: Option<String>,
}

/// One start of somebody else's trainer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Start {
    /// Which, from 1.
    pub attempt: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How long it lived.
    pub seconds: f64,
    /// The last step that it told.
    pub step: Option<u64>,
    /// The whole command.
    pub command: String,
    /// What its environment got on top.
    pub env: BTreeMap<String, String>,
    /// What differs from the user's own command.
    pub changes: Vec<String>,
    /// The checkpoint that it went on from.
    pub from: Option<PathBuf>,
    /// The step of it.
    pub from_step: Option<u64>,
    /// The most RAM that it might take.
    pub limit_bytes: Option<Bytes>,
    /// `finished`, `stopped`, `died`, `gave_way` (to step up again), `running` or `unseen`.
    pub end: &'static str,
    /// Why it died.
    pub cause: Option<Finding>,
    /// What was done about it, and why.
    pub then: Option<String>,
    /// What was noticed while it ran.
    pub warnings: Vec<String>,
}

/// Where the time went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Steps that were measured, repeated ones included.
    pub steps: u64,
    /// Wall time that the journal covers, times between processes left out.
    pub wall_seconds: f64,
    /// Seconds by what they were spent on; they add up to the wall time.
    pub seconds: Split,
    /// The same as shares of the wall time.
    pub shares: Split,
    /// A step, in the middle.
    pub median_step_seconds: f64,
    /// Real tokens over the time of the steps.
    pub tokens_per_second: f64,
    /// The highest RAM seen between steps.
    pub ram_seen_bytes: Bytes,
    /// The plan's peak.
    pub ram_planned_bytes: Option<Bytes>,
    /// What is wrong with it; `fine` where nothing is.
    pub verdicts: Vec<Verdict>,
}

/// A time, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Split {
    /// Planning and loading.
    pub start: f64,
    /// Steps that waited for data.
    pub data: f64,
    /// Steps that computed.
    pub compute: f64,
    /// Steps that stood still for a save.
    pub save: f64,
    /// Evaluations.
    pub eval: f64,
    /// All else.
    pub between: f64,
}

/// A judgement of a run's pace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Which.
    pub name: Slow,
    /// With its numbers.
    pub text: String,
}

/// Why a run is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slow {
    /// Nothing is wrong.
    Fine,
    /// Too few steps, or too short a time, to judge.
    TooShort,
    /// Steps wait for data.
    LoaderBound,
    /// Steps wait for checkpoints.
    SaveBound,
    /// Much time goes into evaluations.
    EvalBound,
    /// Memory was in swap or stalled.
    Swapping,
    /// Steps became slower, or the CPU quota was used up.
    Throttled,
    /// Far less memory was used than planned.
    FarBelowPlan,
    /// More memory was used than planned.
    AbovePlan,
    /// Nothing has been recorded for a long time.
    Silent,
}
