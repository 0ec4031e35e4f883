//! The tapes of generation: the encoder with every block's cross-attention keys and values, and one decoding step.
//!
//! One tape holds both, because the keys, values and caches that the step reads lie between the two.

use super::layers::{Pass, Stack, bias_name};
use crate::batch::BatchShape;
use crate::op::{AttentionShape, Cols, Op, Side};
use crate::spec::T5Spec;
use crate::tape::{Id, Store, Tape};

/// How much is generated at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerateShape {
    /// Prompts at a time.
    pub prompts: usize,
    /// Hypotheses per prompt; 1 is greedy.
    pub beams: usize,
    /// Longest prompt, in tokens.
    pub source_len: usize,
    /// Most new tokens.
    pub max_new: usize,
}

/// Everything that a generation needs: ops `..split` encode the prompts, ops `split..` run once per new token.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Both passes on one tape.
    pub tape: Tape,
    /// First op of the decoding step.
    pub split: usize,
    /// Logits of the decoding step, `[prompts * beams, vocab]`.
    pub logits: Id,
}

/// The encoder pass and the decoding step on one tape.
pub fn generation(spec: &T5Spec, store: &Store, shape: GenerateShape) -> Generation {
    let batch = BatchShape { samples: shape.prompts, source_len: shape.source_len, target_len: 1, documents: 1 };
    let mut pass = Pass::new(spec, store, batch, false);
    let encoder_bias = pass.bias(Stack::Encoder);
    let mut x = pass.embed(Stack::Encoder);
    for block in 0..spec.encoder_layers {
        x = pass.block(Stack::Encoder, block, x, encoder_bias, None).1;
    }
    let (encoded, _) = pass.final_norm(Stack::Encoder, Side::Source, x);
    let (d, inner) = (spec.d_model, spec.inner());
    let rows = shape.prompts * shape.beams;
    let mut held = Vec::new();
    for block in 0..spec.decoder_layers {
        let kv = pass.weight(&format!("decoder.block.{block}.layer.1.EncDecAttention.kv"));
        let crossed = pass.linear(Side::Source, encoded, kv, "cross kv", d, 2 * inner);
        let cache = pass.activation("cache", rows * shape.max_new * 2 * inner);
        held.push((crossed, cache));
    }
    let own = AttentionShape {
        queries: Side::Beam,
        keys: Side::Beam,
        heads: spec.heads,
        d_kv: spec.d_kv,
        causal: true,
        max_queries: shape.max_new,
        max_keys: shape.max_new,
    };
    let delta = pass.activation("bias", own.heads * own.span());
    let table = pass.weight(&bias_name(Stack::Decoder));
    pass.tape.push(Op::BiasExpand { table, delta, shape: own });
    // The step is run many times: what it reads again lives from before its first op to after its last.
    let tensors: Vec<Id> = held.iter().flat_map(|(crossed, cache)| [*crossed, *cache]).chain([delta]).collect();
    pass.tape.push(Op::Hold { tensors: tensors.clone() });
    let split = pass.tape.ops.len();
    let logits = decode_step(&mut pass, own, rows, &held, delta);
    pass.tape.push(Op::Hold { tensors: tensors.into_iter().chain([logits]).collect() });
    Generation { tape: pass.tape, split, logits }
}

/// Emits one decoding step for `rows` hypotheses; returns the logits.
fn decode_step(pass: &mut Pass, own: AttentionShape, rows: usize, held: &[(Id, Id)], delta: Id) -> Id {
    let spec = pass.spec;
    let (d, inner) = (spec.d_model, spec.inner());
    let source_len = pass.shape.source_len;
    pass.shape.samples = rows;
    let mut x = pass.activation("embedded", rows * d);
    let table = pass.weight("shared.weight");
    pass.tape.push(Op::Embed { side: Side::Beam, table, out: x, width: d, drop: None });
    for (block, (crossed, cache)) in held.iter().enumerate() {
        let stem = format!("decoder.block.{block}.layer");
        let (normed, _) = pass.norm(Side::Beam, x, pass.weight(&format!("{stem}.0.layer_norm.weight")), None);
        let qkv =
            pass.linear(Side::Beam, normed, pass.weight(&format!("{stem}.0.SelfAttention.qkv")), "qkv", d, 3 * inner);
        let cols = |start: usize| Cols { id: qkv, start, stride: 3 * inner };
        pass.tape.push(Op::CacheAppend { kv: cols(inner), cache: *cache, width: 2 * inner, max_len: own.max_keys });
        let out = pass.activation("attended", rows * inner);
        pass.tape.push(Op::AttentionStep { shape: own, q: cols(0), cache: *cache, bias: delta, out });
        x = step_residual(pass, x, out, &format!("{stem}.0.SelfAttention.o.weight"));
        let (normed, _) = pass.norm(Side::Beam, x, pass.weight(&format!("{stem}.1.layer_norm.weight")), None);
        let q =
            pass.linear(Side::Beam, normed, pass.weight(&format!("{stem}.1.EncDecAttention.q.weight")), "q", d, inner);
        let cross = AttentionShape { keys: Side::Source, max_keys: source_len, causal: false, ..own };
        let out = pass.activation("attended", rows * inner);
        let q = Cols { id: q, start: 0, stride: inner };
        pass.tape.push(Op::CrossStep { shape: cross, q, kv: Cols { id: *crossed, start: 0, stride: 2 * inner }, out });
        x = step_residual(pass, x, out, &format!("{stem}.1.EncDecAttention.o.weight"));
        x = pass.feed_forward(Stack::Decoder, block, Side::Beam, x).1;
    }
    let (hidden, _) = pass.final_norm(Stack::Decoder, Side::Beam, x);
    let (weight, scale) = pass.head();
    let (width, vocab) = (d, spec.vocab);
    let logits = pass.activation("logits", rows * vocab);
    pass.tape.push(Op::Logits { hidden, weight, out: logits, width, vocab, scale });
    logits
}

fn step_residual(pass: &mut Pass, x: Id, out: Id, weight: &str) -> Id {
    let (d, inner) = (pass.spec.d_model, pass.spec.inner());
    let y = pass.linear(Side::Beam, out, pass.weight(weight), "residual", inner, d);
    pass.tape.push(Op::Residual { side: Side::Beam, x, y, width: d, drop: None });
    y
}
