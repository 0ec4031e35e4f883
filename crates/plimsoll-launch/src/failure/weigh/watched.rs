//! What the watcher saw of the ranks: one that is gone, one that is stopped, none that moves.

use plimsoll_recover::cause::{Confidence, Source};

use super::super::kind::FailureKind;
use super::super::signs::Weight;
use super::super::victim;
use super::steps::verdict;
use super::{Case, Verdict};

/// A training that stands still while all its processes are there.
pub(super) fn stalled(case: &Case<'_>) -> Option<Verdict> {
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

/// A rank that ended without a word.
pub(super) fn rank_gone(case: &Case<'_>) -> Option<Verdict> {
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
