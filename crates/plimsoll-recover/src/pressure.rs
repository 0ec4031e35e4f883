//! How hard the machine presses on a run, from its samples. Pure.
//!
//! [`pressure`] is asked after each sample and answers `Fine`, `SaveNow`, `Shrink` or `Stop`. It is a level, not an
//! event: it stays until the pressure has been away for [`CALM`], and the caller acts when it changes. History comes
//! with the samples, so nothing is remembered here: the caller keeps those of the present worker (the last few minutes
//! are enough) and starts anew with a new worker. Swap in use by itself is a warning for the journal, not an answer.
//!
//! Headroom is judged against what the plan left over, not as a share of the RAM: a plan may rightly use all but a few
//! MiB of a cgroup, and that is no emergency. PSI alone would be blind: without swap a machine goes from quiet to OOM
//! within a second, so the slope of the headroom speaks too.

mod trend;

use std::fmt;
use std::time::Duration;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

pub use trend::{TREND_SAMPLES, time_to_limit};

/// PSI `full avg10`, percent, at which to save: nohang warns here.
pub const STALL_SAVE: f64 = 10.0;
/// PSI `full avg10` at which to shrink: nohang sends `SIGTERM` here, Fedora's systemd-oomd kills at 50 for 20 s, the
/// unchanged one at 60 for 30 s.
pub const STALL_SHRINK: f64 = 40.0;
/// How long the hard condition must last before shrinking: half of the fastest killer above (Fedora, 20 s).
pub const HARD_FOR: Duration = Duration::from_secs(10);
/// Time to limit that is always too short, however fast a save is: twice the window of the slope. Ours, not yet measured.
pub const SHORTEST_TIME: Duration = Duration::from_secs(20);
/// Swapped in and out per second from which a run thrashes. Ours, not yet measured (earlyoom assumes that swap fills at
/// 800 MiB/s at most).
pub const THRASH_PER_SECOND: Bytes = Bytes::mib(10);
/// What the headroom of a quiet machine trembles by: charges that cores hold back, page cache on its way to the disk (a
/// save has two windows of 8 MiB there). A smaller change is no pressure.
pub const TREMBLE: Bytes = Bytes::mib(16);
/// How long all must be calm before the answer is `Fine` again: systemd-oomd's default duration.
pub const CALM: Duration = Duration::from_secs(30);

/// What was measured at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, since the worker started.
    pub at: Duration,
    /// What could still be taken, under all limits.
    pub headroom: Bytes,
    /// The worker's swap.
    pub swap_used: Bytes,
    /// Swapped in per second.
    pub swap_in: Bytes,
    /// Swapped out per second.
    pub swap_out: Bytes,
    /// PSI `some avg10`, percent; `None` where there is no PSI.
    pub stall_some: Option<f64>,
    /// PSI `full avg10`, percent.
    pub stall_full: Option<f64>,
    /// Free on the run folder's file system.
    pub disk_free: Bytes,
}

/// What the run may use, and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The plan that runs.
    pub plan: Bytes,
    /// The smallest plan with the same results.
    pub smallest: Bytes,
    /// The headroom that the plan left over at its peak.
    pub reserve: Bytes,
    /// How long a save takes.
    pub save_time: Duration,
    /// What a checkpoint needs on disk.
    pub checkpoint: Bytes,
}

/// Why it presses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Why {
    /// The headroom falls and will be gone soon.
    HeadroomFalls {
        /// In this time.
        gone_in: Duration,
        /// From this.
        headroom: Bytes,
    },
    /// The headroom is far below what the plan left over.
    HeadroomLow {
        /// What is left.
        headroom: Bytes,
        /// What the plan left.
        reserve: Bytes,
    },
    /// Work stands still for want of memory.
    Stalled {
        /// PSI `full avg10`, percent.
        percent: f64,
    },
    /// The machine swaps all the time.
    Thrashing {
        /// In and out, per second.
        per_second: Bytes,
    },
    /// The disk will soon have no room for a checkpoint.
    DiskFills {
        /// What is free.
        free: Bytes,
        /// What a checkpoint needs.
        checkpoint: Bytes,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::HeadroomFalls { gone_in, headroom } => {
                write!(f, "{headroom} of memory are left and will be gone in {} s", gone_in.as_secs())
            }
            Why::HeadroomLow { headroom, reserve } => {
                write!(f, "{headroom} of memory are left of the {reserve} that the plan left over")
            }
            Why::Stalled { percent } => write!(f, "all work stood still for memory {percent:.0} % of the time"),
            Why::Thrashing { per_second } => write!(f, "the machine swaps {per_second} a second"),
            Why::DiskFills { free, checkpoint } => {
                write!(f, "the disk has {free} free, a checkpoint needs {checkpoint}")
            }
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Pressure {
    /// Nothing.
    Fine,
    /// Write a checkpoint while there is time.
    SaveNow {
        /// Why.
        #[serde(flatten)]
        why: Why,
    },
    /// Save, and go on under a plan of at most this, with the same effective batch.
    Shrink {
        /// The new plan's most.
        to: Bytes,
    },
    /// Save if it can be done, and stop resumably: no smaller plan helps.
    Stop {
        /// Why.
        #[serde(flatten)]
        why: Why,
    },
}

/// What the samples of the present worker, oldest first, ask for.
pub fn pressure(samples: &[Sample], limits: &Limits) -> Pressure {
    let mut episode: Option<Episode> = None;
    for (i, sample) in samples.iter().enumerate() {
        let recent = &samples[..=i];
        let alarm = alarm(recent, sample, limits);
        if let (None, Some(why)) = (&episode, alarm) {
            episode = Some(Episode { why, hard_since: None, calm_since: None, settled: None });
        }
        let Some(open) = &mut episode else { continue };
        if let Some(why) = alarm {
            open.why = why;
        }
        if calm(recent, sample, limits) {
            let since = *open.calm_since.get_or_insert(sample.at);
            if sample.at.saturating_sub(since) >= CALM {
                episode = None;
                continue;
            }
        } else {
            open.calm_since = None;
        }
        let Some(why) = hard(recent, sample, limits) else {
            open.hard_since = None;
            continue;
        };
        let since = *open.hard_since.get_or_insert(sample.at);
        // The first such answer stands for the rest of the episode: the caller is already acting on it.
        if open.settled.is_none() && sample.at.saturating_sub(since) >= HARD_FOR {
            open.settled = Some(give_way(sample, limits, why));
        }
    }
    match episode {
        None => Pressure::Fine,
        Some(Episode { settled: Some(settled), .. }) => settled,
        Some(Episode { why, .. }) => Pressure::SaveNow { why },
    }
}

/// A time of pressure.
struct Episode {
    why: Why,
    hard_since: Option<Duration>,
    calm_since: Option<Duration>,
    settled: Option<Pressure>,
}

/// A reason to save, at once: a save too many costs seconds, one too few costs the work since the last.
fn alarm(recent: &[Sample], sample: &Sample, limits: &Limits) -> Option<Why> {
    if let Some(why) = hard(recent, sample, limits) {
        return Some(why);
    }
    let save_twice = limits.save_time.saturating_mul(2).max(SHORTEST_TIME);
    let Sample { headroom, disk_free, .. } = *sample;
    if let Some(gone_in) = time_to_limit(recent).filter(|time| *time < save_twice) {
        return Some(Why::HeadroomFalls { gone_in, headroom });
    }
    if headroom.0 < limits.reserve.0 / 2 && limits.reserve.saturating_sub(headroom) > TREMBLE {
        return Some(Why::HeadroomLow { headroom, reserve: limits.reserve });
    }
    if let Some(percent) = sample.stall_full.filter(|percent| *percent >= STALL_SAVE) {
        return Some(Why::Stalled { percent });
    }
    let per_second = sample.swap_in.saturating_add(sample.swap_out);
    if per_second >= THRASH_PER_SECOND && sample.swap_used > Bytes::ZERO {
        return Some(Why::Thrashing { per_second });
    }
    // Below one checkpoint a save cannot be done any more, so it is not asked for.
    let checkpoint = limits.checkpoint;
    let last_chance = disk_free >= checkpoint && disk_free.0 < checkpoint.0.saturating_add(checkpoint.0 / 2);
    last_chance.then_some(Why::DiskFills { free: disk_free, checkpoint })
}

/// A condition that a save does not cure. A full disk is none: a run that cannot save had better go on until it can.
fn hard(recent: &[Sample], sample: &Sample, limits: &Limits) -> Option<Why> {
    let headroom = sample.headroom;
    if headroom.0 < limits.reserve.0 / 4 && limits.reserve.saturating_sub(headroom) > TREMBLE {
        return Some(Why::HeadroomLow { headroom, reserve: limits.reserve });
    }
    if let Some(percent) = sample.stall_full.filter(|percent| *percent >= STALL_SHRINK) {
        return Some(Why::Stalled { percent });
    }
    let gone_in = time_to_limit(recent).filter(|time| *time < limits.save_time.max(SHORTEST_TIME / 2))?;
    Some(Why::HeadroomFalls { gone_in, headroom })
}

/// Whether nothing presses any more, with lines well apart from those of the alarm.
fn calm(recent: &[Sample], sample: &Sample, limits: &Limits) -> bool {
    let save_twice = limits.save_time.saturating_mul(2).max(SHORTEST_TIME);
    let checkpoint = limits.checkpoint.0;
    let disk = sample.disk_free.0;
    time_to_limit(recent).is_none_or(|time| time > save_twice.saturating_mul(2))
        && sample.headroom.0 >= limits.reserve.0 / 4 * 3
        && sample.stall_full.is_none_or(|percent| percent < STALL_SAVE / 2.0)
        && (sample.swap_used == Bytes::ZERO
            || sample.swap_in.saturating_add(sample.swap_out).0 < THRASH_PER_SECOND.0 / 2)
        && (disk < checkpoint || disk >= checkpoint.saturating_mul(2))
}

/// The plan that gives the machine back what it lacks for the pressure to be over, or the smallest one where that is
/// enough to end the hard condition, or a stop.
fn give_way(sample: &Sample, limits: &Limits, why: Why) -> Pressure {
    let Limits { plan, smallest, reserve, .. } = *limits;
    // What did not fit is what the reserve lacks or what lies in swap; a twentieth is the least worth a restart.
    let lacking =
        Bytes(reserve.0 / 4 * 3).saturating_sub(sample.headroom).max(sample.swap_used).max(Bytes(plan.0 / 20));
    let to = plan.saturating_sub(lacking);
    if to >= smallest && to < plan {
        return Pressure::Shrink { to };
    }
    let gained = plan.saturating_sub(smallest);
    let enough = gained >= Bytes(plan.0 / 20) && sample.headroom.saturating_add(gained) >= Bytes(reserve.0 / 2);
    if enough { Pressure::Shrink { to: smallest } } else { Pressure::Stop { why } }
}

#[cfg(test)]
#[path = "pressure/pressure_test.rs"]
mod tests;
