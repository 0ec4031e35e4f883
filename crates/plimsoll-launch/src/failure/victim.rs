//! Which process of the training it was: by its number among those that were seen, else by what was said of it.

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{KernelKill, RunProcess};

use super::Culprit;
use super::kind::{FailureKind, Victim};
use super::scene::Scene;
use super::signs::Who;
use crate::Launcher;

/// What compilers of extensions are called.
const COMPILERS: [&str; 9] = ["cc1plus", "cc1", "cicc", "ptxas", "nvcc", "cudafe++", "ninja", "g++", "clang++"];

/// The sort of a process by the role that the watcher gave it.
fn sort_of(role: &str) -> Victim {
    if role.contains("loader") {
        Victim::Loader
    } else if role.contains("compiler") {
        Victim::Compiler
    } else if role.starts_with("rank") {
        Victim::Rank
    } else if role.contains("launcher") {
        Victim::Launcher
    } else {
        Victim::Unknown
    }
}

/// A process that was seen, by any of its numbers.
fn seen(scene: &Scene, pid: u32) -> Option<&RunProcess> {
    scene.evidence.processes.iter().find(|process| process.nspid.contains(&pid))
}

/// Its number as the run itself sees it.
fn own_number(process: &RunProcess) -> Option<u32> {
    process.nspid.last().copied()
}

/// Whom the kernel killed.
pub(super) fn of_kill(scene: &Scene, kill: &KernelKill) -> (Victim, Option<Culprit>) {
    let numbered = scene.evidence.first_pid_namespace || scene.evidence.processes.is_empty();
    let first = |process: &&RunProcess| process.nspid.first() == Some(&kill.pid);
    if let Some(process) = scene.evidence.processes.iter().find(first) {
        return (sort_of(&process.role), Some(Culprit { role: process.role.clone(), pid: own_number(process) }));
    }
    let pid = numbered.then_some(kill.pid);
    if COMPILERS.contains(&kill.comm.as_str()) {
        return (Victim::Compiler, Some(Culprit { role: "compiler".to_string(), pid }));
    }
    // torch gives its processes names (seen: 2.15).
    match kill.comm.as_str() {
        "pt_data_worker" => (Victim::Loader, Some(Culprit { role: "loader".to_string(), pid })),
        "pt_elastic" => (Victim::Launcher, Some(Culprit { role: "launcher".to_string(), pid })),
        _ => (Victim::Unknown, None),
    }
}

/// Whom a line is about.
pub(super) fn of_sign(scene: &Scene, kind: &FailureKind, who: Who) -> (Victim, Option<Culprit>) {
    if let Some(process) = who.pid.and_then(|pid| seen(scene, pid)) {
        return (sort_of(&process.role), Some(Culprit { role: process.role.clone(), pid: who.pid }));
    }
    if who.loader {
        let role = who.rank.map_or_else(|| "loader".to_string(), |rank| format!("loader of rank {rank}"));
        return (Victim::Loader, Some(Culprit { role, pid: who.pid }));
    }
    if *kind == FailureKind::CompilerKilled {
        return (Victim::Compiler, Some(Culprit { role: "compiler".to_string(), pid: who.pid }));
    }
    match who.rank {
        Some(rank) => (Victim::Rank, Some(of_rank(scene, rank, who.pid))),
        None if scene.trainer.launcher != Launcher::None => (Victim::Rank, only_rank(scene)),
        None => (Victim::Unknown, only_rank(scene)),
    }
}

/// A rank, with its number where it was seen.
pub(super) fn of_rank(scene: &Scene, rank: u32, pid: Option<u32>) -> Culprit {
    let role = format!("rank {rank}");
    let known = || scene.evidence.processes.iter().find(|process| process.role == role).and_then(own_number);
    let watched = || {
        let all = scene.watched.gone.iter().chain(&scene.watched.stopped).chain(&scene.watched.idle);
        all.filter(|process| process.rank == rank).find_map(|process| process.pid)
    };
    Culprit { pid: pid.or_else(known).or_else(watched), role }
}

/// The one rank, where there is but one.
pub(super) fn only_rank(scene: &Scene) -> Option<Culprit> {
    let mut ranks = scene.evidence.processes.iter().filter(|process| sort_of(&process.role) == Victim::Rank);
    let one = ranks.next()?;
    let culprit = Culprit { role: one.role.clone(), pid: own_number(one) };
    ranks.next().is_none().then_some(culprit)
}

/// Who died where only the exit of the command that was started is known.
pub(super) fn of_exit(scene: &Scene) -> (Victim, Option<Culprit>) {
    let by_signal = matches!(scene.evidence.exit, Some(Exit::Killed(9) | Exit::Exited(137)));
    if let Some(first) = scene.watched.gone.first() {
        return (Victim::Rank, Some(of_rank(scene, first.rank, first.pid)));
    }
    match (by_signal, scene.trainer.launcher) {
        (true, Launcher::None) => (Victim::Rank, only_rank(scene)),
        (true, _) => {
            let role = "launcher".to_string();
            let seen = scene.evidence.processes.iter().find(|process| process.role == role);
            (Victim::Launcher, Some(Culprit { pid: seen.and_then(own_number), role }))
        }
        (false, _) => (Victim::Unknown, None),
    }
}
