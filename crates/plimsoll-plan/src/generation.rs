//! What a generation is, whatever the family.

use crate::tape::{Id, Tape};

/// How much is generated at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerateShape {
    /// Prompts at a time.
    pub prompts: usize,
    /// Hypotheses per prompt; 1 is greedy.
    pub beams: usize,
    /// Longest prompt, in tokens.
    pub source_len: usize,
    /// Most new tokens.
    pub max_new: usize,
}

/// Everything that a generation needs: ops `..split` read the prompts, ops `split..` run once per new token.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Both passes on one tape.
    pub tape: Tape,
    /// First op of the decoding step.
    pub split: usize,
    /// Logits of the decoding step, `[prompts * beams, vocab]`.
    pub logits: Id,
}
