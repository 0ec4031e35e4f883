//! The backward pass of T5's layers, as ops on a tape.
//!
//! One gradient of the residual stream, `g`, flows down through the blocks and is added to in place. A weight's input
//! gradient is emitted before its own gradient and its update, so an update on the way never changes what is still read.

use std::collections::HashMap;

use super::layers::{AttentionKept, BlockKept, FeedForwardKept, Pass, Stack, bias_name, feed_forward_stem};
use crate::op::{Cols, Op, Side, Write};
use crate::spec::FeedForward;
use crate::tape::{Id, Role, Tape};

pub(super) struct Backward<'a> {
    pub pass: Pass<'a>,
    /// Gradients that live on this tape only, by weight.
    transient: HashMap<Id, Id>,
    /// Gradient of the encoder's output, once a decoder block wrote it.
    encoded: Option<Id>,
    ddelta: Option<Id>,
}

impl<'a> Backward<'a> {
    pub fn new(pass: Pass<'a>) -> Backward<'a> {
        Backward { pass, transient: HashMap::new(), encoded: None, ddelta: None }
    }

    pub fn finish(self) -> Tape {
        self.pass.tape
    }

    fn push(&mut self, op: Op) {
        self.pass.tape.push(op);
    }

    fn temporary(&mut self, name: &str, side: Side, width: usize) -> Id {
        let words = self.pass.rows(side) * width;
        self.pass.activation(name, words)
    }

    /// The gradient of a weight, and how its first writer of a micro-batch writes it.
    fn gradient(&mut self, weight: Id) -> (Id, Write) {
        if let Some(id) = self.pass.store.gradients[weight.0 as usize] {
            return (id, Write::SetFirst);
        }
        let tensor = &self.pass.store.tensors[weight.0 as usize];
        let (name, words) = (format!("{}.grad", tensor.name), tensor.words);
        let tape = &mut self.pass.tape;
        let id = *self.transient.entry(weight).or_insert_with(|| tape.tensor(name, words, Role::Gradient));
        (id, Write::Set)
    }

    /// The weight's gradient is complete: where it is not kept, every parameter in it is updated now.
    fn complete(&mut self, weight: Id) {
        if let Some(grad) = self.transient.remove(&weight) {
            for (param, place) in self.pass.store.params.iter().enumerate().filter(|(_, p)| p.weight == weight) {
                self.pass.tape.push(Op::Update { param, weight, grad, state: place.state.clone() });
            }
        }
    }

    /// Gradients of a product's input and weight.
    fn linear(&mut self, side: Side, dy: Id, x: Id, weight: Id, name: &str, inputs: usize, outputs: usize) -> Id {
        let dx = self.temporary(name, side, inputs);
        self.push(Op::LinearInput { side, dy, weight, dx, add: false, inputs, outputs });
        self.linear_weight(side, dy, x, weight, inputs, outputs);
        dx
    }

    fn linear_weight(&mut self, side: Side, dy: Id, x: Id, weight: Id, inputs: usize, outputs: usize) {
        let (grad, write) = self.gradient(weight);
        self.push(Op::LinearWeight { side, dy, x, grad, write, inputs, outputs });
        self.complete(weight);
    }

    /// `drop'(g)`: a fresh tensor, or `g` itself where nothing is dropped.
    fn dropped(&mut self, stack: Stack, block: usize, nth: u32, g: Id) -> Id {
        let (side, width) = (stack.side(), self.pass.spec.d_model);
        match self.pass.drop(stack, block, nth) {
            None => g,
            Some(drop) => {
                let out = self.temporary("dropped", side, width);
                self.push(Op::DropBackward { side, g, out, width, drop });
                out
            }
        }
    }

    /// Adds the norm's input gradient to `g`.
    fn norm_onto(&mut self, side: Side, dy: Id, x: Id, rstd: Id, weight: Id, g: Id, add: bool) {
        let width = self.pass.spec.d_model;
        let (weight_grad, write) = self.gradient(weight);
        self.push(Op::NormBackward { side, dy, x, weight, rstd, dx: g, add, weight_grad, write, width });
        self.complete(weight);
    }

    fn normed_again(&mut self, side: Side, x: Id, weight: Id, rstd: Id) -> Id {
        let width = self.pass.spec.d_model;
        let out = self.temporary("normed", side, width);
        self.push(Op::NormApply { side, x, weight, rstd, out, width, drop: None });
        out
    }

    /// The loss with its gradients; returns the gradient of the hidden states.
    pub fn loss(&mut self, hidden: Id, chunk: usize) -> Id {
        let (width, vocab) = (self.pass.spec.d_model, self.pass.spec.vocab);
        let (weight, scale) = self.pass.head();
        let logits = self.pass.activation("logits", chunk * vocab);
        let losses = self.temporary("losses", Side::Target, 1);
        let dhidden = self.temporary("dhidden", Side::Target, width);
        let (grad, write) = self.gradient(weight);
        self.push(Op::Loss { hidden, weight, losses, dhidden, grad, write, logits, chunk, width, vocab, scale });
        if !self.pass.spec.tied {
            self.complete(weight);
            // The embedding's own gradient is only ever added to.
            let table = self.pass.weight("shared.weight");
            let (tensor, write) = self.gradient(table);
            self.push(Op::Zero { tensor, write });
        }
        dhidden
    }

    /// Through the final norm and its dropout; returns the gradient of the residual stream.
    pub fn final_norm(&mut self, stack: Stack, dout: Id, x: Id, rstd: Id) -> Id {
        let (side, width) = (stack.side(), self.pass.spec.d_model);
        let dy = self.dropped(stack, self.pass.layers(stack), 7, dout);
        let g = self.temporary("g", side, width);
        let weight = self.pass.weight(&format!("{}.final_layer_norm.weight", stack.name()));
        self.norm_onto(side, dy, x, rstd, weight, g, false);
        g
    }

    pub fn open_bias(&mut self, stack: Stack) {
        let shape = self.pass.attention_shape(stack, stack);
        let tensor = self.pass.activation("bias.grad", shape.heads * shape.span());
        self.push(Op::Zero { tensor, write: Write::Set });
        self.ddelta = Some(tensor);
    }

    pub fn close_bias(&mut self, stack: Stack) {
        let shape = self.pass.attention_shape(stack, stack);
        let table = self.pass.weight(&bias_name(stack));
        let (table_grad, write) = self.gradient(table);
        let ddelta = self.ddelta.take().expect("the bias was opened");
        self.push(Op::BiasCollect { ddelta, table_grad, write, shape });
        self.complete(table);
    }

    pub fn embed(&mut self, stack: Stack, g: Id) {
        let table = self.pass.weight("shared.weight");
        let (table_grad, _) = self.gradient(table);
        let (drop, width) = (self.pass.drop(stack, 0, 0), self.pass.spec.d_model);
        self.push(Op::EmbedBackward { side: stack.side(), grad: g, table_grad, width, drop });
        if stack == Stack::Encoder {
            self.complete(table);
        }
    }

    pub fn encoded_gradient(&mut self) -> Id {
        self.encoded.take().expect("a decoder has at least one block")
    }

    fn feed_forward(&mut self, stack: Stack, block: usize, kept: FeedForwardKept, g: Id) {
        let stem = feed_forward_stem(stack, block);
        let (side, d, width) = (stack.side(), self.pass.spec.d_model, self.pass.spec.d_ff);
        let wo = self.pass.weight(&format!("{stem}.DenseReluDense.wo.weight"));
        let norm = self.pass.weight(&format!("{stem}.layer_norm.weight"));
        let dy = self.dropped(stack, block, 6, g);
        let inside = self.pass.drop(stack, block, 5);
        let (dwi, wi, wide) = match self.pass.spec.feed_forward {
            FeedForward::Relu => {
                let dh = self.linear(side, dy, kept.h, wo, "dh", width, d);
                self.push(Op::ReluBackward { side, dh, h: kept.h, width, drop: inside });
                (dh, self.pass.weight(&format!("{stem}.DenseReluDense.wi.weight")), width)
            }
            FeedForward::GatedGelu => {
                let act = self.temporary("gated", side, width);
                self.push(Op::GatedGelu { side, ab: kept.h, out: act, width, drop: inside });
                let dh = self.linear(side, dy, act, wo, "dh", width, d);
                let dab = self.temporary("dab", side, 2 * width);
                self.push(Op::GatedGeluBackward { side, dh, ab: kept.h, dab, width, drop: inside });
                (dab, self.pass.weight(&format!("{stem}.DenseReluDense.wi")), 2 * width)
            }
        };
        let normed = self.normed_again(side, kept.x, norm, kept.rstd);
        let dn = self.linear(side, dwi, normed, wi, "dnormed", d, wide);
        self.norm_onto(side, dn, kept.x, kept.rstd, norm, g, true);
    }

    fn cross_attention(&mut self, block: usize, kept: AttentionKept, g: Id, encoded: Id) {
        let (d, inner) = (self.pass.spec.d_model, self.pass.spec.inner());
        let stem = format!("decoder.block.{block}.layer.1");
        let weight = |back: &Self, name: &str| back.pass.weight(&format!("{stem}.{name}"));
        let (o, q, kv) = (
            weight(self, "EncDecAttention.o.weight"),
            weight(self, "EncDecAttention.q.weight"),
            weight(self, "EncDecAttention.kv"),
        );
        let norm = weight(self, "layer_norm.weight");
        let dy = self.dropped(Stack::Decoder, block, 4, g);
        let dout = self.linear(Side::Target, dy, kept.out, o, "dattended", inner, d);
        let dq = self.temporary("dq", Side::Target, inner);
        let dkv = self.temporary("dkv", Side::Source, 2 * inner);
        let kept_kv = kept.kv.expect("cross-attention keeps keys and values");
        let cols = |id: Id, nth: usize, parts: usize| Cols { id, start: nth * inner, stride: parts * inner };
        self.push(Op::AttentionBackward {
            shape: self.pass.attention_shape(Stack::Decoder, Stack::Encoder),
            q: cols(kept.q, 0, 1),
            k: cols(kept_kv, 0, 2),
            v: cols(kept_kv, 1, 2),
            bias: None,
            out: kept.out,
            lse: kept.lse,
            dout,
            dq: cols(dq, 0, 1),
            dk: cols(dkv, 0, 2),
            dv: cols(dkv, 1, 2),
            dbias: None,
            drop: self.pass.drop(Stack::Decoder, block, 3),
        });
        let (dencoded, add) = match self.encoded {
            Some(id) => (id, true),
            None => (self.temporary("dencoded", Side::Source, d), false),
        };
        self.encoded = Some(dencoded);
        self.push(Op::LinearInput {
            side: Side::Source,
            dy: dkv,
            weight: kv,
            dx: dencoded,
            add,
            inputs: d,
            outputs: 2 * inner,
        });
        self.linear_weight(Side::Source, dkv, encoded, kv, d, 2 * inner);
        let normed = self.normed_again(Side::Target, kept.x, norm, kept.rstd);
        let dn = self.linear(Side::Target, dq, normed, q, "dnormed", d, inner);
        self.norm_onto(Side::Target, dn, kept.x, kept.rstd, norm, g, true);
    }

    fn self_attention(&mut self, stack: Stack, block: usize, kept: AttentionKept, g: Id, bias: Id) {
        let (side, d, inner) = (stack.side(), self.pass.spec.d_model, self.pass.spec.inner());
        let stem = format!("{}.block.{block}.layer.0", stack.name());
        let o = self.pass.weight(&format!("{stem}.SelfAttention.o.weight"));
        let qkv = self.pass.weight(&format!("{stem}.SelfAttention.qkv"));
        let norm = self.pass.weight(&format!("{stem}.layer_norm.weight"));
        let dy = self.dropped(stack, block, 2, g);
        let dout = self.linear(side, dy, kept.out, o, "dattended", inner, d);
        let dqkv = self.temporary("dqkv", side, 3 * inner);
        let cols = |id: Id, nth: usize| Cols { id, start: nth * inner, stride: 3 * inner };
        self.push(Op::AttentionBackward {
            shape: self.pass.attention_shape(stack, stack),
            q: cols(kept.q, 0),
            k: cols(kept.q, 1),
            v: cols(kept.q, 2),
            bias: Some(bias),
            out: kept.out,
            lse: kept.lse,
            dout,
            dq: cols(dqkv, 0),
            dk: cols(dqkv, 1),
            dv: cols(dqkv, 2),
            dbias: self.ddelta,
            drop: self.pass.drop(stack, block, 1),
        });
        let normed = self.normed_again(side, kept.x, norm, kept.rstd);
        let dn = self.linear(side, dqkv, normed, qkv, "dnormed", d, 3 * inner);
        self.norm_onto(side, dn, kept.x, kept.rstd, norm, g, true);
    }

    /// One block; returns the gradient of its input.
    pub fn block(&mut self, stack: Stack, block: usize, kept: BlockKept, g: Id, bias: Id, encoded: Option<Id>) -> Id {
        self.feed_forward(stack, block, kept.feed_forward, g);
        if let (Some(cross), Some(encoded)) = (kept.cross, encoded) {
            self.cross_attention(block, cross, g, encoded);
        }
        self.self_attention(stack, block, kept.attention, g, bias);
        g
    }
}
