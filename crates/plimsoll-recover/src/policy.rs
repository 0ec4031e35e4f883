//! What to do after a death: start again, plan smaller, or give up. Pure.
//!
//! Invariants. It ends: the same failure at the same step is tried once more only under another cap, and after
//! [`TRIES`] deaths without a newer checkpoint it gives up. It cannot change results: a decision holds a cap on memory
//! and nothing else, so effective batch, data order, precision, optimizer and lengths are out of its reach; the planner
//! meets a cap with same-result rungs alone.

use std::fmt;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::cause::{Confidence, Kind};

/// How many deaths in a row, without a newer checkpoint between them, end the trying.
pub const TRIES: usize = 5;
/// A re-plan after an overshoot cuts at least this part of the cap (one eighth).
const LEAST_CUT: u64 = 8;
/// A re-plan leaves this part of what the machine can give now unused (one twentieth).
const MARGIN: u64 = 20;

/// Which memory a cap is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// The machine's.
    Ram,
    /// The card's.
    Vram,
}

/// One sort of memory at a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The cap that the dead worker was planned under.
    pub cap: Bytes,
    /// The most it was measured to use.
    pub peak: Bytes,
    /// What could be had after its death.
    pub available: Bytes,
    /// The smallest plan with the same results.
    pub smallest: Bytes,
}

/// A death and its circumstances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// What killed it.
    pub kind: Kind,
    /// How sure that is.
    pub confidence: Confidence,
    /// The last step that was done.
    pub step: u64,
    /// The step of the last complete checkpoint; 0 for none.
    pub saved_step: u64,
    /// The machine's memory.
    pub ram: Room,
    /// The card's, where one is used.
    pub vram: Option<Room>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Decision {
    /// Go on from the last checkpoint under the same plan.
    Restart,
    /// Go on from it under a plan of at most `cap`.
    Replan {
        /// Of which memory.
        of: Memory,
        /// The most that the new plan may take; less than the old cap.
        cap: Bytes,
    },
    /// Stop; the last checkpoint stands.
    GiveUp {
        /// Why.
        why: Why,
    },
}

/// Why there is no further try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It was asked to stop.
    Asked,
    /// A new try would fail the same way: input, numbers, disk or budget must change first.
    NeedsAPerson {
        /// The cause.
        kind: Kind,
    },
    /// It has failed like this before, and nothing has changed.
    SameAgain {
        /// The cause.
        kind: Kind,
        /// Where.
        step: u64,
    },
    /// Many deaths and no newer checkpoint.
    NoProgress {
        /// How many.
        deaths: usize,
        /// The newest checkpoint's step.
        saved_step: u64,
    },
    /// No smaller plan gives the same results.
    NoSmallerPlan {
        /// Of which memory.
        of: Memory,
        /// What a plan may take now.
        allowed: Bytes,
        /// What the smallest takes.
        smallest: Bytes,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Asked => write!(f, "it was asked to stop"),
            Why::NeedsAPerson { .. } => write!(f, "a new try would fail the same way"),
            Why::SameAgain { step, .. } => write!(f, "it failed the same way before at step {step}"),
            Why::NoProgress { deaths, saved_step } => {
                write!(f, "{deaths} deaths in a row without a checkpoint newer than that of step {saved_step}")
            }
            Why::NoSmallerPlan { of, allowed, smallest } => {
                let name = if *of == Memory::Ram { "RAM" } else { "VRAM" };
                write!(f, "{allowed} of {name} can be used, the smallest plan with the same results needs {smallest}")
            }
        }
    }
}

/// What to do after the last of `incidents`, the run's deaths in order.
pub fn policy(incidents: &[Incident]) -> Decision {
    let Some((last, earlier)) = incidents.split_last() else { return Decision::Restart };
    let memory = memory_of(&last.kind);
    let hopeless = match last.kind {
        Kind::StoppedByUser => Some(Why::Asked),
        Kind::BadData | Kind::NonFinite | Kind::DiskFull | Kind::DoesNotFit => {
            Some(Why::NeedsAPerson { kind: last.kind.clone() })
        }
        _ => None,
    };
    if let Some(why) = hopeless {
        return Decision::GiveUp { why };
    }
    let same = |other: &&Incident| {
        let unchanged = memory.is_none_or(|of| room(other, of).map(|r| r.cap) == room(last, of).map(|r| r.cap));
        let stuck = (other.step, other.saved_step) == (last.step, last.saved_step);
        other.kind == last.kind && stuck && unchanged
    };
    // A disk that fails may be back a little later; only the number of tries bounds those.
    if last.kind != Kind::IoError && earlier.iter().any(|other| same(&other)) {
        return Decision::GiveUp { why: Why::SameAgain { kind: last.kind.clone(), step: last.step } };
    }
    let deaths = deaths_without_progress(incidents);
    if deaths >= TRIES {
        return Decision::GiveUp { why: Why::NoProgress { deaths, saved_step: last.saved_step } };
    }
    match memory.and_then(|of| room(last, of).map(|room| (of, room))) {
        Some((of, room)) => smaller(of, room),
        None => Decision::Restart,
    }
}

/// The memory that ran out.
fn memory_of(kind: &Kind) -> Option<Memory> {
    match kind {
        Kind::KernelOomInOurCgroup | Kind::KernelOomOfTheHost | Kind::OomDaemon { .. } | Kind::AllocationRefused => {
            Some(Memory::Ram)
        }
        Kind::CudaOutOfMemory => Some(Memory::Vram),
        _ => None,
    }
}

fn room(incident: &Incident, of: Memory) -> Option<Room> {
    match of {
        Memory::Ram => Some(incident.ram),
        Memory::Vram => incident.vram,
    }
}

/// Deaths since the newest checkpoint became the newest, the first after it included.
fn deaths_without_progress(incidents: &[Incident]) -> usize {
    let newest = incidents.iter().map(|incident| incident.saved_step).max().unwrap_or(0);
    let first = incidents.iter().position(|incident| incident.saved_step == newest).unwrap_or(0);
    incidents.len() - first
}

/// A plan under what can be had now, and under the old cap by at least what it overshot.
fn smaller(of: Memory, room: Room) -> Decision {
    let overshoot = room.peak.saturating_sub(room.cap).max(Bytes(room.cap.0 / LEAST_CUT)).max(Bytes(1));
    let by_cap = room.cap.saturating_sub(overshoot);
    let by_machine = Bytes(room.available.0 - room.available.0 / MARGIN);
    let allowed = by_cap.min(by_machine);
    if allowed >= room.smallest {
        return Decision::Replan { of, cap: allowed };
    }
    // The cut is a rule of thumb, the machine's figure is not: the smallest plan gets its try where there is room.
    if room.smallest < room.cap && room.smallest <= by_machine {
        return Decision::Replan { of, cap: room.smallest };
    }
    Decision::GiveUp { why: Why::NoSmallerPlan { of, allowed, smallest: room.smallest } }
}

#[cfg(test)]
#[path = "policy/policy_test.rs"]
mod tests;
