//! How long a stop may take before it is cut short: the step that runs, then the checkpoint, then its copy elsewhere.
//!
//! Seconds of a step are the cost model's. How fast the disk over there is nobody knows, so a slow one is assumed, and the
//! sum is doubled: a period that is too long costs nothing, since the run ends as soon as it is done.

use plimsoll_machine::Bytes;
use serde::Serialize;

/// Bytes a second of a slow disk of a rented server.
const DISK: Bytes = Bytes::mib(64);
/// Bytes a second of a slow line to a store.
const LINE: Bytes = Bytes::mib(8);
/// The least that is given.
const LEAST_SECONDS: u64 = 30;
/// The most: Slurm's signals go no further ahead than this.
const MOST_SECONDS: u64 = 65_000;
/// What a stop takes beside: the signal's way, the end of processes.
const BESIDE_SECONDS: u64 = 10;

/// What a stop has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// The job says how long it may take, or the trainer needs so long.
    Within {
        /// That long.
        seconds: u64,
    },
    /// A step, a checkpoint, perhaps its copy.
    Saves {
        /// Of a step, by the cost model.
        step_seconds: f64,
        /// Of a checkpoint.
        checkpoint: Bytes,
        /// It is copied elsewhere; with the most that may be sent in a second, where there is such a bound.
        mirrored: Option<Option<Bytes>>,
    },
}

/// The time that a stop gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grace {
    /// That long.
    pub seconds: u64,
    /// Why.
    pub says: String,
}

impl Grace {
    /// For this stop.
    pub fn of(stop: Stop) -> Grace {
        match stop {
            Stop::Within { seconds } => Grace {
                seconds: seconds.saturating_add(BESIDE_SECONDS).clamp(LEAST_SECONDS, MOST_SECONDS),
                says: format!("a stop takes at most {seconds} s"),
            },
            Stop::Saves { step_seconds, checkpoint, mirrored } => {
                let over = |rate: Bytes| checkpoint.0 as f64 / rate.0.max(1) as f64;
                let saving = over(DISK);
                let copying = mirrored.map_or(0.0, |most| over(most.unwrap_or(LINE).min(LINE)));
                // A time that is no number is a long one.
                let work = 2.0 * (step_seconds.max(0.0) + saving + copying);
                let seconds = if work.is_finite() { work.ceil() as u64 } else { MOST_SECONDS };
                let copied = match mirrored {
                    Some(_) => format!(", {} to copy it", told(copying)),
                    None => String::new(),
                };
                let (step, save) = (told(step_seconds), told(saving));
                Grace {
                    seconds: seconds.saturating_add(BESIDE_SECONDS).clamp(LEAST_SECONDS, MOST_SECONDS),
                    says: format!(
                        "a step takes {step}, a checkpoint of {checkpoint} {save} on a slow disk ({DISK} a second){copied}; \
                         twice that"
                    ),
                }
            }
        }
    }
}

fn told(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(stop: Stop) -> u64 {
        Grace::of(stop).seconds
    }

    #[test]
    fn a_large_checkpoint_gets_the_time_that_it_takes_and_a_small_one_the_least() {
        let saves = |checkpoint| Stop::Saves { step_seconds: 3.0, checkpoint, mirrored: None };
        assert_eq!(seconds(saves(Bytes::mib(10))), 30);
        // 160 s for the file, 3 for the step, twice, and ten.
        assert_eq!(seconds(saves(Bytes::gib(10))), 336);
        let mirrored = Stop::Saves { step_seconds: 3.0, checkpoint: Bytes::gib(10), mirrored: Some(None) };
        assert_eq!(seconds(mirrored), 336 + 2 * 1280);
        let slowly = Stop::Saves { step_seconds: 3.0, checkpoint: Bytes::gib(10), mirrored: Some(Some(Bytes::mib(4))) };
        assert_eq!(seconds(slowly), 336 + 2 * 2560);
    }

    #[test]
    fn what_is_said_is_kept_and_no_period_is_endless() {
        assert_eq!(seconds(Stop::Within { seconds: 120 }), 130);
        assert_eq!(seconds(Stop::Within { seconds: u64::MAX }), MOST_SECONDS);
        let never = Stop::Saves { step_seconds: f64::NAN, checkpoint: Bytes(u64::MAX), mirrored: None };
        assert_eq!(seconds(never), MOST_SECONDS);
    }
}
