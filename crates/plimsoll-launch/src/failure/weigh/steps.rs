//! The steps of the weighing, in order. Each either settles the end or passes on.

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{Confidence, Kind, Scope, Source};

use super::super::cuda::CudaReport;
use super::super::kind::{FailureKind, Killer, Victim};
use super::super::signs::{self, Weight};
use super::super::{Culprit, victim};
use super::{Case, Found, Ground, Verdict, asked, watched};
use crate::Launcher;

/// What the end was.
pub(super) fn judge(case: &Case<'_>) -> Verdict {
    asked::completed(case)
        .or_else(|| witness(case, Confidence::Proven))
        .or_else(|| asked::stop_that_was_asked(case))
        .or_else(|| root(case, Confidence::Proven))
        .or_else(|| witness(case, Confidence::Likely))
        .or_else(|| root(case, Confidence::Likely))
        .or_else(|| watched::stalled(case))
        .or_else(|| killed(case))
        .or_else(|| suspect(case))
        .or_else(|| bug(case))
        .or_else(|| fault(case))
        .or_else(|| asked::stop_that_was_told(case))
        .or_else(|| watched::rank_gone(case))
        .or_else(|| killed_as_the_system_says(case))
        .or_else(|| echo(case))
        .unwrap_or_else(|| by_the_system(case))
}

pub(super) fn verdict(
    kind: FailureKind,
    confidence: Confidence,
    culprit: Option<Culprit>,
    because: Vec<Ground>,
) -> Verdict {
    Verdict { kind, confidence, culprit, card: None, because }
}

/// Somebody who saw a process being killed for want of host memory.
fn witness(case: &Case<'_>, least: Confidence) -> Option<Verdict> {
    let scene = case.scene;
    // A parent that names the very number makes it certain whose death the kernel tells of.
    let told = |pid: u32| case.of(Weight::Killed).find(|found| found.sign.who.pid == Some(pid));
    let named = case.kernel.kills.iter().find_map(|kill| told(kill.pid).map(|found| (kill, found)));
    if let Some((kill, found)) = named {
        let at_a_limit = kill.scope == Scope::Cgroup || (kill.scope == Scope::Unsaid && kill.oom_memcg.is_some());
        let by = if at_a_limit { Killer::Cgroup } else { Killer::Host };
        let (mut victim, mut culprit) = victim::of_kill(scene, kill);
        if victim == Victim::Unknown || culprit.as_ref().is_none_or(|culprit| culprit.role == "loader") {
            (victim, culprit) = victim::of_sign(scene, &found.sign.kind, found.sign.who);
        }
        let because = vec![case.says(Source::KernelLog, kill.line.clone()), case.line(found.at)];
        return Some(verdict(FailureKind::HostOom { by, victim }, Confidence::Proven, culprit, because));
    }
    let by = match &case.cause.kind {
        Kind::KernelOomInOurCgroup => Killer::Cgroup,
        Kind::KernelOomOfTheHost => Killer::Host,
        Kind::OomDaemon { name } => Killer::Daemon { name: name.clone() },
        _ => return None,
    };
    if case.cause.confidence < least {
        return None;
    }
    let used = |line: &str| case.cause.because.iter().any(|fact| fact.text == line);
    let kill = case.kernel.kills.iter().find(|kill| used(&kill.line));
    let said = case.of(Weight::Killed).next();
    let (mut victim, mut culprit) = kill.map_or((Victim::Unknown, None), |kill| victim::of_kill(scene, kill));
    if victim == Victim::Unknown
        && let Some(found) = said
    {
        (victim, culprit) = victim::of_sign(scene, &found.sign.kind, found.sign.who);
    }
    if victim == Victim::Unknown {
        (victim, culprit) = victim::of_exit(scene);
    }
    let mut because: Vec<Ground> = said.map(|found| case.line(found.at)).into_iter().collect();
    because.extend(case.echoes());
    Some(verdict(FailureKind::HostOom { by, victim }, case.cause.confidence, culprit, because))
}

/// A first cause in the words of the process that failed.
fn root(case: &Case<'_>, least: Confidence) -> Option<Verdict> {
    let sure = |found: &&Found| found.sign.sure >= least;
    let found = case.of(Weight::Root).filter(sure).min_by_key(|found| (gravity(&found.sign.kind), found.at));
    let xid = case
        .scene
        .evidence
        .kernel_log
        .iter()
        .flat_map(|log| log.lines())
        .find(|line| signs::read(line).is_some_and(|sign| sign.kind == FailureKind::CardLost));
    if let Some(line) = xid
        && least == Confidence::Likely
        && found.is_none_or(|found| found.sign.kind == FailureKind::CardLost)
    {
        let mut because = vec![case.says(Source::KernelLog, line)];
        because.extend(found.map(|found| case.line(found.at)));
        let culprit = found.and_then(|found| culprit(case, found));
        return Some(verdict(FailureKind::CardLost, Confidence::Proven, culprit, because));
    }
    let found = found?;
    let (mut kind, mut confidence) = (found.sign.kind.clone(), found.sign.sure);
    let mut because = vec![case.line(found.at)];
    let mut card = None;
    if kind == FailureKind::CardOom {
        let report = CudaReport::parse(&case.lines[found.at].text);
        if let Some(report) = &report {
            (kind, confidence) = of_card(case, report, &mut because);
        }
        card = report;
    }
    // A program that ended well has survived its own words, as far as it knows.
    if case.exit() == Some(Exit::Exited(0)) {
        confidence = confidence.min(Confidence::Likely);
        because.push(case.says(Source::ExitStatus, "status 0, but no word of a complete run"));
    }
    because.extend(case.echoes());
    Some(Verdict { card, ..verdict(kind, confidence, culprit(case, found), because) })
}

/// Which first cause counts where there are several: cards and disks before what follows from them, faults last.
fn gravity(kind: &FailureKind) -> u8 {
    match kind {
        FailureKind::CardOom | FailureKind::CardLost => 0,
        FailureKind::SharedMemoryFull | FailureKind::DiskFull => 1,
        FailureKind::Bug { .. } | FailureKind::Stalled { .. } => 3,
        _ => 2,
    }
}

/// Why a card could not give what was asked for.
fn of_card(case: &Case<'_>, report: &CudaReport, because: &mut Vec<Ground>) -> (FailureKind, Confidence) {
    let evidence = &case.scene.evidence;
    let ours: Vec<u32> = evidence.processes.iter().flat_map(|process| process.nspid.iter().copied()).collect();
    let mut note = |text: String| because.push(case.says(Source::Stderr, text));
    let pieces = report.had_it_in_pieces() && !report.is_mostly_anothers(&ours);
    if report.is_for_a_neighbour(&ours) && !pieces {
        note(format!("other processes held {} on that card", report.held_by_others(&ours)));
        // The driver's numbers are the machine's; from inside a container a rank of ours looks like a stranger.
        let sure = if evidence.first_pid_namespace { Confidence::Proven } else { Confidence::Likely };
        return (FailureKind::CardNeighbour, sure);
    }
    if report.is_fragmented() {
        if let (Some(free), Some(asked)) = (report.free, report.requested)
            && report.had_more_free()
        {
            note(format!("{free} were free and {asked} were asked for"));
        }
        if let Some(unused) = report.unallocated {
            note(format!("PyTorch held {unused} that it did not use"));
        }
        return (FailureKind::CardFragmented, Confidence::Likely);
    }
    (FailureKind::CardOom, Confidence::Proven)
}

/// Whose a first cause is: the rank that wrote it, else the one whose end its launcher tells of, else the only one.
fn culprit(case: &Case<'_>, found: &Found) -> Option<Culprit> {
    let mut who = found.sign.who;
    if who.loader || who.pid.is_some() {
        // The process itself does not tell its number, its parent does.
        let told = || case.found.iter().map(|found| found.sign.who).find(|other| other.loader && other.pid.is_some());
        who.pid = who.pid.or_else(|| told()?.pid);
        return victim::of_sign(case.scene, &found.sign.kind, who).1;
    }
    let ended = || {
        let all = case.found.iter().filter(|found| matches!(found.sign.weight, Weight::Ended | Weight::Killed));
        all.map(|found| found.sign.who).find(|who| who.rank.is_some() && !who.loader)
    };
    match (who.rank, ended()) {
        (Some(rank), Some(ended)) if ended.rank == Some(rank) => Some(victim::of_rank(case.scene, rank, ended.pid)),
        (Some(rank), _) => Some(victim::of_rank(case.scene, rank, None)),
        (None, Some(ended)) => ended.rank.map(|rank| victim::of_rank(case.scene, rank, ended.pid)),
        (None, None) => victim::only_rank(case.scene),
    }
}

/// A process that was killed, and no witness says why.
fn killed(case: &Case<'_>) -> Option<Verdict> {
    let knows = |found: &&Found| {
        matches!(&found.sign.kind, FailureKind::LoaderWorkerDied { signal: Some(_) } | FailureKind::CompilerKilled)
    };
    let found = case.of(Weight::Killed).find(knows).or_else(|| case.of(Weight::Killed).next())?;
    let kind = found.sign.kind.clone();
    let confidence = match &kind {
        FailureKind::LoaderWorkerDied { signal: Some(9) } | FailureKind::CompilerKilled if case.kernel_is_cleared() => {
            Confidence::Proven
        }
        FailureKind::LoaderWorkerDied { signal: None } if case.kernel_is_cleared() => Confidence::Likely,
        _ => found.sign.sure,
    };
    let mut because = vec![case.line(found.at)];
    because.extend(case.echoes());
    let culprit = victim::of_sign(case.scene, &kind, found.sign.who).1;
    Some(verdict(kind, confidence, culprit, because))
}

/// Words that a full card often causes, and other things too.
fn suspect(case: &Case<'_>) -> Option<Verdict> {
    let found = case.of(Weight::Suspect).next()?;
    let mut because = vec![case.line(found.at)];
    because.extend(case.echoes());
    let card = CudaReport::parse(&case.lines[found.at].text);
    let by = culprit(case, found);
    Some(Verdict { card, ..verdict(found.sign.kind.clone(), found.sign.sure, by, because) })
}

/// The first traceback that is no echo, no request to stop and no wrapper of another.
fn bug(case: &Case<'_>) -> Option<Verdict> {
    let wraps = |text: &str| {
        text.contains("in DataLoader worker process")
            || text.contains("in replica ")
            || text.contains("following error:")
    };
    let first = case.tracebacks.iter().find(|one| {
        let text = &case.lines[one.error].text;
        let own = signs::read(text).is_none_or(|sign| sign.weight == Weight::Fault);
        !one.of_a_reporter && !wraps(text) && own
    })?;
    let mut because = vec![case.line(first.error)];
    because.extend(case.echoes());
    let line = &case.lines[first.error];
    let of = Found {
        at: first.error,
        sign: signs::Sign {
            weight: Weight::Root,
            kind: FailureKind::Unknown,
            sure: Confidence::Likely,
            who: signs::Who { rank: line.rank, ..signs::Who::default() },
        },
    };
    let by = culprit(case, &of);
    Some(verdict(FailureKind::Bug { place: first.place.clone() }, Confidence::Likely, by, because))
}

/// A fault that names no place in the program.
fn fault(case: &Case<'_>) -> Option<Verdict> {
    let found = case.of(Weight::Fault).next()?;
    let mut because = vec![case.line(found.at)];
    because.extend(case.echoes());
    Some(verdict(found.sign.kind.clone(), Confidence::Likely, culprit(case, found), because))
}

/// A kill of which the log has only echoes.
fn killed_as_the_system_says(case: &Case<'_>) -> Option<Verdict> {
    let killed = matches!(case.cause.kind, Kind::KilledUnproven { .. });
    killed.then(|| {
        let mut verdict = by_the_system(case);
        verdict.because.extend(case.echoes());
        verdict
    })
}

/// Echoes without what they are echoes of.
fn echo(case: &Case<'_>) -> Option<Verdict> {
    let found = case.of(Weight::Echo).next()?;
    Some(verdict(FailureKind::PeerLost, Confidence::Unproven, None, vec![case.line(found.at)]))
}

/// What the system's evidence says where the log says nothing.
fn by_the_system(case: &Case<'_>) -> Verdict {
    let deepspeed = case.scene.trainer.launcher == Launcher::DeepSpeed;
    if deepspeed && case.exit() == Some(Exit::Exited(247)) && case.cause.kind == Kind::Unknown {
        let because = vec![case.says(Source::ExitStatus, "status 247, as deepspeed passes on a rank's signal 9")];
        return verdict(FailureKind::KilledUnproven { signal: 9 }, Confidence::Unproven, None, because);
    }
    let kind = match case.cause.kind.clone() {
        Kind::KilledUnproven { signal } => FailureKind::KilledUnproven { signal },
        Kind::StoppedByUser => FailureKind::Stopped,
        Kind::DiskFull => FailureKind::DiskFull,
        Kind::IoError => FailureKind::IoError,
        Kind::BadData => FailureKind::BadData,
        Kind::NonFinite => FailureKind::NotFinite,
        Kind::Bug { place } => FailureKind::Bug { place },
        Kind::PowerOrReboot => FailureKind::MachineLost,
        Kind::CudaOutOfMemory => FailureKind::CardOom,
        Kind::AllocationRefused => FailureKind::AllocationRefused,
        Kind::DoesNotFit => FailureKind::BadSetting,
        Kind::KernelOomInOurCgroup => FailureKind::HostOom { by: Killer::Cgroup, victim: Victim::Unknown },
        Kind::KernelOomOfTheHost => FailureKind::HostOom { by: Killer::Host, victim: Victim::Unknown },
        Kind::OomDaemon { name } => FailureKind::HostOom { by: Killer::Daemon { name }, victim: Victim::Unknown },
        Kind::Unknown => FailureKind::Unknown,
    };
    let culprit = match &kind {
        FailureKind::KilledUnproven { .. } => victim::of_exit(case.scene).1,
        _ => None,
    };
    verdict(kind, case.cause.confidence, culprit, Vec::new())
}
