//! The tape of generation: every block's keys and values of the prompts, and one decoding step.
//!
//! The last token of a prompt is the first input of the step, so the first pass covers what is before it; of its last
//! block only keys and values are wanted, and the rest of that block is pruned away.

use super::block::{Layers, SIDE, Turned};
use super::train::{final_norm, generating};
use crate::batch::BatchShape;
use crate::generation::{GenerateShape, Generation};
use crate::op::{AttentionShape, Cols, Op, Side};
use crate::program::TapeJob;
use crate::spec::DecoderSpec;
use crate::tape::Id;

/// The prompts' pass and the decoding step on one tape.
pub(crate) fn generation(spec: &DecoderSpec, job: &TapeJob, shape: GenerateShape) -> Generation {
    let len = shape.source_len;
    let batch = BatchShape { samples: shape.prompts, source_len: len, target_len: 1, documents: 1 };
    let mut pass = generating(spec, job, batch);
    let rope = Layers::rope_table(spec, &mut pass, len + shape.max_new);
    let layers = Layers { spec, rope };
    let (kv, rows) = (spec.kv_width(), shape.prompts * shape.beams);
    let mut x = layers.embed(&mut pass, SIDE);
    let mut held: Vec<(Id, Id)> = Vec::new();
    for block in 0..spec.layers {
        let (_, _, qkv, _) = layers.qkv(&mut pass, SIDE, block, x);
        let Turned { q, k, v, .. } = layers.turned(&mut pass, SIDE, block, qkv);
        let prompt = pass.activation("prompt kv", pass.rows(SIDE) * 2 * kv);
        for (from, start) in [(k, 0), (v, kv)] {
            let to = Cols { id: prompt, start, stride: 2 * kv };
            pass.tape.push(Op::Copy { side: SIDE, from, to, width: kv });
        }
        let attention = layers.attention_shape(&pass, block);
        let out = pass.activation("attended", pass.rows(SIDE) * spec.q_width());
        let lse = pass.activation("lse", pass.rows(SIDE) * attention.heads);
        pass.tape.push(Op::Attention { shape: attention, q, k, v, bias: None, out, lse, drop: None });
        let (y, _) = layers.attended(&mut pass, SIDE, block, x, out);
        x = layers.feed_forward(&mut pass, SIDE, block, y).1;
        let cache = pass.activation("cache", rows * shape.max_new * 2 * kv);
        held.push((prompt, cache));
    }
    // The step is run many times: what it reads again lives from before its first op to after its last.
    let tensors: Vec<Id> = held.iter().flat_map(|(prompt, cache)| [*prompt, *cache]).chain(rope).collect();
    pass.tape.push(Op::Hold { tensors: tensors.clone() });
    pass.shape.samples = rows;
    let mut x = layers.embed(&mut pass, Side::Beam);
    for (block, (prompt, cache)) in held.iter().enumerate() {
        let (_, _, qkv, _) = layers.qkv(&mut pass, Side::Beam, block, x);
        let Turned { q, k, v, .. } = layers.turned(&mut pass, Side::Beam, block, qkv);
        for (kv_part, start) in [(k, 0), (v, kv)] {
            pass.tape.push(Op::CacheAppend {
                kv: kv_part,
                cache: *cache,
                start,
                width: kv,
                stride: 2 * kv,
                max_len: shape.max_new,
            });
        }
        let own = AttentionShape {
            queries: Side::Beam,
            keys: Side::Beam,
            max_queries: shape.max_new,
            max_keys: len + shape.max_new,
            ..layers.attention_shape(&pass, block)
        };
        let out = pass.activation("attended", rows * spec.q_width());
        pass.tape.push(Op::DecodeStep {
            shape: own,
            q,
            prompt: Cols { id: *prompt, start: 0, stride: 2 * kv },
            cache: *cache,
            out,
        });
        let (y, _) = layers.attended(&mut pass, Side::Beam, block, x, out);
        x = layers.feed_forward(&mut pass, Side::Beam, block, y).1;
    }
    let hidden = final_norm(spec, &mut pass, Side::Beam, x);
    let (width, vocab) = (spec.d_model, spec.vocab);
    let logits = pass.activation("logits", rows * vocab);
    let weight = pass.weight(spec.head_name());
    pass.tape.push(Op::Logits { hidden, weight, out: logits, width, vocab, scale: 1.0 });
    pass.tape.push(Op::Hold { tensors: tensors.into_iter().chain([logits]).collect() });
    pass.tape.prune();
    let split = pass.tape.ops.iter().position(|op| matches!(op, Op::Hold { .. })).map_or(0, |at| at + 1);
    Generation { tape: pass.tape, split, logits }
}
