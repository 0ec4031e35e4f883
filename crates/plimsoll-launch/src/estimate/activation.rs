//! What a forward pass keeps for its backward pass.
//!
//! Bytes a token and layer are a sum over widths, exact for `transformers` 5.22 and torch 2.15: found by
//! `torch.autograd.graph.saved_tensors_hooks` on models of one and two layers with every width varied, unique storages
//! counted once. H width, F feed-forward, Q heads x head width, K the same of k and v, h heads, T length.
//!
//! A matrix of attention scores (h T a token) is kept by `eager`, by T5's bias under `sdpa`, and on a CPU by `sdpa` as
//! soon as there is dropout. A dropout mask has the element's size on a CPU and one byte on a card.

use plimsoll_machine::Bytes;

use super::precision::{Device, Precision};
use super::shape::Family;
use super::terms::{Attention, Terms};
use super::vits;

/// What is kept, by what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Inputs of the layers' products, norms and masks; with recomputation the layers' inputs alone.
    pub layers: Bytes,
    /// Matrices of attention scores.
    pub scores: Bytes,
    /// One layer in full, while it is computed again.
    pub recomputed: Bytes,
    /// Embedding, last norm.
    pub ends: Bytes,
    /// Half copies of the weights that autocast keeps.
    pub casts: Bytes,
}

impl Kept {
    /// All of it.
    pub fn total(&self) -> Bytes {
        [self.layers, self.scores, self.recomputed, self.ends, self.casts]
            .into_iter()
            .fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

/// Bytes of an attention matrix that is not fused.
pub fn attention_matrix(batch: u64, heads: u64, length: u64, element: u64) -> Bytes {
    product(&[batch, heads, length, length, element])
}

/// Bytes of logits or of one of their copies.
pub fn logits(batch: u64, length: u64, vocab: u64, element: u64) -> Bytes {
    product(&[batch, length, vocab, element])
}

fn product(factors: &[u64]) -> Bytes {
    Bytes(factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor)))
}

/// Bytes a token of one sub-layer.
#[derive(Clone, Copy, Debug, Default)]
struct Width {
    /// Times H.
    hidden: u64,
    /// Times F.
    ffn: u64,
    /// Times Q.
    query: u64,
    /// Times K.
    key: u64,
    /// Times h.
    heads: u64,
    /// Times h T.
    scores: u64,
    /// Dropout masks of width H.
    masks: u64,
    /// Dropout masks of width F.
    ffn_masks: u64,
    /// What such a mask lets through, kept beside what it was given.
    ffn_dropped: u64,
}

const FULL: usize = 0;
const HALF: usize = 1;

/// A layer of a model with one stack, without dropout: `[full, half]`.
fn block(family: Family, fused: bool) -> [Width; 2] {
    let none = Width::default();
    match (family, fused) {
        (Family::Gpt2, true) => [
            Width { hidden: 32, ffn: 20, heads: 4, masks: 2, ..none },
            Width { hidden: 20, ffn: 10, heads: 4, masks: 2, ..none },
        ],
        (Family::Gpt2, false) => [
            Width { hidden: 32, ffn: 20, scores: 4, masks: 2, ..none },
            Width { hidden: 20, ffn: 10, scores: 6, masks: 2, ..none },
        ],
        (Family::Bert, true) => [
            Width { hidden: 32, ffn: 8, heads: 4, masks: 2, ..none },
            Width { hidden: 24, ffn: 4, heads: 4, masks: 2, ..none },
        ],
        (Family::Bert, false) => [
            Width { hidden: 32, ffn: 8, scores: 4, masks: 2, ..none },
            Width { hidden: 24, ffn: 4, scores: 2, masks: 2, ..none },
        ],
        (Family::Qwen3, true) => [
            Width { hidden: 24, ffn: 16, query: 16, key: 16, heads: 12, ..none },
            Width { hidden: 26, ffn: 8, query: 10, key: 10, heads: 12, ..none },
        ],
        (Family::Qwen3, false) => [
            Width { hidden: 24, ffn: 16, query: 24, key: 8, heads: 8, scores: 4, ..none },
            Width { hidden: 26, ffn: 8, query: 14, key: 6, heads: 8, scores: 6, ..none },
        ],
        (_, true) => [
            Width { hidden: 24, ffn: 16, query: 8, key: 8, heads: 4, ..none },
            Width { hidden: 26, ffn: 8, query: 4, key: 4, heads: 4, ..none },
        ],
        (_, false) => [
            Width { hidden: 24, ffn: 16, query: 16, scores: 4, ..none },
            Width { hidden: 26, ffn: 8, query: 8, scores: 6, ..none },
        ],
    }
}

/// T5's attention and feed-forward sub-layers: `[full, half]` each. Its bias keeps a matrix even where it is fused.
fn t5_parts(gated: bool, fused: bool) -> [[Width; 2]; 2] {
    let none = Width::default();
    let query = if fused { [16, 12] } else { [16, 8] };
    let attention = [
        Width { hidden: 12, query: query[FULL], scores: 4, masks: 1, ..none },
        Width { hidden: 12, query: query[HALF], scores: if fused { 4 } else { 5 }, masks: 1, ..none },
    ];
    let part = |hidden, ffn, ffn_dropped| Width { hidden, ffn, ffn_dropped, masks: 1, ffn_masks: 1, ..none };
    let ffn = if gated { [part(12, 28, 0), part(15, 14, 0)] } else { [part(12, 4, 1), part(13, 4, 0)] };
    [attention, ffn]
}

/// What a training pass keeps.
pub fn kept(terms: &Terms) -> Kept {
    let (batch, dims) = (terms.batch, terms.shape.dims);
    let casts = match (terms.precision, terms.zero.active()) {
        (Precision::Mixed, false) => Bytes(2 * terms.shape.matrices()),
        _ => Bytes::ZERO,
    };
    match terms.shape.family {
        Family::Vits => Kept { layers: vits::kept(batch, terms.length), ends: vits::workspace(), ..Kept::default() },
        Family::CnnLstm(model) => {
            let fused = fused(terms);
            let scores = if fused { 0 } else { matrices(terms) };
            let positions = model.positions();
            Kept {
                layers: product(&[model.kept(terms.device).0, batch]),
                scores: product(&[scores, attention_matrix(batch, model.heads(), positions, 1).0]),
                casts,
                ..Kept::default()
            }
        }
        Family::T5 | Family::GatedT5 => Kept { casts, ..t5(terms) },
        family => {
            let fused = fused(terms);
            let width = block(family, fused)[half(terms)];
            let tokens = batch.saturating_mul(terms.length);
            let (layer, scores) = cost(terms, width, tokens, terms.length, fused);
            let ends = product(&[tokens, 8 * dims.hidden + 28]);
            layered(terms, &[(dims.decoder_layers, layer, scores, product(&[tokens, 4, dims.hidden]))], ends, casts)
        }
    }
}

fn t5(terms: &Terms) -> Kept {
    let (dims, fused) = (terms.shape.dims, fused(terms));
    let [attention, ffn] = t5_parts(terms.shape.family == Family::GatedT5, fused).map(|both| both[half(terms)]);
    let source = terms.batch.saturating_mul(terms.length);
    let target = terms.batch.saturating_mul(terms.target_length);
    let add = |parts: &[(Bytes, Bytes)]| {
        parts
            .iter()
            .fold((Bytes::ZERO, Bytes::ZERO), |sum, part| (sum.0.saturating_add(part.0), sum.1.saturating_add(part.1)))
    };
    let encoder =
        add(&[cost(terms, attention, source, terms.length, fused), cost(terms, ffn, source, terms.length, fused)]);
    // The cross-attention's k and v are of the source's length; half of its width Q is theirs.
    let (cross, cross_scores) =
        cost(terms, Width { query: attention.query / 2, ..attention }, target, terms.length, fused);
    let cross_keys = product(&[source, attention.query / 2, dims.heads * dims.head_dim]);
    let cross_scores = if fused && !terms.dropout { Bytes::ZERO } else { cross_scores };
    let decoder = add(&[
        cost(terms, attention, target, terms.target_length, fused),
        (cross.saturating_add(cross_keys), cross_scores),
        cost(terms, ffn, target, terms.target_length, fused),
    ]);
    let ends = product(&[source.saturating_add(target), 12 * dims.hidden + 28]);
    layered(
        terms,
        &[
            (dims.encoder_layers, encoder.0, encoder.1, product(&[source, 8, dims.hidden])),
            (dims.decoder_layers, decoder.0, decoder.1, product(&[target, 12, dims.hidden])),
        ],
        ends,
        Bytes::ZERO,
    )
}

/// Stacks of (layers, bytes of one, its scores, its input), kept or computed again.
fn layered(terms: &Terms, stacks: &[(u64, Bytes, Bytes, Bytes)], ends: Bytes, casts: Bytes) -> Kept {
    let mut kept = Kept { ends, casts, ..Kept::default() };
    for (layers, layer, scores, input) in stacks {
        if terms.checkpointing {
            kept.layers = kept.layers.saturating_add(product(&[*layers, input.0]));
            kept.recomputed = kept.recomputed.max(layer.saturating_add(*scores));
        } else {
            kept.layers = kept.layers.saturating_add(product(&[*layers, layer.0]));
            kept.scores = kept.scores.saturating_add(product(&[*layers, scores.0]));
        }
    }
    kept
}

/// Bytes of a sub-layer and of its scores.
fn cost(terms: &Terms, width: Width, tokens: u64, keys: u64, fused: bool) -> (Bytes, Bytes) {
    let dims = terms.shape.dims;
    let element = terms.precision.element();
    let mask = if terms.device == Device::Cpu { element } else { 1 };
    let dropped = u64::from(terms.dropout);
    let a_token = width.hidden * dims.hidden
        + width.ffn * dims.ffn
        + width.query * dims.heads * dims.head_dim
        + width.key * dims.kv_heads * dims.head_dim
        + width.heads * dims.heads
        + dropped * mask * (width.masks * dims.hidden + width.ffn_masks * dims.ffn)
        + dropped * element * width.ffn_dropped * dims.ffn
        + 16;
    let mut scores = width.scores;
    if terms.dropout && !fused && width.scores > 0 {
        scores += mask + element;
    }
    (product(&[tokens, a_token]), product(&[tokens, scores, dims.heads, keys]))
}

/// Bytes a position of scores that are kept: the softmax, and with dropout its mask and what it lets through.
fn matrices(terms: &Terms) -> u64 {
    let element = terms.precision.element();
    let mask = if terms.device == Device::Cpu { element } else { 1 };
    if terms.dropout { 2 * element + mask } else { element }
}

fn fused(terms: &Terms) -> bool {
    let with_dropout_on_cpu = terms.dropout && terms.device == Device::Cpu && uses_attention_dropout(terms);
    terms.attention != Attention::Eager && !with_dropout_on_cpu
}

fn uses_attention_dropout(terms: &Terms) -> bool {
    !matches!(terms.shape.family, Family::Llama | Family::Qwen3)
}

fn half(terms: &Terms) -> usize {
    if terms.precision == Precision::Full { FULL } else { HALF }
}

/// What a loss over the vocabulary holds at its worst: after the forward pass, and as the backward pass begins.
///
/// Logits that the script still names, the log-softmax, and in the backward pass the gradients of both.
pub fn loss(terms: &Terms, batch: u64) -> (Bytes, Bytes) {
    let dims = terms.shape.dims;
    let length = if dims.encoder_layers > 0 { terms.target_length } else { terms.length };
    let one = |element| logits(batch, length, dims.vocab, element);
    let named = if terms.runtime.names_logits { one(terms.precision.element()) } else { Bytes::ZERO };
    // A half model's logits are made full before the loss; that copy is gone when the backward pass begins.
    let copy = if terms.precision == Precision::Full { Bytes::ZERO } else { one(4) };
    let forward = one(terms.precision.element()).saturating_add(copy).saturating_add(one(4));
    (forward, named.saturating_add(one(12)))
}
