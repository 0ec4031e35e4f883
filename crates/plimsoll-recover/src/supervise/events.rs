//! Signals as a stream: each handler writes its number into a pipe, the one loop reads it.
//!
//! A pipe keeps order and count, which flags do not. A signal that was being ignored when the process started (`nohup`,
//! `&` in a script) stays ignored.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
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

    /// Waits for the next signal; `None` when it only says that some child changed.
    pub(super) fn next(&mut self) -> Result<Option<StopSignal>, RecoverError> {
        let mut byte = [0];
        loop {
            match rustix::io::read(&self.read, &mut byte) {
                Ok(1) => break,
                Ok(_) => return Err(broken("read", Errno::PIPE)),
                Err(Errno::AGAIN) => self.wait()?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken("read", error)),
            }
        }
        Ok(match i32::from(byte[0]) {
            SIGINT => Some(StopSignal::Interrupt),
            SIGTERM => Some(StopSignal::Terminate),
            SIGHUP => Some(StopSignal::HangUp),
            _ => None,
        })
    }

    fn wait(&self) -> Result<(), RecoverError> {
        match poll(&mut [PollFd::new(&self.read, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(broken("poll", error)),
        }
    }
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
