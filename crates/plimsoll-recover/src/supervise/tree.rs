//! A foreign program and all that descends from it, guarded as one.
//!
//! Launchers start ranks in sessions of their own, and a launcher that dies may leave its ranks training, so neither a
//! process group nor the launcher stands for the tree: its cgroup does, and where there is none, everything that
//! descends from us, which orphans do too while we are the subreaper. Invariants: when [`guard_tree`] returns, nothing of
//! the tree runs, so that ports and memory are free; a stop asks first and kills when its time is over. Nothing is
//! judged here: whoever keeps the tree ([`Keeper`]) is asked four times a second.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use fs_err as fs;
use plimsoll_machine::{Root, descendants};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper, waitid};

use super::events::Woken;
use super::worker::Worker;
use super::{Events, Exit, StopSignal, Terms};
use crate::RecoverError;
use crate::leaf::Leaf;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// What a program that ended well gives its helpers to end too.
const AFTER_A_GOOD_END: Duration = Duration::from_secs(10);
/// How long the kernel is given to end what was killed: a process that waits for a disk ends late.
const DEAD_WITHIN: Duration = Duration::from_secs(30);

/// Who looks after a tree.
pub trait Keeper {
    /// It was started, and this is its first process.
    fn started(&mut self, pid: u32);
    /// A look; what is wished.
    fn look(&mut self) -> TreeWish;
    /// Whom a request to stop goes to.
    fn whom_to_ask(&mut self) -> Vec<u32>;
}

/// What is wished of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeWish {
    /// Nothing.
    GoOn,
    /// That it saves if it can, and ends.
    Stop,
    /// That it ends now.
    Kill,
}

/// How a tree ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOutcome {
    /// The end of its first process.
    pub exit: Exit,
    /// The signal by which somebody asked us to stop, the first of them.
    pub stopped_by: Option<StopSignal>,
    /// We killed it.
    pub killed: bool,
    /// Processes that the first one left behind, and that we ended.
    pub left_behind: Vec<u32>,
    /// What could not be ended.
    pub undead: Vec<u32>,
}

/// How the members of a tree are found.
#[derive(Clone, Debug)]
pub struct Kin {
    root: Root,
    procs: Option<PathBuf>,
}

impl Kin {
    /// By the cgroup of the tree, or by descent from us.
    pub fn new(root: &Root, leaf: Option<&Leaf>) -> Kin {
        Kin { root: root.clone(), procs: leaf.map(Leaf::procs_file) }
    }

    /// Those that are there now, ended ones that nobody has collected included.
    pub fn members(&self) -> Vec<u32> {
        match &self.procs {
            Some(path) => {
                let text = fs::read_to_string(path).unwrap_or_default();
                text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != 0).collect()
            }
            None => descendants(&self.root, std::process::id()),
        }
    }

    /// Of `pids`, those that have not ended.
    fn alive(&self, pids: Vec<u32>) -> Vec<u32> {
        let alive = |pid: &u32| plimsoll_machine::relative(&self.root, *pid).is_ok_and(|one| !"ZX".contains(one.state));
        pids.into_iter().filter(alive).collect()
    }
}

/// Runs `command` to the end of it and of all that descends from it. `events` must have been installed before, from this
/// thread.
pub fn guard_tree(
    command: &mut Command,
    events: &mut Events,
    mut terms: Terms,
    kin: &Kin,
    keeper: &mut impl Keeper,
) -> Result<TreeOutcome, RecoverError> {
    // An orphan of the tree becomes our child, where it can be found and collected.
    let _ = set_child_subreaper(Some(getpid()));
    let worker = Worker::start(command, &mut terms, None)?;
    keeper.started(worker.pid());
    let mut outcome = TreeOutcome {
        exit: Exit::Exited(0),
        stopped_by: None,
        killed: false,
        left_behind: Vec::new(),
        undead: Vec::new(),
    };
    let (mut asked_to_stop, mut stop_by, mut look) = (false, None::<Instant>, Instant::now() + LOOK);
    loop {
        collect_orphans(&kin.root, worker.pid());
        if let Some(exit) = worker.ended()? {
            outcome.exit = exit;
            break;
        }
        let until = stop_by.map_or(look, |stop_by| stop_by.min(look));
        let asked = match events.wait(None, until)? {
            Woken::Signal(signal) if outcome.stopped_by.is_none() => {
                outcome.stopped_by = Some(signal);
                TreeWish::Stop
            }
            // A Ctrl-C after a stop insists.
            Woken::Signal(StopSignal::Interrupt) => TreeWish::Kill,
            Woken::Signal(_) | Woken::Child | Woken::Readable => continue,
            Woken::Late if stop_by.is_some_and(|stop_by| Instant::now() >= stop_by) => TreeWish::Kill,
            Woken::Late => {
                look = (look + LOOK).max(Instant::now());
                keeper.look()
            }
        };
        match asked {
            TreeWish::GoOn => {}
            TreeWish::Stop if asked_to_stop => {}
            TreeWish::Stop => {
                asked_to_stop = true;
                stop_by = terms.stop_within.map(|within| Instant::now() + within);
                keeper.whom_to_ask().into_iter().for_each(|pid| signal(pid, Signal::TERM));
            }
            TreeWish::Kill => {
                outcome.killed = true;
                end(kin, &worker);
                stop_by = None;
            }
        }
    }
    let patience = match outcome.exit {
        Exit::Exited(0) if !outcome.killed => AFTER_A_GOOD_END,
        _ => Duration::ZERO,
    };
    let own = worker.pid();
    // An ended process whose threads still end is a member too: memory and cgroup are free only when it is gone.
    let others = || kin.members().into_iter().filter(|pid| *pid != own).collect::<Vec<u32>>();
    wait_until_gone(&kin.root, own, patience, &others);
    outcome.left_behind = kin.alive(others());
    let give_up = Instant::now() + DEAD_WITHIN;
    while !others().is_empty() {
        if Instant::now() > give_up {
            outcome.undead = kin.alive(others());
            break;
        }
        others().into_iter().for_each(|pid| signal(pid, Signal::KILL));
        wait_until_gone(&kin.root, own, Duration::from_millis(200), &others);
    }
    worker.reap()?;
    Ok(outcome)
}

/// Ends all of a tree at once.
fn end(kin: &Kin, worker: &Worker) {
    signal(worker.pid(), Signal::KILL);
    kin.members().into_iter().for_each(|pid| signal(pid, Signal::KILL));
}

fn wait_until_gone(root: &Root, own: u32, patience: Duration, others: &impl Fn() -> Vec<u32>) {
    let until = Instant::now() + patience;
    loop {
        collect_orphans(root, own);
        if Instant::now() >= until || others().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Collects children of ours that ended, but not `worker`, whose end is waited for elsewhere.
fn collect_orphans(root: &Root, worker: u32) {
    for pid in plimsoll_machine::children(root, std::process::id()).into_iter().filter(|pid| *pid != worker) {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// A process that is gone needs no signal.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32).filter(|_| pid != std::process::id()) {
        let _ = kill_process(pid, signal);
    }
}
