//! Batches ahead of the step, of any kind.
//!
//! Invariant: the stream of samples is a function of sources, order, recipe, length and cursor; threads, micro-batch and
//! prefetch change nothing but the waiting. All buffers exist when `start` returns, `next` allocates nothing. The cursor
//! counts what was handed out. It knows no device and no engine.

use std::sync::Arc;

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::documents::DocumentLoader;
use crate::paired::PairedLoader;
use crate::pairs::PairLoader;
use crate::patience::GiveUp;
use crate::ring::check_slot;
use crate::{Cursor, DataError, Kind, Order, Recipe, Sources, TextTokenizer};

/// Stack of one loader thread, in bytes. The hard texts of `tests/heap.rs` also run in 128 KiB.
pub const LOADER_STACK_BYTES: usize = 512 << 10;

/// Who of several consumers of one stream: its batches are dealt to them in turn. The stream is the same for any number of them, and
/// so is a cursor behind a whole round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// This one, from 0.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
}

impl Ranks {
    /// A stream for one alone.
    pub const ONE: Ranks = Ranks { rank: 0, of: 1 };
}

/// Called first in each loader thread.
pub type ThreadHook = Arc<dyn Fn() + Send + Sync>;

/// How to load.
#[derive(Clone)]
pub struct LoaderSettings {
    /// Shape of one micro-batch.
    pub shape: BatchShape,
    /// Samples of one update; a multiple of `shape.samples`.
    pub effective_batch: usize,
    /// Threads that read and tokenise.
    pub threads: usize,
    /// Micro-batches held ready.
    pub prefetch_batches: usize,
    /// The first sample.
    pub cursor: Cursor,
    /// Stop after so many samples of the stream; the last batch may be smaller. `None`: endless.
    pub limit: Option<u64>,
    /// Whose batches are handed out.
    pub ranks: Ranks,
    /// Called first in each thread.
    pub on_thread_start: Option<ThreadHook>,
}

/// What a batch holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchFacts {
    /// Samples; 0 when a limited loader is at its end.
    pub samples: usize,
    /// Real source tokens; the rows of documents.
    pub source_tokens: u64,
    /// Real target tokens; the rows of documents.
    pub target_tokens: u64,
    /// Samples of which source or target, or a document, was cut off.
    pub truncated: usize,
    /// Rows of the data that were left out since the batch before, because they are too long.
    pub dropped: u64,
    /// Documents; for pairs the samples.
    pub documents: usize,
    /// Labels that a loss is taken at.
    pub labels: u64,
    /// Samples without any such label.
    pub unlabelled: usize,
    /// Samples of the whole round: of this batch and of those that the other ranks have.
    pub round_samples: usize,
    /// The place behind this batch, and behind those of its round that the other ranks have.
    pub cursor_after: Cursor,
}

/// The running loader.
pub struct Loader {
    inner: Inner,
    shape: BatchShape,
}

enum Inner {
    Pairs(PairLoader),
    Paired(Box<PairedLoader>),
    Documents(Box<DocumentLoader>),
}

/// Where a loader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Never, or at the limit of the settings.
    Limit,
    /// At the end of the pass that it began in.
    EpochEnd,
}

impl Loader {
    /// Starts the threads at `settings.cursor`.
    pub fn start(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        recipe: Recipe,
        settings: LoaderSettings,
    ) -> Result<Loader, DataError> {
        Loader::start_until(sources, order, tokenizer, recipe, settings, Until::Limit)
    }

    /// As [`Loader::start`], ending with the pass that `settings.cursor` is in: from then on batches have no samples.
    pub fn start_pass(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        recipe: Recipe,
        settings: LoaderSettings,
    ) -> Result<Loader, DataError> {
        Loader::start_until(sources, order, tokenizer, recipe, settings, Until::EpochEnd)
    }

    pub(crate) fn start_until(
        sources: Arc<Sources>,
        order: Order,
        tokenizer: Arc<TextTokenizer>,
        recipe: Recipe,
        mut settings: LoaderSettings,
        until: Until,
    ) -> Result<Loader, DataError> {
        let kind = recipe.kind();
        if sources.kind() != kind {
            return Err(DataError::OtherKind { opened: sources.kind(), asked: kind });
        }
        check(&settings, kind, sources.rows())?;
        if let Some(path) = sources.in_order().next().filter(|_| order.shuffles()) {
            return Err(DataError::InOrder { path: path.into() });
        }
        if recipe.is_by_length() && settings.shape.documents != 1 {
            let expected = "1 where samples of like length share a batch".into();
            let found = settings.shape.documents as u64;
            return Err(DataError::BadSetting { setting: "documents", found, expected });
        }
        let shape = settings.shape;
        let inner = match kind {
            Kind::Pairs if !recipe.is_row_by_row() => {
                Inner::Paired(Box::new(PairedLoader::start(sources, order, tokenizer, &recipe, settings, until)?))
            }
            Kind::Pairs => {
                if until == Until::EpochEnd {
                    settings.limit = Some(sources.rows() - settings.cursor.position);
                }
                Inner::Pairs(PairLoader::start(sources, order, tokenizer, settings)?)
            }
            Kind::Chat | Kind::Text => {
                let loader = DocumentLoader::start(sources, order, tokenizer, recipe, settings, until)?;
                Inner::Documents(Box::new(loader))
            }
        };
        Ok(Loader { inner, shape })
    }

    /// Waits for the next batch and copies it into `slot`, packed. Allocates nothing.
    pub fn next(&mut self, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        check_slot(&slot, self.shape)?;
        match &mut self.inner {
            Inner::Pairs(loader) => loader.next(slot),
            Inner::Paired(loader) => loader.next(slot),
            Inner::Documents(loader) => loader.next(slot),
        }
    }

    /// Asks `asked` now and then while [`Loader::next`] waits. Where it says yes, `next` fails with [`DataError::Stopped`], and the
    /// loader is of no further use. Only the first call counts.
    pub fn give_up_when(&self, asked: GiveUp) {
        match &self.inner {
            Inner::Pairs(loader) => loader.give_up_when(asked),
            Inner::Paired(loader) => loader.give_up_when(asked),
            Inner::Documents(loader) => loader.give_up_when(asked),
        }
    }

    /// The next sample that was not handed out.
    pub fn cursor(&self) -> Cursor {
        match &self.inner {
            Inner::Pairs(loader) => loader.cursor(),
            Inner::Paired(loader) => loader.cursor(),
            Inner::Documents(loader) => loader.cursor(),
        }
    }
}

fn check(settings: &LoaderSettings, kind: Kind, rows: u64) -> Result<(), DataError> {
    let LoaderSettings { shape, effective_batch, threads, prefetch_batches, cursor, .. } = settings;
    let at_least_one = [
        ("samples", shape.samples),
        ("source_len", shape.source_len),
        ("target_len", shape.target_len),
        ("documents", shape.documents),
        ("effective_batch", *effective_batch),
        ("threads", *threads),
        ("prefetch_batches", *prefetch_batches),
        ("ranks", settings.ranks.of),
    ];
    for (setting, found) in at_least_one {
        if found == 0 {
            return Err(DataError::BadSetting { setting, found: 0, expected: "at least 1".into() });
        }
    }
    if !effective_batch.is_multiple_of(shape.samples) {
        let expected = format!("a multiple of the micro-batch of {}", shape.samples);
        return Err(DataError::BadSetting { setting: "effective_batch", found: *effective_batch as u64, expected });
    }
    if kind == Kind::Pairs && shape.documents != 1 {
        let expected = "1 for pairs".into();
        return Err(DataError::BadSetting { setting: "documents", found: shape.documents as u64, expected });
    }
    if kind != Kind::Pairs && shape.source_len != shape.target_len {
        let expected = format!("the source length of {}, since each row has one label", shape.source_len);
        return Err(DataError::BadSetting { setting: "target_len", found: shape.target_len as u64, expected });
    }
    if settings.ranks.rank >= settings.ranks.of {
        let expected = format!("below the {} ranks", settings.ranks.of);
        return Err(DataError::BadSetting { setting: "rank", found: settings.ranks.rank as u64, expected });
    }
    if cursor.position >= rows {
        let expected = format!("below the {rows} rows of the data");
        return Err(DataError::BadSetting { setting: "cursor.position", found: cursor.position, expected });
    }
    Ok(())
}
