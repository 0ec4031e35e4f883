//! Counters then and now, as evidence. Pure.

use plimsoll_machine::MemoryCounters;

use crate::cause::{CgroupCounters, Change};

/// A value then and now; `None` where one of them could not be read.
pub(super) fn of<T>(before: Option<T>, after: Option<T>) -> Option<Change<T>> {
    Some(Change { before: before?, after: after? })
}

/// How a cgroup's counters changed; `None` where the two are not of one kind.
pub(super) fn since(before: &MemoryCounters, after: &MemoryCounters) -> Option<CgroupCounters> {
    match (*before, *after) {
        (
            MemoryCounters::V1 { oom_kill: kills, failcnt: hits, .. },
            MemoryCounters::V1 { oom_kill, failcnt, peak, limit },
        ) => Some(CgroupCounters::V1 {
            oom_kill: of(kills, oom_kill),
            failcnt: of(hits, failcnt),
            max_usage: peak,
            limit,
        }),
        (
            MemoryCounters::V2 { oom_kill: kills, oom: ooms, oom_group_kill: groups, max: hits, high: slowed, .. },
            MemoryCounters::V2 { oom_kill, oom, oom_group_kill, max, high, .. },
        ) => Some(CgroupCounters::V2 {
            oom_kill: of(kills, oom_kill),
            oom: of(ooms, oom),
            oom_group_kill: of(groups, oom_group_kill),
            max: of(hits, max),
            high: of(slowed, high),
        }),
        _ => None,
    }
}

/// The counters of a cgroup that was made for one worker: all were zero.
pub(super) fn since_made(after: &MemoryCounters) -> CgroupCounters {
    let from_zero = |after: Option<u64>| of(Some(0), after);
    match *after {
        MemoryCounters::V1 { oom_kill, failcnt, peak, limit } => {
            let (oom_kill, failcnt) = (from_zero(oom_kill), from_zero(failcnt));
            CgroupCounters::V1 { oom_kill, failcnt, max_usage: peak, limit }
        }
        MemoryCounters::V2 { oom_kill, oom, oom_group_kill, max, high, .. } => CgroupCounters::V2 {
            oom_kill: from_zero(oom_kill),
            oom: from_zero(oom),
            oom_group_kill: from_zero(oom_group_kill),
            max: from_zero(max),
            high: from_zero(high),
        },
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_machine::Bytes;

    use super::*;

    #[test]
    fn a_counter_that_one_reading_lacks_tells_nothing() {
        let v1 = |oom_kill, failcnt| MemoryCounters::V1 { oom_kill, failcnt, peak: Some(Bytes(5)), limit: None };
        let expected = CgroupCounters::V1 {
            oom_kill: None,
            failcnt: Some(Change { before: 1, after: 3 }),
            max_usage: Some(Bytes(5)),
            limit: None,
        };
        assert_eq!(since(&v1(None, Some(1)), &v1(Some(2), Some(3))), Some(expected));
    }

    #[test]
    fn counters_of_two_kinds_are_not_compared() {
        let v1 = MemoryCounters::V1 { oom_kill: Some(1), failcnt: None, peak: None, limit: None };
        let none = None;
        let v2 = MemoryCounters::V2 {
            oom_kill: Some(2),
            oom: none,
            oom_group_kill: none,
            max: none,
            high: Some(4),
            peak: None,
        };
        assert_eq!(since(&v1, &v2), None);
        let CgroupCounters::V2 { oom_kill, high, max, .. } = since_made(&v2) else { panic!() };
        assert_eq!((oom_kill.unwrap().rise(), high.unwrap().rise(), max), (2, 4, None));
    }
}
