//! Why there is no leaf: a fact to be told, not an error to stop at.

use std::io;
use std::path::PathBuf;

use plimsoll_machine::MachineError;

/// Why the worker has no cgroup of its own.
#[derive(Debug, thiserror::Error)]
pub enum NoLeaf {
    /// There is no memory cgroup to make it in.
    #[error("{reason}")]
    NoController {
        /// Why not.
        reason: String,
    },
    /// The cgroup mounts do not show the folder of this process's cgroup.
    #[error("no mount shows the folder of the cgroup `{name}`, the nearest is `{}`", path.display())]
    NotShown {
        /// The cgroup.
        name: String,
        /// The nearest folder that is shown.
        path: PathBuf,
    },
    /// We may not make one.
    #[error("`{}` may not be changed by this user", path.display())]
    NotPermitted {
        /// Where.
        path: PathBuf,
    },
    /// The cgroups are mounted read-only, as in most containers.
    #[error("`{}` is on a read-only mount", path.display())]
    ReadOnly {
        /// Where.
        path: PathBuf,
    },
    /// v2: only leaves may hold processes, and other programs are in our cgroup, which are not ours to move.
    #[error("`{}` holds {count} processes of others, which cgroup v2 forbids beside a leaf", path.display())]
    OtherProcesses {
        /// Our cgroup.
        path: PathBuf,
        /// How many are not ours.
        count: usize,
    },
    /// v2: our cgroup was not given the memory controller.
    #[error("`{}` was not given the memory controller, only `{found}`", path.display())]
    NotDelegated {
        /// Our cgroup.
        path: PathBuf,
        /// The controllers that it was given.
        found: String,
    },
    /// v1 before kernel 5.11: our cgroup does not count its children, so a leaf would be outside of its limit.
    #[error("`{}` does not count its children: a leaf would escape its limit", path.display())]
    WouldEscape {
        /// Our cgroup.
        path: PathBuf,
    },
    /// The kernel refused for another reason.
    #[error("`{}`: {source}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A file that tells of the cgroups could not be read.
    #[error(transparent)]
    Unreadable(#[from] MachineError),
}

impl NoLeaf {
    pub(super) fn refused(path: PathBuf, source: io::Error) -> NoLeaf {
        match source.kind() {
            io::ErrorKind::PermissionDenied => NoLeaf::NotPermitted { path },
            io::ErrorKind::ReadOnlyFilesystem => NoLeaf::ReadOnly { path },
            _ => NoLeaf::Refused { path, source },
        }
    }
}
