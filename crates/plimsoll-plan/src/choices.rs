//! The same-result choices that shape the tapes of a run.

use serde::{Deserialize, Serialize};

/// The same-result choices that shape a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choices {
    /// Samples that the ops run over at a time.
    pub micro_batch: usize,
    /// Blocks whose activations are computed again in the backward pass: the first `recompute`.
    pub recompute: usize,
    /// Blocks behind those whose attention alone is computed again.
    #[serde(default)]
    pub recompute_attention: usize,
    /// Blocks behind the first `recompute` whose feed-forward part alone is computed again. On a card it comes before all
    /// else: its first product is most of what a block keeps, and little of what it costs.
    #[serde(default)]
    pub recompute_feed_forward: usize,
    /// Rows of logits that exist at a time.
    pub loss_chunk: usize,
    /// Each weight is updated as soon as its gradient is complete, and the gradient is gone: the blocks of the whole
    /// effective batch are swept one after the other, micro-batch by micro-batch.
    pub optimizer_in_backward: bool,
    /// Threads of the loader.
    pub loader_threads: usize,
    /// On a card: the matrix library has little scratch, and products in f16 read weights that are written out for each of them,
    /// instead of copies that stay.
    #[serde(default)]
    pub lean: bool,
    /// On a card, of a decoder: outputs of norms stay for the backward pass, instead of being written again from what they are of.
    #[serde(default)]
    pub keep_norms: bool,
    /// Of an LSTM: so many steps apart its cells are kept, and the gates between them are computed again; 0: gates are kept.
    /// Counted in whole blocks (`op::LSTM_BLOCK`), by which weight gradients are summed.
    #[serde(default)]
    pub lstm_every: usize,
}

/// What a block keeps for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keep {
    /// Everything.
    All,
    /// Everything but what attention made.
    NoAttention,
    /// Its input.
    Input,
    /// Everything but what the feed-forward part made: on a card.
    NoFeedForward,
}

impl Keep {
    /// Whether what attention made is kept.
    pub fn attention(self) -> bool {
        matches!(self, Keep::All | Keep::NoFeedForward)
    }

    /// Whether what the feed-forward part made is kept.
    pub fn feed_forward(self) -> bool {
        matches!(self, Keep::All | Keep::NoAttention)
    }
}

/// The ways to keep on a CPU, from most to least, in the order of the type.
pub(crate) const KEEPS: [Keep; 3] = [Keep::All, Keep::NoAttention, Keep::Input];

impl Choices {
    /// Everything kept, gradients too, so many samples at a time.
    pub fn plain(micro_batch: usize) -> Choices {
        Choices {
            micro_batch,
            recompute: 0,
            recompute_attention: 0,
            recompute_feed_forward: 0,
            loss_chunk: micro_batch,
            optimizer_in_backward: false,
            loader_threads: 1,
            lean: false,
            keep_norms: false,
            lstm_every: 0,
        }
    }

    /// The same choices on rung `level` of the ladder of recompute over all `blocks`: first attention alone is computed again,
    /// block by block, then whole blocks are.
    pub(crate) fn on_rung(self, level: usize, blocks: usize) -> Choices {
        let recompute = level.saturating_sub(blocks);
        Choices { recompute, recompute_attention: level.min(blocks) - recompute, ..self }
    }

    /// The same choices on rung `level` of the ladder on a card: first the feed-forward parts alone are computed again, block by
    /// block, then whole blocks are.
    pub(crate) fn on_card_rung(self, level: usize, blocks: usize) -> Choices {
        let recompute = level.saturating_sub(blocks);
        Choices { recompute, recompute_attention: 0, recompute_feed_forward: level.min(blocks) - recompute, ..self }
    }

    /// What block `nth` of all keeps.
    pub(crate) fn keep(&self, nth: usize) -> Keep {
        if nth < self.recompute {
            Keep::Input
        } else if nth < self.recompute + self.recompute_feed_forward {
            Keep::NoFeedForward
        } else if nth < self.recompute + self.recompute_feed_forward + self.recompute_attention {
            Keep::NoAttention
        } else {
            Keep::All
        }
    }
}
