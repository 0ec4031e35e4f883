//! Batches that an assembler makes of what comes through a tube, dealt to ranks, up to a limit.
//!
//! Invariant: what is in a batch may depend on all before it, so those of other ranks are made too, and dropped; the stream is the same for
//! any number of ranks. It knows no threads and no text.

use plimsoll_plan::batch::BatchSlot;

use crate::loader::{BatchFacts, LoaderSettings, Ranks};
use crate::tube::Tube;
use crate::{Cursor, DataError};

/// Makes samples of what comes through a tube.
pub(crate) trait Assemble {
    /// Fills `slot` with up to `most` samples.
    fn fill(&mut self, tube: &Tube, most: usize, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError>;
    /// Makes up to `most` samples, for nobody; how many there were.
    fn pass_over(&mut self, tube: &Tube, most: usize) -> Result<usize, DataError>;
    /// Behind what was handed out.
    fn cursor(&self) -> Cursor;
}

/// Deals batches.
pub(crate) struct Dealer<A> {
    assembler: A,
    samples: usize,
    handed: u64,
    limit: Option<u64>,
    ranks: Ranks,
}

impl<A: Assemble> Dealer<A> {
    pub fn new(assembler: A, settings: &LoaderSettings) -> Dealer<A> {
        let LoaderSettings { shape, limit, ranks, .. } = settings;
        Dealer { assembler, samples: shape.samples, handed: 0, limit: *limit, ranks: *ranks }
    }

    /// The batch of this rank.
    pub fn next(&mut self, tube: &Tube, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        let before = self.pass_over(tube, self.ranks.rank)?;
        let mut facts = self.assembler.fill(tube, self.most(), slot)?;
        self.handed += facts.samples as u64;
        let behind = self.pass_over(tube, self.ranks.of - 1 - self.ranks.rank)?;
        facts.round_samples = before + facts.samples + behind;
        facts.cursor_after = self.cursor();
        Ok(facts)
    }

    /// Behind what was handed out.
    pub fn cursor(&self) -> Cursor {
        self.assembler.cursor()
    }

    /// How many samples that were.
    fn pass_over(&mut self, tube: &Tube, batches: usize) -> Result<usize, DataError> {
        let mut samples = 0;
        for _ in 0..batches {
            let made = self.assembler.pass_over(tube, self.most())?;
            self.handed += made as u64;
            samples += made;
        }
        Ok(samples)
    }

    /// Samples of the next batch at most.
    fn most(&self) -> usize {
        let left = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.handed));
        left.min(self.samples as u64) as usize
    }
}
