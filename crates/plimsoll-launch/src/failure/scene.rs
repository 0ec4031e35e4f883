//! Everything that was seen of a foreign trainer's end, as plain values.
//!
//! The supervisor fills it in, `doctor` fills in what a log alone gives, and the fixtures of the tests are these very
//! structs. What could not be seen is `None` or empty, which is another thing than "did not happen".

use std::fmt;
use std::str::FromStr;

use plimsoll_recover::cause::Evidence;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Launcher;

/// What was seen of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scene {
    /// What the system saw. `worker` is taken as foreign whatever it says.
    pub evidence: Evidence,
    /// What was written, per source; several pieces of one source where a log was cut.
    pub logs: Vec<Log>,
    /// What is known of the trainer.
    pub trainer: TrainerFacts,
    /// What the watcher saw of the ranks.
    pub watched: Watched,
    /// What a resume was to bring back, and brought.
    pub resume: Resume,
    /// Whether a person, a batch system or a shutdown asked for the stop. A stop of ours because a rank had died is none.
    pub stop_asked: bool,
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Whose.
    pub source: LogSource,
    /// The number of its first line.
    #[serde(default = "first")]
    pub first_line: u64,
    /// As it was written: colours, carriage returns and prefixes of ranks included.
    pub text: String,
}

fn first() -> u64 {
    1
}

/// Who wrote a log: `main` (the command that was started) or `rank 2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogSource {
    /// The command that was started; with a launcher, what all ranks write to it.
    #[default]
    Main,
    /// One rank, by its own file.
    Rank(u32),
}

impl fmt::Display for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogSource::Main => f.write_str("main"),
            LogSource::Rank(rank) => write!(f, "rank {rank}"),
        }
    }
}

/// A text that names no source.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no source of a log; expected `main` or a form like `rank 2`")]
pub struct NoSource(String);

impl FromStr for LogSource {
    type Err = NoSource;

    fn from_str(text: &str) -> Result<LogSource, NoSource> {
        if text == "main" {
            return Ok(LogSource::Main);
        }
        let rank = text.strip_prefix("rank ").and_then(|rank| rank.parse().ok());
        rank.map(LogSource::Rank).ok_or_else(|| NoSource(text.to_string()))
    }
}

impl Serialize for LogSource {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LogSource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LogSource, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What is known of the trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerFacts {
    /// What started the ranks.
    pub launcher: Launcher,
    /// Whether the trainer's word for a complete run was seen; `None` where it has none.
    pub completed: Option<bool>,
}

/// What the watcher saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watched {
    /// Ranks that were asked for.
    pub world_asked: Option<u32>,
    /// Ranks that ran.
    pub world_seen: Option<u32>,
    /// Ranks that were gone before the others, first one first.
    pub gone: Vec<RankProcess>,
    /// Ranks in state T: stopped by a signal or a debugger.
    pub stopped: Vec<RankProcess>,
    /// Ranks that used no processor time when the stall was found.
    pub idle: Vec<RankProcess>,
    /// For how many seconds nothing had moved, where that was held for a stall.
    pub stalled_seconds: Option<u64>,
}

/// A rank and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankProcess {
    /// Its rank.
    pub rank: u32,
    /// Its process number, as seen from where the watcher is.
    #[serde(default)]
    pub pid: Option<u32>,
}

/// What a resume was to bring back, and brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resume {
    /// Whether it was to go on from a checkpoint.
    pub asked: bool,
    /// The step of that checkpoint.
    pub expected_step: Option<u64>,
    /// The first step that was seen.
    pub first_step: Option<u64>,
    /// Whether the checkpoint holds the optimizer's state.
    pub optimizer: Option<bool>,
}

impl Scene {
    /// A scene of which there is a log, and perhaps a kernel log, and nothing else.
    pub fn of_log(logs: Vec<Log>, kernel_log: Option<String>) -> Scene {
        let evidence = Evidence { kernel_log, ..Evidence::default() };
        Scene { evidence, logs, ..Scene::default() }
    }
}
