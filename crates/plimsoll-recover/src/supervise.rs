//! The supervisor: starts the worker, waits for one thing at a time, passes stops on, and says how it ended.
//!
//! Invariants: no threads, no polling, a few MiB; the worker is in a process group of its own, so that Ctrl-C reaches
//! only us and we decide; nothing of the worker's group outlives the worker, and the worker does not outlive us.
//! What a death means and whether to start again is decided elsewhere, from the [`Outcome`].

mod decide;
mod events;
mod worker;

use std::process::Command;

use plimsoll_machine::Bytes;

pub use decide::{Action, Event, Phase, StopSignal, decide};
pub use events::Events;

use crate::{ExitCode, RecoverError};
use worker::Worker;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ended itself with this status.
    Exited(i32),
    /// This signal ended it. That alone says nothing of the cause.
    Killed(i32),
}

/// How a supervised worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its end.
    pub exit: Exit,
    /// Whether somebody asked us to stop while it ran.
    pub stopped_by_user: bool,
    /// The most memory it ever had resident, as the kernel counted it.
    pub peak: Bytes,
    /// The same for this process.
    pub own_peak: Bytes,
}

impl Outcome {
    /// The status that this process should end with. A worker that was killed because the user insisted counts as
    /// stopped: the last complete checkpoint stands.
    pub fn exit_code(&self) -> ExitCode {
        match self.exit {
            Exit::Exited(status) => ExitCode::of(status),
            Exit::Killed(_) if self.stopped_by_user => ExitCode::Stopped,
            Exit::Killed(_) => ExitCode::Failed,
        }
    }
}

/// Runs `command` as the worker to its end. `events` must have been installed before, from this thread: the kernel ties
/// the worker's life to the thread that starts it. Its standard input is closed: a background group may not read the
/// terminal.
pub fn supervise(command: &mut Command, events: &mut Events) -> Result<Outcome, RecoverError> {
    let worker = Worker::start(command)?;
    let mut phase = Phase::Running;
    loop {
        let event = match worker.ended()? {
            Some(exit) => Event::ChildExited(exit),
            None => match events.next()? {
                Some(signal) => Event::Signal(signal),
                None => continue,
            },
        };
        let action;
        (phase, action) = decide(phase, event);
        match action {
            Action::Wait => {}
            Action::AskToStop => worker.ask_to_stop()?,
            Action::KillNow => worker.kill()?,
            Action::Finish(exit) => {
                let stopped_by_user = phase != Phase::Running;
                return Ok(Outcome { exit, stopped_by_user, peak: worker.reap()?, own_peak: worker::own_peak() });
            }
        }
    }
}
