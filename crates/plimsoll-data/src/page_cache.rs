//! Pages of files that the kernel keeps in memory: not more of them than a little, where the files are larger than may stay.
//!
//! Such pages count for the cgroup that read them. The kernel drops them before it kills, but only then, and what is dropped then is
//! also what others need. It is advice: where the kernel does not take it, nothing else changes.

use std::io;
use std::path::Path;

use fs_err::File;
use rustix::fs::{Advice, fadvise};

/// Bytes that are read before pages are let go.
pub(crate) const LET_GO_EVERY: u64 = 16 << 20;

/// What the kernel usually reads behind what it was asked for.
pub(crate) const READ_AHEAD: u64 = 128 << 10;

/// Lets the pages of a file go.
pub(crate) fn let_go(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // Advice that is not taken is no error.
    let _ = fadvise(file.file(), 0, None, Advice::DontNeed);
    Ok(())
}

/// A file that is read from its beginning to its end.
pub(crate) struct ReadOnce {
    file: File,
    passed: u64,
}

impl ReadOnce {
    pub fn new(path: &Path) -> io::Result<ReadOnce> {
        Ok(ReadOnce { file: File::open(path)?, passed: 0 })
    }

    /// So much more of it was read.
    pub fn passed(&mut self, bytes: u64) {
        self.passed += bytes;
        if self.passed >= LET_GO_EVERY {
            self.passed = 0;
            let _ = fadvise(self.file.file(), 0, None, Advice::DontNeed);
        }
    }
}

impl Drop for ReadOnce {
    fn drop(&mut self) {
        let _ = fadvise(self.file.file(), 0, None, Advice::DontNeed);
    }
}
