//! One pass over an evaluation set, in file order, and its texts by row number.
//!
//! Invariant: batch b holds rows `b * samples ..` (or pieces of them, where texts are split), never packed, the same at
//! every evaluation; texts are read a block at a time and
//! only one block is held. It knows no scores and no model.

use std::sync::Arc;

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::loader::{BatchFacts, Loader, LoaderSettings, Ranks, ThreadHook, Until};
use crate::messages::ASSISTANT;
use crate::sources::ReadScratch;
use crate::window::Texts;
use crate::{Cursor, DataError, Kind, Long, Message, Order, Recipe, Sources, TextTokenizer};

/// Starts one pass over `sources` in file order, one document a sample.
pub fn eval_batches(
    sources: Arc<Sources>,
    tokenizer: Arc<TextTokenizer>,
    recipe: Recipe,
    shape: BatchShape,
    threads: usize,
    prefetch_batches: usize,
    on_thread_start: Option<ThreadHook>,
) -> Result<EvalBatches, DataError> {
    let settings = LoaderSettings {
        shape: BatchShape { documents: 1, ..shape },
        effective_batch: shape.samples,
        threads,
        prefetch_batches,
        cursor: Cursor::default(),
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start,
    };
    let order = Order::new(0, false);
    // Every row is evaluated, what there is room for of it.
    let recipe = if recipe.long() == Long::Drop || recipe.is_by_length() { recipe.cutting() } else { recipe };
    let loader = Loader::start_until(sources.clone(), order, tokenizer, recipe, settings, Until::EpochEnd)?;
    Ok(EvalBatches { loader, rows: RowTexts::new(sources) })
}

/// The batches of one pass.
pub struct EvalBatches {
    loader: Loader,
    rows: RowTexts,
}

impl EvalBatches {
    /// Fills `slot` with the next batch, or says that the pass is over. The last batch may have fewer samples.
    pub fn next(&mut self, slot: BatchSlot<'_>) -> Result<Option<BatchFacts>, DataError> {
        let facts = self.loader.next(slot)?;
        Ok((facts.samples > 0).then_some(facts))
    }

    /// Source and target text of row `row`, as [`RowTexts::pair`].
    pub fn texts(&mut self, row: u64) -> Result<(&str, &str), DataError> {
        self.rows.pair(row)
    }
}

/// A question to generate an answer to, and the answer that the data have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// What comes before the last answer.
    pub prompt: Vec<Message>,
    /// The last answer; empty where the assistant never speaks.
    pub answer: String,
}

/// Texts by row number, in file order.
pub struct RowTexts {
    sources: Arc<Sources>,
    scratch: ReadScratch,
    texts: Texts,
    /// The block in `texts`, and the number of its first row.
    held: Option<(usize, u64)>,
}

impl RowTexts {
    /// Reads nothing yet.
    pub fn new(sources: Arc<Sources>) -> RowTexts {
        let room = sources.window_room(Order::new(0, false));
        let texts = Texts::with_room(room.text_bytes as usize, room.rows as usize);
        RowTexts { scratch: ReadScratch::for_sources(&sources), texts, held: None, sources }
    }

    /// The conversation of row `row`, of sources that were opened as chats.
    pub fn conversation(&mut self, row: u64) -> Result<Conversation, DataError> {
        let opened = self.sources.kind();
        if opened != Kind::Chat {
            return Err(DataError::OtherKind { opened, asked: Kind::Chat });
        }
        let (text, _) = self.pair(row)?;
        let mut messages: Vec<Message> =
            serde_json::from_str(text).map_err(|e| DataError::NotRendered { reason: e.to_string() })?;
        let last = messages.iter().rposition(|m| m.role == ASSISTANT);
        let answer = last.map(|at| std::mem::take(&mut messages[at].content)).unwrap_or_default();
        messages.truncate(last.unwrap_or(messages.len()));
        Ok(Conversation { prompt: messages, answer })
    }

    /// Source and target of row `row`; of a chat its messages as JSON, and of a text the text, with nothing as target.
    /// Rows of one block, and blocks in ascending order, are quick.
    pub fn pair(&mut self, row: u64) -> Result<(&str, &str), DataError> {
        let rows = self.sources.facts().rows;
        if row >= rows {
            return Err(DataError::NoSuchRow { row, rows });
        }
        let (mut block, mut first) = self.held.filter(|(_, first)| *first <= row).unwrap_or((0, 0));
        while row - first >= u64::from(self.sources.blocks()[block].rows) {
            first += u64::from(self.sources.blocks()[block].rows);
            block += 1;
        }
        if self.held != Some((block, first)) {
            self.held = None;
            self.texts.clear();
            self.sources.read_block(block, &mut self.scratch, &mut self.texts)?;
            self.held = Some((block, first));
        }
        Ok(self.texts.pair((row - first) as usize))
    }
}
