//! What a tape costs in time, from its own ops and the machine's measured rates.
//!
//! Two terms: multiply-adds of the matrix products at the measured rate, less what packing takes from thin products, and
//! bytes moved by everything else at the measured bandwidth. It ranks plans; it does not promise seconds.

use serde::{Deserialize, Serialize};

use crate::op::{MaxRows, Op, Write};
use crate::tape::{Id, Store};

/// The machine's measured rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations a second of large matrix products, all threads together.
    pub flops: f64,
    /// Bytes a second moved to and from memory, all threads together.
    pub bandwidth: f64,
}

/// A measured rate to the nearest half octave, so that noise does not change a plan.
pub fn half_octave(rate: f64) -> f64 {
    ((rate.log2() * 2.0).round() / 2.0).exp2()
}

/// Rows at which packing takes half of a product's speed. `cargo bench -p plimsoll-engine --bench matmul` on 2 cores with
/// AVX-512 (2026-11-15): products of 256 rows reach 171 (forward) and 176 (input) GFLOP/s where 1024 rows reach 209 and
/// 215: 1.22 times slower, which is about `1 + 60 / 256`.
const HALF_SPEED_ROWS: f64 = 60.0;

/// Work of one op: floating-point operations (with the rows that packing is spread over), bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: f64,
    /// Of those, weighted by how much packing slows the product.
    pub weighted_flops: f64,
    /// Bytes.
    pub bytes: f64,
}

impl Work {
    fn product(rows: usize, n: usize, k: usize, bytes: f64) -> Work {
        let flops = 2.0 * rows as f64 * n as f64 * k as f64;
        Work { flops, weighted_flops: flops * (1.0 + HALF_SPEED_ROWS / rows.max(1) as f64), bytes }
    }

    fn bytes(bytes: f64) -> Work {
        Work { bytes, ..Work::default() }
    }

    /// Adds another op's work.
    pub fn add(&mut self, other: Work) {
        self.flops += other.flops;
        self.weighted_flops += other.weighted_flops;
        self.bytes += other.bytes;
    }

    /// The same work `n` times.
    pub fn times(self, n: f64) -> Work {
        Work { flops: self.flops * n, weighted_flops: self.weighted_flops * n, bytes: self.bytes * n }
    }

    /// Seconds at the machine's rates.
    pub fn seconds(&self, rates: &Rates) -> f64 {
        self.weighted_flops / rates.flops + self.bytes / rates.bandwidth
    }
}

/// Work of one op with full batches.
pub(crate) fn op_work(op: &Op, store: &Store, rows: &MaxRows) -> Work {
    let moved = |side, width: usize, passes: usize| Work::bytes((rows.of(side) * width * passes * 4) as f64);
    match op {
        Op::Linear { side, inputs, outputs, .. } => Work::product(rows.of(*side), *outputs, *inputs, 0.0),
        Op::LinearInput { side, inputs, outputs, .. } => Work::product(rows.of(*side), *inputs, *outputs, 0.0),
        Op::LinearWeight { side, inputs, outputs, write, .. } => {
            // A kept gradient is read and written in memory; one that is used at once stays in cache.
            let passes = if *write == Write::Set { 0.0 } else { 2.0 };
            Work::product(*outputs, *inputs, rows.of(*side), passes * 4.0 * (inputs * outputs) as f64)
        }
        Op::Loss { chunk, width, vocab, grad, .. } => {
            let mut total = Work::default();
            let chunks = rows.target.div_ceil(*chunk);
            for _ in 0..chunks {
                total.add(Work::product(*chunk, *vocab, *width, 0.0));
                total.add(Work::product(*chunk, *width, *vocab, 0.0));
                if grad.is_some() {
                    total.add(Work::product(*vocab, *width, *chunk, 2.0 * 4.0 * (vocab * width) as f64));
                }
            }
            total.add(Work::bytes((rows.target * vocab * 4 * 4) as f64));
            total
        }
        Op::LossOnly { chunk, width, vocab, .. } => {
            Work::product(*chunk, *vocab, *width, (rows.target * vocab * 8) as f64)
        }
        Op::Logits { width, vocab, .. } => Work::product(rows.beam, *vocab, *width, 0.0),
        Op::Attention { shape, .. } | Op::AttentionBackward { shape, .. } => {
            let products = if matches!(op, Op::Attention { .. }) { 2 } else { 5 };
            let samples = rows.of(shape.queries) / shape.max_queries.max(1);
            let seen = if shape.causal { (shape.max_keys + 64) / 2 } else { shape.max_keys };
            let seen = seen.min(shape.window.unwrap_or(usize::MAX)).min(shape.max_keys);
            let scores = samples * shape.heads * shape.max_queries * seen;
            let mut total = Work::product(shape.max_queries, products * seen, shape.d_kv, 0.0);
            total.flops *= (samples * shape.heads) as f64;
            total.weighted_flops *= (samples * shape.heads) as f64;
            total.bytes = (scores * 8) as f64;
            total
        }
        Op::Norm { side, width, .. } | Op::NormApply { side, width, .. } | Op::Embed { side, width, .. } => {
            moved(*side, *width, 2)
        }
        Op::Residual { side, width, .. } | Op::NormBackward { side, width, .. } => moved(*side, *width, 4),
        Op::Drop { side, width, .. }
        | Op::Copy { side, width, .. }
        | Op::Gelu { side, width, .. }
        | Op::EmbedBackward { side, width, .. }
        | Op::Relu { side, width, .. } => moved(*side, *width, 2),
        Op::ReluBackward { side, width, .. } | Op::GeluBackward { side, width, .. } => moved(*side, *width, 3),
        Op::GatedGelu { side, width, .. } | Op::GatedSilu { side, width, .. } => moved(*side, *width, 3),
        Op::GatedGeluBackward { side, width, .. } | Op::GatedSiluBackward { side, width, .. } => {
            moved(*side, *width, 5)
        }
        Op::ColumnSum { side, width, .. } => moved(*side, *width, 1),
        Op::HeadNorm { side, heads, width, .. } | Op::Rope { side, heads, width, .. } => moved(*side, heads * width, 2),
        Op::HeadNormBackward { side, heads, width, .. } => moved(*side, heads * width, 4),
        Op::Update { param, state, .. } => {
            let words = store.params[*param].param.elements()
                + state.iter().map(|id| store.tensors[id.0 as usize].words).sum::<usize>();
            Work::bytes((words * 3 * 4) as f64)
        }
        Op::GradientNorm { gradients } => {
            // One that was made on the way is still in the cache, or nearly.
            let words = |id: &Id| store.tensors.get(id.0 as usize).map_or(0, |t| t.words);
            Work::bytes(gradients.iter().map(|id| words(id) * 4).sum::<usize>() as f64)
        }
        Op::Part { .. }
        | Op::Clip
        | Op::RopeTable { .. }
        | Op::DecodeStep { .. }
        | Op::BiasExpand { .. }
        | Op::BiasCollect { .. }
        | Op::Zero { .. }
        | Op::Hold { .. }
        | Op::CacheAppend { .. }
        | Op::AttentionStep { .. }
        | Op::CrossStep { .. } => Work::default(),
    }
}
