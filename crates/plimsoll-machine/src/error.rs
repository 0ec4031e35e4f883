//! Why the machine could not be read: one variant per way in which a file can fail us.
//!
//! A part that a machine may rightly lack (pressure figures, a GPU library, a cgroup) is no error: it is reported as
//! an unseen [`Sighting`](crate::Sighting) with its reason.

use std::io;
use std::path::PathBuf;

/// A fact about the machine that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file does not exist.
    #[error("`{}` does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists and cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of the file is not what the kernel writes.
    #[error("`{}` line {line}: expected {expected}, found `{found}`", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The form that the line should have.
        expected: &'static str,
        /// The line, cut where it is long.
        found: String,
    },
    /// A line that must be there is not.
    #[error("`{}` has no `{field}` line", path.display())]
    NoField {
        /// The file.
        path: PathBuf,
        /// The line's key.
        field: &'static str,
    },
    /// There is no such process, or no longer.
    #[error("there is no process `{pid}`")]
    NoProcess {
        /// The process asked for.
        pid: u32,
    },
    /// The file system of a path cannot be asked for its space.
    #[error("the file system of `{}` cannot be asked for its space: {source}", path.display())]
    NoSpaceFigures {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
