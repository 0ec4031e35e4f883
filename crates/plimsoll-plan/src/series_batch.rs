//! The shape of one micro-batch of series, and the slot that the loader fills for the engine.
//!
//! Samples are windows of equal length: no lengths, no padding, no tokens.

use crate::place::aligned;

/// The largest micro-batch of a run over series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SeriesShape {
    /// Windows in one micro-batch.
    pub samples: usize,
    /// Steps of a window.
    pub window: usize,
    /// Numbers of a step.
    pub features: usize,
    /// Numbers that are to be foretold of each sample.
    pub values: usize,
}

/// Arrays of the staging area: inputs, classes, values; first row, index in the effective batch and offset (zero) of each
/// sample, for attention.
pub const SERIES_ARRAYS: usize = 6;

impl SeriesShape {
    /// Words of each array of the staging area, in order.
    pub fn arrays(&self) -> [usize; SERIES_ARRAYS] {
        let SeriesShape { samples, window, features, values } = *self;
        [samples * window * features, samples, samples * values, samples + 1, samples + 1, samples + 1]
    }

    /// Words of the staging area.
    pub fn words(&self) -> usize {
        self.arrays().iter().map(|words| aligned(*words)).sum()
    }
}

/// One micro-batch of windows, lent to the loader to fill.
#[derive(Debug)]
pub struct SeriesSlot<'a> {
    /// `samples x window x features`, the oldest step of a window first.
    pub inputs: &'a mut [f32],
    /// The class of each sample, or [`IGNORE`](crate::batch::IGNORE).
    pub classes: &'a mut [u32],
    /// `samples x values`: what is to be foretold of each sample, NaN where it is not known.
    pub values: &'a mut [f32],
}
