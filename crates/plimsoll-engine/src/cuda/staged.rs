//! The batch on its way to the card: filled by the loader, laid out part by part in pinned memory, copied in one go.
//!
//! Each part of a batch has its arrays at a fixed place, counted from its own first row, so that a captured step finds
//! them there whatever the lengths. There are two pieces of pinned memory in turn: one is laid out while the card still
//! copies from the other.

use std::ops::Range;

use plimsoll_plan::batch::{BatchShape, BatchSlot};
use plimsoll_plan::device::{STEP_WORDS, part_arrays, part_words, staged_words};
use plimsoll_plan::op::Side;
use plimsoll_plan::place::aligned;
use plimsoll_plan::program::{Program, staging_words};
use plimsoll_plan::spec::ModelSpec;

use super::call::{Step, words_of};
use super::card::{Address, Card, Pinned, StreamEvent};
use super::error::CudaError;
use crate::error::EngineError;
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
    base: Address,
}

impl Layout {
    /// Staged behind the address.
    pub fn of(program: &Program, base: Address) -> Layout {
        Layout { part: BatchShape { samples: program.part_samples, ..program.shape }, base }
    }

    fn range(&self, part: usize, array: Array) -> Range<usize> {
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
        self.at(part, Array::Counts) + 4 * count as u64
    }
}

/// The batch and its way.
#[derive(Debug)]
pub(crate) struct Staged {
    /// What `host` lies in.
    _memory: Vec<u32>,
    host: Staging,
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
        let words = staging_words(&program.shape, None);
        let mut memory = vec![0u32; words];
        // SAFETY: the vector is not touched but through the staging area, and lives as long.
        let host = unsafe { Staging::new(memory.as_mut_ptr(), words, program.shape) };
        let words = staged_words(&program.shape, program.part_samples);
        let pinned = [Sent::take(words)?, Sent::take(words)?];
        let parts = program.shape.samples.div_ceil(program.part_samples.max(1));
        Ok(Staged {
            _memory: memory,
            host,
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
        self.host.label_count()
    }

    /// Checks what the loader wrote and lays it out.
    pub fn lay_out(&mut self, samples: usize, first: u32, spec: &ModelSpec) -> Result<(), EngineError> {
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
        Side::Target | Side::Beam | Side::Steps(_) => rows.1,
    }
}
