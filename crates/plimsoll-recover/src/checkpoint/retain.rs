//! Which checkpoints stay. The decision is pure; the deed renames first and deletes then.

use std::path::Path;

use super::place::discard;
use super::shelf::{Found, State, list};
use crate::RecoverError;

/// Which of `found` go when `keep` complete ones shall stay: the older complete ones, and broken ones that are older
/// than the newest complete one. Never the newest complete one (`keep` 0 means 1), never a `protected` step, never
/// anything while there is no complete one at all.
pub fn to_remove<'a>(found: &'a [Found], keep: usize, protected: &[u64]) -> Vec<&'a Found> {
    let mut complete: Vec<u64> = found.iter().filter(|one| one.state == State::Complete).map(|one| one.step).collect();
    complete.sort_unstable_by(|a, b| b.cmp(a));
    let Some(&newest) = complete.first() else {
        return Vec::new();
    };
    let stays = &complete[..complete.len().min(keep.max(1))];
    let goes = |one: &&Found| {
        one.step < newest
            && !protected.contains(&one.step)
            && !(one.state == State::Complete && stays.contains(&one.step))
    };
    found.iter().filter(goes).collect()
}

/// Removes from `dir` what [`to_remove`] names, and returns those steps.
pub fn retain(dir: &Path, keep: usize, protected: &[u64]) -> Result<Vec<u64>, RecoverError> {
    let found = list(dir)?;
    let mut removed = Vec::new();
    for one in to_remove(&found, keep, protected) {
        discard(dir, &one.path, one.step)?;
        removed.push(one.step);
    }
    Ok(removed)
}

/// Which of a copy's checkpoints go where its original has those of `steps` left: all others, once one of those is complete in
/// the copy too.
pub fn to_follow<'a>(found: &'a [Found], steps: &[u64]) -> Vec<&'a Found> {
    let is_left = |one: &&Found| steps.contains(&one.step);
    match found.iter().any(|one| is_left(&one) && one.state == State::Complete) {
        true => found.iter().filter(|one| !is_left(one)).collect(),
        false => Vec::new(),
    }
}

/// Removes from `dir` what [`to_follow`] names, and returns those steps.
pub fn follow(dir: &Path, steps: &[u64]) -> Result<Vec<u64>, RecoverError> {
    let found = list(dir)?;
    let mut removed = Vec::new();
    for one in to_follow(&found, steps) {
        discard(dir, &one.path, one.step)?;
        removed.push(one.step);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shelf(states: &[bool]) -> Vec<Found> {
        let state = |whole: bool| if whole { State::Complete } else { State::Incomplete("cut".to_string()) };
        let one = |(at, &whole): (usize, &bool)| {
            let step = at as u64 * 10;
            Found { step, path: format!("step-{step}").into(), state: state(whole) }
        };
        states.iter().enumerate().map(one).collect()
    }

    fn steps(found: &[&Found]) -> Vec<u64> {
        found.iter().map(|one| one.step).collect()
    }

    #[test]
    fn the_newest_stay_and_the_best_one_with_them() {
        assert_eq!(steps(&to_remove(&shelf(&[true; 5]), 2, &[10])), [0, 20]);
    }

    #[test]
    fn a_broken_one_does_not_count_and_goes_when_a_newer_one_is_whole() {
        assert_eq!(steps(&to_remove(&shelf(&[true, false, true, true, false]), 2, &[])), [0, 10]);
    }

    #[test]
    fn a_copy_keeps_what_its_original_lost_until_it_has_something_whole_of_it() {
        let shelf = shelf(&[true, true, false, true]);
        assert_eq!(steps(&to_follow(&shelf, &[20, 30])), [0, 10]);
        // Of what is left there, only a torn one is here; or nothing is left.
        assert!(to_follow(&shelf, &[20, 40]).is_empty() && to_follow(&shelf, &[]).is_empty());
        assert!(to_follow(&shelf, &[0, 10, 20, 30, 40]).is_empty());
    }

    proptest! {
        #[test]
        fn the_newest_complete_one_the_protected_and_the_kept_always_stay(
            states in proptest::collection::vec(any::<bool>(), 0..12), keep in 0usize..5, protected in 0u64..12,
        ) {
            let found = shelf(&states);
            let gone = steps(&to_remove(&found, keep, &[protected * 10]));
            let complete: Vec<u64> = found.iter().filter(|one| one.state == State::Complete).map(|one| one.step).collect();
            let left = complete.iter().filter(|step| !gone.contains(step)).count();
            prop_assert!(!gone.contains(&(protected * 10)));
            prop_assert!(complete.last().is_none_or(|newest| !gone.contains(newest)));
            prop_assert!(left >= complete.len().min(keep.max(1)));
            prop_assert!(left <= keep.max(1) + 1);
            prop_assert!(!complete.is_empty() || gone.is_empty());
        }
    }
}
