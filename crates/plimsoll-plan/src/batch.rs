//! The shape of one micro-batch, and the slot that the loader fills for the engine.
//!
//! Rows are packed: sample 0's tokens, then sample 1's, without padding between or behind them; the lengths say where
//! each begins. Memory is planned for the longest case, arithmetic is spent on real tokens only.

/// A label at which no loss is taken (`-100` in Hugging Face's convention).
pub const IGNORE: u32 = u32::MAX;

/// The largest micro-batch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BatchShape {
    /// Samples in one micro-batch.
    pub samples: usize,
    /// Longest source, in tokens.
    pub source_len: usize,
    /// Longest target, in tokens.
    pub target_len: usize,
    /// Most documents in one sample; 1 unless they are packed.
    pub documents: usize,
}

/// One micro-batch, lent to the loader to fill. Slices have the sizes of [`BatchShape`].
#[derive(Debug)]
pub struct BatchSlot<'a> {
    /// Source tokens, packed; `samples * source_len` at most.
    pub source: &'a mut [u32],
    /// Target tokens (the labels), packed; `samples * target_len` at most.
    pub target: &'a mut [u32],
    /// Source length of each sample.
    pub source_lens: &'a mut [u32],
    /// Target length of each sample.
    pub target_lens: &'a mut [u32],
}
