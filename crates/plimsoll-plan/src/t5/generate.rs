//! The tapes of generation: the encoder with every block's cross-attention keys and values, and one decoding step.
//!
//! One tape holds both, because the keys, values and caches that the step reads lie between the two.

use super::layers::{Layers, Stack, bias_name, norm_name};
use super::train::encoder;
use crate::batch::BatchShape;
use crate::generation::{GenerateShape, Generation};
use crate::layer::Pass;
use crate::op::{AttentionShape, Cols, Op, Side};
use crate::program::TapeJob;
use crate::spec::T5Spec;
use crate::tape::Id;

/// The encoder pass and the decoding step on one tape.
pub(crate) fn generation(spec: &T5Spec, job: &TapeJob, shape: GenerateShape) -> Generation {
    let batch = BatchShape { samples: shape.prompts, source_len: shape.source_len, target_len: 1, documents: 1 };
    let mut pass = Pass::new(job.store, job.train, batch, (spec.d_model, spec.norm_eps), false);
    let layers = Layers { spec };
    let encoded = encoder(&layers, &mut pass);
    let inner = spec.inner();
    let rows = shape.prompts * shape.beams;
    let mut held = Vec::new();
    for block in 0..spec.decoder_layers {
        let modules = layers.attention_projections(Stack::Decoder, block, true);
        let (crossed, _) = pass.project(Side::Source, encoded, "cross kv", &modules.kv);
        let cache = pass.activation("cache", rows * shape.max_new * 2 * inner);
        held.push((crossed, cache));
    }
    let own = AttentionShape {
        queries: Side::Beam,
        keys: Side::Beam,
        causal: true,
        max_queries: shape.max_new,
        max_keys: shape.max_new,
        ..layers.attention_shape(&pass, Stack::Decoder, Stack::Decoder)
    };
    let delta = pass.activation("bias", own.heads * own.span());
    let table = pass.weight(&bias_name(Stack::Decoder));
    pass.tape.push(Op::BiasExpand { table, delta, shape: own, buckets: layers.buckets() });
    // The step is run many times: what it reads again lives from before its first op to after its last.
    let tensors: Vec<Id> = held.iter().flat_map(|(crossed, cache)| [*crossed, *cache]).chain([delta]).collect();
    pass.tape.push(Op::Hold { tensors: tensors.clone() });
    let split = pass.tape.ops.len();
    let logits = decode_step(&layers, &mut pass, own, rows, &held, delta);
    pass.tape.push(Op::Hold { tensors: tensors.into_iter().chain([logits]).collect() });
    Generation { tape: pass.tape, split, logits }
}

/// Emits one decoding step for `rows` hypotheses; returns the logits.
fn decode_step(layers: &Layers, pass: &mut Pass, own: AttentionShape, rows: usize, held: &[(Id, Id)], delta: Id) -> Id {
    let spec = layers.spec;
    let inner = spec.inner();
    let source_len = pass.shape.source_len;
    let (stack, side) = (Stack::Decoder, Side::Beam);
    pass.shape.samples = rows;
    let mut x = layers.embed(pass, stack, side);
    for (block, (crossed, cache)) in held.iter().enumerate() {
        let modules = layers.attention_projections(stack, block, false);
        let (normed, _) = pass.norm(side, x, &norm_name(stack, block, 0), None);
        let (qkv, _) = pass.project(side, normed, "qkv", &modules.q);
        let cols = |start: usize| Cols { id: qkv, start, stride: 3 * inner };
        let (width, max_len) = (2 * inner, own.max_keys);
        pass.tape.push(Op::CacheAppend { kv: cols(inner), cache: *cache, start: 0, width, stride: width, max_len });
        let out = pass.activation("attended", rows * inner);
        pass.tape.push(Op::AttentionStep { shape: own, q: cols(0), cache: *cache, bias: delta, out });
        let (y, _) = pass.project(side, out, "residual", &modules.o);
        x = pass.residual(side, x, y, None);
        let modules = layers.attention_projections(stack, block, true);
        let (normed, _) = pass.norm(side, x, &norm_name(stack, block, 1), None);
        let (q, _) = pass.project(side, normed, "q", &modules.q);
        let cross = AttentionShape { keys: Side::Source, max_keys: source_len, causal: false, ..own };
        let out = pass.activation("attended", rows * inner);
        let q = Cols { id: q, start: 0, stride: inner };
        pass.tape.push(Op::CrossStep { shape: cross, q, kv: Cols { id: *crossed, start: 0, stride: 2 * inner }, out });
        let (y, _) = pass.project(side, out, "residual", &modules.o);
        x = pass.residual(side, x, y, None);
        x = layers.feed_forward(pass, stack, block, side, x).1;
    }
    let (hidden, _) = layers.final_norm(pass, stack, side, x);
    let (head, scale) = layers.head();
    let (width, vocab, weight) = (spec.d_model, spec.vocab, pass.weight(head));
    let logits = pass.activation("logits", rows * vocab);
    pass.tape.push(Op::Logits { hidden, weight, out: logits, width, vocab, scale });
    logits
}
