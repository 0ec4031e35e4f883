//! Pages of files that the kernel keeps in memory: not more of them than a little, where the files are larger than may stay.
//!
//! Such pages count for the cgroup that read them. The kernel drops them before it kills, but only then, and what is dropped then is
//! also what others need. Large reads ask it to keep none (`RWF_DONTCACHE`, where kernel and file system take it); pages that came in
//! another way are let go by advice, every now and then. Where neither is taken, nothing else changes.

use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_err::File;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Bytes that are read before pages are let go.
pub(crate) const LET_GO_EVERY: u64 = 16 << 20;

/// What the kernel usually reads behind what it was asked for.
pub(crate) const READ_AHEAD: u64 = 128 << 10;

/// `RWF_DONTCACHE` of Linux 6.14: pages that a read brought in go again when it is done.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Shorter reads leave their pages: the next one is likely to want the same.
const UNCACHED_FROM: usize = 32 << 10;

/// What becomes of pages that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Stay,
    Go,
}

/// An open file whose pages stay, or go.
#[derive(Debug)]
pub(crate) struct PagedFile {
    file: File,
    /// Reads ask that no pages stay.
    uncached: AtomicBool,
    /// Pages that stayed behind short reads go when it is closed.
    goes_at_end: bool,
}

impl PagedFile {
    pub fn open(path: &Path, pages: Pages) -> io::Result<PagedFile> {
        Ok(PagedFile::of(File::open(path)?, pages))
    }

    /// One that is open.
    pub fn of(file: File, pages: Pages) -> PagedFile {
        PagedFile { file, uncached: AtomicBool::new(pages == Pages::Go), goes_at_end: false }
    }

    /// Where it was when it was opened.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// For a while, behind which all its pages go, where they are to.
    pub fn open_for_a_while(path: &Path, pages: Pages) -> io::Result<PagedFile> {
        let mut file = PagedFile::open(path, pages)?;
        file.goes_at_end = pages == Pages::Go;
        Ok(file)
    }

    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        if out.len() >= UNCACHED_FROM && self.uncached.load(Ordering::Relaxed) {
            match preadv2(self.file.file(), &mut [IoSliceMut::new(out)], at, DONTCACHE) {
                // An older kernel, or a file system without it.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.uncached.store(false, Ordering::Relaxed),
                read => return read.map_err(|error| self.named(error.into())),
            }
        }
        self.file.file().read_at(out, at).map_err(|error| self.named(error))
    }

    /// Fills `out`.
    pub fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read_at(&mut out[done..], at + done as u64) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was")),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets its pages go, whatever became of its name.
    pub fn let_go(&self) {
        // Advice that is not taken is no error.
        let _ = fadvise(self.file.file(), 0, None, Advice::DontNeed);
    }

    /// With the path.
    fn named(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, format!("cannot read `{}`: {error}", self.file.path().display())),
        }
    }
}

impl Drop for PagedFile {
    fn drop(&mut self) {
        if self.goes_at_end {
            self.let_go();
        }
    }
}

/// Lets the pages of a file go. What is wrong with one that is not there any more is for whoever reads it to say.
pub(crate) fn let_go(path: &Path) {
    if let Ok(file) = PagedFile::open(path, Pages::Stay) {
        file.let_go();
    }
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
