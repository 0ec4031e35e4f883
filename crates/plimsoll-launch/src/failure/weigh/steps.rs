//! The steps of the weighing, in order. Each either settles the end or passes on.

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{Confidence, Kind, Scope, Source};

use super::super::cuda::CudaReport;
use super::super::kind::{FailureKind, Killer, Victim};
use super::super::scene::Launcher;
use super::super::signs::{self, Weight};
use super::super::{Culprit, victim};
use super::{Case, Found, Ground, Verdict};

/// What the end was.
pub(super) fn judge(case: &Case<'_>) -> Verdict {
    completed(case)
        .or_else(|| witness(case, Confidence::Proven))
        .or_else(|| stop_that_was_asked(case))
        .or_else(|| root(case, Confidence::Proven))
        .or_else(|| witness(case, Confidence::Likely))
        .or_else(|| root(case, Confidence::Likely))
        .or_else(|| stalled(case))
        .or_else(|| killed(case))
        .or_else(|| suspect(case))
        .or_else(|| bug(case))
        .or_else(|| stop_that_was_told(case))
        .or_else(|| rank_gone(case))
        .or_else(|| echo(case))
        .unwrap_or_else(|| by_the_system(case))
}

fn verdict(kind: FailureKind, confidence: Confidence, culprit: Option<Culprit>, because: Vec<Ground>) -> Verdict {
    Verdict { kind, confidence, culprit, card: None, because }
}

/// It did what it was asked, or seems to have and did not.
fn completed(case: &Case<'_>) -> Option<Verdict> {
    let (scene, resume) = (case.scene, case.scene.resume);
    let ended_well = match case.exit() {
        Some(Exit::Exited(0)) => true,
        Some(_) => return None,
        None => false,
    };
    if resume.asked {
        let warned = case.of(Weight::Restart).next().map(|found| case.line(found.at));
        let behind = match (resume.expected_step, resume.first_step) {
            (Some(expected), Some(first)) if first < expected => Some(
                case.says(Source::Journal, format!("it began at step {first}; the checkpoint is of step {expected}")),
            ),
            _ => None,
        };
        let fresh = (resume.optimizer == Some(false)).then(|| {
            case.says(Source::Disk, "the checkpoint holds no state of the optimizer: it begins with a fresh one")
        });
        let because: Vec<Ground> = [warned, behind, fresh].into_iter().flatten().collect();
        if !because.is_empty() {
            return Some(verdict(FailureKind::NotRestored, Confidence::Proven, None, because));
        }
    }
    let word = case.of(Weight::Done).last();
    let said = scene.trainer.completed.unwrap_or(word.is_some());
    let mut because: Vec<Ground> = word.map(|found| case.line(found.at)).into_iter().collect();
    if let (Some(asked), Some(seen)) = (scene.watched.world_asked, scene.watched.world_seen)
        && asked != seen
    {
        because.push(case.says(Source::Journal, format!("{asked} ranks were asked for, {seen} ran")));
    }
    let failed = case.found.iter().any(|found| found.sign.weight == Weight::Root);
    match (ended_well, said) {
        (true, true) => {
            because.push(case.says(Source::ExitStatus, "status 0, and the trainer's word for a complete run was seen"));
            Some(verdict(FailureKind::Completed, Confidence::Proven, None, because))
        }
        // A log alone: nothing that tells of a failure stands behind the word.
        (false, true) => {
            let at = word?.at;
            let later = case.found.iter().any(|found| found.at > at && found.sign.weight != Weight::Done);
            (!later).then(|| verdict(FailureKind::Completed, Confidence::Likely, None, because))
        }
        (true, false) => {
            let stopped = case.of(Weight::Stop).next().is_some() || scene.stop_asked;
            let silent = scene.trainer.completed.is_none() && !stopped && !failed;
            silent.then(|| {
                because.push(case.says(Source::ExitStatus, "status 0; this trainer has no word for a complete run"));
                verdict(FailureKind::Completed, Confidence::Likely, None, because)
            })
        }
        (false, false) => None,
    }
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

/// A stop that was asked for explains an end, unless the program had told of another before.
fn stop_that_was_asked(case: &Case<'_>) -> Option<Verdict> {
    let scene = case.scene;
    let scheduler = case.cause.kind == Kind::StoppedByUser && case.cause.confidence == Confidence::Proven;
    if !scene.stop_asked && scene.evidence.stop_signal.is_none() && !scheduler {
        return None;
    }
    let told =
        |found: &Found| found.sign.sure == Confidence::Proven && !matches!(found.sign.kind, FailureKind::Bug { .. });
    if case.of(Weight::Root).any(told) {
        return None;
    }
    let mut because: Vec<Ground> = case.of(Weight::Stop).take(1).map(|found| case.line(found.at)).collect();
    because.push(case.says(Source::StopSignal, "a stop was asked for"));
    Some(verdict(FailureKind::Stopped, Confidence::Proven, None, because))
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
    if report.is_for_a_neighbour(&ours) && !report.had_it_in_pieces() {
        note(format!("other processes held {} on that card", report.held_by_others(&ours)));
        // The driver's numbers are the machine's; from inside a container a rank of ours looks like a stranger.
        let sure = if evidence.first_pid_namespace { Confidence::Proven } else { Confidence::Likely };
        return (FailureKind::CardNeighbour, sure);
    }
    if report.is_fragmented() {
        if let (Some(free), Some(asked)) = (report.free, report.requested)
            && free > asked
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
    let who = found.sign.who;
    if who.loader || who.pid.is_some() {
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

/// A training that stands still while all its processes are there.
fn stalled(case: &Case<'_>) -> Option<Verdict> {
    let watched = &case.scene.watched;
    if !watched.gone.is_empty() {
        return None;
    }
    let still =
        watched.stalled_seconds.map(|seconds| case.says(Source::Sample, format!("nothing moved for {seconds} s")));
    if let Some(first) = watched.stopped.first() {
        let mut because = vec![case.says(Source::Sample, format!("rank {} is in state T: stopped", first.rank))];
        because.extend(still);
        let culprit = victim::of_rank(case.scene, first.rank, first.pid);
        return Some(verdict(
            FailureKind::Stalled { rank: Some(first.rank) },
            Confidence::Proven,
            Some(culprit),
            because,
        ));
    }
    let still = still?;
    let one = match (watched.idle.as_slice(), watched.world_seen) {
        ([one], Some(world)) if world > 1 => Some(one),
        _ => None,
    };
    let mut because = vec![still];
    because.extend(one.map(|one| {
        case.says(Source::Sample, format!("rank {} alone used no processor time; the others wait for it", one.rank))
    }));
    let culprit = one.map(|one| victim::of_rank(case.scene, one.rank, one.pid));
    Some(verdict(FailureKind::Stalled { rank: one.map(|one| one.rank) }, Confidence::Likely, culprit, because))
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
        !one.of_a_reporter && !wraps(text) && signs::read(text).is_none()
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

/// A program that says it was asked to stop. Ranks get a SIGTERM too when a sibling has died.
fn stop_that_was_told(case: &Case<'_>) -> Option<Verdict> {
    let found = case.of(Weight::Stop).next()?;
    let launchers = |found: &Found| {
        let text = &case.lines[found.at].text;
        text.contains("death signal") || text.contains("Main process received") || text.contains("got signal")
    };
    let by_launcher = case.of(Weight::Stop).any(launchers);
    let sibling_died = !case.scene.watched.gone.is_empty()
        || case.found.iter().any(|found| matches!(found.sign.weight, Weight::Ended | Weight::Echo));
    if sibling_died && !by_launcher {
        return None;
    }
    Some(verdict(FailureKind::Stopped, Confidence::Likely, None, vec![case.line(found.at)]))
}

/// A rank that ended without a word.
fn rank_gone(case: &Case<'_>) -> Option<Verdict> {
    if let Some(first) = case.scene.watched.gone.first() {
        let mut because = vec![case.says(Source::Sample, format!("rank {} was gone before the others", first.rank))];
        because.extend(case.of(Weight::Ended).take(1).map(|found| case.line(found.at)));
        because.extend(case.echoes());
        let culprit = victim::of_rank(case.scene, first.rank, first.pid);
        return Some(verdict(FailureKind::RankDied { rank: first.rank }, Confidence::Proven, Some(culprit), because));
    }
    let found = case.of(Weight::Ended).find(|found| matches!(found.sign.kind, FailureKind::RankDied { .. }))?;
    let mut because = vec![case.line(found.at)];
    because.extend(case.echoes());
    let culprit = victim::of_sign(case.scene, &found.sign.kind, found.sign.who).1;
    Some(verdict(found.sign.kind.clone(), Confidence::Proven, culprit, because))
}

/// Echoes without what they are echoes of.
fn echo(case: &Case<'_>) -> Option<Verdict> {
    let found = case.of(Weight::Echo).next()?;
    Some(verdict(FailureKind::PeerLost, Confidence::Unproven, None, vec![case.line(found.at)]))
}

/// What the system's evidence says where the log says nothing.
fn by_the_system(case: &Case<'_>) -> Verdict {
    let deepspeed = case.scene.trainer.launcher == Launcher::Deepspeed;
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
