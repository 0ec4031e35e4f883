//! The tapes of training a decoder: an update's forward and backward pass, and evaluation.

use super::block::{AttentionKept, FeedForwardKept, Layers, SIDE};
use crate::batch::BatchShape;
use crate::choices::Choices;
use crate::layer::{Backward, Normed, Pass, Sweep};
use crate::op::Op;
use crate::program::TapeJob;
use crate::spec::DecoderSpec;
use crate::tape::{Id, Tape};

/// What the backward pass of a block starts from.
struct Held {
    x: Id,
    /// What the feed-forward part begins with.
    y: Id,
    attention: Option<AttentionKept>,
    feed_forward: Option<FeedForwardKept>,
}

/// What one part of the batch left for the backward pass.
struct Part {
    blocks: Vec<Held>,
    last: Normed,
    dhidden: Id,
    /// The gradient of the residual stream, once the backward pass has begun.
    g: Option<Id>,
}

fn pass<'a>(spec: &'a DecoderSpec, job: &TapeJob<'a>, train: bool) -> Pass<'a> {
    Pass::new(job.store, job.train, job.shape, (spec.d_model, spec.norm_eps), train)
}

fn last_norm(spec: &DecoderSpec) -> &'static str {
    if spec.layer_norm() { "transformer.ln_f" } else { "model.norm" }
}

/// Forward and backward of one micro-batch; or, without persistent gradients in the store, of the whole update, in parts.
pub(crate) fn micro_tape(spec: &DecoderSpec, job: &TapeJob, choices: &Choices) -> Tape {
    let mut pass = pass(spec, job, true);
    let rope = Layers::rope_table(spec, &mut pass, job.shape.source_len);
    let layers = Layers { spec, rope };
    let two_sweeps = choices.optimizer_in_backward && job.clip;
    let mut back = Backward::new(pass, if two_sweeps { Sweep::Measure } else { Sweep::Both });
    (back.marked, back.by_block) = (job.marked, job.by_block);
    let (table, head) = (back.pass.weight(spec.table_name()), back.pass.weight(spec.head_name()));
    let mut kept_gradients = Vec::new();
    let mut parts = Vec::new();
    for nth in 0..job.parts {
        back.part(nth, job.parts);
        parts.push(forward(spec, &layers, &mut back, choices));
        if !spec.tied && back.last_part {
            match two_sweeps {
                true => kept_gradients.extend(back.measured(head)),
                false => back.complete(head),
            }
        }
    }
    back.use_gradients();
    sweep(spec, &layers, &mut back, &mut parts);
    for (nth, part) in parts.iter().enumerate() {
        back.part(nth, job.parts);
        layers.embed_backward(&mut back, part.g.expect("the backward pass is through"));
    }
    let positions = back.pass.find("transformer.wpe.weight");
    for weight in [Some(table), positions].into_iter().flatten() {
        match two_sweeps {
            true => kept_gradients.extend(back.measured(weight)),
            false => back.complete(weight),
        }
    }
    if two_sweeps {
        back.use_gradients();
        back.push(Op::Clip);
        kept_gradients.into_iter().for_each(|(weight, grad)| back.update(weight, grad));
        back.sweep = Sweep::Update;
        sweep(spec, &layers, &mut back, &mut parts);
    }
    back.finish()
}

/// Forward pass and loss of one part.
fn forward(spec: &DecoderSpec, layers: &Layers, back: &mut Backward, choices: &Choices) -> Part {
    let mut x = layers.embed(&mut back.pass, SIDE);
    let mut blocks = Vec::new();
    for block in 0..spec.layers {
        let (attention, y) = layers.attention(&mut back.pass, block, x);
        let (feed_forward, z) = layers.feed_forward(&mut back.pass, SIDE, block, y);
        let keep = choices.keep(block);
        let normed = |out: Option<Id>| out.filter(|_| choices.keep_norms);
        blocks.push(Held {
            x,
            y,
            attention: keep
                .attention()
                .then_some(AttentionKept { normed_out: normed(attention.normed_out), ..attention }),
            feed_forward: keep
                .feed_forward()
                .then_some(FeedForwardKept { normed_out: normed(feed_forward.normed_out), ..feed_forward }),
        });
        x = z;
    }
    let (hidden, last) = back.pass.norm(SIDE, x, last_norm(spec), None);
    let dhidden = back.loss(hidden, spec.head_name(), 1.0, spec.vocab, choices.loss_chunk);
    Part { blocks, last, dhidden, g: None }
}

/// The backward pass through all blocks, each over all parts before the next.
fn sweep(spec: &DecoderSpec, layers: &Layers, back: &mut Backward, parts: &mut [Part]) {
    let count = parts.len();
    for (nth, part) in parts.iter_mut().enumerate() {
        back.part(nth, count);
        let g = back.temporary("g", SIDE, spec.d_model);
        back.norm_onto(SIDE, part.dhidden, part.last, last_norm(spec), g, false);
        part.g = Some(g);
    }
    for block in (0..spec.layers).rev() {
        for (nth, part) in parts.iter().enumerate() {
            back.part(nth, count);
            let (held, g) = (&part.blocks[block], part.g.expect("the pass has begun"));
            // Its norm is written once more when it is needed, so that its output is not there all the while.
            let again = held.attention.is_none().then(|| layers.attention(&mut back.pass, block, held.x));
            let again = again.map(|(kept, y)| (AttentionKept { normed_out: None, ..kept }, y));
            match &held.feed_forward {
                Some(kept) if back.sweep == Sweep::Measure => {
                    let kept = layers.lent(back, kept);
                    layers.feed_forward_backward(back, block, &kept, g);
                }
                Some(kept) => layers.feed_forward_backward(back, block, kept, g),
                None => {
                    let y = again.as_ref().map_or(held.y, |(_, y)| *y);
                    let (kept, _) = layers.feed_forward(&mut back.pass, SIDE, block, y);
                    layers.feed_forward_backward(back, block, &kept, g);
                }
            }
            let attention = held.attention.as_ref().or(again.as_ref().map(|(kept, _)| kept));
            layers.attention_backward(back, block, attention.expect("kept or computed again"), g);
            back.use_gradients();
        }
    }
}

/// Forward pass and loss, without dropout and without keeping anything.
pub(crate) fn eval_tape(spec: &DecoderSpec, job: &TapeJob, chunk: usize) -> Tape {
    let mut pass = pass(spec, job, false);
    let rope = Layers::rope_table(spec, &mut pass, job.shape.source_len);
    let layers = Layers { spec, rope };
    let mut x = layers.embed(&mut pass, SIDE);
    for block in 0..spec.layers {
        x = layers.attention(&mut pass, block, x).1;
        x = layers.feed_forward(&mut pass, SIDE, block, x).1;
    }
    let (hidden, _) = pass.norm(SIDE, x, last_norm(spec), None);
    pass.loss_only(hidden, spec.head_name(), 1.0, spec.vocab, chunk);
    pass.tape
}

/// The final norm of any rows.
pub(super) fn final_norm(spec: &DecoderSpec, pass: &mut Pass, side: crate::op::Side, x: Id) -> Id {
    pass.norm(side, x, last_norm(spec), None).0
}

/// A pass without training over a shape of its own.
pub(super) fn generating<'a>(spec: &'a DecoderSpec, job: &TapeJob<'a>, shape: BatchShape) -> Pass<'a> {
    Pass::new(job.store, job.train, shape, (spec.d_model, spec.norm_eps), false)
}
