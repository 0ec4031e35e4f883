//! `memory.stat`: what a cgroup's memory is made of, and how much of it can be dropped.
//!
//! Page cache is charged to the cgroup that read the file, so a cgroup at its limit may be full of cache and leave
//! everything. What cannot be dropped must not be counted: tmpfs and shared memory, dirty pages, pages being written.

use std::path::Path;

use crate::cgroup::CgroupVersion;
use crate::lines::{limited, misread};
use crate::{Bytes, MachineError};

/// The lines of `memory.stat` that bear on what can be dropped, descendants included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// File pages on the kernel's list of recently used ones.
    pub active_file: Bytes,
    /// File pages on its list of those not used lately.
    pub inactive_file: Bytes,
    /// All page cache, tmpfs and shared memory included.
    pub cache: Bytes,
    /// tmpfs and shared memory.
    pub shmem: Bytes,
    /// File pages not written back yet.
    pub dirty: Bytes,
    /// File pages being written back.
    pub writeback: Bytes,
    /// Kernel objects that it can free; v1 does not say.
    pub slab_reclaimable: Bytes,
    /// v1 only: the smallest limit over all ancestors, those outside of our sight included.
    pub hierarchical_limit: Option<Bytes>,
}

/// What the kernel can drop at once.
///
/// Shared memory is inside `cache` but not on the two file lists: on a 6.18 kernel `total_cache` 1628409856 less
/// `total_shmem` 13078528 is `total_active_file` + `total_inactive_file` to the byte. So the lists are taken as they
/// are, and `cache - shmem` is an upper bound, which leaves shared memory out whichever way a kernel counts.
pub fn reclaimable(stat: &MemoryStat) -> Bytes {
    let lists = stat.active_file.saturating_add(stat.inactive_file);
    let files = lists.min(stat.cache.saturating_sub(stat.shmem));
    files.saturating_sub(stat.dirty).saturating_sub(stat.writeback).saturating_add(stat.slab_reclaimable)
}

/// Reads the text of `memory.stat`; `path` is only for the messages.
pub fn parse_memory_stat(path: &Path, version: CgroupVersion, text: &str) -> Result<MemoryStat, MachineError> {
    // v1 also counts the cgroup without its descendants, under the names without `total_`.
    let keys = match version {
        CgroupVersion::V1 => [
            "total_active_file",
            "total_inactive_file",
            "total_cache",
            "total_shmem",
            "total_dirty",
            "total_writeback",
            "total_slab_reclaimable",
            "hierarchical_memory_limit",
        ],
        CgroupVersion::V2 => [
            "active_file",
            "inactive_file",
            "file",
            "shmem",
            "file_dirty",
            "file_writeback",
            "slab_reclaimable",
            "hierarchical_memory_limit",
        ],
    };
    let mut values = [None; 8];
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(' ') else { continue };
        if let Some(slot) = keys.iter().position(|k| *k == key) {
            let number = value.trim().parse::<u64>().map_err(|_| misread(path, at + 1, "`key number`", line))?;
            values[slot] = Some(number);
        }
    }
    let needed = |slot: usize| {
        values[slot].map(Bytes).ok_or(MachineError::NoField { path: path.to_path_buf(), field: keys[slot] })
    };
    let or_none = |slot: usize| Bytes(values[slot].unwrap_or(0));
    Ok(MemoryStat {
        active_file: needed(0)?,
        inactive_file: needed(1)?,
        cache: needed(2)?,
        shmem: or_none(3),
        dirty: or_none(4),
        writeback: or_none(5),
        slab_reclaimable: or_none(6),
        hierarchical_limit: values[7].and_then(limited),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/sys/fs/cgroup/memory.stat";

    #[test]
    fn shared_memory_is_left_out_once_and_not_twice() {
        // As recorded on a 6.18 kernel: cache - shmem is exactly the two lists.
        let stat = MemoryStat {
            cache: Bytes(1628409856),
            shmem: Bytes(13078528),
            active_file: Bytes(567795712),
            inactive_file: Bytes(1047535616),
            dirty: Bytes(103661568),
            ..MemoryStat::default()
        };
        assert_eq!(reclaimable(&stat), Bytes(567795712 + 1047535616 - 103661568));
    }

    #[test]
    fn a_cgroup_full_of_tmpfs_can_drop_nothing() {
        let stat = MemoryStat { cache: Bytes::gib(2), shmem: Bytes::gib(2), ..MemoryStat::default() };
        assert_eq!(reclaimable(&stat), Bytes::ZERO);
    }

    #[test]
    fn dirty_pages_and_pages_being_written_do_not_count_and_slab_does() {
        let stat = MemoryStat {
            cache: Bytes::mib(100),
            active_file: Bytes::mib(60),
            inactive_file: Bytes::mib(40),
            dirty: Bytes::mib(25),
            writeback: Bytes::mib(5),
            slab_reclaimable: Bytes::mib(7),
            ..MemoryStat::default()
        };
        assert_eq!(reclaimable(&stat), Bytes::mib(100 - 25 - 5 + 7));
    }

    #[test]
    fn v1_counts_descendants_and_hides_its_sentinel() {
        let text = "cache 1\nactive_file 1\ninactive_file 1\nhierarchical_memory_limit 9223372036854771712\n\
                    total_cache 30\ntotal_active_file 20\ntotal_inactive_file 10\n";
        let stat = parse_memory_stat(Path::new(FILE), CgroupVersion::V1, text).unwrap();
        assert_eq!((stat.cache, stat.active_file, stat.inactive_file), (Bytes(30), Bytes(20), Bytes(10)));
        assert_eq!(stat.hierarchical_limit, None);
    }

    #[test]
    fn a_wrong_number_and_a_missing_list_are_named() {
        let error = parse_memory_stat(Path::new(FILE), CgroupVersion::V2, "anon 5\nactive_file many\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`/sys/fs/cgroup/memory.stat` line 2: expected `key number`, found `active_file many`"
        );
        let error = parse_memory_stat(Path::new(FILE), CgroupVersion::V2, "active_file 3\n").unwrap_err();
        assert_eq!(error.to_string(), "`/sys/fs/cgroup/memory.stat` has no `inactive_file` line");
    }
}
