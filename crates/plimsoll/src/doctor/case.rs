//! All that the doctor knows of a run, as plain values: what [`super::gather`] read, and what tests make up.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_launch::failure::{Abilities, Failure};
use plimsoll_launch::swap::SwapFacts;
use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Evidence;
use plimsoll_watch::Record;

/// A run, as it was found.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The run folder, as the user named it.
    pub folder: PathBuf,
    /// The journal.
    pub records: Vec<Record>,
    /// Lines of the journal that are no records, from 1: damage, or a tail that a crash cut.
    pub damaged: Vec<usize>,
    /// The job's numbers that advice needs.
    pub job: Option<JobFacts>,
    /// The plan's.
    pub plan: Option<PlanFacts>,
    /// What a run of somebody else's trainer was asked to be.
    pub launch: Option<LaunchFacts>,
    /// Checkpoints on disk, by step.
    pub checkpoints: Vec<CheckpointFacts>,
    /// The moment of asking.
    pub now: Now,
}

/// What a job says that advice speaks of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFacts {
    /// The base learning rate; none where the optimizer takes its own.
    pub lr: Option<f64>,
    /// The gradient norm that is clipped at.
    pub clip_norm: Option<f64>,
    /// Updates between checkpoints.
    pub save_every: Option<u64>,
    /// Minutes between checkpoints.
    pub save_minutes: Option<u64>,
    /// Updates between evaluations.
    pub eval_every: Option<u64>,
    /// Checkpoints to keep.
    pub keep: u64,
}

/// What a plan says that advice speaks of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanFacts {
    /// The peak of RAM.
    pub ram_peak: Bytes,
    /// Threads that read and tokenise.
    pub loader_threads: u64,
    /// Threads that compute.
    pub threads: u64,
}

/// What a run of somebody else's trainer was asked to be, and what its folder holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchFacts {
    /// The user's command.
    pub words: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// What the trainer can do; none where its command cannot be understood any more.
    pub can: Option<Abilities>,
    /// Where the lines stand that deaths were judged by.
    pub places: BTreeMap<Place, PathBuf>,
}

/// A line of a start's logs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which start.
    pub attempt: u64,
    /// Which line.
    pub line: u64,
    /// What stands there.
    pub text: String,
}

/// A checkpoint on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointFacts {
    /// Its step.
    pub step: u64,
    /// Its length; none where it cannot be used.
    pub bytes: Option<Bytes>,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

/// The moment of asking.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Whether a process of the run lives.
    pub life: Life,
    /// What the machine still shows of a death that nobody saw.
    pub evidence: Option<Evidence>,
    /// What that was, for somebody else's trainer.
    pub failure: Option<Failure>,
    /// The machine as far as swap is concerned, with nobody's demand.
    pub swap: Option<SwapFacts>,
    /// Free on the run folder's file system.
    pub disk_free: Option<Bytes>,
    /// CPU time that the run's cgroup was refused.
    pub throttle: Option<Throttle>,
    /// Whether the model folder and the summary are there.
    pub model_is_there: bool,
}

/// Whether a process of the run lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// Nobody holds the run's lock.
    #[default]
    Dead,
    /// The process that took the lock lives.
    Alive {
        /// Its number.
        supervisor: u32,
    },
    /// The lock is held, but not by the process that took it: a worker or mirror that it left behind.
    Orphaned,
}

/// The CPU bandwidth of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Periods in which it wanted to run.
    pub periods: u64,
    /// Of them, those in which it was stopped for the rest.
    pub throttled: u64,
}
