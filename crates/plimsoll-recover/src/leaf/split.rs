//! cgroup v2: a cgroup that hands a controller down may hold no process itself, so we move aside first.
//!
//! Our cgroup becomes the parent of two: one that we move into, with the processes that we started, and the worker's.
//! Processes of others are never moved: where there are any, there is no leaf. All is put back when dropped.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::{Root, identity};

use super::{NoLeaf, word};

/// What the name of our own leaf ends with.
pub(super) const SUPERVISOR: &str = ".supervisor";

/// What must be done before our cgroup can have a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing: its children have the memory controller already.
    AsItIs,
    /// The controller must be handed down; the root of all cgroups may hold processes even so.
    HandDown,
    /// We must move aside first.
    MoveAside,
}

/// What decides that.
struct Parent<'a> {
    controllers: &'a str,
    handed_down: &'a str,
    is_root_of_all: bool,
    strangers: usize,
}

fn way(parent: &Parent<'_>, path: &Path) -> Result<Way, NoLeaf> {
    let memory = |words: &str| words.split_ascii_whitespace().any(|word| word == "memory");
    if memory(parent.handed_down) {
        Ok(Way::AsItIs)
    } else if !memory(parent.controllers) {
        let found = parent.controllers.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        Err(NoLeaf::NotDelegated { path: path.to_path_buf(), found })
    } else if parent.is_root_of_all {
        Ok(Way::HandDown)
    } else if parent.strangers > 0 {
        Err(NoLeaf::OtherProcesses { path: path.to_path_buf(), count: parent.strangers })
    } else {
        Ok(Way::MoveAside)
    }
}

/// A cgroup that was made able to have a leaf.
#[derive(Debug)]
pub(super) struct Split {
    parent: PathBuf,
    supervisor: Option<PathBuf>,
    handed_down: bool,
}

impl Split {
    /// Makes the cgroup in `parent` able to have a leaf; `None` where it is already.
    pub(super) fn make(root: &Root, parent: &Path, leaf: &str, members: &[u32]) -> Result<Option<Split>, NoLeaf> {
        let refused = |source| NoLeaf::refused(parent.to_path_buf(), source);
        let read = |name: &str| fs::read_to_string(parent.join(name)).map_err(refused);
        let facts = Parent {
            controllers: &read("cgroup.controllers")?,
            handed_down: &read("cgroup.subtree_control")?,
            // Every cgroup but the root of all has a type.
            is_root_of_all: !parent.join("cgroup.type").exists(),
            strangers: members.iter().filter(|pid| !is_ours(root, **pid)).count(),
        };
        let way = way(&facts, parent)?;
        if way == Way::AsItIs {
            return Ok(None);
        }
        let mut split = Split { parent: parent.to_path_buf(), supervisor: None, handed_down: false };
        if way == Way::MoveAside {
            split.move_aside(leaf, members).map_err(refused)?;
        }
        match word::write(&parent.join("cgroup.subtree_control"), "+memory") {
            Ok(()) => split.handed_down = true,
            // Somebody came in after we looked.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let count = word::processes(parent).map_or(1, |all| all.len());
                return Err(NoLeaf::OtherProcesses { path: parent.to_path_buf(), count });
            }
            Err(error) => return Err(refused(error)),
        }
        Ok(Some(split))
    }

    fn move_aside(&mut self, leaf: &str, members: &[u32]) -> io::Result<()> {
        let dir = self.parent.join(format!("{leaf}{SUPERVISOR}"));
        fs::create_dir(&dir)?;
        self.supervisor = Some(dir.clone());
        move_all(members, &dir)
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        if self.handed_down {
            let _ = word::write(&self.parent.join("cgroup.subtree_control"), "-memory");
        }
        let Some(dir) = &self.supervisor else { return };
        // A process that we start while this goes on is in the next list; more than a few rounds are never needed.
        for _ in 0..5 {
            match word::processes(dir) {
                Ok(members) if !members.is_empty() => _ = move_all(&members, &self.parent),
                _ => break,
            }
        }
        let _ = fs::remove_dir(dir);
    }
}

fn move_all(members: &[u32], to: &Path) -> io::Result<()> {
    let procs = to.join("cgroup.procs");
    for pid in members {
        match word::write(&procs, &pid.to_string()) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // it has ended
            other => other?,
        }
    }
    Ok(())
}

/// Whether a process is this one, or one that it started.
fn is_ours(root: &Root, pid: u32) -> bool {
    let own = std::process::id();
    pid == own || identity(root, pid).is_ok_and(|found| found.parent == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(controllers: &str, handed_down: &str, is_root_of_all: bool, strangers: usize) -> Result<Way, String> {
        let parent = Parent { controllers, handed_down, is_root_of_all, strangers };
        way(&parent, Path::new("/c")).map_err(|no| no.to_string())
    }

    #[test]
    fn we_move_aside_only_where_we_are_alone_and_the_controller_is_ours_to_hand_down() {
        assert_eq!(judge("cpu memory pids\n", "", false, 0), Ok(Way::MoveAside));
        assert_eq!(judge("cpu memory\n", "cpu memory\n", false, 9), Ok(Way::AsItIs));
        assert_eq!(judge("cpu memory\n", "", true, 9), Ok(Way::HandDown));
        let others = "`/c` holds 3 processes of others, which cgroup v2 forbids beside a leaf";
        assert_eq!(judge("memory\n", "pids\n", false, 3), Err(others.to_string()));
        let bare = "`/c` was not given the memory controller, only `cpu pids`";
        assert_eq!(judge("cpu pids\n", "", false, 0), Err(bare.to_string()));
    }

    #[test]
    fn a_process_of_ours_is_this_one_or_a_child_of_it() {
        let root = Root::system();
        assert!(is_ours(&root, std::process::id()));
        assert!(!is_ours(&root, 0) && !is_ours(&root, std::os::unix::process::parent_id()));
    }
}
