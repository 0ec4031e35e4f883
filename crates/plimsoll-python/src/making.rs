//! The loader at work: round after round of one pass, for one rank or for all ranks of a node together.
//!
//! Batches are dealt to ranks in rounds, by the loader itself. The ranks of a node are to it one that takes larger batches.
//! Invariant: a round is handed out whole, with the place behind the whole of it, so that all ranks have the same place.

use std::sync::Arc;

use plimsoll_data::{Cursor, DataError, GiveUp, Loader, LoaderSettings, Order, Ranks, Recipe, Sources, TextTokenizer};
use plimsoll_plan::batch::BatchShape;

use crate::slot::{Counts, Slot};

/// Epoch, position, piece and sample of a cursor.
pub type Place = (u64, u64, u64, u64);

/// All that a loader is made of.
pub struct Plan {
    pub sources: Arc<Sources>,
    pub order: Order,
    pub tokenizer: Arc<TextTokenizer>,
    pub recipe: Recipe,
    pub shape: BatchShape,
    pub threads: usize,
    pub prefetch: usize,
    pub ranks: Ranks,
    pub drop_last: bool,
}

/// A running loader.
pub struct Making {
    loader: Loader,
    pub slot: Slot,
    /// The pass, and rows of the data.
    epoch: u64,
    rows: u64,
    /// Samples of a round that is to be handed out.
    least: usize,
    over: bool,
}

impl Making {
    /// Starts the threads at `place`.
    pub fn start(plan: Plan, place: Place, give_up: GiveUp) -> Result<Making, DataError> {
        let Plan { sources, order, tokenizer, recipe, shape, threads, prefetch, ranks, drop_last } = plan;
        let (epoch, position, piece, sample) = place;
        let settings = LoaderSettings {
            shape,
            effective_batch: shape.samples,
            threads,
            prefetch_batches: prefetch,
            cursor: Cursor { epoch, position, piece, sample },
            limit: None,
            ranks,
            on_thread_start: None,
        };
        let rows = sources.rows();
        let loader = Loader::start_pass(sources, order, tokenizer, recipe, settings)?;
        loader.give_up_when(give_up);
        let least = if drop_last { ranks.of * shape.samples } else { 1 };
        Ok(Making { loader, slot: Slot::new(shape), epoch, rows, least, over: false })
    }

    /// Makes the next round in the slot, and says where the stream is behind it. `None`: the pass is over.
    pub fn next(&mut self) -> Result<Option<(Counts, Place)>, DataError> {
        if self.over {
            return Ok(None);
        }
        let facts = self.loader.next(self.slot.lend())?;
        // A round that not every rank has a full batch of may be left out; and one may have nothing in it for us.
        self.over = facts.samples == 0 || facts.round_samples < self.least;
        let found = Counts { samples: facts.samples, documents: facts.documents };
        Ok((!self.over).then(|| (found, self.place(facts.cursor_after))))
    }

    /// Behind the last row is the end of this pass, not the beginning of the next: whoever resumes there must still see it end.
    fn place(&self, cursor: Cursor) -> Place {
        match cursor.epoch == self.epoch {
            true => (cursor.epoch, cursor.position, cursor.piece, cursor.sample),
            false => (self.epoch, self.rows, 0, 0),
        }
    }
}
