//! The shape of one micro-batch of windows over series, and the slot that the loader fills for the engine.
//!
//! All windows of a run have as many steps and features, so nothing is packed: a slot is a plain array. Invariant: pure, as all of this
//! crate; who reads the series and who computes on them agree on this file alone.

/// The largest micro-batch of a run over series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SeriesShape {
    /// Windows in one micro-batch.
    pub samples: usize,
    /// Steps of a window.
    pub window: usize,
    /// Numbers of a step.
    pub features: usize,
    /// Numbers to be foretold of a sample, beside its class.
    pub values: usize,
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
