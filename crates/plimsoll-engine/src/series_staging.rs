//! The staging area of series: the windows that the loader filled, and what ops ask of them.

use std::ops::Range;

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::place::aligned;
use plimsoll_plan::series_batch::{SeriesShape, SeriesSlot};
use plimsoll_plan::spec::{Mixup, SeriesSpec};

use crate::cpu::mixing::mixing;
use crate::cpu::series_loss::Mix;
use crate::error::EngineError;

/// The arrays of the staging area, in order.
#[derive(Clone, Copy)]
enum Part {
    Inputs,
    Classes,
    Values,
    Starts,
    Sample,
    Offset,
}

/// A batch of windows in the arena.
#[derive(Debug)]
pub struct SeriesStaging {
    base: *mut u32,
    words: usize,
    shape: SeriesShape,
    /// Samples in the batch now.
    samples: usize,
    /// Index of the first sample in the effective batch.
    first: u32,
}

impl SeriesStaging {
    /// Takes over `words` elements at `base`.
    ///
    /// # Safety
    /// The memory is ours alone for as long as the staging area lives.
    pub unsafe fn new(base: *mut u32, words: usize, shape: SeriesShape) -> SeriesStaging {
        SeriesStaging { base, words, shape, samples: 0, first: 0 }
    }

    fn range(&self, part: Part) -> Range<usize> {
        let sizes = self.shape.arrays();
        let start = sizes[..part as usize].iter().map(|n| aligned(*n)).sum::<usize>();
        start..start + sizes[part as usize]
    }

    #[allow(clippy::mut_from_ref)]
    fn words_of(&self, part: Part) -> &mut [u32] {
        let range = self.range(part);
        assert!(range.end <= self.words);
        // SAFETY: inside the staging area; callers hold `&mut self` or take each part once.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }

    #[allow(clippy::mut_from_ref)]
    fn numbers_of(&self, part: Part) -> &mut [f32] {
        let words = self.words_of(part);
        // SAFETY: words of the same size and alignment, any bits of which are a number.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> SeriesSlot<'_> {
        SeriesSlot {
            inputs: self.numbers_of(Part::Inputs),
            classes: self.words_of(Part::Classes),
            values: self.numbers_of(Part::Values),
        }
    }

    /// Checks what the loader wrote, and says where the samples' rows lie.
    pub fn take(&mut self, samples: usize, first: u32, spec: &SeriesSpec) -> Result<(), EngineError> {
        if samples > self.shape.samples {
            let (what, expected) = ("the number of samples", self.shape.samples);
            return Err(EngineError::Batch { what, expected, found: samples });
        }
        // Kernels and row maps count rows in 32 bits.
        let rows = samples * spec.at_block(0).1;
        if u32::try_from(rows).is_err() {
            return Err(EngineError::Batch {
                what: "steps of a micro-batch",
                expected: u32::MAX as usize,
                found: rows,
            });
        }
        (self.samples, self.first) = (samples, first);
        if let Some(head) = &spec.classes {
            let wrong = |class: &&u32| **class != IGNORE && **class as usize >= head.outputs;
            if let Some(class) = self.classes().iter().find(wrong) {
                let (what, expected) = ("a class", head.outputs - 1);
                return Err(EngineError::Batch { what, expected, found: *class as usize });
            }
        }
        let steps = spec.lstm_steps() as u32;
        let (starts, sample, offset) =
            (self.words_of(Part::Starts), self.words_of(Part::Sample), self.words_of(Part::Offset));
        for nth in 0..=samples {
            (starts[nth], sample[nth], offset[nth]) = (nth as u32 * steps, first + nth as u32, 0);
        }
        Ok(())
    }

    /// Samples in the batch.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Index of the first sample in the effective batch.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// All windows.
    pub fn inputs(&self) -> &[f32] {
        &self.numbers_of(Part::Inputs)[..self.samples * self.shape.window * self.shape.features]
    }

    /// Classes.
    pub fn classes(&self) -> &[u32] {
        &self.words_of(Part::Classes)[..self.samples]
    }

    /// Values.
    pub fn values(&self) -> &[f32] {
        &self.numbers_of(Part::Values)[..self.samples * self.shape.values]
    }

    /// First row of each sample and the end, as attention asks; with the samples' indices, and zeros.
    pub fn documents(&self) -> [&[u32]; 3] {
        let samples = self.samples;
        [
            &self.words_of(Part::Starts)[..=samples],
            &self.words_of(Part::Sample)[..samples],
            &self.words_of(Part::Offset)[..samples],
        ]
    }

    /// Samples of which something is to be foretold.
    pub fn label_count(&self) -> u64 {
        let each = self.shape.values;
        let values = self.values();
        let known = |nth: &usize| {
            self.classes()[*nth] != IGNORE || values[nth * each..(nth + 1) * each].iter().any(|v| !v.is_nan())
        };
        (0..self.samples).filter(known).count() as u64
    }

    /// How this micro-batch is mixed.
    pub fn mix(&self, mixup: Mixup, seed: u64, update: u64) -> Option<Mix> {
        mixing(mixup, seed, update, self.first..self.first + self.samples as u32)
    }
}
