//! What a worker tells its supervisor while it runs: one line of JSON at a time through a pipe.
//!
//! Invariants: telling never blocks and never fails a worker (a full pipe or a gone supervisor loses the line); a line
//! that is no news is passed over. The pipe works where no file can be written any more.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use plimsoll_machine::Bytes;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::RecoverError;
use crate::cause::Kind;

/// Longer lines are nobody's.
const LINE: usize = 4096;

/// Something that a worker tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It has a plan, and takes its memory.
    Planned {
        /// The planned peak of RAM, all processes.
        ram: Bytes,
        /// The smallest plan with the same results.
        smallest: Bytes,
        /// What a checkpoint takes on disk.
        checkpoint: Bytes,
    },
    /// Model, data and checkpoint are what they should be: from here on there is a run.
    Ready,
    /// All its memory is taken: the first step is done.
    Stepping {
        /// Which.
        step: u64,
    },
    /// A checkpoint is complete.
    Saved {
        /// Of this step.
        step: u64,
        /// It took so long.
        seconds: f64,
    },
    /// A gradient was not finite after weights had been changed by others of the same step: only a plan with whole
    /// gradients can leave this step out.
    Torn {
        /// The step.
        step: u64,
    },
    /// It is about to end itself, for this.
    Failing {
        /// What.
        kind: Kind,
    },
    /// The system refused memory.
    Refused {
        /// So much at once.
        bytes: u64,
    },
}

/// The worker's end.
#[derive(Debug)]
pub struct NewsWriter(OwnedFd);

impl NewsWriter {
    /// Takes over the descriptor that `--news` names.
    ///
    /// # Safety
    /// Nobody else in this process owns `number`.
    pub unsafe fn adopt(number: i32) -> Option<NewsWriter> {
        // SAFETY: only looked at; a number that is no descriptor is an error of the call.
        let known = unsafe { BorrowedFd::borrow_raw(number) };
        fcntl_getfd(known).ok()?;
        // SAFETY: the caller promises that it is ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // Programs that the worker starts have no business here.
        fcntl_setfd(&fd, FdFlags::CLOEXEC).ok()?;
        Some(NewsWriter(fd))
    }

    /// Tells it, if anybody listens.
    pub fn tell(&self, news: &News) {
        if let Ok(mut line) = serde_json::to_vec(news) {
            line.push(b'\n');
            let _ = rustix::io::write(&self.0, &line);
        }
    }

    pub(super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for NewsWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The supervisor's end.
pub(super) struct NewsReader {
    fd: OwnedFd,
    line: Vec<u8>,
}

impl NewsReader {
    pub(super) fn open() -> Result<(NewsReader, NewsWriter), RecoverError> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|error| {
            RecoverError::Call { call: "pipe2", place: "the pipe of news".to_string(), source: error.into() }
        })?;
        Ok((NewsReader { fd: read, line: Vec::new() }, NewsWriter(write)))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Passes on what is there; whether more can come.
    pub(super) fn read(&mut self, mut tell: impl FnMut(News)) -> bool {
        let mut block = [0; 512];
        loop {
            let got = match rustix::io::read(&self.fd, &mut block) {
                Ok(0) => return false,
                Ok(got) => got,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return error == rustix::io::Errno::AGAIN,
            };
            for &byte in &block[..got] {
                if byte == b'\n' {
                    serde_json::from_slice(&self.line).into_iter().for_each(&mut tell);
                    self.line.clear();
                } else if self.line.len() < LINE {
                    self.line.push(byte);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_in_order_whole_and_what_is_no_news_is_passed_over() {
        let (mut reader, writer) = NewsReader::open().unwrap();
        writer.tell(&News::Stepping { step: 3 });
        rustix::io::write(&writer, b"{\"what\": 1}\nno json\n{\"torn\":{\"st").unwrap();
        let mut told = Vec::new();
        assert!(reader.read(|news| told.push(news)));
        rustix::io::write(&writer, b"ep\":9}}\n").unwrap();
        drop(writer);
        assert!(!reader.read(|news| told.push(news)));
        assert_eq!(told, [News::Stepping { step: 3 }, News::Torn { step: 9 }]);
    }

    #[test]
    fn a_supervisor_that_does_not_listen_stops_nobody() {
        let (reader, writer) = NewsReader::open().unwrap();
        for step in 0..20_000 {
            writer.tell(&News::Stepping { step });
        }
        drop(reader);
        // Rust programs ignore SIGPIPE, so this is an error that nobody looks at.
        writer.tell(&News::Stepping { step: 1 });
    }
}
