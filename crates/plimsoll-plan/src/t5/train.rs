//! The tapes of training: an update's forward and backward pass, and evaluation.

use super::backward::Bias;
use super::layers::{AttentionKept, FeedForwardKept, Layers, Stack};
use crate::choices::Choices;
use crate::layer::{Backward, Normed, Pass, Sweep};
use crate::op::{Op, Side};
use crate::program::TapeJob;
use crate::spec::T5Spec;
use crate::tape::{Id, Tape};

/// What the backward pass of a block starts from.
struct Held {
    x: Id,
    /// What the feed-forward part begins with.
    y: Id,
    attention: Option<(AttentionKept, Option<AttentionKept>)>,
    feed_forward: Option<FeedForwardKept>,
}

/// What one part of the batch left for the backward pass.
struct Part {
    encoder: Vec<Held>,
    decoder: Vec<Held>,
    encoded: Id,
    encoder_last: Normed,
    decoder_last: Normed,
    dhidden: Id,
    dencoded: Option<Id>,
    g: Option<Id>,
}

fn pass<'a>(spec: &'a T5Spec, job: &TapeJob<'a>, train: bool) -> Pass<'a> {
    Pass::new(job.store, job.train, job.shape, (spec.d_model, spec.norm_eps), train)
}

/// Forward and backward of one micro-batch; or, without persistent gradients in the store, of the whole update, in parts.
pub(crate) fn micro_tape(spec: &T5Spec, job: &TapeJob, choices: &Choices) -> Tape {
    let mut pass = pass(spec, job, true);
    let layers = Layers { spec };
    let biases = [layers.bias(&mut pass, Stack::Encoder), layers.bias(&mut pass, Stack::Decoder)];
    let two_sweeps = choices.optimizer_in_backward && job.clip;
    let mut back = Backward::new(pass, if two_sweeps { Sweep::Measure } else { Sweep::Both });
    (back.marked, back.by_block) = (job.marked, job.by_block);
    let (head, _) = layers.head();
    let (table, head) = (back.pass.weight("shared.weight"), back.pass.weight(head));
    let mut kept_gradients = Vec::new();
    let mut parts = Vec::new();
    for nth in 0..job.parts {
        back.part(nth, job.parts);
        parts.push(forward(&layers, &mut back, choices, biases));
        if !spec.tied && back.last_part {
            match two_sweeps {
                true => kept_gradients.extend(back.measured(head)),
                false => back.complete(head),
            }
        }
    }
    back.use_gradients();
    sweep(&layers, &mut back, &mut parts, biases, true);
    match two_sweeps {
        true => {
            kept_gradients.extend(back.measured(table));
            back.use_gradients();
            back.push(Op::Clip);
            kept_gradients.into_iter().for_each(|(weight, grad)| back.update(weight, grad));
            back.sweep = Sweep::Update;
            sweep(&layers, &mut back, &mut parts, biases, false);
        }
        false => back.complete(table),
    }
    back.finish()
}

/// Forward pass and loss of one part.
fn forward(layers: &Layers, back: &mut Backward, choices: &Choices, biases: [Id; 2]) -> Part {
    let encoders = layers.spec.encoder_layers;
    let stack = |back: &mut Backward, stack: Stack, bias: Id, encoded: Option<Id>| {
        let pass = &mut back.pass;
        let mut x = layers.embed(pass, stack, stack.side());
        let mut held = Vec::new();
        for block in 0..layers.count(stack) {
            let (attention, y) = attend(layers, pass, stack, block, x, bias, encoded);
            let (feed_forward, z) = layers.feed_forward(pass, stack, block, stack.side(), y);
            let keep = choices.keep(if stack == Stack::Encoder { block } else { encoders + block });
            held.push(Held {
                x,
                y,
                attention: keep.attention().then_some(attention),
                feed_forward: keep.feed_forward().then_some(feed_forward),
            });
            x = z;
        }
        let (out, last) = layers.final_norm(pass, stack, stack.side(), x);
        (held, out, last)
    };
    let (encoder, encoded, encoder_last) = stack(back, Stack::Encoder, biases[0], None);
    let (decoder, hidden, decoder_last) = stack(back, Stack::Decoder, biases[1], Some(encoded));
    let (head, scale) = layers.head();
    let dhidden = back.loss(hidden, head, scale, layers.spec.vocab, choices.loss_chunk);
    Part { encoder, decoder, encoded, encoder_last, decoder_last, dhidden, dencoded: None, g: None }
}

/// The attention layers of a block.
fn attend(
    layers: &Layers,
    pass: &mut Pass,
    stack: Stack,
    block: usize,
    x: Id,
    bias: Id,
    encoded: Option<Id>,
) -> ((AttentionKept, Option<AttentionKept>), Id) {
    let (own, mut y) = layers.self_attention(pass, stack, block, x, bias);
    let cross = encoded.map(|encoded| {
        let (kept, z) = layers.cross_attention(pass, block, y, encoded);
        y = z;
        kept
    });
    ((own, cross), y)
}

/// The backward pass through all blocks, each over all parts before the next; with the embeddings where `embed`.
fn sweep(layers: &Layers, back: &mut Backward, parts: &mut [Part], biases: [Id; 2], embed: bool) {
    let count = parts.len();
    for (stack, delta) in [(Stack::Decoder, biases[1]), (Stack::Encoder, biases[0])] {
        for (nth, part) in parts.iter_mut().enumerate() {
            back.part(nth, count);
            let (dout, last) = match stack {
                Stack::Decoder => (part.dhidden, part.decoder_last),
                Stack::Encoder => (part.dencoded.take().expect("a decoder has at least one block"), part.encoder_last),
            };
            part.g = Some(layers.final_norm_backward(back, stack, dout, last));
        }
        let bias = layers.open_bias(back, stack, delta);
        for block in (0..layers.count(stack)).rev() {
            for (nth, part) in parts.iter_mut().enumerate() {
                back.part(nth, count);
                block_backward(layers, back, part, stack, block, bias);
                back.use_gradients();
            }
        }
        layers.close_bias(back, stack, bias);
        for (nth, part) in parts.iter().enumerate().filter(|_| embed) {
            back.part(nth, count);
            layers.embed_backward(back, stack, part.g.expect("the pass is through"));
        }
    }
}

fn block_backward(layers: &Layers, back: &mut Backward, part: &mut Part, stack: Stack, block: usize, bias: Bias) {
    let g = part.g.expect("the pass has begun");
    let encoded = (stack == Stack::Decoder).then_some(part.encoded);
    let held = if stack == Stack::Encoder { &part.encoder[block] } else { &part.decoder[block] };
    let attend = || attend(layers, &mut back.pass, stack, block, held.x, bias.delta, encoded);
    let again = held.attention.is_none().then(attend);
    match &held.feed_forward {
        Some(kept) => layers.feed_forward_backward(back, stack, block, kept, g),
        None => {
            let y = again.as_ref().map_or(held.y, |(_, y)| *y);
            let (kept, _) = layers.feed_forward(&mut back.pass, stack, block, stack.side(), y);
            layers.feed_forward_backward(back, stack, block, &kept, g);
        }
    }
    let kept = held.attention.as_ref().or(again.as_ref().map(|(kept, _)| kept));
    let (own, cross) = kept.expect("kept or computed again");
    if let Some(cross) = cross {
        let dencoded = layers.cross_attention_backward(back, block, cross, g, part.encoded, part.dencoded);
        part.dencoded = Some(dencoded);
    }
    layers.self_attention_backward(back, stack, block, own, g, bias);
}

/// Forward pass and loss, without dropout and without keeping anything.
pub(crate) fn eval_tape(spec: &T5Spec, job: &TapeJob, chunk: usize) -> Tape {
    let mut pass = pass(spec, job, false);
    let layers = Layers { spec };
    let encoded = encoder(&layers, &mut pass);
    let bias = layers.bias(&mut pass, Stack::Decoder);
    let mut x = layers.embed(&mut pass, Stack::Decoder, Side::Target);
    for block in 0..spec.decoder_layers {
        x = attend(&layers, &mut pass, Stack::Decoder, block, x, bias, Some(encoded)).1;
        x = layers.feed_forward(&mut pass, Stack::Decoder, block, Side::Target, x).1;
    }
    let (hidden, _) = layers.final_norm(&mut pass, Stack::Decoder, Side::Target, x);
    let (head, scale) = layers.head();
    pass.loss_only(hidden, head, scale, spec.vocab, chunk);
    pass.tape
}

/// The encoder without training; returns its output.
pub(super) fn encoder(layers: &Layers, pass: &mut Pass) -> Id {
    let bias = layers.bias(pass, Stack::Encoder);
    let mut x = layers.embed(pass, Stack::Encoder, Side::Source);
    for block in 0..layers.spec.encoder_layers {
        x = attend(layers, pass, Stack::Encoder, block, x, bias, None).1;
        x = layers.feed_forward(pass, Stack::Encoder, block, Side::Source, x).1;
    }
    layers.final_norm(pass, Stack::Encoder, Side::Source, x).0
}
