//! The backward pass of T5's layers, as ops on a tape.

use super::layers::{AttentionKept, FeedForwardKept, Layers, Stack, bias_name, feed_forward_stem, norm_name};
use crate::layer::{Backward, Normed};
use crate::op::{Cols, Op, Side};
use crate::spec::FeedForward;
use crate::tape::Id;

/// The position bias of a stack: expanded, and its gradient by distance.
#[derive(Clone, Copy)]
pub(super) struct Bias {
    pub delta: Id,
    pub ddelta: Id,
}

impl Layers<'_> {
    /// Through the final norm and its dropout; returns the gradient of the residual stream.
    pub fn final_norm_backward(&self, back: &mut Backward, stack: Stack, dout: Id, normed: Normed) -> Id {
        let side = stack.side();
        let drop = self.drop(&back.pass, stack, self.count(stack), 7);
        let dy = back.dropped(side, dout, drop);
        let g = back.temporary("g", side, self.spec.d_model);
        back.norm_onto(side, dy, normed, &format!("{}.final_layer_norm", stack.name()), g, false);
        g
    }

    pub fn open_bias(&self, back: &mut Backward, stack: Stack, delta: Id) -> Bias {
        let shape = self.attention_shape(&back.pass, stack, stack);
        let tensor = back.pass.activation("bias.grad", shape.heads * shape.span());
        back.push(Op::Zero { tensor, write: crate::op::Write::Set });
        Bias { delta, ddelta: tensor }
    }

    pub fn close_bias(&self, back: &mut Backward, stack: Stack, bias: Bias) {
        let shape = self.attention_shape(&back.pass, stack, stack);
        let table = back.pass.weight(&bias_name(stack));
        if let Some((table_grad, write)) = back.gradient(table) {
            let (ddelta, buckets) = (bias.ddelta, self.buckets());
            back.push(Op::BiasCollect { ddelta, table_grad, write, shape, buckets });
            back.complete(table);
        }
    }

    pub fn embed_backward(&self, back: &mut Backward, stack: Stack, grad: Id) {
        let table = back.pass.weight("shared.weight");
        let (drop, width) = (self.drop(&back.pass, stack, 0, 0), self.spec.d_model);
        if let Some(table_grad) = back.gradient_of_table(table) {
            let side = stack.side();
            back.push(Op::EmbedBackward { side, grad, table_grad, width, drop, by_position: false, skip: None });
        }
    }

    pub fn feed_forward_backward(
        &self,
        back: &mut Backward,
        stack: Stack,
        block: usize,
        kept: &FeedForwardKept,
        g: Id,
    ) {
        let (side, width) = (stack.side(), self.spec.d_ff);
        let norm = format!("{}.layer_norm", feed_forward_stem(stack, block));
        let [wi, wo] = self.feed_forward_projections(stack, block);
        let [in_lora, out_lora] = &kept.lora;
        let drop = self.drop(&back.pass, stack, block, 6);
        let dy = back.dropped(side, g, drop);
        let inside = self.drop(&back.pass, stack, block, 5);
        let dwi = match self.spec.feed_forward {
            FeedForward::Relu => {
                let dh = back.project(side, dy, kept.h, &wo, out_lora, None);
                back.push(Op::ReluBackward { side, dh, h: kept.h, width, drop: inside });
                dh
            }
            FeedForward::GatedGelu => {
                let act = back.temporary("gated", side, width);
                back.push(Op::GatedGelu { side, ab: kept.h, out: act, width, drop: inside });
                let dh = back.project(side, dy, act, &wo, out_lora, None);
                let dab = back.temporary("dab", side, 2 * width);
                back.push(Op::GatedGeluBackward { side, dh, ab: kept.h, dab, width, drop: inside });
                dab
            }
        };
        let normed = back.pass.norm_again(side, kept.normed, &norm);
        let dn = back.project(side, dwi, normed, &wi, in_lora, None);
        back.norm_onto(side, dn, kept.normed, &norm, g, true);
    }

    /// Adds to the gradient of the encoder's output, or begins it; returns it.
    pub fn cross_attention_backward(
        &self,
        back: &mut Backward,
        block: usize,
        kept: &AttentionKept,
        g: Id,
        encoded: Id,
        dencoded: Option<Id>,
    ) -> Id {
        let (stack, side, inner) = (Stack::Decoder, Side::Target, self.spec.inner());
        let modules = self.attention_projections(stack, block, true);
        let norm = norm_name(stack, block, 1);
        let [q_lora, kv_lora, out_lora] = &kept.lora;
        let drop = self.drop(&back.pass, stack, block, 4);
        let dy = back.dropped(side, g, drop);
        let dout = back.project(side, dy, kept.out, &modules.o, out_lora, None);
        let dq = back.temporary("dq", side, inner);
        let dkv = back.temporary("dkv", Side::Source, 2 * inner);
        let kept_kv = kept.kv.expect("cross-attention keeps keys and values");
        let cols = |id: Id, nth: usize, parts: usize| Cols { id, start: nth * inner, stride: parts * inner };
        back.push(Op::AttentionBackward {
            shape: self.attention_shape(&back.pass, Stack::Decoder, Stack::Encoder),
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
            drop: self.drop(&back.pass, stack, block, 3),
        });
        let dencoded = back.project(Side::Source, dkv, encoded, &modules.kv, kv_lora, dencoded);
        let normed = back.pass.norm_again(side, kept.normed, &norm);
        let dn = back.project(side, dq, normed, &modules.q, q_lora, None);
        back.norm_onto(side, dn, kept.normed, &norm, g, true);
        dencoded
    }

    pub fn self_attention_backward(
        &self,
        back: &mut Backward,
        stack: Stack,
        block: usize,
        kept: &AttentionKept,
        g: Id,
        bias: Bias,
    ) {
        let (side, inner) = (stack.side(), self.spec.inner());
        let modules = self.attention_projections(stack, block, false);
        let norm = norm_name(stack, block, 0);
        let [qkv_lora, _, out_lora] = &kept.lora;
        let drop = self.drop(&back.pass, stack, block, 2);
        let dy = back.dropped(side, g, drop);
        let dout = back.project(side, dy, kept.out, &modules.o, out_lora, None);
        let dqkv = back.temporary("dqkv", side, 3 * inner);
        let cols = |id: Id, nth: usize| Cols { id, start: nth * inner, stride: 3 * inner };
        back.push(Op::AttentionBackward {
            shape: self.attention_shape(&back.pass, stack, stack),
            q: cols(kept.q, 0),
            k: cols(kept.q, 1),
            v: cols(kept.q, 2),
            bias: Some(bias.delta),
            out: kept.out,
            lse: kept.lse,
            dout,
            dq: cols(dqkv, 0),
            dk: cols(dqkv, 1),
            dv: cols(dqkv, 2),
            dbias: self.bias_trained(back, stack).then_some(bias.ddelta),
            drop: self.drop(&back.pass, stack, block, 1),
        });
        let normed = back.pass.norm_again(side, kept.normed, &norm);
        let dn = back.project(side, dqkv, normed, &modules.q, qkv_lora, None);
        back.norm_onto(side, dn, kept.normed, &norm, g, true);
    }

    fn bias_trained(&self, back: &Backward, stack: Stack) -> bool {
        back.is_trained(back.pass.weight(&bias_name(stack)))
    }
}
