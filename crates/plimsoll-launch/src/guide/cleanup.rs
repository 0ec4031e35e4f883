//! When a guide clears caches: every so many steps, counted in one of two ways.
//!
//! Clearing frees nothing for the trainer itself; it hands cached blocks back to the driver, for others.

use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// The index of a step, from 0: `step % every == 0`.
    Index,
    /// Steps that are done: `(step + 1) % every == 0`.
    Done,
}

/// Every so many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cleanup {
    /// The interval.
    pub every: u64,
    /// How it is counted.
    pub counts: Counting,
}

impl Cleanup {
    /// The moments in a run of so many steps: indices, or numbers of steps done.
    pub fn at(self, steps: u64) -> Vec<u64> {
        let (from, to) = match self.counts {
            Counting::Index => (0, steps),
            Counting::Done => (self.every, steps + 1),
        };
        (from..to).step_by(self.every.max(1) as usize).collect()
    }
}

/// Guide 004's schedule.
pub fn rtx3060() -> Cleanup {
    super::book::RTX3060.cleanup
}
