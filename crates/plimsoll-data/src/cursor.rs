//! The place in the stream of samples: all that a checkpoint keeps of the loader.
//!
//! Invariant: it counts what was consumed, never what was prefetched, and means the same for any number of threads,
//! micro-batch and prefetch depth.

use serde::{Deserialize, Serialize};

/// The next sample that was not yet consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Samples consumed of the present pass.
    pub position: u64,
}

impl Cursor {
    /// The cursor at the sample with this number in the endless stream.
    pub fn at(sample: u64, rows: u64) -> Cursor {
        Cursor { epoch: sample / rows, position: sample % rows }
    }

    /// The number of this sample in the endless stream.
    pub fn sample(self, rows: u64) -> u64 {
        self.epoch * rows + self.position
    }
}
