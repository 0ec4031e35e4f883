//! The forward pass of T5's layers, as ops on a tape.

use crate::layer::{Normed, Pass, Projected, Projection};
use crate::op::{AttentionShape, BiasBuckets, Cols, Op, Place, Side};
use crate::spec::{FeedForward, T5Spec};
use crate::tape::Id;

/// Where dropout happens within a block, in steps of `PLACES` per block.
const PLACES: u32 = 8;
/// First place of LoRA's dropout, and its steps per block.
const LORA_PLACES: (u32, u32) = (1 << 15, 16);

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
#[derive(Clone)]
pub(super) struct AttentionKept {
    pub normed: Normed,
    /// q, k, v side by side; or q alone.
    pub q: Id,
    /// k, v side by side, for cross-attention.
    pub kv: Option<Id>,
    pub out: Id,
    pub lse: Id,
    /// Of q, k, v; of k, v where they are apart; of the output.
    pub lora: [Projected; 3],
}

/// What the backward pass of a feed-forward layer reads.
#[derive(Clone)]
pub(super) struct FeedForwardKept {
    pub normed: Normed,
    /// Output of the first product: after relu and dropout, or both gated inputs.
    pub h: Id,
    /// Of the first product, of the second.
    pub lora: [Projected; 2],
}

/// T5's layers for one spec.
#[derive(Clone, Copy)]
pub(super) struct Layers<'a> {
    pub spec: &'a T5Spec,
}

/// The modules of an attention: q, k, v from one input; or q, then k and v from another.
pub(super) struct AttentionProjections {
    pub q: Projection,
    pub kv: Projection,
    pub o: Projection,
}

impl Layers<'_> {
    pub fn count(&self, stack: Stack) -> usize {
        match stack {
            Stack::Encoder => self.spec.encoder_layers,
            Stack::Decoder => self.spec.decoder_layers,
        }
    }

    fn base(stack: Stack) -> u32 {
        if stack == Stack::Encoder { 0 } else { 1 << 16 }
    }

    /// The dropout place `nth` of a block, or none when nothing is dropped. Place 0 of each stack is its embedding.
    pub fn drop(&self, pass: &Pass, stack: Stack, block: usize, nth: u32) -> Option<Place> {
        pass.place(Self::base(stack) + block as u32 * PLACES + nth, self.spec.dropout)
    }

    pub fn attention_shape(&self, pass: &Pass, queries: Stack, keys: Stack) -> AttentionShape {
        let len = |stack| match stack {
            Stack::Encoder => pass.shape.source_len,
            Stack::Decoder => pass.shape.target_len,
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

    fn projection(
        &self,
        stack: Stack,
        block: usize,
        stem: &str,
        names: &[&str],
        inputs: usize,
        each: usize,
        nth: u32,
    ) -> Projection {
        let modules = names.iter().map(|name| (format!("{stem}.{name}"), each)).collect();
        let (first, steps) = LORA_PLACES;
        let place = Self::base(stack) + first + block as u32 * steps + nth;
        Projection { modules, inputs, in_out: false, place }
    }

    pub fn attention_projections(&self, stack: Stack, block: usize, cross: bool) -> AttentionProjections {
        let (d, inner) = (self.spec.d_model, self.spec.inner());
        let (nth, kind) = if cross { (1, "EncDecAttention") } else { (0, "SelfAttention") };
        let stem = format!("{}.block.{block}.layer.{nth}.{kind}", stack.name());
        let of = |names: &[&str], inputs, each, nth| self.projection(stack, block, &stem, names, inputs, each, nth);
        match cross {
            false => AttentionProjections {
                q: of(&["q", "k", "v"], d, inner, 0),
                kv: of(&[], d, inner, 0),
                o: of(&["o"], inner, d, 3),
            },
            true => AttentionProjections {
                q: of(&["q"], d, inner, 4),
                kv: of(&["k", "v"], d, inner, 5),
                o: of(&["o"], inner, d, 7),
            },
        }
    }

    pub fn feed_forward_projections(&self, stack: Stack, block: usize) -> [Projection; 2] {
        let (d, width) = (self.spec.d_model, self.spec.d_ff);
        let stem = format!("{}.DenseReluDense", feed_forward_stem(stack, block));
        let names: &[&str] = match self.spec.feed_forward {
            FeedForward::Relu => &["wi"],
            FeedForward::GatedGelu => &["wi_0", "wi_1"],
        };
        [
            self.projection(stack, block, &stem, names, d, width, 8),
            self.projection(stack, block, &stem, &["wo"], width, d, 10),
        ]
    }

    pub fn buckets(&self) -> BiasBuckets {
        BiasBuckets { count: self.spec.buckets, max_distance: self.spec.max_distance }
    }

    pub fn embed(&self, pass: &mut Pass, stack: Stack, side: Side) -> Id {
        let width = self.spec.d_model;
        let out = pass.activation("embedded", pass.rows(side) * width);
        let table = pass.weight("shared.weight");
        let drop = self.drop(pass, stack, 0, 0);
        pass.tape.push(Op::Embed { side, table, positions: None, out, width, drop });
        out
    }

    /// The stack's position bias by distance.
    pub fn bias(&self, pass: &mut Pass, stack: Stack) -> Id {
        let shape = self.attention_shape(pass, stack, stack);
        let delta = pass.activation("bias", shape.heads * shape.span());
        let table = pass.weight(&bias_name(stack));
        pass.tape.push(Op::BiasExpand { table, delta, shape, buckets: self.buckets() });
        delta
    }

    pub fn self_attention(&self, pass: &mut Pass, stack: Stack, block: usize, x: Id, bias: Id) -> (AttentionKept, Id) {
        let (side, inner) = (stack.side(), self.spec.inner());
        let (normed_out, normed) = pass.norm(side, x, &norm_name(stack, block, 0), None);
        let modules = self.attention_projections(stack, block, false);
        let (q, qkv_lora) = pass.project(side, normed_out, "qkv", &modules.q);
        let shape = self.attention_shape(pass, stack, stack);
        let cols = |nth: usize| Cols { id: q, start: nth * inner, stride: 3 * inner };
        let out = pass.activation("attended", pass.rows(side) * inner);
        let lse = pass.activation("lse", pass.rows(side) * shape.heads);
        let drop = self.drop(pass, stack, block, 1);
        pass.tape.push(Op::Attention { shape, q: cols(0), k: cols(1), v: cols(2), bias: Some(bias), out, lse, drop });
        let (y, out_lora) = pass.project(side, out, "residual", &modules.o);
        let drop = self.drop(pass, stack, block, 2);
        let y = pass.residual(side, x, y, drop);
        (AttentionKept { normed, q, kv: None, out, lse, lora: [qkv_lora, Projected::default(), out_lora] }, y)
    }

    pub fn cross_attention(&self, pass: &mut Pass, block: usize, x: Id, encoded: Id) -> (AttentionKept, Id) {
        let (stack, side, inner) = (Stack::Decoder, Side::Target, self.spec.inner());
        let (normed_out, normed) = pass.norm(side, x, &norm_name(stack, block, 1), None);
        let modules = self.attention_projections(stack, block, true);
        let (q, q_lora) = pass.project(side, normed_out, "q", &modules.q);
        let (kv, kv_lora) = pass.project(Side::Source, encoded, "kv", &modules.kv);
        let shape = self.attention_shape(pass, Stack::Decoder, Stack::Encoder);
        let out = pass.activation("attended", pass.rows(side) * inner);
        let lse = pass.activation("lse", pass.rows(side) * shape.heads);
        let cols = |id: Id, nth: usize, parts: usize| Cols { id, start: nth * inner, stride: parts * inner };
        let drop = self.drop(pass, stack, block, 3);
        let (k, v) = (cols(kv, 0, 2), cols(kv, 1, 2));
        pass.tape.push(Op::Attention { shape, q: cols(q, 0, 1), k, v, bias: None, out, lse, drop });
        let (y, out_lora) = pass.project(side, out, "residual", &modules.o);
        let drop = self.drop(pass, stack, block, 4);
        let y = pass.residual(side, x, y, drop);
        (AttentionKept { normed, q, kv: Some(kv), out, lse, lora: [q_lora, kv_lora, out_lora] }, y)
    }

    /// The feed-forward layer over any rows.
    pub fn feed_forward(
        &self,
        pass: &mut Pass,
        stack: Stack,
        block: usize,
        side: Side,
        x: Id,
    ) -> (FeedForwardKept, Id) {
        let width = self.spec.d_ff;
        let (normed_out, normed) = pass.norm(side, x, &format!("{}.layer_norm", feed_forward_stem(stack, block)), None);
        let inside = self.drop(pass, stack, block, 5);
        let [wi, wo] = self.feed_forward_projections(stack, block);
        let (h, in_lora) = pass.project(side, normed_out, "h", &wi);
        let act = match self.spec.feed_forward {
            FeedForward::Relu => {
                pass.tape.push(Op::Relu { side, h, width, drop: inside });
                h
            }
            FeedForward::GatedGelu => {
                let act = pass.activation("gated", pass.rows(side) * width);
                pass.tape.push(Op::GatedGelu { side, ab: h, out: act, width, drop: inside });
                act
            }
        };
        let (y, out_lora) = pass.project(side, act, "residual", &wo);
        let drop = self.drop(pass, stack, block, 6);
        let y = pass.residual(side, x, y, drop);
        (FeedForwardKept { normed, h, lora: [in_lora, out_lora] }, y)
    }

    /// The stack's final norm with its dropout.
    pub fn final_norm(&self, pass: &mut Pass, stack: Stack, side: Side, x: Id) -> (Id, Normed) {
        let drop = self.drop(pass, stack, self.count(stack), 7);
        pass.norm(side, x, &format!("{}.final_layer_norm", stack.name()), drop)
    }

    /// The name of the vocabulary head, and what its input is scaled by.
    pub fn head(&self) -> (&'static str, f32) {
        let name = if self.spec.tied { "shared.weight" } else { "lm_head.weight" };
        (name, if self.spec.scale_head { (self.spec.d_model as f32).powf(-0.5) } else { 1.0 })
    }
}

pub(super) fn bias_name(stack: Stack) -> String {
    format!("{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", stack.name())
}

pub(super) fn norm_name(stack: Stack, block: usize, layer: usize) -> String {
    format!("{}.block.{block}.layer.{layer}.layer_norm", stack.name())
}

pub(super) fn feed_forward_stem(stack: Stack, block: usize) -> String {
    let nth = if stack == Stack::Encoder { 1 } else { 2 };
    format!("{}.block.{block}.layer.{nth}", stack.name())
}
