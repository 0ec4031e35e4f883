//! When a run that was made smaller may have its first plan back. Pure.
//!
//! A growth costs a restart, so it waits for a calm that doubles each time, and ends when it has been tried often enough:
//! a neighbour that comes and goes must not make the run spend its time changing plans.

use std::time::Duration;

use plimsoll_machine::Bytes;
use plimsoll_recover::pressure::{Limits, Sample, TREMBLE};

/// The calm before the first growth.
const CALM: Duration = Duration::from_secs(120);
/// How often a run grows back at most.
const TIMES: u32 = 4;

/// The calm that the next growth needs, after so many; `None`: no more.
pub(super) fn calm(grown: u32) -> Option<Duration> {
    (grown < TIMES).then(|| first_calm(CALM) * 2u32.pow(grown))
}

/// The calm before a first growth, `usual` unless a test, which has no minutes, says otherwise.
pub fn first_calm(usual: Duration) -> Duration {
    let said = std::env::var("PLIMSOLL_GROW_AFTER").ok().and_then(|text| text.parse().ok());
    said.map_or(usual, Duration::from_secs)
}

/// Whether there is room for a plan of `to` now, with something to spare.
pub(super) fn has_room(now: &Sample, limits: &Limits, to: Bytes) -> bool {
    let more = to.saturating_sub(limits.plan);
    now.headroom >= more + Bytes(more.0 / 10) + TREMBLE
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        plan: Bytes::mib(300),
        smallest: Bytes::mib(200),
        reserve: Bytes::mib(50),
        save_time: Duration::from_secs(1),
        checkpoint: Bytes::mib(100),
    };

    #[test]
    fn there_is_room_for_the_larger_plan_only_with_something_to_spare() {
        let sample = |headroom| Sample {
            at: Duration::ZERO,
            headroom,
            swap_used: Bytes::ZERO,
            swap_in: Bytes::ZERO,
            swap_out: Bytes::ZERO,
            stall_some: None,
            stall_full: None,
            disk_free: Bytes::gib(10),
        };
        // 100 MiB more, a tenth of that, and what a quiet machine trembles by.
        assert!(has_room(&sample(Bytes::mib(126)), &LIMITS, Bytes::mib(400)));
        assert!(!has_room(&sample(Bytes::mib(125)), &LIMITS, Bytes::mib(400)));
    }

    #[test]
    fn each_growth_waits_longer_and_there_is_a_last_one() {
        assert_eq!((calm(0), calm(2), calm(TIMES)), (Some(CALM), Some(CALM * 4), None));
    }
}
