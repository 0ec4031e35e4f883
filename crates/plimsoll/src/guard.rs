//! Guarding a run: the supervisor's whole life. It starts a worker, watches it, finds out why one died, decides what to
//! do, and starts the next, until the run is done, stopped, or beyond help.
//!
//! Everything is decided by pure functions of `plimsoll-recover` (`pressure`, `cause`, `policy`); here their inputs are
//! gathered and their answers carried out, and both go into the journal. It holds no model and no plan, only figures.

mod aftermath;
mod growth;
mod mirror_process;
mod watcher;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::leaf::Leaf;
use plimsoll_recover::policy::{self, Decision, Incident};
use plimsoll_recover::witness::Witness;
use plimsoll_recover::{Events, Exit as ChildExit, Outcome, RunLock, Terms, checkpoint, protect, supervise};

use crate::render::{self, Exit, Fail};
use crate::settings::Settings;
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

/// How the next worker is to differ from the last.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    cap: Option<Bytes>,
    anew: bool,
}

/// A run under guard.
struct Guard<'a> {
    folder: &'a Path,
    charge: Charge,
    events: Events,
    root: Root,
    oom_score: i32,
    attempt: u64,
    next: Next,
    incidents: Vec<Incident>,
    /// The plan that the run has when nothing presses.
    full_plan: Option<Bytes>,
    /// Whether it has a smaller one.
    small: bool,
    /// How often it grew back.
    grown: u32,
    /// Plans must keep whole gradients.
    whole_gradients: bool,
}

/// What follows from a worker's end.
enum Then {
    Again(Next),
    End(Result<(), Fail>),
}

/// Trains in `folder` to the end, through whatever comes.
pub fn guard(folder: &Path, charge: Charge, _lock: &RunLock, events: Events) -> Result<(), Fail> {
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
        attempt: 0,
        next: Next::default(),
        incidents: Vec::new(),
        full_plan: None,
        small: false,
        grown: 0,
        whole_gradients: false,
    };
    let result = guard.train(&mut mirror);
    if let Some(mirror) = mirror {
        mirror.drain(&mut guard.events)?;
    }
    result
}

impl Guard<'_> {
    fn train(&mut self, mirror: &mut Option<MirrorProcess>) -> Result<(), Fail> {
        loop {
            self.clean();
            self.attempt += 1;
            let (outcome, watcher) = self.one_worker(mirror)?;
            match self.judge(outcome, watcher)? {
                Then::Again(next) => self.next = next,
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
    fn one_worker(&mut self, mirror: &mut Option<MirrorProcess>) -> Result<(Outcome, Watcher), Fail> {
        let Next { cap, anew } = self.next;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker").arg(self.folder);
        if let Some(cap) = cap {
            command.arg("--cap").arg(cap.0.to_string());
        }
        if anew {
            command.arg("--anew");
        }
        if self.whole_gradients {
            command.arg("--whole-gradients");
        }
        let leaf = Leaf::make(&self.root).ok();
        let witness = Witness::begin(&self.root, leaf.as_ref());
        let grow = self.full_plan.filter(|_| self.small || cap.is_some()).zip(growth::calm(self.grown));
        let before = Before { attempt: self.attempt, cap, grow };
        let mut watcher = Watcher::new(self.folder, &self.root, leaf, witness, before);
        let terms = Terms {
            door: watcher.leaf.as_ref().map(Leaf::door).transpose()?,
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
        if let Some(planned) = &watcher.planned {
            match cap {
                Some(_) => self.small = true,
                None if anew || self.full_plan.is_none() => {
                    (self.full_plan, self.small) = (Some(planned.ram), false);
                }
                None => {}
            }
        }
        Ok((outcome, watcher))
    }

    fn judge(&mut self, outcome: Outcome, watcher: Watcher) -> Result<Then, Fail> {
        let go_on = format!("go on: plimsoll resume {}", self.folder.display());
        match outcome.exit {
            ChildExit::Exited(0) => return Ok(Then::End(Ok(()))),
            ChildExit::Killed(signal) if outcome.stopped_by.is_some() => {
                let lost = match has_checkpoint(self.folder) {
                    true => "steps since the last checkpoint are lost",
                    false => "nothing was saved yet",
                };
                let how = match outcome.cut_short {
                    true => "the stop took longer than `stop_within` allows and was cut short".to_string(),
                    false => format!("stopped at once (signal {signal})"),
                };
                render::talk(format!("{how}; {lost}; {go_on}"));
                return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
            }
            ChildExit::Exited(status) if outcome.stopped_by.is_some() => {
                return Ok(Then::End(Err(Fail::silent(Exit::of(status)))));
            }
            ChildExit::Exited(4) => {
                return Ok(match watcher.hand_over {
                    Some(HandOver::Shrink { to }) => Then::Again(Next { cap: Some(to), anew: true }),
                    Some(HandOver::Grow) => {
                        self.grown += 1;
                        Then::Again(Next { cap: None, anew: true })
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
                render::talk(format!("stopped: no plan fits into what is left; when there is room again, {go_on}"));
                return Ok(Then::End(Err(Fail::silent(Exit::Stopped))));
            }
            // Nothing was started, and the worker has said why.
            ChildExit::Exited(status @ (1..=3)) if !watcher.ready => {
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
        let (incident, mut journal) = aftermath::inquire(self.folder, &self.root, &outcome, watcher)?;
        self.incidents.push(incident);
        let decision = (!torn).then(|| policy::policy(&self.incidents));
        aftermath::announce(self.folder, decision.as_ref(), &self.incidents, &mut journal);
        Ok(match decision {
            None => Then::Again(Next { cap: None, anew: true }),
            Some(Decision::Restart) => Then::Again(Next::default()),
            Some(Decision::Replan { cap, .. }) => Then::Again(Next { cap: Some(cap), anew: true }),
            Some(Decision::GiveUp { .. }) => Then::End(Err(Fail::silent(Exit::Failed))),
        })
    }
}
