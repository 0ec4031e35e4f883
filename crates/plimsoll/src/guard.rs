//! Guarding a run: the supervisor's whole life. It starts a worker, watches it, finds out why one died, decides what to
//! do, and starts the next, until the run is done, stopped, or beyond help.
//!
//! Everything is decided by pure functions of `plimsoll-recover` (`pressure`, `cause`, `policy`); here their inputs are
//! gathered and their answers carried out, and both go into the journal. It holds no model and no plan, only figures.

mod aftermath;
mod growth;
mod mirror_process;
mod watcher;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::cause::Kind;
use plimsoll_recover::leaf::Leaf;
use plimsoll_recover::policy::{self, Decision, Incident};
use plimsoll_recover::witness::Witness;
use plimsoll_recover::{
    Events, Exit as ChildExit, Outcome, RecoverError, RunLock, Terms, checkpoint, protect, supervise,
};

use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
pub use growth::first_calm;
pub use watcher::seen;

use aftermath::has_checkpoint;
use mirror_process::MirrorProcess;
use watcher::{Before, HandOver, Watcher};

/// What the supervisor needs to know of a job.
pub struct Charge {
    /// The time that a stop may take.
    stop_within: Option<Duration>,
    /// Whether a mirror is to be kept.
    mirror: bool,
}

impl Charge {
    /// Of these settings.
    pub fn of(settings: &Settings) -> Charge {
        Charge { stop_within: settings.stop_within.map(Duration::from_secs), mirror: settings.mirror.is_some() }
    }
}

/// A run under guard.
struct Guard<'a> {
    folder: &'a Path,
    charge: Charge,
    events: Events,
    root: Root,
    oom_score: i32,
    lock: i32,
    attempt: u64,
    incidents: Vec<Incident>,
    /// The most that a plan may take, once the run was made smaller.
    cap: Option<Bytes>,
    /// The plan that the run has when nothing presses.
    full_plan: Option<Bytes>,
    /// How often it grew back.
    grown: u32,
    /// When we were asked to stop.
    stopped_at: Option<Instant>,
    /// Plans must keep whole gradients.
    whole_gradients: bool,
}

/// What follows from a worker's end.
enum Then {
    /// Another worker, with the plan of before or a new one.
    Again {
        anew: bool,
    },
    End(Result<(), Fail>),
}

/// Trains in `folder` to the end, through whatever comes.
pub fn guard(folder: &Path, charge: Charge, lock: &RunLock, events: Events) -> Result<(), Fail> {
    plimsoll_recover::shed();
    // Locked in memory and spared by the OOM killer where that is permitted; a run without it is no worse than before.
    let oom_score = protect::protect_self().score_before;
    let mut mirror = charge.mirror.then(|| MirrorProcess::new(folder, oom_score));
    let mut guard = Guard {
        folder,
        charge,
        events,
        root: Root::system(),
        oom_score,
        lock: lock.number(),
        attempt: 0,
        incidents: Vec::new(),
        cap: None,
        full_plan: None,
        grown: 0,
        stopped_at: None,
        whole_gradients: false,
    };
    let result = guard.train(&mut mirror);
    if let Some(mirror) = mirror {
        let stop_by = guard.stopped_at.zip(guard.charge.stop_within).map(|(at, within)| at + within);
        mirror.drain(&mut guard.events, stop_by)?;
    }
    result
}

impl Guard<'_> {
    fn train(&mut self, mirror: &mut Option<MirrorProcess>) -> Result<(), Fail> {
        let mut anew = false;
        loop {
            self.clean();
            self.attempt += 1;
            let (outcome, watcher) = self.one_worker(mirror, anew)?;
            self.stopped_at = outcome.stopped_at;
            match self.judge(outcome, watcher)? {
                Then::Again { anew: next } => anew = next,
                Then::End(result) => return result,
            }
            // Between two workers nobody else hears a stop.
            if self.events.pending()?.is_some() {
                render::talk(format!("stopped; go on: plimsoll resume {}", self.folder.display()));
                return Err(Fail::silent(Exit::Stopped));
            }
        }
    }

    /// Removes what a worker that died in a save has left: it may be as large as a checkpoint, and the disk is planned.
    fn clean(&self) {
        let checkpoints = self.folder.join("checkpoints");
        match checkpoint::clean_leftovers(&checkpoints) {
            Ok(removed) => {
                for path in removed {
                    render::talk(format!("removed what an interrupted save left: {}", path.display()));
                }
            }
            Err(error) => render::talk(format!("what an interrupted save left cannot be removed: {error}")),
        }
    }

    /// Starts one worker and sees it to its end.
    fn one_worker(&mut self, mirror: &mut Option<MirrorProcess>, anew: bool) -> Result<(Outcome, Watcher), Fail> {
        let leaf = Leaf::make(&self.root).ok();
        let had_leaf = leaf.is_some();
        match self.one_worker_in(leaf, mirror, anew) {
            // A cgroup that cannot be entered is no reason not to train.
            Err(fail) if had_leaf && not_started(&fail) => self.one_worker_in(None, mirror, anew),
            other => other,
        }
    }

    fn one_worker_in(
        &mut self,
        leaf: Option<Leaf>,
        mirror: &mut Option<MirrorProcess>,
        anew: bool,
    ) -> Result<(Outcome, Watcher), Fail> {
        let mut command = Command::new(program()?);
        command.arg("worker").arg(self.folder);
        if let Some(cap) = self.cap {
            command.arg("--cap").arg(cap.0.to_string());
        }
        if anew {
            command.arg("--anew");
        }
        if self.whole_gradients {
            command.arg("--whole-gradients");
        }
        let witness = Witness::begin(&self.root, leaf.as_ref());
        let grow = self.full_plan.filter(|_| self.cap.is_some()).zip(growth::calm(self.grown));
        let before = Before { attempt: self.attempt, cap: self.cap, grow };
        let mut watcher = Watcher::new(self.folder, &self.root, leaf, witness, before);
        let terms = Terms {
            door: watcher.leaf.as_ref().and_then(|leaf| leaf.door().ok()),
            lock: Some(self.lock),
            oom_score: Some(self.oom_score),
            stop_within: self.charge.stop_within,
            news: true,
        };
        let outcome = supervise(&mut command, &mut self.events, terms, |beat| {
            let wish = watcher.beat(beat);
            // A run that is refused has nothing to mirror.
            if watcher.ready {
                mirror.iter_mut().for_each(MirrorProcess::look_after);
            }
            wish
        })?;
        if let (Some(planned), None) = (&watcher.planned, self.cap) {
            self.full_plan = self.full_plan.max(Some(planned.ram));
        }
        Ok((outcome, watcher))
    }

    fn judge(&mut self, outcome: Outcome, watcher: Watcher) -> Result<Then, Fail> {
        let go_on = format!("go on: plimsoll resume {}", self.folder.display());
        match outcome.exit {
            ChildExit::Exited(0) => return Ok(Then::End(Ok(()))),
            ChildExit::Killed(signal) if outcome.killed => {
                let lost = match has_checkpoint(self.folder) {
                    true => "steps since the last checkpoint are lost",
                    false => "nothing was saved yet",
                };
                let how = match outcome.cut_short {
                    true => "the stop took longer than `stop_within` allows and was cut short".to_string(),
                    false => format!("stopped at once (signal {signal})"),
                };
                aftermath::note_stop(self.folder, &how);
                render::talk(format!("{how}; {lost}; {go_on}"));
                return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
            }
            ChildExit::Exited(status) if outcome.stopped_by.is_some() => {
                return Ok(Then::End(Err(Fail::silent(Exit::of(status)))));
            }
            ChildExit::Exited(4) => {
                return Ok(match watcher.hand_over {
                    Some(HandOver::Shrink { to }) => {
                        self.cap = Some(to);
                        Then::Again { anew: true }
                    }
                    Some(HandOver::Grow) => {
                        (self.cap, self.grown) = (None, self.grown + 1);
                        Then::Again { anew: true }
                    }
                    Some(HandOver::Stop { why }) => {
                        render::talk(format!("stopped and saved, because {why}; when there is room again, {go_on}"));
                        Then::End(Err(Fail::silent(Exit::Stopped)))
                    }
                    // Somebody else asked the worker itself.
                    None => Then::End(Err(Fail::silent(Exit::Stopped))),
                });
            }
            // It was trained before, under a plan that there is no room for now.
            ChildExit::Exited(3) if self.attempt > 1 && !watcher.ready => {
                let why = match self.whole_gradients {
                    true => {
                        "leaving out a step that is not finite needs a plan with whole gradients, which does not fit"
                    }
                    false => "no plan fits into what is left; when there is room again",
                };
                render::talk(format!("stopped: {why}; {go_on}"));
                return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
            }
            // Nothing was started, and the worker has said why.
            ChildExit::Exited(status @ (1..=3)) if !watcher.ready && self.attempt == 1 => {
                return Ok(Then::End(Err(Fail::silent(Exit::of(status)))));
            }
            _ => {}
        }
        self.died(outcome, watcher)
    }

    /// A worker that died: why, and what now.
    fn died(&mut self, outcome: Outcome, watcher: Watcher) -> Result<Then, Fail> {
        // The same step can be left out under a plan with whole gradients, and under no other.
        let torn = watcher.torn && !self.whole_gradients;
        self.whole_gradients |= torn;
        let (incident, mut journal) = aftermath::inquire(self.folder, &self.root, &outcome, watcher);
        // A run that itself took more than was planned would do so again under the larger plan.
        if incident.kind == Kind::KernelOomInOurCgroup && incident.ram.peak > incident.ram.cap {
            self.grown = u32::MAX;
        }
        let pause = pause(&incident.kind, self.incidents.len());
        self.incidents.push(incident);
        if outcome.stopped_by.is_some() {
            render::talk(format!("it was to stop; go on: plimsoll resume {}", self.folder.display()));
            return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
        }
        let decision = (!torn).then(|| policy::policy(&self.incidents));
        aftermath::announce(self.folder, decision.as_ref(), &self.incidents, journal.as_mut());
        Ok(match decision {
            None => Then::Again { anew: true },
            Some(Decision::Restart) => {
                if self.rest(pause)? {
                    return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
                }
                Then::Again { anew: false }
            }
            Some(Decision::Replan { cap, .. }) => {
                self.cap = Some(cap);
                Then::Again { anew: true }
            }
            Some(Decision::GiveUp { .. }) => Then::End(Err(Fail::silent(Exit::Failed))),
        })
    }

    /// Waits; whether somebody asked us to stop meanwhile.
    fn rest(&mut self, pause: Duration) -> Result<bool, Fail> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.events.rest(until)?.is_some() {
                render::talk(format!("stopped; go on: plimsoll resume {}", self.folder.display()));
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// How long to wait before a new try, after so many deaths: what fails for want of a disk or for no known reason may be
/// over a little later.
fn pause(kind: &Kind, deaths: usize) -> Duration {
    match kind {
        Kind::IoError | Kind::Unknown | Kind::Bug { .. } => Duration::from_secs([1, 5, 30][deaths.min(2)]),
        _ => Duration::ZERO,
    }
}

/// This program, also where its file has been replaced since it started.
pub(crate) fn program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
}

fn not_started(fail: &Fail) -> bool {
    let cause = fail.fact.as_ref().and_then(|fact| fact.downcast_ref::<RecoverError>());
    matches!(cause, Some(RecoverError::NotStarted { .. }))
}
