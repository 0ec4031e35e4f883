//! The batch on its way to the card: filled by the loader, laid out part by part in pinned memory, copied in one go.
//!
//! Each part of a batch has its arrays at a fixed place, counted from its own first row, so that a captured step finds
//! them there whatever the lengths. There are two pieces of pinned memory in turn: one is laid out while the card still
//! copies from the other.

use std::ops::Range;

use plimsoll_plan::batch::{BatchShape, BatchSlot};
use plimsoll_plan::device::{
    SERIES_FACTS, STEP_WORDS, part_arrays, part_words, series_arrays, series_sides, staged_of,
};
use plimsoll_plan::op::Side;
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::{Program, staging_of};
use plimsoll_plan::series_batch::{SERIES_ARRAYS, SeriesSlot};
use plimsoll_plan::spec::{ModelSpec, SeriesSpec};

use super::call::{Step, words_of};
use super::card::{Address, Card, Pinned, StreamEvent};
use super::error::CudaError;
use crate::error::EngineError;
use crate::series_staging::SeriesStaging;
use crate::staging::Staging;

/// The arrays of a part, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Array {
    Counts,
    Source,
    Labels,
    Inputs,
    SourceStarts,
    TargetStarts,
    DocumentSample,
    DocumentOffset,
    SourceSample,
    SourcePosition,
    SourceAt,
    TargetSample,
    TargetPosition,
    // Of series.
    Facts,
    Windows,
    Classes,
    Values,
}

/// Facts of a batch of series, before its numbers of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// How samples are mixed: share and distance, both words.
    Mix,
    /// Index of the first sample.
    First = 2,
}

/// Numbers at the beginning of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    SourceRows,
    TargetRows,
    Documents,
    Samples,
}

/// Where a part's arrays lie on the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    part: BatchShape,
    /// Sizes of the arrays of a batch of series.
    series: Option<[usize; 1 + SERIES_ARRAYS]>,
    base: Address,
}

/// Which of the arrays of a batch of series; what both kinds have, by the name that texts have for it.
fn of_series(array: Array) -> usize {
    match array {
        Array::Facts | Array::Counts => 0,
        Array::Windows => 1,
        Array::Classes => 2,
        Array::Values => 3,
        Array::SourceStarts | Array::TargetStarts => 4,
        Array::DocumentSample => 5,
        Array::DocumentOffset => 6,
        _ => unreachable!("`{array:?}` is of texts"),
    }
}

impl Layout {
    /// Staged behind the address.
    pub fn of(program: &Program, base: Address) -> Layout {
        let series = program.spec.series().map(|spec| series_arrays(spec, program.shape.samples));
        Layout { part: BatchShape { samples: program.part_samples, ..program.shape }, series, base }
    }

    fn range(&self, part: usize, array: Array) -> Range<usize> {
        if let Some(sizes) = &self.series {
            let nth = of_series(array);
            let start = STEP_WORDS + sizes[..nth].iter().map(|n| aligned(*n)).sum::<usize>();
            return start..start + sizes[nth];
        }
        let sizes = part_arrays(&self.part);
        let before = sizes[..array as usize].iter().map(|n| aligned(*n)).sum::<usize>();
        let start = STEP_WORDS + part * part_words(&self.part) + before;
        start..start + sizes[array as usize]
    }

    /// The step's own numbers.
    pub fn step(&self) -> Address {
        self.base
    }

    /// An array of a part.
    pub fn at(&self, part: usize, array: Array) -> Address {
        self.base + 4 * self.range(part, array).start as u64
    }

    /// A number of a part.
    pub fn count(&self, part: usize, count: Count) -> Address {
        if let Some(sizes) = &self.series {
            // One row a sample is the last of the sides.
            return self.at(part, Array::Facts) + 4 * (sizes[0] - 1) as u64;
        }
        self.at(part, Array::Counts) + 4 * count as u64
    }
}

impl Layout {
    /// A fact of a batch of series.
    pub fn fact(&self, fact: Fact) -> Address {
        self.at(0, Array::Facts) + 4 * fact as u64
    }

    /// Where the number of rows stands, of samples that have `steps` each.
    pub fn rows_of_steps(&self, spec: &ModelSpec, steps: usize) -> Address {
        let sides = spec.series().map(|spec| series_sides(spec).position(|of| of == steps));
        let nth = sides.flatten().expect("ops of series run over sides of their model");
        self.at(0, Array::Facts) + 4 * (SERIES_FACTS + nth) as u64
    }
}

/// The batch and its way.
#[derive(Debug)]
pub(crate) struct Staged {
    /// What `host` or `series` lies in.
    _memory: Vec<u32>,
    host: Staging,
    series: Option<SeriesStaging>,
    pinned: [Sent; 2],
    /// Which of them is laid out next, or was last.
    turn: usize,
    layout: Layout,
    parts: usize,
    /// Rows of each part, source and target.
    rows: Vec<(usize, usize)>,
    /// Documents of the part that has most.
    documents: usize,
}

// SAFETY: the staging area lies in memory that moves along.
unsafe impl Send for Staged {}

impl Staged {
    /// Takes the host's memory for a program whose staging area lies at `base` on the card.
    pub fn take(program: &Program, base: Address) -> Result<Staged, CudaError> {
        let words = staging_of(&program.spec, &program.shape, None);
        let mut memory = vec![0u32; words];
        let windows = program.spec.series().map(|spec| spec.batch(program.shape.samples));
        // SAFETY: the vector is not touched but through the staging area, which is one or the other, and lives as long.
        let (host, series) = unsafe {
            let base = memory.as_mut_ptr();
            let series = windows.map(|shape| SeriesStaging::new(base, words, shape));
            (Staging::new(base, if series.is_some() { 0 } else { words }, program.shape), series)
        };
        let words = staged_of(&program.spec, &program.shape, program.part_samples);
        let pinned = [Sent::take(words)?, Sent::take(words)?];
        let parts = program.shape.samples.div_ceil(program.part_samples.max(1));
        Ok(Staged {
            _memory: memory,
            host,
            series,
            pinned,
            turn: 0,
            layout: Layout::of(program, base),
            parts,
            rows: vec![(0, 0); parts],
            documents: 0,
        })
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> BatchSlot<'_> {
        self.host.slot()
    }

    /// Lends the batch to the loader, where it is one of series.
    pub fn series_slot(&mut self) -> Option<SeriesSlot<'_>> {
        self.series.as_mut().map(SeriesStaging::slot)
    }

    /// Places on the card.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Rows of each part.
    pub fn rows(&self) -> &[(usize, usize)] {
        &self.rows
    }

    /// Documents of the part that has most of them.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// Labels at which a loss is taken.
    pub fn label_count(&self) -> u64 {
        self.series.as_ref().map_or_else(|| self.host.label_count(), SeriesStaging::label_count)
    }

    /// Checks what the loader wrote and lays it out. Samples of series are mixed by seed and update, where those are given.
    pub fn lay_out(
        &mut self,
        samples: usize,
        first: u32,
        spec: &ModelSpec,
        mixed_by: Option<(u64, u64)>,
    ) -> Result<(), EngineError> {
        match spec {
            ModelSpec::Series(spec) => self.lay_out_series(samples, first, spec, mixed_by),
            ModelSpec::T5(_) | ModelSpec::Decoder(_) => self.lay_out_tokens(samples, first, spec),
        }
    }

    fn lay_out_series(
        &mut self,
        samples: usize,
        first: u32,
        spec: &SeriesSpec,
        mixed_by: Option<(u64, u64)>,
    ) -> Result<(), EngineError> {
        let Some(series) = &mut self.series else { return Err(EngineError::NotPlanned { what: "series" }) };
        series.take(samples, first, spec)?;
        self.turn = 1 - self.turn;
        self.pinned[self.turn].event.wait()?;
        let mix = mixed_by.and_then(|(seed, update)| series.mix(spec.loss.mixup?, seed, update));
        let (share, shift) = mix.map_or((1.0f32, 0), |mix| (mix.share, mix.shift as u32));
        let rows = series_sides(spec).map(|steps| (samples * steps) as u32);
        let facts: Vec<u32> = [share.to_bits(), shift, first].into_iter().chain(rows).collect();
        self.rows[0] = (samples, samples);
        self.documents = samples;
        let [starts, sample, offset] = series.documents();
        let words = self.pinned[self.turn].words.words_mut();
        for (array, values) in [
            (Array::Facts, &facts[..]),
            (Array::Windows, words_of(series.inputs())),
            (Array::Classes, series.classes()),
            (Array::Values, words_of(series.values())),
            (Array::TargetStarts, starts),
            (Array::DocumentSample, sample),
            (Array::DocumentOffset, offset),
        ] {
            words[self.layout.range(0, array)][..values.len()].copy_from_slice(values);
        }
        Ok(())
    }

    fn lay_out_tokens(&mut self, samples: usize, first: u32, spec: &ModelSpec) -> Result<(), EngineError> {
        self.host.take(samples, first, spec)?;
        self.turn = 1 - self.turn;
        self.pinned[self.turn].event.wait()?;
        let each = self.layout.part.samples;
        let is_pairs = matches!(spec, ModelSpec::T5(_));
        self.documents = 0;
        for part in 0..self.parts {
            let span = self.host.span(part * each..(part + 1) * each);
            let (source, labels) = (self.host.source(&span), self.host.labels(&span));
            self.rows[part] = (source.len(), labels.len());
            let (starts, targets) = match source.is_empty() && labels.is_empty() {
                true => (&[][..], &[][..]),
                false => (self.host.source_starts(&span), self.host.target_starts(&span)),
            };
            self.documents = self.documents.max(starts.len().saturating_sub(1));
            let (sample, offset) = self.host.documents(&span);
            let source_map = self.host.source_map(&span);
            let target_map = self.host.target_map(&span);
            let words = self.pinned[self.turn].words.words_mut();
            let mut put = |array: Array, values: &[u32], minus: u32| {
                let to = &mut words[self.layout.range(part, array)][..values.len()];
                to.iter_mut().zip(values).for_each(|(to, value)| *to = value - minus);
            };
            let counts = [
                source.len() as u32,
                labels.len() as u32,
                starts.len().saturating_sub(1) as u32,
                targets.len().saturating_sub(1) as u32,
            ];
            put(Array::Counts, &counts, 0);
            put(Array::Source, source, 0);
            put(Array::Labels, labels, 0);
            put(Array::SourceStarts, starts, starts.first().copied().unwrap_or(0));
            put(Array::TargetStarts, targets, targets.first().copied().unwrap_or(0));
            put(Array::DocumentSample, sample, 0);
            put(Array::DocumentOffset, offset, 0);
            put(Array::SourceSample, source_map.listed().0, 0);
            put(Array::SourcePosition, source_map.listed().1, 0);
            put(Array::SourceAt, self.host.source_at(&span), 0);
            if is_pairs {
                put(Array::Inputs, self.host.inputs(&span), 0);
                put(Array::TargetSample, target_map.listed().0, 0);
                put(Array::TargetPosition, target_map.listed().1, 0);
            }
        }
        Ok(())
    }

    /// Sends what was laid out, the step's numbers in front; does not wait.
    pub fn send(&mut self, card: &Card, step: &Step) -> Result<(), CudaError> {
        let sent = &mut self.pinned[self.turn];
        sent.words.words_mut()[..STEP_WORDS].copy_from_slice(words_of(std::slice::from_ref(step)));
        card.send(self.layout.base, sent.words.words())?;
        sent.event.record(card)
    }

    /// Sends what was laid out as a further batch of the same update: of the step's numbers, those that the card counts
    /// with stay as they are. Does not wait.
    pub fn send_further(&mut self, card: &Card) -> Result<(), CudaError> {
        let sent = &mut self.pinned[self.turn];
        let words = sent.words.words_mut();
        words[FIRST_MICRO] = 0;
        let words = sent.words.words();
        card.send(self.layout.base + 4 * FIRST_MICRO as u64, &words[FIRST_MICRO..=FIRST_MICRO])?;
        card.send(self.layout.base + 4 * STEP_WORDS as u64, &words[STEP_WORDS..])?;
        sent.event.record(card)
    }
}

/// The word of a step that says whether its batch is an update's first.
const FIRST_MICRO: usize = std::mem::offset_of!(Step, first_micro) / 4;

/// Pinned memory, and the moment when the card had copied from it.
#[derive(Debug)]
struct Sent {
    words: Pinned,
    event: StreamEvent,
}

impl Sent {
    fn take(words: usize) -> Result<Sent, CudaError> {
        Ok(Sent { words: Pinned::take(words)?, event: StreamEvent::new()? })
    }
}

/// Rows of a side among (source, target).
pub(crate) fn of_side(rows: (usize, usize), side: Side) -> usize {
    match side {
        Side::Source => rows.0,
        Side::Target | Side::Beam => rows.1,
        // Of series, rows are samples.
        Side::Steps(steps) => rows.1 * steps,
    }
}
