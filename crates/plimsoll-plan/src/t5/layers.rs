//! The forward pass of T5's layers, as ops on a tape.
//!
//! Each function emits ops and returns the tensors that a backward pass would read. A recomputed block is the same
//! function called again: new tensors, the same ops, the same dropout places, and so the same bits.

use std::collections::HashMap;

use crate::batch::BatchShape;
use crate::op::{AttentionShape, Cols, Op, Place, Side};
use crate::spec::{FeedForward, T5Spec};
use crate::tape::{Id, Role, Store, Tape};

/// Where dropout happens within a block, in steps of `PLACES` per block.
const PLACES: u32 = 8;

/// A pass in the making.
pub(super) struct Pass<'a> {
    pub spec: &'a T5Spec,
    pub store: &'a Store,
    pub tape: Tape,
    pub shape: BatchShape,
    /// Dropout is on.
    pub train: bool,
    names: HashMap<&'a str, Id>,
}

/// Encoder or decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stack {
    Encoder,
    Decoder,
}

impl Stack {
    pub fn name(self) -> &'static str {
        match self {
            Stack::Encoder => "encoder",
            Stack::Decoder => "decoder",
        }
    }

    pub fn side(self) -> Side {
        match self {
            Stack::Encoder => Side::Source,
            Stack::Decoder => Side::Target,
        }
    }
}

/// What the backward pass of a self- or cross-attention layer reads.
#[derive(Clone, Copy)]
pub(super) struct AttentionKept {
    pub x: Id,
    pub rstd: Id,
    /// q, k, v side by side; or q alone.
    pub q: Id,
    /// k, v side by side, for cross-attention.
    pub kv: Option<Id>,
    pub out: Id,
    pub lse: Id,
}

/// What the backward pass of a feed-forward layer reads.
#[derive(Clone, Copy)]
pub(super) struct FeedForwardKept {
    pub x: Id,
    pub rstd: Id,
    /// Output of the first product: after relu and dropout, or both gated inputs.
    pub h: Id,
}

/// What the backward pass of a block reads.
#[derive(Clone, Copy)]
pub(super) struct BlockKept {
    pub attention: AttentionKept,
    pub cross: Option<AttentionKept>,
    pub feed_forward: FeedForwardKept,
}

impl<'a> Pass<'a> {
    pub fn new(spec: &'a T5Spec, store: &'a Store, shape: BatchShape, train: bool) -> Pass<'a> {
        let names = store.tensors.iter().enumerate().map(|(at, t)| (t.name.as_str(), Id(at as u32))).collect();
        Pass { spec, store, tape: Tape::over(store), shape, train, names }
    }

    pub fn rows(&self, side: Side) -> usize {
        match side {
            Side::Source => self.shape.samples * self.shape.source_len,
            Side::Target => self.shape.samples * self.shape.target_len,
            Side::Beam => self.shape.samples,
        }
    }

    pub fn layers(&self, stack: Stack) -> usize {
        match stack {
            Stack::Encoder => self.spec.encoder_layers,
            Stack::Decoder => self.spec.decoder_layers,
        }
    }

    /// A persistent weight by its tensor's name.
    pub fn weight(&self, name: &str) -> Id {
        *self.names.get(name).unwrap_or_else(|| panic!("the store declares `{name}`"))
    }

    pub fn activation(&mut self, name: &str, words: usize) -> Id {
        self.tape.tensor(name, words, Role::Activation)
    }

    /// The dropout place `nth` of a block, or none when nothing is dropped. Place 0 of each stack is its embedding.
    pub fn drop(&self, stack: Stack, block: usize, nth: u32) -> Option<Place> {
        let base = if stack == Stack::Encoder { 0 } else { 1 << 16 };
        (self.train && self.spec.dropout > 0.0).then_some(Place(base + block as u32 * PLACES + nth))
    }

    pub fn attention_shape(&self, queries: Stack, keys: Stack) -> AttentionShape {
        let len = |stack| match stack {
            Stack::Encoder => self.shape.source_len,
            Stack::Decoder => self.shape.target_len,
        };
        AttentionShape {
            queries: queries.side(),
            keys: keys.side(),
            heads: self.spec.heads,
            kv_heads: self.spec.heads,
            d_kv: self.spec.d_kv,
            scale: 1.0,
            causal: queries == Stack::Decoder && keys == Stack::Decoder,
            window: None,
            max_queries: len(queries),
            max_keys: len(keys),
        }
    }

    pub fn linear(&mut self, side: Side, x: Id, weight: Id, name: &str, inputs: usize, outputs: usize) -> Id {
        let out = self.activation(name, self.rows(side) * outputs);
        self.tape.push(Op::Linear { side, x, weight, out, inputs, outputs });
        out
    }

    /// Norm with its own `rstd`; returns (normed, rstd).
    pub fn norm(&mut self, side: Side, x: Id, weight: Id, drop: Option<Place>) -> (Id, Id) {
        let width = self.spec.d_model;
        let rstd = self.activation("rstd", self.rows(side));
        let out = self.activation("normed", self.rows(side) * width);
        self.tape.push(Op::Norm { side, x, weight, rstd, out, width, drop });
        (out, rstd)
    }

    /// `x + drop(o weight^T)`, as a fresh tensor.
    fn project_onto(&mut self, side: Side, x: Id, o: Id, weight: Id, inputs: usize, drop: Option<Place>) -> Id {
        let width = self.spec.d_model;
        let y = self.linear(side, o, weight, "residual", inputs, width);
        self.tape.push(Op::Residual { side, x, y, width, drop });
        y
    }

    pub fn embed(&mut self, stack: Stack) -> Id {
        let (side, width) = (stack.side(), self.spec.d_model);
        let out = self.activation("embedded", self.rows(side) * width);
        let table = self.weight("shared.weight");
        let drop = self.drop(stack, 0, 0);
        self.tape.push(Op::Embed { side, table, out, width, drop });
        out
    }

    /// The stack's position bias by distance.
    pub fn bias(&mut self, stack: Stack) -> Id {
        let shape = self.attention_shape(stack, stack);
        let delta = self.activation("bias", shape.heads * shape.span());
        let table = self.weight(&bias_name(stack));
        self.tape.push(Op::BiasExpand { table, delta, shape });
        delta
    }

    fn self_attention(&mut self, stack: Stack, block: usize, x: Id, bias: Id) -> (AttentionKept, Id) {
        let (side, inner) = (stack.side(), self.spec.inner());
        let stem = format!("{}.block.{block}.layer.0", stack.name());
        let (normed, rstd) = self.norm(side, x, self.weight(&format!("{stem}.layer_norm.weight")), None);
        let q = self.linear(
            side,
            normed,
            self.weight(&format!("{stem}.SelfAttention.qkv")),
            "qkv",
            self.spec.d_model,
            3 * inner,
        );
        let shape = self.attention_shape(stack, stack);
        let cols = |nth: usize| Cols { id: q, start: nth * inner, stride: 3 * inner };
        let out = self.activation("attended", self.rows(side) * inner);
        let lse = self.activation("lse", self.rows(side) * shape.heads);
        let drop = self.drop(stack, block, 1);
        self.tape.push(Op::Attention { shape, q: cols(0), k: cols(1), v: cols(2), bias: Some(bias), out, lse, drop });
        let o = self.weight(&format!("{stem}.SelfAttention.o.weight"));
        let drop = self.drop(stack, block, 2);
        let y = self.project_onto(side, x, out, o, inner, drop);
        (AttentionKept { x, rstd, q, kv: None, out, lse }, y)
    }

    fn cross_attention(&mut self, block: usize, x: Id, encoded: Id) -> (AttentionKept, Id) {
        let inner = self.spec.inner();
        let stem = format!("decoder.block.{block}.layer.1");
        let (normed, rstd) = self.norm(Side::Target, x, self.weight(&format!("{stem}.layer_norm.weight")), None);
        let d = self.spec.d_model;
        let q =
            self.linear(Side::Target, normed, self.weight(&format!("{stem}.EncDecAttention.q.weight")), "q", d, inner);
        let kv =
            self.linear(Side::Source, encoded, self.weight(&format!("{stem}.EncDecAttention.kv")), "kv", d, 2 * inner);
        let shape = self.attention_shape(Stack::Decoder, Stack::Encoder);
        let cols = |nth: usize| Cols { id: kv, start: nth * inner, stride: 2 * inner };
        let out = self.activation("attended", self.rows(Side::Target) * inner);
        let lse = self.activation("lse", self.rows(Side::Target) * shape.heads);
        let drop = self.drop(Stack::Decoder, block, 3);
        let q_cols = Cols { id: q, start: 0, stride: inner };
        self.tape.push(Op::Attention { shape, q: q_cols, k: cols(0), v: cols(1), bias: None, out, lse, drop });
        let o = self.weight(&format!("{stem}.EncDecAttention.o.weight"));
        let drop = self.drop(Stack::Decoder, block, 4);
        let y = self.project_onto(Side::Target, x, out, o, inner, drop);
        (AttentionKept { x, rstd, q, kv: Some(kv), out, lse }, y)
    }

    /// The feed-forward layer over any rows.
    pub fn feed_forward(&mut self, stack: Stack, block: usize, side: Side, x: Id) -> (FeedForwardKept, Id) {
        let stem = feed_forward_stem(stack, block);
        let (d, width) = (self.spec.d_model, self.spec.d_ff);
        let (normed, rstd) = self.norm(side, x, self.weight(&format!("{stem}.layer_norm.weight")), None);
        let inside = self.drop(stack, block, 5);
        let (h, act) = match self.spec.feed_forward {
            FeedForward::Relu => {
                let wi = self.weight(&format!("{stem}.DenseReluDense.wi.weight"));
                let h = self.linear(side, normed, wi, "h", d, width);
                self.tape.push(Op::Relu { side, h, width, drop: inside });
                (h, h)
            }
            FeedForward::GatedGelu => {
                let wi = self.weight(&format!("{stem}.DenseReluDense.wi"));
                let ab = self.linear(side, normed, wi, "ab", d, 2 * width);
                let act = self.activation("gated", self.rows(side) * width);
                self.tape.push(Op::GatedGelu { side, ab, out: act, width, drop: inside });
                (ab, act)
            }
        };
        let wo = self.weight(&format!("{stem}.DenseReluDense.wo.weight"));
        let drop = self.drop(stack, block, 6);
        let y = self.project_onto(side, x, act, wo, width, drop);
        (FeedForwardKept { x, rstd, h }, y)
    }

    /// One block; `encoded` is the encoder's output for a decoder block.
    pub fn block(&mut self, stack: Stack, block: usize, x: Id, bias: Id, encoded: Option<Id>) -> (BlockKept, Id) {
        let (attention, mut x) = self.self_attention(stack, block, x, bias);
        let cross = encoded.map(|encoded| {
            let (kept, y) = self.cross_attention(block, x, encoded);
            x = y;
            kept
        });
        let (feed_forward, y) = self.feed_forward(stack, block, stack.side(), x);
        (BlockKept { attention, cross, feed_forward }, y)
    }

    /// The stack's final norm with its dropout; returns (output, rstd).
    pub fn final_norm(&mut self, stack: Stack, side: Side, x: Id) -> (Id, Id) {
        let weight = self.weight(&format!("{}.final_layer_norm.weight", stack.name()));
        let drop = self.drop(stack, self.layers(stack), 7);
        self.norm(side, x, weight, drop)
    }

    /// The weight of the vocabulary head, and what its input is scaled by.
    pub fn head(&self) -> (Id, f32) {
        let name = if self.spec.tied { "shared.weight" } else { "lm_head.weight" };
        let scale = if self.spec.scale_head { (self.spec.d_model as f32).powf(-0.5) } else { 1.0 };
        (self.weight(name), scale)
    }
}

pub(super) fn bias_name(stack: Stack) -> String {
    format!("{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", stack.name())
}

pub(super) fn feed_forward_stem(stack: Stack, block: usize) -> String {
    let nth = if stack == Stack::Encoder { 1 } else { 2 };
    format!("{}.block.{block}.layer.{nth}", stack.name())
}
