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
    /// Rows of the data consumed of the present pass.
    pub position: u64,
    /// Pieces consumed of the row at `position`, where long texts are split; else 0. Cursors written before there were
    /// pieces have none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub piece: u64,
    /// Samples consumed of the group of documents that begins there, where they are packed; else 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sample: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Cursor {
    /// The cursor at the row with this number in the endless stream.
    pub fn at(sample: u64, rows: u64) -> Cursor {
        Cursor { epoch: sample / rows, position: sample % rows, ..Cursor::default() }
    }

    /// The number of this row in the endless stream.
    pub fn sample(self, rows: u64) -> u64 {
        self.epoch * rows + self.position
    }
}
