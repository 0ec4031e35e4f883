//! Ends that were asked for: completion, stops, and runs that seem complete and are not what was asked.

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{Confidence, Kind, Source};

use super::super::kind::FailureKind;
use super::super::signs::Weight;
use super::steps::verdict;
use super::{Case, Found, Ground, Verdict};

/// It did what it was asked, or seems to have and did not.
pub(super) fn completed(case: &Case<'_>) -> Option<Verdict> {
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

/// A stop that was asked for explains an end, unless the program had told of another before.
pub(super) fn stop_that_was_asked(case: &Case<'_>) -> Option<Verdict> {
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

/// A program that says it was asked to stop. Ranks get a SIGTERM too when a sibling has died.
pub(super) fn stop_that_was_told(case: &Case<'_>) -> Option<Verdict> {
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
