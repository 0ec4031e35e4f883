//! When a run that was made smaller may have its first plan back. Pure.
//!
//! A growth costs a restart, so it waits for a calm that doubles each time, and ends when it has been tried often enough:
//! a neighbour that comes and goes must not make the run spend its time changing plans.

use std::time::Duration;

use plimsoll_machine::Bytes;
use plimsoll_recover::pressure::{Limits, Pressure, Sample, TREMBLE, pressure};

/// The calm before the first growth.
const CALM: Duration = Duration::from_secs(120);
/// How often a run grows back at most.
const TIMES: u32 = 4;

/// The calm that the next growth needs, after so many; `None`: no more.
pub(super) fn calm(grown: u32) -> Option<Duration> {
    // For tests, which have no two minutes.
    let first = std::env::var("PLIMSOLL_GROW_AFTER").ok().and_then(|text| text.parse().ok());
    let first = first.map_or(CALM, Duration::from_secs);
    (grown < TIMES).then(|| first * 2u32.pow(grown))
}

/// Whether the room for a plan of `to` has been there for as long as `calm`, with nothing pressing now.
pub(super) fn may_grow(samples: &[Sample], limits: &Limits, to: Bytes, calm: Duration) -> bool {
    let needed = to.saturating_sub(limits.plan);
    let needed = needed + Bytes(needed.0 / 10) + TREMBLE;
    let Some(now) = samples.last() else { return false };
    let Some(since) = now.at.checked_sub(calm) else { return false };
    let quiet = samples.iter().filter(|sample| sample.at >= since).all(|sample| sample.headroom >= needed);
    quiet && samples[0].at <= since && pressure(samples, limits) == Pressure::Fine
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

    fn each(seconds: u64, headroom: impl Fn(u64) -> Bytes) -> Vec<Sample> {
        let (zero, disk_free) = (Bytes::ZERO, Bytes::gib(10));
        let at = |s| Sample {
            at: Duration::from_secs(s),
            headroom: headroom(s),
            swap_used: zero,
            swap_in: zero,
            swap_out: zero,
            stall_some: None,
            stall_full: None,
            disk_free,
        };
        (0..seconds).map(at).collect()
    }

    #[test]
    fn a_run_grows_after_a_calm_with_room_for_the_larger_plan_and_not_before() {
        let (to, calm) = (Bytes::mib(400), Duration::from_secs(60));
        // 100 MiB more, a tenth of that, and what a quiet machine trembles by.
        let (enough, short) = (Bytes::mib(126), Bytes::mib(125));
        assert!(may_grow(&each(61, |_| enough), &LIMITS, to, calm));
        assert!(!may_grow(&each(60, |_| enough), &LIMITS, to, calm), "too soon");
        assert!(!may_grow(&each(61, |_| short), &LIMITS, to, calm));
        assert!(!may_grow(&each(61, |s| if s == 30 { short } else { enough }), &LIMITS, to, calm));
        assert!(!may_grow(&[], &LIMITS, to, calm));
    }

    #[test]
    fn each_growth_waits_longer_and_there_is_a_last_one() {
        assert_eq!((calm(0), calm(2), calm(TIMES)), (Some(CALM), Some(CALM * 4), None));
    }
}
