//! The checkpoints of a run, looked at again and again while it is disturbed.
//!
//! Invariant of every run: each folder with a good name verifies, and a checkpoint that was complete goes only by
//! retention, when `keep` newer ones are complete; so the newest never goes back.

use std::collections::BTreeSet;
use std::path::PathBuf;

use plimsoll_recover::checkpoint::{Manifest, list, verify};

use super::Workshop;

/// What a run has saved, as far as it was seen.
pub struct Shelf {
    dir: PathBuf,
    keep: usize,
    held: BTreeSet<u64>,
    ever: BTreeSet<u64>,
}

impl Shelf {
    /// The checkpoints of `run`, whose job says `keep`.
    pub fn of(workshop: &Workshop, run: &str, keep: usize) -> Shelf {
        let dir = workshop.path(run).join("checkpoints");
        Shelf { dir, keep, held: BTreeSet::new(), ever: BTreeSet::new() }
    }

    /// Reads every byte of every checkpoint and holds it against the look before; panics where one is broken or lost.
    /// Returns the newest.
    #[track_caller]
    pub fn look(&mut self, told: &str) -> Option<Manifest> {
        let whole = loop {
            if let Some(whole) = self.read(told) {
                break whole;
            }
        };
        let now: BTreeSet<u64> = whole.iter().map(|manifest| manifest.step).collect();
        for lost in self.held.difference(&now) {
            let newer = now.range(lost + 1..).count();
            assert!(newer >= self.keep, "{told}: step {lost} is lost, there are {now:?} after {:?}", self.held);
        }
        self.ever.extend(&now);
        self.held = now;
        let newest = whole.into_iter().next_back();
        // The best one and the one of the last stop stay, if they were ever there.
        let facts = newest.as_ref().map(|manifest| &manifest.facts);
        for kept in ["best_step", "exit_step"].iter().filter_map(|key| facts?[key].as_u64()) {
            assert!(self.held.contains(&kept) || !self.ever.contains(&kept), "{told}: {kept} of {:?}", self.held);
        }
        newest
    }

    /// The step of the newest checkpoint at the last look; 0 for none.
    pub fn newest(&self) -> u64 {
        self.held.last().copied().unwrap_or(0)
    }

    /// All checkpoints by step, whole; `None` where a run that goes on has just taken one away.
    #[track_caller]
    fn read(&self, told: &str) -> Option<Vec<Manifest>> {
        let mut whole = Vec::new();
        for found in list(&self.dir).unwrap() {
            match verify(&found.path) {
                Ok(manifest) => whole.push(manifest),
                Err(_) if !found.path.exists() => return None,
                Err(error) => panic!("{told}: step {} is broken: {error}", found.step),
            }
        }
        Some(whole)
    }

    /// What a save that did not come to its end has left.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs_err::read_dir(&self.dir).into_iter().flatten();
        let paths = entries.map(|entry| entry.unwrap().path());
        let hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        paths.filter(hidden).collect()
    }
}
