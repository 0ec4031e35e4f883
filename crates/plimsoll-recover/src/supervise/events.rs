//! Signals as a stream: each handler writes its number into a pipe, the one loop reads it.
//!
//! A pipe keeps order and count, which flags do not. A signal that was being ignored when the process started (`nohup`,
//! `&` in a script) stays ignored.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::SigId;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{register, unregister};

use super::StopSignal;
use crate::RecoverError;
use crate::stop_flag::{is_ignored, not_taken};

/// The signals that the supervisor waits for. Held to the end of the process: a signal that was taken over once does
/// nothing after this is dropped.
#[derive(Debug)]
pub struct Events {
    read: OwnedFd,
    ids: Vec<SigId>,
}

impl Events {
    /// Takes over `SIGINT`, `SIGTERM`, `SIGHUP` and `SIGCHLD`. Called before the worker is started.
    pub fn install() -> Result<Events, RecoverError> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| broken("pipe2", e))?;
        let write = Arc::new(write);
        let mut events = Events { read, ids: Vec::new() };
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGCHLD] {
            if [SIGINT, SIGHUP].contains(&signal) && is_ignored(signal) {
                continue;
            }
            let write = Arc::clone(&write);
            let tell = move || {
                // A full pipe holds thousands of the same news; the one that does not fit adds nothing.
                let _ = rustix::io::write(&*write, &[signal as u8]);
            };
            // SAFETY: the handler makes one raw `write` call without locks, allocation, panic or change of `errno`,
            // which is all that a signal handler must not do.
            let id = unsafe { register(signal, tell) }.map_err(|source| not_taken(signal, source))?;
            events.ids.push(id);
        }
        Ok(events)
    }

    /// Waits for the next signal, for `other` to be readable, or until `until`.
    pub(super) fn wait(&mut self, other: Option<BorrowedFd>, until: Instant) -> Result<Woken, RecoverError> {
        let mut byte = [0];
        loop {
            match rustix::io::read(&self.read, &mut byte) {
                Ok(1) => break,
                Ok(_) => return Err(broken("read", Errno::PIPE)),
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(broken("read", error)),
            }
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.read, PollFlags::IN), PollFd::new(&self.read, PollFlags::empty())];
            if let Some(other) = &other {
                fds[1] = PollFd::new(other, PollFlags::IN);
            }
            match poll(&mut fds[..1 + usize::from(other.is_some())], Some(&time)) {
                Ok(0) if until <= Instant::now() => return Ok(Woken::Late),
                Ok(_) if fds[0].revents().is_empty() && !fds[1].revents().is_empty() => return Ok(Woken::Readable),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(broken("poll", error)),
            }
        }
        Ok(match i32::from(byte[0]) {
            SIGINT => Woken::Signal(StopSignal::Interrupt),
            SIGTERM => Woken::Signal(StopSignal::Terminate),
            SIGHUP => Woken::Signal(StopSignal::HangUp),
            _ => Woken::Child,
        })
    }

    /// A stop that was asked for and that nobody has waited for yet; children that changed are forgotten.
    pub fn pending(&mut self) -> Result<Option<StopSignal>, RecoverError> {
        loop {
            match self.wait(None, Instant::now())? {
                Woken::Signal(signal) => return Ok(Some(signal)),
                Woken::Child => {}
                Woken::Readable | Woken::Late => return Ok(None),
            }
        }
    }

    /// Waits until a stop is asked for, some child changes, or `until`.
    pub fn rest(&mut self, until: Instant) -> Result<Option<StopSignal>, RecoverError> {
        Ok(match self.wait(None, until)? {
            Woken::Signal(signal) => Some(signal),
            Woken::Child | Woken::Readable | Woken::Late => None,
        })
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// We were asked to stop.
    Signal(StopSignal),
    /// Some child changed.
    Child,
    /// The other descriptor has something.
    Readable,
    /// The time came.
    Late,
}

impl Drop for Events {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            unregister(id);
        }
    }
}

fn broken(call: &'static str, error: Errno) -> RecoverError {
    RecoverError::Call { call, place: "the pipe of signals".to_string(), source: io::Error::from(error) }
}
