//! The supervisor: starts the worker, waits for one thing at a time, passes stops on, and says how it ended.
//!
//! Invariants: no threads, no busy waiting, a few MiB; the worker is in a process group of its own, so that Ctrl-C
//! reaches only us and we decide; nothing of the worker's group outlives the worker, and the worker does not outlive us.
//! Whoever calls [`supervise`] is told what happens ([`Beat`]) and may wish for a save or a handing over; what a death
//! means and whether to start again is decided elsewhere, from the [`Outcome`].

mod decide;
mod events;
mod news;
mod tree;
mod worker;

use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_machine::Bytes;

pub use decide::{Action, Event, Phase, StopSignal, Wish, decide};
pub use events::Events;
pub use news::{News, NewsWriter};
pub use tree::{Keeper, Kin, TreeOutcome, TreeWish, guard_tree};

use crate::leaf::Door;
use crate::{ExitCode, RecoverError};
use events::Woken;
use news::NewsReader;
use worker::Worker;

/// Between two beats.
pub const BEAT: Duration = Duration::from_secs(1);

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
    /// The signal by which somebody asked us to stop while it ran, the first of them.
    pub stopped_by: Option<StopSignal>,
    /// When that was.
    pub stopped_at: Option<Instant>,
    /// We killed it: somebody insisted, or the stop took longer than it may.
    pub killed: bool,
    /// The stop took longer than it may, and the worker was killed for it.
    pub cut_short: bool,
    /// It was asked to hand over, and nobody asked us to stop.
    pub handed_over: bool,
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
            Exit::Killed(_) if self.stopped_by.is_some() => ExitCode::Stopped,
            Exit::Killed(_) => ExitCode::Failed,
        }
    }
}

/// How a worker is started and stopped.
#[derive(Debug, Default)]
pub struct Terms {
    /// The way into the cgroup that it moves itself into before it becomes the program.
    pub door: Option<Door>,
    /// The descriptor of the run's lock, which the worker holds too.
    pub lock: Option<i32>,
    /// Our own OOM score before we protected ourselves, which the worker's lies above; `None`: the one that we have.
    pub oom_score: Option<i32>,
    /// The time that a stop may take.
    pub stop_within: Option<Duration>,
    /// Whether the program takes `--news FD`, a pipe on which it tells what happens.
    pub news: bool,
}

/// What the caller is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Beat {
    /// The worker was started.
    Started(u32),
    /// A second has passed.
    Tick,
    /// The worker tells something.
    Told(News),
}

/// Runs `command` as the worker to its end. `events` must have been installed before, from this thread: the kernel ties
/// the worker's life to the thread that starts it. Its standard input is closed: a background group may not read the
/// terminal.
pub fn supervise(
    command: &mut Command,
    events: &mut Events,
    terms: Terms,
    mut watch: impl FnMut(Beat) -> Wish,
) -> Result<Outcome, RecoverError> {
    let (mut terms, mut news) = (terms, None);
    if terms.news {
        let (reader, writer) = NewsReader::open()?;
        command.arg("--news").arg(writer.number().to_string());
        news = Some((reader, Some(writer)));
    }
    let worker = Worker::start(command, &mut terms, news.as_ref().and_then(|(_, writer)| writer.as_ref()))?;
    let mut news = news.map(|(reader, _)| reader);
    let (mut phase, mut stopped_by, mut stop_by, mut cut_short) = (Phase::Running, None, None::<Instant>, false);
    let mut stopped_at = None;
    let mut wishes = vec![watch(Beat::Started(worker.pid()))];
    let mut beat = Instant::now() + BEAT;
    loop {
        let event = match (worker.ended()?, wishes.pop()) {
            (Some(exit), _) => Event::ChildExited(exit),
            (None, Some(wish)) => Event::Wish(wish),
            (None, None) => {
                let until = stop_by.map_or(beat, |stop_by| stop_by.min(beat));
                match events.wait(news.as_ref().map(NewsReader::fd), until)? {
                    Woken::Signal(signal) => {
                        if stopped_by.is_none() {
                            let now = Instant::now();
                            (stopped_by, stopped_at) = (Some(signal), Some(now));
                            stop_by = terms.stop_within.map(|within| now + within);
                        }
                        Event::Signal(signal)
                    }
                    Woken::Child => continue,
                    Woken::Readable => {
                        let Some(reader) = &mut news else { continue };
                        let open = reader.read(|told| wishes.push(watch(Beat::Told(told))));
                        if !open {
                            news = None;
                        }
                        continue;
                    }
                    Woken::Late if stop_by.is_some_and(|stop_by| Instant::now() >= stop_by) => {
                        (stop_by, cut_short) = (None, phase == Phase::Stopping);
                        Event::TimeIsUp
                    }
                    Woken::Late => {
                        beat = (beat + BEAT).max(Instant::now());
                        Event::Wish(watch(Beat::Tick))
                    }
                }
            }
        };
        let action;
        (phase, action) = decide(phase, event);
        match action {
            Action::Wait => {}
            Action::AskToSave => worker.ask_to_save()?,
            Action::AskToHandOver => worker.ask_to_hand_over()?,
            Action::AskToStop => worker.ask_to_stop()?,
            Action::KillNow => worker.kill()?,
            Action::Finish(exit) => {
                // What it told at the very end is still in the pipe.
                if let Some(reader) = &mut news {
                    reader.read(|told| _ = watch(Beat::Told(told)));
                }
                let (handed_over, killed) = (phase == Phase::HandingOver, phase == Phase::Killing);
                let (peak, own_peak) = (worker.reap()?, worker::own_peak());
                return Ok(Outcome { exit, stopped_by, stopped_at, killed, cut_short, handed_over, peak, own_peak });
            }
        }
    }
}
