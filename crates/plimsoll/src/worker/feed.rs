//! The running loader of a run, whatever it is trained on.

use plimsoll_data::series::{Part, SeriesLoader, SeriesSettings};
use plimsoll_data::{Cursor, Loader, LoaderSettings, Ranks};
use plimsoll_engine::Stepper;
use plimsoll_engine::cuda::CudaEngine;
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use plimsoll_plan::choose::Plan;
use plimsoll_plan::series_batch::SeriesSlot;

use crate::heap::{self, Role};
use crate::prepare::{PREFETCH, RunData, Texts, Windows, loader_hook, loading};
use crate::render::Fail;

/// What was loaded into a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    /// Samples of the batch.
    pub samples: usize,
    /// Tokens that are no padding; of series, steps of windows.
    pub tokens: u64,
    /// Samples of which something was cut.
    pub truncated: u64,
    /// Rows that were left out.
    pub dropped: u64,
}

/// The running loader.
pub(super) enum Feed {
    /// Of texts; with `pairs` both sides are tokens of their own.
    Texts { loader: Loader, pairs: bool },
    /// Of windows of so many steps.
    Series { loader: SeriesLoader, window: u64 },
}

impl Feed {
    /// Starts the threads at `cursor`.
    pub fn start(data: &RunData, plan: &Plan, shape: BatchShape, cursor: Cursor) -> Result<Feed, Fail> {
        let threads = plan.choices.loader_threads;
        match data {
            RunData::Texts(Texts { sources, tokenizer, order, recipe, .. }) => {
                let settings = LoaderSettings {
                    shape,
                    effective_batch: plan.effective_batch,
                    threads,
                    prefetch_batches: PREFETCH,
                    cursor,
                    limit: None,
                    ranks: Ranks::ONE,
                    on_thread_start: Some(loader_hook()),
                };
                let (sources, order, tokenizer, recipe) = (sources.clone(), *order, tokenizer.clone(), recipe.clone());
                let start = || Loader::start(sources, order, tokenizer, recipe, settings);
                Ok(Feed::Texts { loader: heap::on_behalf(Role::Loader, start)?, pairs: data.has_pairs() })
            }
            RunData::Series(Windows { series, order }) => {
                let settings = SeriesSettings { cursor, ..loading(series, shape.samples, threads) };
                let (series, order) = (series.clone(), *order);
                let window = series.spec().window as u64;
                let start = || SeriesLoader::start(series, Part::Training, order, settings);
                Ok(Feed::Series { loader: heap::on_behalf(Role::Loader, start)?, window })
            }
        }
    }

    /// Waits for the next batch and puts it into the engine's slot.
    pub fn next(&mut self, engine: &mut Stepper) -> Result<Loaded, Fail> {
        match self {
            Feed::Texts { .. } => self.next_texts(engine.slot()),
            Feed::Series { .. } => self.next_windows(engine.series_slot()?),
        }
    }

    /// The same, of a card that may be at the batch before.
    pub fn next_on_card(&mut self, card: &mut CudaEngine) -> Result<Loaded, Fail> {
        match self {
            Feed::Texts { .. } => self.next_texts(card.slot()),
            Feed::Series { .. } => self.next_windows(card.series_slot()?),
        }
    }

    fn next_texts(&mut self, slot: BatchSlot<'_>) -> Result<Loaded, Fail> {
        let Feed::Texts { loader, pairs } = self else { return Ok(Loaded::default()) };
        let facts = loader.next(slot)?;
        // Of a document, source and target are the same rows.
        let tokens = facts.source_tokens + if *pairs { facts.target_tokens } else { 0 };
        Ok(Loaded { samples: facts.samples, tokens, truncated: facts.truncated as u64, dropped: facts.dropped })
    }

    fn next_windows(&mut self, slot: SeriesSlot<'_>) -> Result<Loaded, Fail> {
        let Feed::Series { loader, window } = self else { return Ok(Loaded::default()) };
        let samples = loader.next(slot)?.samples;
        Ok(Loaded { samples, tokens: samples as u64 * *window, ..Loaded::default() })
    }

    /// The next sample that was not handed out.
    pub fn cursor(&self) -> Cursor {
        match self {
            Feed::Texts { loader, .. } => loader.cursor(),
            Feed::Series { loader, .. } => loader.cursor(),
        }
    }
}
