//! One decoder block as ops on a tape, forward and backward.

use crate::layer::{Backward, Normed, Pass, Projected, Projection};
use crate::op::{AttentionShape, Cols, Op, Place, Side};
use crate::spec::{DecoderFamily, DecoderSpec, Positions};
use crate::tape::Id;

/// All rows of a decoder are tokens of one side.
pub(super) const SIDE: Side = Side::Source;

/// Where dropout happens within a block, in steps of `PLACES` per block; the first such step is the embedding's.
const PLACES: u32 = 16;

/// A decoder's layers for one spec.
#[derive(Clone, Copy)]
pub(super) struct Layers<'a> {
    pub spec: &'a DecoderSpec,
    /// The rotary table, where positions are rotary.
    pub rope: Option<Id>,
}

/// What the backward pass of an attention layer reads.
#[derive(Clone)]
pub(super) struct AttentionKept {
    pub normed: Normed,
    /// The norm's output, where it is still there.
    pub normed_out: Option<Id>,
    /// q, k, v side by side: turned, or raw where each head is normed first.
    pub qkv: Id,
    pub out: Id,
    pub lse: Id,
    pub qkv_lora: Projected,
    pub out_lora: Projected,
}

/// What the backward pass of a feed-forward layer reads.
#[derive(Clone)]
pub(super) struct FeedForwardKept {
    pub normed: Normed,
    /// The norm's output, where it is still there.
    pub normed_out: Option<Id>,
    /// Output of the first product.
    pub h: Id,
    pub in_lora: Projected,
    pub out_lora: Projected,
}

/// q, k and v as attention reads them.
pub(super) struct Turned {
    pub q: Cols,
    pub k: Cols,
    pub v: Cols,
    /// Of q's and k's head norms, where there are such.
    pub rstds: Vec<Id>,
}

impl Layers<'_> {
    pub fn drop(&self, pass: &Pass, block: usize, nth: u32, rate: f32) -> Option<Place> {
        pass.place((block as u32 + 1) * PLACES + nth, rate)
    }

    pub fn attention_shape(&self, pass: &Pass, block: usize) -> AttentionShape {
        let len = pass.shape.source_len;
        AttentionShape {
            queries: SIDE,
            keys: SIDE,
            heads: self.spec.heads,
            kv_heads: self.spec.kv_heads,
            d_kv: self.spec.d_head,
            scale: (self.spec.d_head as f32).powf(-0.5),
            causal: true,
            window: self.spec.window(block),
            max_queries: len,
            max_keys: len,
        }
    }

    fn names(&self, block: usize) -> (String, String) {
        let stem = self.spec.block_stem(block);
        match self.spec.family {
            DecoderFamily::Gpt2 => (format!("{stem}.ln_1"), format!("{stem}.ln_2")),
            _ => (format!("{stem}.input_layernorm"), format!("{stem}.post_attention_layernorm")),
        }
    }

    /// The projections of a block, in order: q k v, out, into the feed-forward part, out of it.
    fn projections(&self, block: usize) -> [Projection; 4] {
        let linears = self.spec.linears(block);
        let counts: [usize; 4] = if self.spec.gated() { [3, 1, 2, 1] } else { [1; 4] };
        let mut at = 0;
        counts.map(|count| {
            let modules = &linears[at..at + count];
            let place = (block as u32 + 1) * PLACES + 4 + at as u32;
            at += count;
            Projection {
                modules: modules.iter().map(|(name, _, outputs)| (name.clone(), *outputs)).collect(),
                inputs: modules[0].1,
                in_out: self.spec.weights_are_in_out(),
                place,
            }
        })
    }

    /// Columns of q, k and v in a row of all three, or of the first two.
    fn columns(&self, id: Id, parts: usize) -> [Cols; 3] {
        let (q, kv) = (self.spec.q_width(), self.spec.kv_width());
        let stride = q + (parts - 1) * kv;
        [0, q, q + kv].map(|start| Cols { id, start, stride })
    }

    /// q and k as attention reads them, from the raw product: normed by head, turned. Without a norm they are turned where
    /// they are.
    pub fn turned(&self, pass: &mut Pass, side: Side, block: usize, qkv: Id) -> Turned {
        let spec = self.spec;
        let [q, k, v] = self.columns(qkv, 3);
        let (heads, width) = (spec.heads, spec.d_head);
        let mut rstds = Vec::new();
        let [tq, tk] = if spec.qk_norm() {
            let id = pass.activation("qk", pass.rows(side) * (spec.q_width() + spec.kv_width()));
            let [tq, tk, _] = self.columns(id, 2);
            for (x, out, heads, name) in [(q, tq, heads, "q_norm"), (k, tk, spec.kv_heads, "k_norm")] {
                let weight = pass.weight(&self.head_norm(block, name));
                let rstd = pass.activation("rstd", pass.rows(side) * heads);
                let eps = pass.eps();
                pass.tape.push(Op::HeadNorm { side, x, weight, rstd, out, heads, width, eps });
                rstds.push(rstd);
            }
            [tq, tk]
        } else {
            [q, k]
        };
        if let Some(table) = self.rope {
            let heads = heads + spec.kv_heads;
            pass.tape.push(Op::Rope { side, x: tq, table, heads, width, back: false });
        }
        Turned { q: tq, k: tk, v, rstds }
    }

    fn head_norm(&self, block: usize, name: &str) -> String {
        format!("{}.self_attn.{name}.weight", self.spec.block_stem(block))
    }

    /// The table of angles, where positions are rotary.
    pub fn rope_table(spec: &DecoderSpec, pass: &mut Pass, len: usize) -> Option<Id> {
        let Positions::Rope(rope) = spec.positions else { return None };
        let width = spec.d_head;
        let out = pass.activation("rope", len * width);
        pass.tape.push(Op::RopeTable { out, rope, width, len });
        Some(out)
    }

    pub fn embed(&self, pass: &mut Pass, side: Side) -> Id {
        let (table, width) = (pass.weight(self.spec.table_name()), self.spec.d_model);
        let positions = pass.find("transformer.wpe.weight");
        let out = pass.activation("embedded", pass.rows(side) * width);
        let drop = pass.place(0, self.spec.dropout.embedding);
        pass.tape.push(Op::Embed { side, table, positions, out, width, drop });
        out
    }

    pub fn embed_backward(&self, back: &mut Backward, grad: Id) {
        let width = self.spec.d_model;
        let drop = back.pass.place(0, self.spec.dropout.embedding);
        let names =
            [(Some(back.pass.weight(self.spec.table_name())), false), (back.pass.find("transformer.wpe.weight"), true)];
        for (table, by_position) in names {
            if let Some(table_grad) = table.and_then(|table| back.gradient_of_table(table)) {
                // Every family but GPT-2 tells torch's embedding which row is padding, and that row learns nothing from inputs.
                let skip = self.spec.pad_id.filter(|_| !by_position && self.spec.family != DecoderFamily::Gpt2);
                back.push(Op::EmbedBackward { side: SIDE, grad, table_grad, width, drop, by_position, skip });
            }
        }
    }

    /// The norm, its output, and the product behind it: q, k, v of any rows.
    pub fn qkv(&self, pass: &mut Pass, side: Side, block: usize, x: Id) -> (Normed, Id, Id, Projected) {
        let (name, _) = self.names(block);
        let (out, normed) = pass.norm(side, x, &name, None);
        let [qkv, ..] = self.projections(block);
        let (id, lora) = pass.project(side, out, "qkv", &qkv);
        (normed, out, id, lora)
    }

    /// Projects attention's output onto the residual stream.
    pub fn attended(&self, pass: &mut Pass, side: Side, block: usize, x: Id, out: Id) -> (Id, Projected) {
        let [_, o, ..] = self.projections(block);
        let (y, lora) = pass.project(side, out, "residual", &o);
        let drop = self.drop(pass, block, 1, self.spec.dropout.residual);
        (pass.residual(side, x, y, drop), lora)
    }

    pub fn attention(&self, pass: &mut Pass, block: usize, x: Id) -> (AttentionKept, Id) {
        let (normed, normed_out, qkv, qkv_lora) = self.qkv(pass, SIDE, block, x);
        let Turned { q, k, v, .. } = self.turned(pass, SIDE, block, qkv);
        let shape = self.attention_shape(pass, block);
        let out = pass.activation("attended", pass.rows(SIDE) * self.spec.q_width());
        let lse = pass.activation("lse", pass.rows(SIDE) * shape.heads);
        let drop = self.drop(pass, block, 0, self.spec.dropout.attention);
        pass.tape.push(Op::Attention { shape, q, k, v, bias: None, out, lse, drop });
        let (y, out_lora) = self.attended(pass, SIDE, block, x, out);
        (AttentionKept { normed, normed_out: Some(normed_out), qkv, out, lse, qkv_lora, out_lora }, y)
    }

    pub fn feed_forward(&self, pass: &mut Pass, side: Side, block: usize, x: Id) -> (FeedForwardKept, Id) {
        let (_, name) = self.names(block);
        let [_, _, into, out] = self.projections(block);
        let (normed_out, normed) = pass.norm(side, x, &name, None);
        let (h, in_lora) = pass.project(side, normed_out, "h", &into);
        let act = self.act(pass, side, h);
        let (y, out_lora) = pass.project(side, act, "residual", &out);
        let drop = self.drop(pass, block, 2, self.spec.dropout.residual);
        let y = pass.residual(side, x, y, drop);
        (FeedForwardKept { normed, normed_out: Some(normed_out), h, in_lora, out_lora }, y)
    }

    fn act(&self, pass: &mut Pass, side: Side, h: Id) -> Id {
        let width = self.spec.d_ff;
        let out = pass.activation("act", pass.rows(side) * width);
        pass.tape.push(match self.spec.gated() {
            true => Op::GatedSilu { side, ab: h, out, width },
            false => Op::Gelu { side, h, out, width },
        });
        out
    }

    /// What a feed-forward layer kept, for a backward pass that another one follows: what it overwrites is a copy.
    pub fn lent(&self, back: &mut Backward, kept: &FeedForwardKept) -> FeedForwardKept {
        if !self.spec.gated() {
            return kept.clone();
        }
        let width = 2 * self.spec.d_ff;
        let h = back.temporary("h", SIDE, width);
        let of = |id: Id| Cols { id, start: 0, stride: width };
        back.push(Op::Copy { side: SIDE, from: of(kept.h), to: of(h), width });
        FeedForwardKept { h, ..kept.clone() }
    }

    /// Overwrites what was kept.
    pub fn feed_forward_backward(&self, back: &mut Backward, block: usize, kept: &FeedForwardKept, g: Id) {
        let (_, name) = self.names(block);
        let [_, _, into, out] = self.projections(block);
        let width = self.spec.d_ff;
        let drop = self.drop(&back.pass, block, 2, self.spec.dropout.residual);
        let dy = back.dropped(SIDE, g, drop);
        let dinto = if self.spec.gated() {
            // The gate's output takes the place of its gradient, for the weights behind it; its inputs' gradients take theirs.
            let (dh, narrow) = back.project_input(SIDE, dy, &out, None);
            back.push(Op::GatedSiluBackward { side: SIDE, dh, ab: kept.h, width });
            back.project_weights(SIDE, dy, dh, &out, &kept.out_lora, narrow);
            kept.h
        } else {
            let act = self.act(&mut back.pass, SIDE, kept.h);
            let dh = back.project(SIDE, dy, act, &out, &kept.out_lora, None);
            back.push(Op::GeluBackward { side: SIDE, dh, h: kept.h, width });
            dh
        };
        let normed = kept.normed_out.unwrap_or_else(|| back.pass.norm_again(SIDE, kept.normed, &name));
        let dn = back.project(SIDE, dinto, normed, &into, &kept.in_lora, None);
        back.norm_onto(SIDE, dn, kept.normed, &name, g, true);
    }

    pub fn attention_backward(&self, back: &mut Backward, block: usize, kept: &AttentionKept, g: Id) {
        let spec = self.spec;
        let (name, _) = self.names(block);
        let [qkv, o, ..] = self.projections(block);
        let drop = self.drop(&back.pass, block, 1, spec.dropout.residual);
        let dy = back.dropped(SIDE, g, drop);
        let dout = back.project(SIDE, dy, kept.out, &o, &kept.out_lora, None);
        let [raw_q, raw_k, raw_v] = self.columns(kept.qkv, 3);
        let Turned { q, k, v, rstds } = match spec.qk_norm() {
            true => self.turned(&mut back.pass, SIDE, block, kept.qkv),
            false => Turned { q: raw_q, k: raw_k, v: raw_v, rstds: Vec::new() },
        };
        let dqkv = back.temporary("dqkv", SIDE, qkv.outputs());
        let [dq, dk, dv] = self.columns(dqkv, 3);
        let shape = self.attention_shape(&back.pass, block);
        let drop = self.drop(&back.pass, block, 0, spec.dropout.attention);
        let (out, lse) = (kept.out, kept.lse);
        let (bias, dbias) = (None, None);
        back.push(Op::AttentionBackward { shape, q, k, v, bias, out, lse, dout, dq, dk, dv, dbias, drop });
        let (heads, width) = (spec.heads, spec.d_head);
        if let Some(table) = self.rope {
            let heads = heads + spec.kv_heads;
            back.push(Op::Rope { side: SIDE, x: dq, table, heads, width, back: true });
        }
        let normed_heads = [(dq, raw_q, heads, "q_norm"), (dk, raw_k, spec.kv_heads, "k_norm")];
        for ((dy, x, heads, name), rstd) in normed_heads.into_iter().zip(rstds) {
            let weight = back.pass.weight(&self.head_norm(block, name));
            let (weight_grad, side) = (back.gradient(weight), SIDE);
            back.push(Op::HeadNormBackward { side, dy, x, weight, rstd, dx: dy, weight_grad, heads, width });
            back.complete(weight);
        }
        let normed = kept.normed_out.unwrap_or_else(|| back.pass.norm_again(SIDE, kept.normed, &name));
        let dn = back.project(SIDE, dqkv, normed, &qkv, &kept.qkv_lora, None);
        back.norm_onto(SIDE, dn, kept.normed, &name, g, true);
    }
}
