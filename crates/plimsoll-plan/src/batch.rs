//! The shape of one micro-batch, and the slot that the loader fills for the engine.
//!
//! Rows are packed: sample 0's tokens, then sample 1's, without padding between or behind them; the lengths say where
//! each begins. Memory is planned for the longest case, arithmetic is spent on real tokens only.
//!
//! Two meanings of the four parts. *Pairs* (encoder and decoder): source and target are two texts, each sample has a length
//! of both. *Documents* (decoders): `source` holds the input tokens and `target` the label of each row, so both have the
//! same rows. The label of a row is the next token of the same document, or [`IGNORE`]; a document of n tokens has n - 1
//! rows, since its last token is no input. A sample is one document, or several behind each other (packed), none of which
//! sees another.

/// A label at which no loss is taken (`-100` in Hugging Face's convention).
pub const IGNORE: u32 = u32::MAX;

/// The largest micro-batch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BatchShape {
    /// Samples in one micro-batch.
    pub samples: usize,
    /// Longest source, in tokens.
    pub source_len: usize,
    /// Longest target, in tokens. For documents the same as `source_len`.
    pub target_len: usize,
    /// Most documents in one sample; 1 unless they are packed, and for pairs.
    #[serde(default = "one")]
    pub documents: usize,
}

/// Plans written before there were documents.
fn one() -> usize {
    1
}

impl BatchShape {
    /// Most documents in one micro-batch.
    pub fn most_documents(&self) -> usize {
        self.samples * self.documents
    }
}

/// One micro-batch, lent to the loader to fill. Slices have the sizes of [`BatchShape`].
#[derive(Debug)]
pub struct BatchSlot<'a> {
    /// Source tokens, packed; `samples * source_len` at most.
    pub source: &'a mut [u32],
    /// Target tokens (the labels), packed; `samples * target_len` at most.
    pub target: &'a mut [u32],
    /// `samples * documents` entries. Rows of each document, those of sample 0 first, then those of sample 1, without gaps
    /// between samples; entries that are not used are 0, and all at the end. For pairs: source length of each sample.
    pub source_lens: &'a mut [u32],
    /// `samples` entries. Rows of each sample (the sum of its documents), 0 where there is none. With one document a sample
    /// these are the `source_lens`. For pairs: target length of each sample.
    pub target_lens: &'a mut [u32],
}
