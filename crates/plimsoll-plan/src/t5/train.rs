//! The tapes of training: one micro-batch forward and backward, the update, and evaluation.

use serde::{Deserialize, Serialize};

use super::backward::Backward;
use super::layers::{BlockKept, Pass, Stack};
use crate::batch::BatchShape;
use crate::op::{Op, Side};
use crate::spec::T5Spec;
use crate::tape::{Id, Store, Tape};

/// The same-result choices that shape a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Samples in one micro-batch.
    pub micro_batch: usize,
    /// Blocks whose activations are computed again in the backward pass: the first `recompute` of encoder, then decoder.
    pub recompute: usize,
    /// Rows of logits that exist at a time.
    pub loss_chunk: usize,
    /// Each weight is updated as soon as its gradient is complete, and the gradient is gone.
    pub optimizer_in_backward: bool,
    /// Threads of the loader.
    pub loader_threads: usize,
}

/// What the backward pass of a block starts from: its kept tensors, or its input when it is computed again.
enum Held {
    Kept(BlockKept),
    Input(Id),
}

/// Forward and backward of one micro-batch. Without persistent gradients in the store, each weight is updated on the way.
pub fn micro_tape(spec: &T5Spec, store: &Store, shape: BatchShape, choices: &Choices) -> Tape {
    let mut pass = Pass::new(spec, store, shape, true);
    let mut held = Vec::new();
    let mut left = choices.recompute;
    let mut run_stack = |pass: &mut Pass, stack: Stack, bias: Id, encoded: Option<Id>| -> Id {
        let mut x = pass.embed(stack);
        for block in 0..pass.layers(stack) {
            let (kept, y) = pass.block(stack, block, x, bias, encoded);
            held.push(if left > 0 { Held::Input(x) } else { Held::Kept(kept) });
            left = left.saturating_sub(1);
            x = y;
        }
        x
    };
    let encoder_bias = pass.bias(Stack::Encoder);
    let encoder_last = run_stack(&mut pass, Stack::Encoder, encoder_bias, None);
    let (encoded, encoder_rstd) = pass.final_norm(Stack::Encoder, Side::Source, encoder_last);
    let decoder_bias = pass.bias(Stack::Decoder);
    let decoder_last = run_stack(&mut pass, Stack::Decoder, decoder_bias, Some(encoded));
    let (hidden, decoder_rstd) = pass.final_norm(Stack::Decoder, Side::Target, decoder_last);

    let mut back = Backward::new(pass);
    let dhidden = back.loss(hidden, choices.loss_chunk);
    let mut g = back.final_norm(Stack::Decoder, dhidden, decoder_last, decoder_rstd);
    back.open_bias(Stack::Decoder);
    for block in (0..spec.decoder_layers).rev() {
        let kept = back.kept(held.pop(), Stack::Decoder, block, decoder_bias, Some(encoded));
        g = back.block(Stack::Decoder, block, kept, g, decoder_bias, Some(encoded));
    }
    back.close_bias(Stack::Decoder);
    back.embed(Stack::Decoder, g);
    let dencoded = back.encoded_gradient();
    let mut g = back.final_norm(Stack::Encoder, dencoded, encoder_last, encoder_rstd);
    back.open_bias(Stack::Encoder);
    for block in (0..spec.encoder_layers).rev() {
        let kept = back.kept(held.pop(), Stack::Encoder, block, encoder_bias, None);
        g = back.block(Stack::Encoder, block, kept, g, encoder_bias, None);
    }
    back.close_bias(Stack::Encoder);
    back.embed(Stack::Encoder, g);
    back.finish()
}

impl Backward<'_> {
    fn kept(&mut self, held: Option<Held>, stack: Stack, block: usize, bias: Id, encoded: Option<Id>) -> BlockKept {
        match held.expect("every block of the forward pass is held") {
            Held::Kept(kept) => kept,
            Held::Input(x) => self.pass.block_again(stack, block, x, bias, encoded),
        }
    }
}

impl Pass<'_> {
    /// Computes a block again for its backward pass. The last product's output is not needed, so it is not computed.
    fn block_again(&mut self, stack: Stack, block: usize, x: Id, bias: Id, encoded: Option<Id>) -> BlockKept {
        let (kept, _) = self.block(stack, block, x, bias, encoded);
        let residual = self.tape.ops.pop();
        let linear = self.tape.ops.pop();
        debug_assert!(matches!((linear, residual), (Some(Op::Linear { .. }), Some(Op::Residual { .. }))));
        kept
    }
}

/// The update of every parameter from persistent gradients. Their norm comes first: it says whether they are finite.
pub fn update_tape(store: &Store) -> Tape {
    let mut tape = Tape::over(store);
    let gradient =
        |weight: Id| store.gradients[weight.0 as usize].expect("the update tape is for persistent gradients");
    tape.push(Op::GradientNorm { gradients: store.gradients.iter().flatten().copied().collect() });
    for (at, place) in store.params.iter().enumerate() {
        let (grad, state) = (gradient(place.weight), place.state.clone());
        tape.push(Op::Update { param: at, weight: place.weight, grad, state });
    }
    tape
}

/// Forward pass and loss, without dropout and without keeping anything.
pub fn eval_tape(spec: &T5Spec, store: &Store, shape: BatchShape, chunk: usize) -> Tape {
    let mut pass = Pass::new(spec, store, shape, false);
    let encoder_bias = pass.bias(Stack::Encoder);
    let mut x = pass.embed(Stack::Encoder);
    for block in 0..spec.encoder_layers {
        x = pass.block(Stack::Encoder, block, x, encoder_bias, None).1;
    }
    let (encoded, _) = pass.final_norm(Stack::Encoder, Side::Source, x);
    let decoder_bias = pass.bias(Stack::Decoder);
    let mut x = pass.embed(Stack::Decoder);
    for block in 0..spec.decoder_layers {
        x = pass.block(Stack::Decoder, block, x, decoder_bias, Some(encoded)).1;
    }
    let (hidden, _) = pass.final_norm(Stack::Decoder, Side::Target, x);
    let (weight, scale) = pass.head();
    let (width, vocab) = (spec.d_model, spec.vocab);
    let logits = pass.activation("logits", chunk * vocab);
    let losses = pass.activation("losses", pass.rows(Side::Target));
    pass.tape.push(Op::LossOnly { hidden, weight, losses, logits, chunk, width, vocab, scale });
    pass.tape
}
