//! How many samples one pass over the data gives, where that is not the number of rows.
//!
//! Invariant: it is counted by the loader itself, so that the number and the deed cannot differ; memory is that of a
//! loader with batches of one sample.

use std::sync::Arc;

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::loader::{Loader, LoaderSettings, Ranks, ThreadHook, Until};
use crate::{Cursor, DataError, Kind, Order, Recipe, Sources, TextTokenizer};

/// What one pass comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PassCount {
    /// Samples.
    pub samples: u64,
    /// Documents (pieces of split ones each for itself).
    pub documents: u64,
    /// Rows of all samples: input tokens.
    pub rows: u64,
    /// Labels that a loss is taken at.
    pub labels: u64,
    /// Samples of which something was cut off.
    pub truncated: u64,
    /// Samples without a label.
    pub unlabelled: u64,
}

/// Counts the pass number `epoch` of `order` over `sources`, for samples of this `shape` (`shape.samples` does not matter).
/// One tokenising pass. Packed and shuffled passes differ a little from each other, all others are the same.
pub fn count_samples(
    sources: &Arc<Sources>,
    order: Order,
    tokenizer: &Arc<TextTokenizer>,
    recipe: &Recipe,
    shape: BatchShape,
    epoch: u64,
    threads: usize,
    on_thread_start: Option<ThreadHook>,
) -> Result<PassCount, DataError> {
    if recipe.kind() == Kind::Pairs && recipe.is_row_by_row() {
        return Ok(PassCount { samples: sources.rows(), documents: sources.rows(), ..PassCount::default() });
    }
    let shape = BatchShape { samples: 1, ..shape };
    let settings = LoaderSettings {
        shape,
        effective_batch: 1,
        threads,
        prefetch_batches: 2 * threads,
        cursor: Cursor { epoch, ..Cursor::default() },
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start,
    };
    let mut loader =
        Loader::start_until(sources.clone(), order, tokenizer.clone(), recipe.clone(), settings, Until::EpochEnd)?;
    let (mut source, mut target) = (vec![0; shape.source_len], vec![0; shape.target_len]);
    let (mut source_lens, mut target_lens) = (vec![0; shape.documents], vec![0; 1]);
    let mut count = PassCount::default();
    loop {
        let facts = loader.next(BatchSlot {
            source: &mut source,
            target: &mut target,
            source_lens: &mut source_lens,
            target_lens: &mut target_lens,
        })?;
        if facts.samples == 0 {
            return Ok(count);
        }
        count.samples += facts.samples as u64;
        count.documents += facts.documents as u64;
        count.rows += facts.source_tokens;
        count.labels += facts.labels;
        count.truncated += facts.truncated as u64;
        count.unlabelled += facts.unlabelled as u64;
    }
}
