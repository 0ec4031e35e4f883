//! Which samples of a numbered stream are one rank's: so many a batch, dealt batch by batch, up to a limit.
//!
//! Invariant: arithmetic alone. A rank that has nothing in the last round is behind it all the same, as the others are.

use crate::Cursor;
use crate::loader::Ranks;

/// A rank's share of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Of a full batch.
    pub samples: usize,
    pub ranks: Ranks,
    /// The number of the first sample of the stream.
    pub first: u64,
    /// Samples of the stream at most, for all ranks.
    pub limit: Option<u64>,
    /// Samples of one pass.
    pub pass: u64,
}

impl Share {
    /// Samples of the stream before batch `batch` of this rank.
    pub fn before(&self, batch: u64) -> u64 {
        (batch * self.ranks.of as u64 + self.ranks.rank as u64) * self.samples as u64
    }

    /// Samples of batch `batch`.
    pub fn of_batch(&self, batch: u64) -> usize {
        let full = self.samples as u64;
        self.limit.map_or(full, |limit| limit.saturating_sub(self.before(batch)).min(full)) as usize
    }

    /// Of the batches with this number of all ranks.
    pub fn of_round(&self, batch: u64) -> usize {
        let full = (self.ranks.of * self.samples) as u64;
        self.limit.map_or(full, |limit| limit.saturating_sub(batch * full).min(full)) as usize
    }

    /// The next sample that was not handed out, to any rank, where `rounds` are over.
    pub fn cursor(&self, rounds: u64) -> Cursor {
        let handed = rounds * (self.ranks.of * self.samples) as u64;
        Cursor::at(self.first + self.limit.map_or(handed, |limit| handed.min(limit)), self.pass)
    }
}
