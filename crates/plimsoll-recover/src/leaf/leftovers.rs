//! Leaves of supervisors that died without removing them.

use std::path::Path;

use fs_err as fs;
use plimsoll_machine::Root;

/// Removes the empty leaves of dead supervisors from a cgroup; one that still holds a process refuses by itself.
pub(super) fn remove(root: &Root, dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let dead = maker(&entry.file_name().to_string_lossy()).is_some_and(|pid| !lives(root, pid));
        if dead {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that made the leaf of this name: `plimsoll-PID-N`, or `plimsoll-PID-N.supervisor`.
fn maker(name: &str) -> Option<u32> {
    let name = name.strip_suffix(super::split::SUPERVISOR).unwrap_or(name);
    let (pid, number) = name.strip_prefix("plimsoll-")?.split_once('-')?;
    number.parse::<u64>().ok()?;
    pid.parse().ok()
}

fn lives(root: &Root, pid: u32) -> bool {
    root.join(format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leaves_of_the_dead_are_removed_and_only_empty_ones() {
        let tree = tempfile::tempdir().unwrap();
        let base = tree.path();
        let dirs = ["plimsoll-7-1", "plimsoll-7-2.supervisor", "plimsoll-8-1", "plimsoll-9-1", "plimsoll-x-1", "other"];
        for dir in dirs {
            fs::create_dir_all(base.join("c").join(dir)).unwrap();
        }
        fs::create_dir_all(base.join("proc/8")).unwrap();
        fs::create_dir(base.join("c/plimsoll-9-1/busy")).unwrap();
        remove(&Root::at(base), &base.join("c"));
        let left: Vec<&str> = dirs.into_iter().filter(|dir| base.join("c").join(dir).exists()).collect();
        assert_eq!(left, ["plimsoll-8-1", "plimsoll-9-1", "plimsoll-x-1", "other"]);
    }
}
