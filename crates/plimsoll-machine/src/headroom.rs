//! What a run may use now: the smallest of all the bounds that the machine sets.
//!
//! `usable` decides, from values. `Headroom` remembers where the files are, so that the figure can be read every
//! second; it does not notice that the process was moved into another cgroup.

use serde::Serialize;

use crate::cgroup::{self, Place, Room};
use crate::{Bytes, MachineError, MemInfo, Overcommit, Root, kernel, meminfo, mounts};

/// What sets the figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Bound {
    /// `MemAvailable` of the whole machine.
    Ram,
    /// A cgroup.
    Cgroup {
        /// What it leaves, and how that comes about.
        room: Room,
    },
    /// Strict overcommit: what the kernel may still promise.
    Commit,
}

/// What a run may use now, and what sets that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Usable {
    /// How much.
    pub bytes: Bytes,
    /// Set by this.
    pub bound: Bound,
}

/// The least of `MemAvailable`, the tightest cgroup's room, and, under strict overcommit, the unpromised rest.
pub fn usable(ram: &MemInfo, room: Option<&Room>, overcommit: Option<Overcommit>) -> Usable {
    let mut least = Usable { bytes: ram.available, bound: Bound::Ram };
    if let Some(room) = room
        && room.bytes < least.bytes
    {
        least = Usable { bytes: room.bytes, bound: Bound::Cgroup { room: room.clone() } };
    }
    if overcommit == Some(Overcommit::Strict)
        && let (Some(limit), Some(committed)) = (ram.commit_limit, ram.committed)
    {
        let unpromised = limit.saturating_sub(committed);
        if unpromised < least.bytes {
            least = Usable { bytes: unpromised, bound: Bound::Commit };
        }
    }
    least
}

/// Reads [`usable`] again and again.
#[derive(Clone, Debug)]
pub struct Headroom {
    root: Root,
    place: Option<Place>,
}

impl Headroom {
    /// Finds the memory cgroup once.
    pub fn find(root: &Root) -> Result<Headroom, MachineError> {
        let mounts = mounts::read(root)?;
        Ok(Headroom { root: root.clone(), place: cgroup::locate_memory(root, &mounts)?.ok() })
    }

    /// Leaves out the innermost cgroup where its name begins with `prefix`: a limit that a program set for itself is not
    /// what the machine can give.
    pub fn outside_of(mut self, prefix: &str) -> Headroom {
        if let Some(place) = &mut self.place
            && place.chain.len() > 1
            && place.name.rsplit('/').next().is_some_and(|name| name.starts_with(prefix))
        {
            place.chain.remove(0);
        }
        self
    }

    /// What may be used now.
    pub fn read(&self) -> Result<Bytes, MachineError> {
        Ok(self.read_bound()?.bytes)
    }

    /// What may be used now, and what sets that.
    pub fn read_bound(&self) -> Result<Usable, MachineError> {
        Ok(self.read_with_ram()?.0)
    }

    /// The same, and the memory of the machine that it was read with.
    pub fn read_with_ram(&self) -> Result<(Usable, MemInfo), MachineError> {
        let levels = match &self.place {
            Some(place) => cgroup::read_levels(&self.root, place)?,
            None => Vec::new(),
        };
        let room = cgroup::tightest(&levels);
        let ram = meminfo::read(&self.root)?;
        Ok((usable(&ram, room.as_ref(), kernel::read_overcommit(&self.root)?), ram))
    }
}

/// What a run may use now; [`Headroom`] is cheaper for more than one reading.
pub fn headroom(root: &Root) -> Result<Bytes, MachineError> {
    Headroom::find(root)?.read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;

    fn ram(available_mib: u64) -> MemInfo {
        MemInfo {
            total: Bytes::gib(16),
            available: Bytes::mib(available_mib),
            swap_total: Bytes::ZERO,
            swap_free: Bytes::ZERO,
            commit_limit: Some(Bytes::mib(900)),
            committed: Some(Bytes::mib(600)),
        }
    }

    fn room(mib: u64) -> Room {
        let limit = Limit { bytes: Bytes::gib(4), file: "/sys/fs/cgroup/memory.max".into() };
        Room { bytes: Bytes::mib(mib), limit, current: Bytes::ZERO, reclaimable: Bytes::ZERO }
    }

    #[test]
    fn the_smallest_bound_wins_and_is_named() {
        assert_eq!(usable(&ram(1000), None, None), Usable { bytes: Bytes::mib(1000), bound: Bound::Ram });
        assert_eq!(usable(&ram(1000), Some(&room(2000)), None).bound, Bound::Ram);
        let tight = usable(&ram(1000), Some(&room(500)), None);
        assert_eq!(tight, Usable { bytes: Bytes::mib(500), bound: Bound::Cgroup { room: room(500) } });
    }

    #[test]
    fn the_commit_limit_binds_only_under_strict_overcommit() {
        assert_eq!(usable(&ram(1000), None, Some(Overcommit::Heuristic)).bytes, Bytes::mib(1000));
        assert_eq!(usable(&ram(1000), None, Some(Overcommit::Always)).bytes, Bytes::mib(1000));
        // 900 - 600
        assert_eq!(
            usable(&ram(1000), Some(&room(500)), Some(Overcommit::Strict)),
            Usable { bytes: Bytes::mib(300), bound: Bound::Commit }
        );
    }
}
