//! What to change after a failure, in plain words and, where a knob does it, as a knob and its value. Pure.
//!
//! Only what is true: a knob that saves no memory is never named as a cure, swap never against a full card, other
//! people's processes are never killed, accumulation only where the trainer accumulates. Which rung is taken, and
//! whether it may change the result, is the ladder's business.

mod memory;
mod words;

use serde::{Deserialize, Serialize};

use super::Failure;
use super::kind::FailureKind;
use crate::knob::{Knob, Settings, Value};

/// Something to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What, in words.
    pub text: String,
    /// The knob that does it, where one does.
    pub knob: Option<(Knob, Value)>,
}

/// What the trainer and its machine can do, as its trainer file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Abilities {
    /// It accumulates gradients.
    pub accumulate: bool,
    /// It clips gradients by a setting.
    pub clip: bool,
    /// It recomputes activations by a setting.
    pub checkpointing: bool,
    /// Its precision can be set.
    pub precision: bool,
    /// It cuts samples to a length by a setting.
    pub length: bool,
    /// It has no such setting, but long samples can be left out of a copy of its list (Piper's clips).
    pub clip_length: bool,
    /// Its attention can be chosen.
    pub attention: bool,
    /// It runs ZeRO.
    pub zero: bool,
    /// It goes on from a checkpoint.
    pub resume: bool,
    /// `expandable_segments` works: CUDA on Linux.
    pub segments: bool,
}

/// What to change, the most useful first. Without settings no value is named.
pub fn advice(failure: &Failure, settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let mut out = match &failure.kind {
        FailureKind::HostOom { by, victim } => memory::host(by, *victim, settings, can),
        FailureKind::AllocationRefused => words::refused(settings),
        FailureKind::SharedMemoryFull => words::shared_memory(settings),
        FailureKind::LoaderWorkerDied { signal } => words::loader(*signal, settings),
        FailureKind::CardOom => memory::card(failure.card.as_ref(), settings, can),
        FailureKind::CardFragmented => memory::fragments(failure.card.as_ref(), settings, can),
        FailureKind::CardNeighbour => memory::neighbour(failure.card.as_ref(), settings, can),
        FailureKind::CardMasked => memory::masked(settings, can),
        FailureKind::NotFinite => words::not_finite(settings, can),
        other => words::of(other, failure),
    };
    if can.resume && resumes(&failure.kind) {
        out.push(say("then go on from the last complete checkpoint"));
    }
    out
}

/// Whether a resume is what comes after the change.
fn resumes(kind: &FailureKind) -> bool {
    !matches!(
        kind,
        FailureKind::Completed
            | FailureKind::BadSetting
            | FailureKind::BadCheckpoint
            | FailureKind::NotRestored
            | FailureKind::MissingModule { .. }
            | FailureKind::Bug { .. }
            | FailureKind::Unknown
    )
}

/// Advice in words alone.
fn say(text: impl Into<String>) -> Advice {
    Advice { text: text.into(), knob: None }
}

/// Advice that a knob carries out.
fn set(text: impl Into<String>, knob: Knob, value: impl Into<Value>) -> Advice {
    Advice { text: text.into(), knob: Some((knob, value.into())) }
}

/// The number that a knob is set to.
fn count(settings: Option<&Settings>, knob: Knob) -> Option<u64> {
    settings?.get(&knob)?.count()
}

/// Whether a knob is on.
fn on(settings: Option<&Settings>, knob: Knob) -> Option<bool> {
    settings?.get(&knob)?.on()
}

/// The word that a knob is set to.
fn word(settings: Option<&Settings>, knob: Knob) -> Option<&str> {
    settings?.get(&knob)?.word()
}

#[cfg(test)]
#[path = "advice/advice_test.rs"]
mod tests;
