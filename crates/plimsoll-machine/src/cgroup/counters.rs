//! The memory counters of one cgroup: kills, hits of its limit, its peak.
//!
//! v1's `oom_kill` counts kills of processes of this very cgroup, v2's those of its descendants too. Both count kills
//! by any kernel OOM, the machine's included. A counter that a kernel lacks is `None`, which is another thing than zero.

use std::path::Path;

use serde::Serialize;

use crate::cgroup::{CgroupVersion, Place};
use crate::lines::{keyed_number, lone_limit, lone_number};
use crate::{Bytes, MachineError, Root};

/// The memory counters of a cgroup, since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "version", rename_all = "snake_case")]
pub enum MemoryCounters {
    /// cgroup v1.
    V1 {
        /// `oom_kill` of `memory.oom_control` (kernel 4.13).
        oom_kill: Option<u64>,
        /// `memory.failcnt`: how often the limit was hit.
        failcnt: Option<u64>,
        /// `memory.max_usage_in_bytes`.
        peak: Option<Bytes>,
        /// `memory.limit_in_bytes`; `None` where there is no limit.
        limit: Option<Bytes>,
    },
    /// cgroup v2: `memory.events`.
    V2 {
        /// Kills of its processes.
        oom_kill: Option<u64>,
        /// Allocations that were about to fail at the limit.
        oom: Option<u64>,
        /// Kills of the whole group (kernel 5.17).
        oom_group_kill: Option<u64>,
        /// How often `memory.max` was hit.
        max: Option<u64>,
        /// How often `memory.high` throttled.
        high: Option<u64>,
        /// `memory.peak` (kernel 5.19).
        peak: Option<Bytes>,
    },
}

impl MemoryCounters {
    /// The counters of the cgroup at `place`, now.
    pub fn read(root: &Root, place: &Place) -> Result<MemoryCounters, MachineError> {
        let dir = place.dir();
        match place.version {
            CgroupVersion::V1 => {
                let control = dir.join("memory.oom_control");
                let limit = dir.join("memory.limit_in_bytes");
                Ok(MemoryCounters::V1 {
                    oom_kill: keyed_number(&root.join(&control), &root.read(&control)?, "oom_kill")?,
                    failcnt: number_if_there(root, &dir.join("memory.failcnt"))?,
                    peak: number_if_there(root, &dir.join("memory.max_usage_in_bytes"))?.map(Bytes),
                    limit: match root.read_if_there(&limit)? {
                        Some(text) => lone_limit(&root.join(&limit), &text)?,
                        None => None,
                    },
                })
            }
            CgroupVersion::V2 => {
                let file = dir.join("memory.events");
                let text = root.read(&file)?;
                let counter = |key| keyed_number(&root.join(&file), &text, key);
                Ok(MemoryCounters::V2 {
                    oom_kill: counter("oom_kill")?,
                    oom: counter("oom")?,
                    oom_group_kill: counter("oom_group_kill")?,
                    max: counter("max")?,
                    high: counter("high")?,
                    peak: number_if_there(root, &dir.join("memory.peak"))?.map(Bytes),
                })
            }
        }
    }

    /// Kills of its processes by the kernel for want of memory.
    pub fn oom_kills(&self) -> Option<u64> {
        match self {
            MemoryCounters::V1 { oom_kill, .. } | MemoryCounters::V2 { oom_kill, .. } => *oom_kill,
        }
    }

    /// The most that it ever used.
    pub fn peak(&self) -> Option<Bytes> {
        match self {
            MemoryCounters::V1 { peak, .. } | MemoryCounters::V2 { peak, .. } => *peak,
        }
    }
}

fn number_if_there(root: &Root, file: &Path) -> Result<Option<u64>, MachineError> {
    match root.read_if_there(file)? {
        Some(text) => lone_number(&root.join(file), &text).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(version: CgroupVersion, files: &[(&str, &str)]) -> (tempfile::TempDir, Root, Place) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("c")).unwrap();
        for (name, text) in files {
            fs_err::write(dir.path().join("c").join(name), text).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root, Place { version, name: "/c".into(), chain: vec!["/c".into()] })
    }

    #[test]
    fn v1_counts_kills_hits_and_its_peak() {
        // As a 6.18 kernel writes them.
        let files = [
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("memory.failcnt", "86\n"),
            ("memory.max_usage_in_bytes", "50331648\n"),
            ("memory.limit_in_bytes", "50331648\n"),
        ];
        let (_dir, root, place) = place(CgroupVersion::V1, &files);
        let found = MemoryCounters::read(&root, &place).unwrap();
        let limit = Some(Bytes::mib(48));
        assert_eq!(found, MemoryCounters::V1 { oom_kill: Some(1), failcnt: Some(86), peak: limit, limit });
        assert_eq!((found.oom_kills(), found.peak()), (Some(1), limit));
    }

    #[test]
    fn what_a_kernel_does_not_count_is_none_and_not_zero() {
        let files = [("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")];
        let (_dir, root, old) = place(CgroupVersion::V1, &files);
        let nothing = MemoryCounters::V1 { oom_kill: None, failcnt: None, peak: None, limit: None };
        assert_eq!(MemoryCounters::read(&root, &old).unwrap(), nothing);
        let events = "low 0\nhigh 3\nmax 12\noom 1\noom_kill 2\n";
        let (_dir, root, v2) = place(CgroupVersion::V2, &[("memory.events", events)]);
        let (oom_kill, oom, max, high) = (Some(2), Some(1), Some(12), Some(3));
        let found = MemoryCounters::V2 { oom_kill, oom, oom_group_kill: None, max, high, peak: None };
        assert_eq!(MemoryCounters::read(&root, &v2).unwrap(), found);
    }

    #[test]
    fn a_cgroup_without_counters_is_missing_and_a_wrong_one_is_named() {
        let (_dir, root, bare) = place(CgroupVersion::V2, &[]);
        assert!(matches!(MemoryCounters::read(&root, &bare), Err(MachineError::Missing { .. })));
        let (_dir, root, wrong) = place(CgroupVersion::V2, &[("memory.events", "low 0\noom_kill many\n")]);
        let error = MemoryCounters::read(&root, &wrong).unwrap_err().to_string();
        assert!(error.ends_with("/c/memory.events` line 2: expected `key number`, found `oom_kill many`"), "{error}");
    }
}
