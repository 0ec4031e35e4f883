//! The staging area of series: the windows that the loader filled, and what ops ask of them.

use std::ops::Range;

use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::place::aligned;
use plimsoll_plan::series_batch::{SeriesShape, SeriesSlot};
use plimsoll_plan::spec::{Mixup, SeriesSpec};

use crate::cpu::series_loss::Mix;
use crate::error::EngineError;
use crate::philox::word;

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
        // A stream of words of its own for each micro-batch.
        let stream = (update as u32).wrapping_mul(0x9E37_79B9) ^ self.first ^ MIXES;
        let mut position = 0;
        let mut uniform = || {
            position += 1;
            (f64::from(word(seed, stream, position)) + 0.5) / 4_294_967_296.0
        };
        if self.samples < 2 || uniform() >= f64::from(mixup.probability) {
            return None;
        }
        let shift = 1 + (uniform() * (self.samples - 1) as f64) as usize;
        // Beta(a, a) by Johnk's method: two powers whose sum is at most one.
        let power = 1.0 / f64::from(mixup.alpha);
        for _ in 0..MOST_DRAWS {
            let (x, y) = (uniform().ln() * power, uniform().ln() * power);
            let most = x.max(y);
            let sum = most + ((x - most).exp() + (y - most).exp()).ln();
            if sum <= 0.0 {
                return Some(Mix { share: (x - sum).exp() as f32, shift: shift.min(self.samples - 1) });
            }
        }
        Some(Mix { share: 0.5, shift: shift.min(self.samples - 1) })
    }
}

/// Keeps the words of mixing apart from those of other uses.
const MIXES: u32 = 0x5A5A_0000;
/// Draws before a half is taken: never reached with an alpha that is believed.
const MOST_DRAWS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The mixes of many updates of a batch of so many samples.
    fn mixes(samples: usize, mixup: Mixup) -> Vec<Option<Mix>> {
        let shape = SeriesShape { samples, window: 2, features: 1, values: 1 };
        let mut words = vec![0u32; shape.arrays().iter().map(|n| aligned(*n)).sum()];
        // SAFETY: the words live longer than the staging area.
        let mut staging = unsafe { SeriesStaging::new(words.as_mut_ptr(), words.len(), shape) };
        staging.samples = samples;
        (0..20_000).map(|update| staging.mix(mixup, 5, update)).collect()
    }

    #[test]
    fn shares_are_drawn_from_the_beta_distribution_and_partners_are_others() {
        for alpha in [0.2f32, 0.4, 1.0, 2.5] {
            let drawn = mixes(5, Mixup { alpha, probability: 0.7 });
            let mixed: Vec<Mix> = drawn.iter().copied().flatten().collect();
            let (count, all) = (mixed.len() as f64, drawn.len() as f64);
            // Each within five deviations of what is expected.
            assert!((count / all - 0.7).abs() < 5.0 * (0.21 / all).sqrt(), "{count} of {all}");
            let mean = mixed.iter().map(|m| f64::from(m.share)).sum::<f64>() / count;
            let variance = mixed.iter().map(|m| (f64::from(m.share) - 0.5).powi(2)).sum::<f64>() / count;
            let exact = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
            assert!((mean - 0.5).abs() < 5.0 * (exact / count).sqrt(), "alpha {alpha}: mean {mean}");
            // No square is farther than a quarter from their mean.
            assert!((variance - exact).abs() < 5.0 * 0.25 / count.sqrt(), "alpha {alpha}: {variance}, not {exact}");
            for shift in 1..5 {
                let share = mixed.iter().filter(|m| m.shift == shift).count() as f64 / count;
                assert!((share - 0.25).abs() < 5.0 * (0.1875 / count).sqrt(), "shift {shift}: {share}");
            }
            assert!(mixed.iter().all(|m| (1..5).contains(&m.shift) && (0.0..=1.0).contains(&m.share)));
        }
    }

    #[test]
    fn a_sample_alone_is_not_mixed_and_an_update_draws_the_same_again() {
        let mixup = Mixup { alpha: 0.4, probability: 1.0 };
        assert!(mixes(1, mixup).iter().all(Option::is_none));
        assert_eq!(mixes(3, mixup), mixes(3, mixup));
    }
}
