//! Which checkpoints are at the other end, which are to be copied, and which leave. The decisions are pure.
//!
//! Order is by step number, never by date.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use object_store::ObjectStore;
use plimsoll_recover::checkpoint::MANIFEST;

use crate::layout::{self, parse_step};
use crate::patience::Patience;
use crate::remote::Remote;
use crate::{MirrorError, state::State};

/// What is there of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shelved {
    /// Whether it has its manifest, without which it does not count.
    pub whole: bool,
    /// Names of its objects, relative to the mirror.
    pub names: Vec<String>,
}

/// The checkpoints at the other end, by step.
pub(crate) async fn list(remote: &Remote, patience: &Patience<'_>) -> Result<BTreeMap<u64, Shelved>, MirrorError> {
    let prefix = remote.key(layout::CHECKPOINTS);
    let found = patience.persist(async || remote.store.list(Some(&prefix)).try_collect::<Vec<_>>().await).await?;
    let names = found.unwrap_or_default().into_iter().filter_map(|object| remote.name(&object.location));
    Ok(by_step(names))
}

fn by_step(names: impl Iterator<Item = String>) -> BTreeMap<u64, Shelved> {
    let mut shelf: BTreeMap<u64, Shelved> = BTreeMap::new();
    for name in names {
        if let Some((step, file)) = parse_step(&name) {
            let one = shelf.entry(step).or_default();
            one.whole |= file == MANIFEST;
            one.names.push(name);
        }
    }
    shelf
}

/// A complete checkpoint of the run: its step and the checksum of its manifest.
pub(crate) type Local = (u64, u32);

/// What is to be done with the run's checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// The one to copy now.
    pub copy: Option<u64>,
    /// Those that are not worth copying: newer ones would make them leave at once.
    pub skip: Vec<u64>,
}

/// Decides what to copy: first what is under way, then the newest. `refused` ones have been found damaged.
pub(crate) fn next(local: &[Local], state: &State, refused: &[Local], keep: Option<u64>, best: Option<u64>) -> Next {
    let all: BTreeSet<u64> = local.iter().map(|(step, _)| *step).chain(state.uploaded.keys().copied()).collect();
    let keep = keep.map_or(usize::MAX, |keep| keep.max(1) as usize);
    let stays: BTreeSet<u64> = all.iter().rev().take(keep).copied().collect();
    let lacking = |one: &&Local| state.uploaded.get(&one.0) != Some(&one.1) && !refused.contains(one);
    let (wanted, skip): (Vec<u64>, Vec<u64>) = local
        .iter()
        .filter(lacking)
        .map(|(step, _)| *step)
        .partition(|step| stays.contains(step) || best == Some(*step));
    let under_way = wanted.iter().find(|step| state.uploading == Some(**step));
    Next { copy: under_way.or(wanted.iter().max()).copied(), skip }
}

/// Which steps leave the other end: whole ones beyond `keep`, and what is left of others that are not here any more
/// (`here`). Never the newest whole one, the best one, or one that is not older than the newest whole one.
pub(crate) fn leaving(
    shelf: &BTreeMap<u64, Shelved>,
    here: &BTreeSet<u64>,
    keep: Option<u64>,
    best: Option<u64>,
) -> Vec<u64> {
    let whole: Vec<u64> = shelf.iter().rev().filter(|(_, one)| one.whole).map(|(step, _)| *step).collect();
    let Some(&newest) = whole.first() else {
        return Vec::new();
    };
    let keep = keep.map_or(usize::MAX, |keep| keep.max(1) as usize);
    let stays = &whole[..whole.len().min(keep)];
    let goes = |(step, one): &(&u64, &Shelved)| {
        let spare = if one.whole { !stays.contains(step) } else { !here.contains(step) };
        **step < newest && best != Some(**step) && spare
    };
    shelf.iter().filter(goes).map(|(step, _)| *step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shelf(steps: &[(u64, bool)]) -> BTreeMap<u64, Shelved> {
        steps.iter().map(|&(step, whole)| (step, Shelved { whole, names: Vec::new() })).collect()
    }

    fn state(uploaded: &[Local], uploading: Option<u64>) -> State {
        State { uploaded: uploaded.iter().copied().collect(), uploading, ..State::default() }
    }

    #[test]
    fn a_checkpoint_counts_only_with_its_manifest_and_steps_are_numbers() {
        let names = ["checkpoints/step-9/weights", "checkpoints/step-10/manifest.json", "checkpoints/step-10/weights"];
        let shelf = by_step(names.map(str::to_string).into_iter());
        assert_eq!(shelf.iter().map(|(step, one)| (*step, one.whole)).collect::<Vec<_>>(), [(9, false), (10, true)]);
    }

    #[test]
    fn what_is_under_way_goes_first_then_the_newest() {
        let local = [(10, 1), (20, 2), (30, 3)];
        assert_eq!(next(&local, &state(&[], None), &[], None, None).copy, Some(30));
        assert_eq!(next(&local, &state(&[], Some(10)), &[], None, None).copy, Some(10));
        assert_eq!(next(&local, &state(&[(30, 3)], None), &[], None, None).copy, Some(20));
        assert_eq!(next(&local, &state(&local, None), &[], None, None), Next::default());
    }

    #[test]
    fn a_checkpoint_that_was_saved_anew_is_copied_anew_and_a_damaged_one_is_left() {
        let local = [(10, 1), (20, 9)];
        assert_eq!(next(&local, &state(&[(10, 1), (20, 2)], None), &[], None, None).copy, Some(20));
        assert_eq!(next(&local, &state(&[(10, 1), (20, 2)], None), &[(20, 9)], None, None).copy, None);
    }

    #[test]
    fn what_would_leave_at_once_is_not_copied_unless_it_is_the_best() {
        let local = [(10, 1), (20, 2), (30, 3)];
        let found = next(&local, &state(&[(30, 3)], None), &[], Some(1), None);
        assert_eq!(found, Next { copy: None, skip: vec![10, 20] });
        let found = next(&local, &state(&[(30, 3)], None), &[], Some(1), Some(10));
        assert_eq!(found, Next { copy: Some(10), skip: vec![20] });
    }

    #[test]
    fn old_ones_leave_but_not_the_best_and_not_what_is_on_its_way() {
        let there = shelf(&[(10, true), (20, true), (30, true), (40, true), (50, false)]);
        assert_eq!(leaving(&there, &BTreeSet::new(), Some(2), Some(10)), [20]);
        assert!(leaving(&there, &BTreeSet::new(), None, None).is_empty());
    }

    #[test]
    fn what_is_left_of_a_step_that_is_gone_leaves_and_what_can_still_become_whole_stays() {
        let there = shelf(&[(10, false), (20, false), (30, true)]);
        assert_eq!(leaving(&there, &[20].into(), None, None), [10]);
    }

    proptest! {
        #[test]
        fn the_newest_whole_one_and_the_kept_ones_always_stay(
            steps in proptest::collection::btree_map(0u64..40, any::<bool>(), 0..12), keep in 0u64..5, best in 0u64..40,
        ) {
            let there = shelf(&steps.iter().map(|(step, whole)| (*step, *whole)).collect::<Vec<_>>());
            let gone = leaving(&there, &BTreeSet::new(), Some(keep), Some(best));
            let whole: Vec<u64> = steps.iter().filter(|(_, whole)| **whole).map(|(step, _)| *step).collect();
            let left = whole.iter().filter(|step| !gone.contains(step)).count();
            prop_assert!(whole.last().is_none_or(|newest| !gone.contains(newest)));
            prop_assert!(!gone.contains(&best));
            prop_assert!(left >= whole.len().min(keep.max(1) as usize) && left <= keep.max(1) as usize + 1);
        }
    }
}
