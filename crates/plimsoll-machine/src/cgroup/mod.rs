//! What the cgroups around this process leave it, v1 and v2.
//!
//! Every ancestor binds, and each with what its own members use: the tightest level is the one with the least room,
//! which need not be the one with the smallest limit. The decisions here take values; `locate` finds the folders and
//! `levels` reads them. Nothing here knows the RAM of the machine.

mod counters;
mod levels;
mod locate;
mod place;
mod quota;
mod stat;

use std::path::PathBuf;

use serde::Serialize;

use crate::{Bytes, Pressure, Sighting};

pub use counters::MemoryCounters;
pub(crate) use levels::read_levels;
pub(crate) use locate::locate_memory;
pub use locate::{Membership, parse_membership};
pub use place::{Place, Usage};
pub(crate) use quota::read_quota;
pub use stat::{MemoryStat, parse_memory_stat, reclaimable};

/// The two kinds of cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// A limit, and the file that sets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// How much.
    pub bytes: Bytes,
    /// Set by this file.
    pub file: PathBuf,
}

/// One cgroup on the way from this process up to the last that can be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Its folder.
    pub dir: PathBuf,
    /// Its own limit, the smaller where it has two.
    pub limit: Option<Limit>,
    /// What it and its descendants use now, page cache included.
    pub current: Bytes,
    /// The part of `current` that the kernel can drop at once.
    pub reclaimable: Bytes,
    /// The swap that it may use in all; `None` where it sets no limit.
    pub swap_limit: Option<Bytes>,
    /// The swap that it may still use.
    pub swap_room: Option<Bytes>,
}

impl Level {
    /// What its members may still take: limit - current + reclaimable.
    pub fn room(&self) -> Option<Room> {
        let limit = self.limit.clone()?;
        // What can be dropped is part of what is used; a stale figure must not promise more than the limit.
        let reclaimable = self.reclaimable.min(self.current);
        let bytes = limit.bytes.saturating_add(reclaimable).saturating_sub(self.current);
        Some(Room { bytes, limit, current: self.current, reclaimable })
    }
}

/// What a level leaves, with the figures it comes from: `bytes` = limit - current + reclaimable, or zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Room {
    /// What is left.
    pub bytes: Bytes,
    /// Of this limit.
    pub limit: Limit,
    /// Used at that level.
    pub current: Bytes,
    /// Of it droppable.
    pub reclaimable: Bytes,
}

/// The smallest limit over all levels; the level nearest to the process names it where several are equal.
pub fn effective_limit(levels: &[Level]) -> Option<Limit> {
    levels.iter().filter_map(|level| level.limit.clone()).min_by_key(|limit| limit.bytes)
}

/// The least room over all levels.
pub fn tightest(levels: &[Level]) -> Option<Room> {
    levels.iter().filter_map(Level::room).min_by_key(|room| room.bytes)
}

/// The memory cgroup of this process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cgroup {
    /// The kind of hierarchy that has the memory files.
    pub version: CgroupVersion,
    /// The cgroup's name as `/proc/self/cgroup` gives it.
    pub path: String,
    /// The smallest limit over all ancestors, and the file that sets it.
    pub limit: Option<Limit>,
    /// What this cgroup uses now, page cache included.
    pub current: Bytes,
    /// Of it droppable.
    pub reclaimable: Bytes,
    /// The least that any level leaves.
    pub room: Option<Room>,
    /// The smallest allowance of swap over all ancestors; `None` where nobody sets one.
    pub swap_limit: Option<Bytes>,
    /// The least swap that any level leaves.
    pub swap_room: Option<Bytes>,
    /// Memory pressure in this cgroup.
    pub pressure: Sighting<Pressure>,
    /// All levels, this process's own first.
    pub levels: Vec<Level>,
}

impl Cgroup {
    pub(crate) fn of(version: CgroupVersion, path: String, levels: Vec<Level>, pressure: Sighting<Pressure>) -> Cgroup {
        let own = levels.first();
        Cgroup {
            version,
            path,
            limit: effective_limit(&levels),
            current: own.map_or(Bytes::ZERO, |level| level.current),
            reclaimable: own.map_or(Bytes::ZERO, |level| level.reclaimable),
            room: tightest(&levels),
            swap_limit: levels.iter().filter_map(|level| level.swap_limit).min(),
            swap_room: levels.iter().filter_map(|level| level.swap_room).min(),
            pressure,
            levels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(dir: &str, limit_mib: Option<u64>, current_mib: u64, reclaimable_mib: u64) -> Level {
        Level {
            dir: dir.into(),
            limit: limit_mib.map(|n| Limit { bytes: Bytes::mib(n), file: format!("{dir}/memory.max").into() }),
            current: Bytes::mib(current_mib),
            reclaimable: Bytes::mib(reclaimable_mib),
            swap_limit: None,
            swap_room: None,
        }
    }

    #[test]
    fn a_parent_filled_by_siblings_binds_before_a_smaller_limit() {
        // Own: 1000 - 100 + 0 = 900. Parent: 2000 - 1900 + 50 = 150, though its limit is twice as large.
        let levels = [level("/p/c", Some(1000), 100, 0), level("/p", Some(2000), 1900, 50), level("/", None, 5000, 0)];
        assert_eq!(effective_limit(&levels).unwrap().file, PathBuf::from("/p/c/memory.max"));
        let room = tightest(&levels).unwrap();
        assert_eq!((room.bytes, room.limit.file), (Bytes::mib(150), PathBuf::from("/p/memory.max")));
    }

    #[test]
    fn room_never_exceeds_the_limit_and_never_goes_below_zero() {
        assert_eq!(level("/", Some(100), 10, 80).room().unwrap().bytes, Bytes::mib(100));
        assert_eq!(level("/", Some(100), 130, 10).room().unwrap().bytes, Bytes::ZERO);
    }

    #[test]
    fn no_limit_anywhere_is_no_limit() {
        let levels = [level("/a", None, 1, 0)];
        assert_eq!(effective_limit(&levels), None);
        assert_eq!(tightest(&levels), None);
    }
}
