//! The stream into one file of a checkpoint: one bounded buffer, length and checksum on the way.
//!
//! Memory is bounded on both sides of the kernel: besides the buffer, at most two windows of page cache are dirty at any
//! time, since a run that lives in a memory cgroup pays for those pages too and must not be killed by its own save.

use std::io::{self, Write};
use std::os::fd::AsRawFd;

use crc32fast::Hasher;
use plimsoll_machine::Bytes;

use super::FileFacts;

/// What writing a checkpoint takes of memory, whatever its size.
pub const BUFFER: Bytes = Bytes::mib(1);

const WINDOW: u64 = 8 << 20;

pub(super) struct Sink<'a> {
    file: &'a fs_err::File,
    buffer: &'a mut Vec<u8>,
    crc: Hasher,
    written: u64,
    window_start: u64,
    failed: bool,
}

impl<'a> Sink<'a> {
    pub(super) fn new(file: &'a fs_err::File, buffer: &'a mut Vec<u8>) -> Sink<'a> {
        buffer.clear();
        Sink { file, buffer, crc: Hasher::new(), written: 0, window_start: 0, failed: false }
    }

    /// Brings everything to the disk. A producer that ignored a failed write is caught here.
    pub(super) fn finish(mut self) -> io::Result<FileFacts> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed and its producer went on"));
        }
        self.drain()?;
        self.file.sync_all()?;
        // The next reader is a resume, much later; the pages are worth more to the run.
        let _ = rustix::fs::fadvise(self.file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(FileFacts { bytes: Bytes(self.written), crc32: self.crc.finalize() })
    }

    fn drain(&mut self) -> io::Result<()> {
        let full = std::mem::take(self.buffer);
        let put = self.put(&full);
        *self.buffer = full;
        self.buffer.clear();
        put
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.file;
        if let Err(error) = file.write_all(bytes) {
            self.failed = true;
            return Err(error);
        }
        self.crc.update(bytes);
        self.written += bytes.len() as u64;
        if self.written - self.window_start >= WINDOW {
            self.push_out();
        }
        Ok(())
    }

    /// Starts writing the window that is full and waits for the one before it. Only advice: `sync_all` decides.
    fn push_out(&mut self) {
        let (start, length) = (self.window_start, self.written - self.window_start);
        sync_range(self.file, start, length, libc::SYNC_FILE_RANGE_WRITE);
        if start > 0 {
            let wait =
                libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            sync_range(self.file, 0, start, wait);
            let before = std::num::NonZeroU64::new(start);
            let _ = rustix::fs::fadvise(self.file, 0, before, rustix::fs::Advice::DontNeed);
        }
        self.window_start = self.written;
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other("an earlier write of this file failed"));
        }
        let room = BUFFER.0 as usize;
        if self.buffer.len() + bytes.len() > room {
            self.drain()?;
        }
        if bytes.len() < room {
            self.buffer.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        // A tensor that is larger than the buffer goes to the file from where it lies.
        let piece = &bytes[..bytes.len().min(WINDOW as usize)];
        self.put(piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()
    }
}

fn sync_range(file: &fs_err::File, start: u64, length: u64, flags: libc::c_uint) {
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and no memory is passed.
    unsafe { libc::sync_file_range(file.as_raw_fd(), start as i64, length as i64, flags) };
}
