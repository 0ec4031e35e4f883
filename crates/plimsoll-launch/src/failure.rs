//! What a foreign trainer's death was: evidence and log in, kind out. Pure and total: any text gives an answer.
//!
//! `plimsoll_recover` weighs what the system saw (exit, counters, kernel and daemon logs). This module adds what only a
//! trainer's log tells: which rank, which card, which setting. An exit code alone classifies nothing (0 follows a
//! SIGTERM in Lightning, 1 an OOM kill under torchrun, 247 one under deepspeed), and echoes (timeouts, closed
//! connections, SIGTERM to siblings) never beat a first cause.
//!
//! It reads no file, and what to do about a failure is the ladder's business; [`advice()`] has the words for it.

pub mod advice;
mod cuda;
mod gist;
mod kind;
mod lines;
mod scene;
mod signs;
mod traceback;
mod victim;
mod weigh;

use std::fmt;

use plimsoll_recover::cause::{Cause, Confidence, Source};
use serde::{Deserialize, Serialize};

pub use advice::{Abilities, Advice, advice};
pub use cuda::{CardForm, CudaReport, Neighbour};
pub use gist::Gist;
pub use kind::{FailureKind, Killer, Victim};
pub use lines::{first_cause, tells};
pub use scene::{Log, LogSource, RankProcess, Resume, Scene, TrainerFacts, Watched};
pub use weigh::failure;

pub use crate::Launcher;

/// What a death was, how sure that is, whose it was, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What.
    pub kind: FailureKind,
    /// How sure.
    pub confidence: Confidence,
    /// The process that it began with.
    pub culprit: Option<Culprit>,
    /// The card's figures, where the card ran out.
    pub card: Option<CudaReport>,
    /// Why, the deciding ground first; never empty.
    pub because: Vec<Ground>,
    /// What the system's evidence says by itself.
    pub cause: Cause,
}

/// A process of the training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Culprit {
    /// What it did: `rank 1`, `loader of rank 0`, `launcher`, `compiler`.
    pub role: String,
    /// Its number, where that is known.
    #[serde(default)]
    pub pid: Option<u32>,
}

/// A fact that speaks for the kind, or against the obvious guess.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    /// Who says so.
    pub source: Source,
    /// Which log, where it is a line of one.
    pub log: Option<LogSource>,
    /// Which line of it, from 1.
    pub line: Option<u64>,
    /// What.
    pub text: String,
}

impl Failure {
    /// One line for people: what, whose, how sure.
    pub fn headline(&self) -> String {
        let whose = match &self.culprit {
            Some(Culprit { role, pid: Some(pid) }) => format!(", {role} (process {pid})"),
            Some(Culprit { role, pid: None }) => format!(", {role}"),
            None => String::new(),
        };
        match self.confidence {
            Confidence::Unproven => format!("{}{whose}", self.kind),
            sure => format!("{}{whose} ({})", self.kind, sure.name()),
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (process {pid})", self.role),
            None => f.write_str(&self.role),
        }
    }
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.log, self.line) {
            (Some(log), Some(line)) => write!(f, "log of {log}, line {line}: {}", self.text),
            (Some(log), None) => write!(f, "log of {log}: {}", self.text),
            _ => write!(f, "{}: {}", self.source.told(), self.text),
        }
    }
}
