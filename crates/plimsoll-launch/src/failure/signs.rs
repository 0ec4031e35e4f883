//! What one line of a trainer's log is a sign of.
//!
//! Words that every program has in common are read by `plimsoll_recover`; here is what only trainers and launchers say.
//! A sign has a weight: a first cause explains itself, a kill asks for a witness, an echo explains nothing.

mod card;
mod host;
mod peers;
mod settings;

use std::sync::LazyLock;

use plimsoll_recover::cause::{Confidence, Kind, parse_last_words};
use regex::Regex;

use super::kind::FailureKind;

pub(super) use peers::root_cause;

/// What a sign is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// A first cause, in the words of the process that failed.
    Root,
    /// A process was killed: a witness may say why.
    Killed,
    /// It may be that, or something else.
    Suspect,
    /// The program is wrong, in words that name no place; a traceback beside them does.
    Fault,
    /// A process ended with a status of its own and its launcher tells so.
    Ended,
    /// The program was asked to stop.
    Stop,
    /// What other processes say after one is gone.
    Echo,
    /// A warning that matters where a resume was asked for.
    Restart,
    /// The trainer's word for a complete run.
    Done,
}

/// Whom a line is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    /// Its rank.
    pub rank: Option<u32>,
    /// Its process number.
    pub pid: Option<u32>,
    /// Whether it is a loader process.
    pub loader: bool,
}

/// What a line is a sign of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sign {
    /// What it is worth.
    pub weight: Weight,
    /// Of what.
    pub kind: FailureKind,
    /// How sure the line alone makes it.
    pub sure: Confidence,
    /// Of whom.
    pub who: Who,
}

impl Sign {
    fn root(kind: FailureKind) -> Option<Sign> {
        Some(Sign { weight: Weight::Root, kind, sure: Confidence::Proven, who: Who::default() })
    }

    fn likely(kind: FailureKind) -> Option<Sign> {
        Some(Sign { weight: Weight::Root, kind, sure: Confidence::Likely, who: Who::default() })
    }

    fn of(weight: Weight, kind: FailureKind, who: Who) -> Option<Sign> {
        Some(Sign { weight, kind, sure: Confidence::Unproven, who })
    }
}

/// Words of which every sign has one; most lines of a log have none and are not looked at further.
static HINT: LazyLock<Regex> = LazyLock::new(|| {
    let text = "rror|xception|terminate called|memory|ignal|illed|SIG|NCCL|nccl|exit|EADDRINUSE|lready in use|heckpoint|latest file|\
                arguments|option|anual optimization|finite|nan|NaN|os error|ENOSPC|free, |evice|ancdata|open files|\
                terrupt|timeout|imed out|Timeout|peer|Broken pipe|JIT load|inja|CUDA_HOME|not found|shm|STATUS_|\
                Trainer.fit|train_runtime|Failure|requires|died|oom|OOM|CANCELLED|usage:|bad_alloc|loss scale|Xid|\
                Connection|paging file|Errno|Key \"";
    Regex::new(text).expect("a pattern that is a constant")
});

/// Reads one line, without colours and prefix.
pub(super) fn read(text: &str) -> Option<Sign> {
    if !HINT.is_match(text) {
        return None;
    }
    peers::first(text)
        .or_else(|| card::read(text))
        .or_else(|| host::shared_memory(text))
        .or_else(|| host::killed(text))
        .or_else(|| peers::launcher(text))
        .or_else(|| peers::echo(text))
        .or_else(|| settings::read(text))
        .or_else(|| host::read(text))
        .or_else(|| words(text))
        .or_else(|| peers::stop(text))
        .or_else(|| fault(text))
}

/// C++ that ends the process, and errors of a card that are the program's own doing.
fn fault(text: &str) -> Option<Sign> {
    let behind = |mark: &str| text.split_once(mark).map(|(_, rest)| rest.trim().trim_end_matches('.').to_string());
    let place = behind("terminate called after throwing an instance of ")
        .or_else(|| behind("CUDA error: ").map(|what| format!("CUDA error: {what}")))
        .or_else(|| behind("HIP error: ").map(|what| format!("HIP error: {what}")))?;
    Sign::of(Weight::Fault, FailureKind::Bug { place }, Who::default())
}

/// What every program says alike.
fn words(text: &str) -> Option<Sign> {
    let words = parse_last_words(&[text.to_string()])?;
    let kind = match words.kind {
        Kind::DiskFull => FailureKind::DiskFull,
        Kind::IoError => FailureKind::IoError,
        Kind::AllocationRefused => FailureKind::AllocationRefused,
        Kind::NonFinite => FailureKind::NotFinite,
        Kind::BadData => FailureKind::BadData,
        Kind::CudaOutOfMemory if words.plain => FailureKind::CardOom,
        Kind::CudaOutOfMemory => FailureKind::CardMasked,
        Kind::Bug { place } => FailureKind::Bug { place },
        _ => return None,
    };
    if words.plain { Sign::root(kind) } else { Sign::likely(kind) }
}

/// Whether the text begins with the name of an exception: `ValueError: `, `torch.OutOfMemoryError: `.
fn is_raised(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let word = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
    !name.is_empty() && name.chars().all(word) && (name.ends_with("Error") || name.ends_with("Exception"))
}

/// The first number behind a mark.
fn number_behind(text: &str, mark: &str) -> Option<i64> {
    let (_, rest) = text.split_once(mark)?;
    let rest = rest.trim_start();
    let end = rest.char_indices().find(|(at, c)| !(c.is_ascii_digit() || (*at == 0 && *c == '-')));
    rest[..end.map_or(rest.len(), |(at, _)| at)].parse().ok()
}

#[cfg(test)]
#[path = "signs_test.rs"]
mod tests;
