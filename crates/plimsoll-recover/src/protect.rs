//! The supervisor protects itself: its memory stays in RAM, and the kernel looks for another victim first.
//!
//! Only what it has touched is locked (`MCL_ONFAULT`), so locking costs nothing that was not there. Both may be
//! forbidden; a supervisor without protection still supervises, so what was refused is a value to be told.

use std::io;

use fs_err as fs;
use plimsoll_machine::Bytes;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The score that leaves us to the kernel's OOM killer only when everything else is gone (-1000 would exempt us).
pub const OOM_SCORE: i32 = -900;
/// Address space that is left free below `RLIMIT_MEMLOCK` for a stack that grows: beyond the limit it is a fault.
const STACK_ROOM: Bytes = Bytes::mib(16);
/// The same for all mappings to come: beyond the limit they fail.
const FUTURE_ROOM: Bytes = Bytes::mib(256);

const SCORE: &str = "/proc/self/oom_score_adj";

/// What protects this process now, and what does not.
#[derive(Debug)]
pub struct Protection {
    /// Whether its memory is locked.
    pub locked: Result<Locked, NotLocked>,
    /// Its OOM score before, which a worker's should be reckoned from.
    pub score_before: i32,
    /// Its OOM score now, or why it could not be lowered.
    pub score: Result<i32, io::Error>,
}

/// How much is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// What is mapped and what will be.
    Everything,
    /// What is mapped now: `RLIMIT_MEMLOCK` might make later mappings fail.
    WhatIsMapped,
}

/// Why nothing is locked.
#[derive(Debug, thiserror::Error)]
pub enum NotLocked {
    /// The limit is too small for the address space.
    #[error("`RLIMIT_MEMLOCK` is {limit}, the process has {mapped} mapped")]
    Limit {
        /// `RLIMIT_MEMLOCK`.
        limit: Bytes,
        /// The address space.
        mapped: Bytes,
    },
    /// The kernel refused.
    #[error("`mlockall` failed: {0}")]
    Refused(io::Error),
}

/// Locks this process's memory and lowers its OOM score, as far as is permitted. Children inherit the score, not the
/// locks.
pub fn protect_self() -> Protection {
    let score_before = score().unwrap_or(0);
    let lowered = if score_before <= OOM_SCORE {
        Ok(score_before)
    } else {
        fs::write(SCORE, OOM_SCORE.to_string()).map(|()| OOM_SCORE)
    };
    Protection { locked: lock(), score_before, score: lowered }
}

/// Lets go of program pages that were needed once, in a process that is locked already, and locks what is left again.
pub fn settle() {
    if rustix::mm::munlockall().is_ok() {
        crate::shed();
        let _ = lock();
    }
}

fn score() -> Option<i32> {
    fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

fn lock() -> Result<Locked, NotLocked> {
    let limit = getrlimit(Resource::Memlock).current.map(Bytes);
    let privileged = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let how = how_to_lock(mapped(), limit.filter(|_| !privileged))?;
    let flags = match how {
        Locked::Everything => MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT,
        Locked::WhatIsMapped => MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT,
    };
    mlockall(flags).map(|()| how).map_err(|error| NotLocked::Refused(error.into()))
}

/// What may be locked under a limit, which counts address space and not pages: too near to it, a stack that grows is a
/// fault and a mapping fails, and a supervisor that dies of its protection is worse than one without.
fn how_to_lock(mapped: Bytes, limit: Option<Bytes>) -> Result<Locked, NotLocked> {
    let Some(limit) = limit else { return Ok(Locked::Everything) };
    if limit >= mapped.saturating_add(FUTURE_ROOM) {
        Ok(Locked::Everything)
    } else if limit >= mapped.saturating_add(STACK_ROOM) {
        Ok(Locked::WhatIsMapped)
    } else {
        Err(NotLocked::Limit { limit, mapped })
    }
}

/// The address space of this process.
fn mapped() -> Bytes {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    Bytes(pages.unwrap_or(u64::MAX).saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locking_never_comes_so_near_to_its_limit_that_a_stack_or_a_mapping_would_fail() {
        let mapped = Bytes::mib(40);
        assert_eq!(how_to_lock(mapped, None).unwrap(), Locked::Everything);
        assert_eq!(how_to_lock(mapped, Some(Bytes::gib(1))).unwrap(), Locked::Everything);
        assert_eq!(how_to_lock(mapped, Some(Bytes::mib(64))).unwrap(), Locked::WhatIsMapped);
        let told = how_to_lock(mapped, Some(Bytes::mib(8))).unwrap_err().to_string();
        assert_eq!(told, "`RLIMIT_MEMLOCK` is 8.0 MiB, the process has 40.0 MiB mapped");
        assert!(how_to_lock(Bytes(u64::MAX), Some(Bytes::gib(1))).is_err());
    }
}
