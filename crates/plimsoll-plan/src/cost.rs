//! What a tape costs in time, from its own ops and the machine's measured rates.
//!
//! An op's work is counted in a few units, each with a rate of its own: multiply-adds of padded tiles, numbers packed by
//! storage, scores of attention, bytes from memory and from cache, exponentials, random numbers, updates, calls. Seconds
//! are the sum over the units. `plimsoll-engine/src/rates.rs` measures the rates with the engine's own kernels.

mod fit;
mod series;

use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::op::{AttentionShape, Gradient, MaxRows, Op, Write};
use crate::program::{Placed, Program};
use crate::tape::{Id, Store};
use crate::tiles::Tiles;

pub use fit::{fit, with_calls_of};

/// The machine's measured rates: so many a second, all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Floating-point operations of large matrix products, without their packing.
    pub flops: f64,
    /// Bytes to and from memory.
    pub bandwidth: f64,
    /// Bytes to and from the caches.
    pub cache_bandwidth: f64,
    /// Numbers of a product's right side packed, f32.
    pub packed: f64,
    /// The same, bf16 or f16.
    pub packed_half: f64,
    /// The same, int8.
    pub packed_int8: f64,
    /// The same, NF4.
    pub packed_nf4: f64,
    /// Numbers of a product's left side packed.
    pub packed_rows: f64,
    /// Floating-point operations of attention, its softmax included.
    pub attention_flops: f64,
    /// Floating-point operations of the loss, its softmax included.
    pub loss_flops: f64,
    /// Exponentials of activations.
    pub exponentials: f64,
    /// Random numbers of dropout.
    pub drops: f64,
    /// Bytes that an update reads and writes.
    pub update_bandwidth: f64,
    /// Calls: handing out tasks and waiting for the last.
    pub calls: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates::of(200e9, 20e9)
    }
}

impl Rates {
    /// In the order of `Unit`.
    fn each(&self) -> [f64; UNITS] {
        [
            self.flops,
            self.bandwidth,
            self.cache_bandwidth,
            self.packed,
            self.packed_half,
            self.packed_int8,
            self.packed_nf4,
            self.packed_rows,
            self.attention_flops,
            self.loss_flops,
            self.exponentials,
            self.drops,
            self.update_bandwidth,
            self.calls,
        ]
    }

    /// Whether every rate is one that a machine can have.
    pub fn validate(&self) -> bool {
        self.each().iter().all(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// All of them so many times as fast.
    pub fn scaled(&self, times: f64) -> Rates {
        Rates::of_each(self.each().map(|rate| rate * times))
    }

    /// Each to the nearest half octave.
    pub fn rounded(&self) -> Rates {
        Rates::of_each(self.each().map(half_octave))
    }

    fn of_each(each: [f64; UNITS]) -> Rates {
        let [flops, bandwidth, cache_bandwidth, packed, packed_half, packed_int8, packed_nf4, ..] = each;
        let [.., packed_rows, attention_flops, loss_flops, exponentials, drops, update_bandwidth, calls] = each;
        Rates {
            flops,
            bandwidth,
            cache_bandwidth,
            packed,
            packed_half,
            packed_int8,
            packed_nf4,
            packed_rows,
            attention_flops,
            loss_flops,
            exponentials,
            drops,
            update_bandwidth,
            calls,
        }
    }

    /// What a machine with these two rates can be expected to have besides: the ratios of the machine that they were first
    /// measured on (2 cores, AVX-512).
    pub fn of(flops: f64, bandwidth: f64) -> Rates {
        Rates {
            flops,
            bandwidth,
            cache_bandwidth: bandwidth * 3.0,
            packed: flops / 100.0,
            packed_half: flops / 120.0,
            packed_int8: flops / 160.0,
            packed_nf4: flops / 250.0,
            packed_rows: flops / 120.0,
            attention_flops: flops * 0.6,
            loss_flops: flops * 0.75,
            exponentials: flops / 150.0,
            drops: flops / 150.0,
            update_bandwidth: bandwidth,
            calls: 2e5,
        }
    }
}

/// A measured rate to the nearest half octave, so that noise does not change a plan.
pub fn half_octave(rate: f64) -> f64 {
    ((rate.log2() * 2.0).round() / 2.0).exp2()
}

/// Bytes that an op may touch and find again in the caches.
const CACHED: usize = 4 << 20;

/// What work is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Products,
    Memory,
    Cache,
    Packed,
    PackedHalf,
    PackedInt8,
    PackedNf4,
    PackedRows,
    Attention,
    Losses,
    Exponentials,
    Drops,
    Updates,
    Calls,
}

const UNITS: usize = 14;

/// Work of one op or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations that the result asks for.
    pub flops: f64,
    units: [f64; UNITS],
}

impl Add for Work {
    type Output = Work;
    fn add(mut self, other: Work) -> Work {
        self += other;
        self
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.flops += other.flops;
        self.units.iter_mut().zip(other.units).for_each(|(a, b)| *a += b);
    }
}

impl Sub for Work {
    type Output = Work;
    fn sub(self, other: Work) -> Work {
        self + other * -1.0
    }
}

impl Mul<f64> for Work {
    type Output = Work;
    fn mul(self, n: f64) -> Work {
        Work { flops: self.flops * n, units: self.units.map(|u| u * n) }
    }
}

impl Work {
    fn with(mut self, unit: Unit, amount: f64) -> Work {
        self.units[unit as usize] += amount;
        self
    }

    fn call() -> Work {
        Work::default().with(Unit::Calls, 1.0)
    }

    /// Bytes of an op that touches so many in all.
    fn moved(self, bytes: usize) -> Work {
        self.with(if bytes <= CACHED { Unit::Cache } else { Unit::Memory }, bytes as f64)
    }

    /// The same work in so many times as long.
    fn slower(self, times: f64) -> Work {
        Work { flops: self.flops, ..self * times }
    }

    /// Seconds at the machine's rates.
    pub fn seconds(&self, rates: &Rates) -> f64 {
        self.units.iter().zip(rates.each()).map(|(units, rate)| units / rate).sum()
    }
}

/// Work of each op of a tape of a program, with full batches.
pub fn tape_work(program: &Program, placed: &Placed) -> Vec<Work> {
    let scale =
        Scale { store: &program.store, rows: placed.rows, tiles: Tiles::of(program.simd), threads: program.threads };
    placed.tape.ops.iter().map(|op| scale.work(op)).collect()
}

/// What ops are weighed by.
#[derive(Clone, Copy)]
pub(crate) struct Scale<'a> {
    pub store: &'a Store,
    pub rows: MaxRows,
    pub tiles: Tiles,
    /// Threads that the rates are of.
    pub threads: usize,
}

/// Sides of a product: how each is read.
#[derive(Clone, Copy)]
struct Sides {
    right: Dtype,
    left_packed: bool,
}

const PLAIN: Sides = Sides { right: Dtype::F32, left_packed: false };

impl Scale<'_> {
    /// A product of `m` rows, `n` columns and depth `k`.
    fn product(&self, (m, n, k): (usize, usize, usize), sides: Sides) -> Work {
        let Tiles { mr, nr, nc, kc, .. } = self.tiles;
        let (wide, high) = (n.next_multiple_of(mr), m.next_multiple_of(nr));
        let (blocks, depths) = (n.div_ceil(nc), k.div_ceil(kc));
        let packed = match sides.right {
            Dtype::F32 => Unit::Packed,
            Dtype::Bf16 | Dtype::F16 => Unit::PackedHalf,
            Dtype::Int8 => Unit::PackedInt8,
            Dtype::Nf4 => Unit::PackedNf4,
        };
        let waits = 2 * blocks * k.div_ceil(kc * self.tiles.depths(n, k));
        let mut work = Work { flops: 2.0 * (m * n) as f64 * k as f64, ..Work::default() }
            .with(Unit::Products, 2.0 * (wide * high) as f64 * k as f64)
            .with(packed, (wide * k) as f64)
            .with(Unit::Cache, (8 * m * n * depths) as f64)
            .with(Unit::Calls, waits as f64);
        if sides.left_packed {
            work = work.with(Unit::PackedRows, (m * k * blocks) as f64);
        }
        // What does not stay in the caches between two ops comes from memory.
        let bytes = 4 * (m * k + m * n) + self.tiles_bytes(n * k, sides.right);
        if bytes > CACHED { work.with(Unit::Memory, bytes as f64) } else { work }
    }

    fn tiles_bytes(&self, elements: usize, dtype: Dtype) -> usize {
        match dtype {
            Dtype::F32 => 4 * elements,
            Dtype::Bf16 | Dtype::F16 => 2 * elements,
            Dtype::Int8 => elements,
            Dtype::Nf4 => elements / 2,
        }
    }

    fn gradient(&self, (m, n, k): (usize, usize, usize), write: Write) -> Work {
        let product = self.product((m, n, k), Sides { left_packed: true, ..PLAIN });
        // A sum is read before it is written.
        if write == Write::Set { product } else { product.moved(4 * m * n) }
    }

    fn loss(&self, weight: Id, grad: &Gradient, backward: bool, (chunk, width, vocab): (usize, usize, usize)) -> Work {
        let (rows, chunk) = (self.rows.target, chunk.max(1));
        let sides = Sides { right: self.store.dtype(weight), ..PLAIN };
        let of = |m: usize, write: Option<Write>| {
            let mut work = self.product((m, vocab, width), sides);
            if backward {
                work += self.product((m, width, vocab), sides);
            }
            work += write.map_or(Work::default(), |write| self.gradient((vocab, width, m), write));
            work + Work::call().moved(4 * m * vocab * if backward { 3 } else { 2 })
        };
        // The chunks behind the first add to the gradient; the last may be shorter.
        let (first, later) = (grad.map(|(_, write)| write), grad.map(|_| Write::Add));
        let mut total = of(chunk.min(rows), first);
        if rows > chunk {
            total += of(chunk, later) * (rows / chunk - 1) as f64;
            total += if rows % chunk > 0 { of(rows % chunk, later) } else { Work::default() };
        }
        // Its products are short of rows and between passes over the logits: they have a rate of their own.
        let products = std::mem::take(&mut total.units[Unit::Products as usize]);
        total.with(Unit::Losses, products)
    }

    fn attention(&self, shape: &AttentionShape, products: usize, dropped: bool) -> Work {
        let samples = self.rows.of(shape.queries) / shape.max_queries.max(1);
        // A query sees half of the keys before its tile's end, or its window.
        let seen = if shape.causal { (shape.max_keys + shape.tile_rows()) / 2 } else { shape.max_keys };
        let seen = seen.min(shape.window.map_or(usize::MAX, |w| w + shape.tile_rows())).min(shape.max_keys);
        let scores = (samples * shape.heads * shape.max_queries) as f64 * seen as f64;
        let flops = 2.0 * products as f64 * scores * shape.d_kv as f64;
        // Every tile of queries packs keys and values, and in the backward pass queries and gradients too.
        let packed = (samples * shape.heads * (shape.max_keys + shape.max_queries) * shape.d_kv * products) as f64;
        let drops = if dropped { scores } else { 0.0 };
        Work { flops, ..Work::call() }
            .with(Unit::Attention, flops)
            .with(Unit::Packed, packed / 2.0)
            .with(Unit::Drops, drops)
    }

    /// Work of one op with full batches.
    pub fn work(&self, op: &Op) -> Work {
        let words = |side, width: usize| self.rows.of(side) * width;
        let moved = |side, width: usize, passes: usize| Work::call().moved(4 * words(side, width) * passes);
        let drawn = |work: Work, drop: bool, side, width| match drop {
            true => work.with(Unit::Drops, words(side, width) as f64),
            false => work,
        };
        // GELU is a tanh, and its slope takes several times as long: 1.9 and 6.5 times silu's measured 3.6 ns.
        let exponential =
            |work: Work, side, width, each: f64| work.with(Unit::Exponentials, words(side, width) as f64 * each);
        let stored = |weight: Id| Sides { right: self.store.dtype(weight), ..PLAIN };
        match op {
            Op::Linear { side, weight, inputs, outputs, .. } => {
                self.product((self.rows.of(*side), *outputs, *inputs), stored(*weight))
            }
            Op::LinearInput { side, weight, inputs, outputs, .. } => {
                self.product((self.rows.of(*side), *inputs, *outputs), stored(*weight))
            }
            Op::LinearWeight { side, inputs, outputs, write, in_out, .. } => {
                let (m, n) = if *in_out { (*inputs, *outputs) } else { (*outputs, *inputs) };
                self.gradient((m, n, self.rows.of(*side)), *write)
            }
            Op::Loss { weight, grad, chunk, width, vocab, .. } => {
                self.loss(*weight, grad, true, (*chunk, *width, *vocab))
            }
            Op::LossOnly { weight, chunk, width, vocab, .. } => {
                self.loss(*weight, &None, false, (*chunk, *width, *vocab))
            }
            Op::Logits { weight, width, vocab, .. } => self.product((self.rows.beam, *vocab, *width), stored(*weight)),
            Op::Attention { shape, drop, .. } => self.attention(shape, 2, drop.is_some()),
            Op::AttentionBackward { shape, drop, .. } => self.attention(shape, 5, drop.is_some()),
            Op::Norm { side, width, drop, .. } | Op::NormApply { side, width, drop, .. } => {
                drawn(moved(*side, *width, 2), drop.is_some(), *side, *width)
            }
            Op::Embed { side, width, drop, .. } => drawn(moved(*side, *width, 2), drop.is_some(), *side, *width),
            Op::EmbedBackward { side, width, drop, .. } => {
                drawn(moved(*side, *width, 3), drop.is_some(), *side, *width)
            }
            Op::Residual { side, width, drop, .. } => drawn(moved(*side, *width, 3), drop.is_some(), *side, *width),
            Op::NormBackward { side, width, .. } => moved(*side, *width, 4),
            Op::Drop { side, width, .. } => drawn(moved(*side, *width, 2), true, *side, *width),
            Op::Copy { side, width, .. } | Op::ColumnSum { side, width, .. } => moved(*side, *width, 2),
            Op::Relu { side, width, drop, .. } => drawn(moved(*side, *width, 2), drop.is_some(), *side, *width),
            Op::ReluBackward { side, width, .. } => moved(*side, *width, 3),
            Op::Gelu { side, width, .. } => exponential(moved(*side, *width, 2), *side, *width, 1.9),
            Op::GeluBackward { side, width, .. } => exponential(moved(*side, *width, 3), *side, *width, 6.5),
            Op::GatedSilu { side, width, .. } => exponential(moved(*side, *width, 3), *side, *width, 1.0),
            Op::GatedSiluBackward { side, width, .. } => exponential(moved(*side, *width, 6), *side, *width, 1.5),
            Op::GatedGelu { side, width, drop, .. } => {
                drawn(exponential(moved(*side, *width, 3), *side, *width, 1.9), drop.is_some(), *side, *width)
            }
            Op::GatedGeluBackward { side, width, drop, .. } => {
                drawn(exponential(moved(*side, *width, 5), *side, *width, 6.5), drop.is_some(), *side, *width)
            }
            Op::HeadNorm { side, heads, width, .. } | Op::Rope { side, heads, width, .. } => {
                moved(*side, heads * width, 2)
            }
            Op::HeadNormBackward { side, heads, width, .. } => moved(*side, heads * width, 4),
            Op::Update { param, state, .. } => {
                // Weight and state are read and written, the gradient is read.
                let n = self.store.params[*param].param.elements();
                let state = state.iter().map(|id| self.store.tensors[id.0 as usize].words).sum::<usize>();
                Work::call().with(Unit::Updates, (4 * (3 * n + 2 * state)) as f64)
            }
            Op::GradientNorm { gradients } => {
                // One that was made on the way is still in the cache, or nearly.
                let words = |id: &Id| self.store.tensors.get(id.0 as usize).map_or(0, |t| t.words);
                Work::call().moved(gradients.iter().map(|id| words(id) * 4).sum::<usize>())
            }
            Op::Series(op) => self.series(op),
            Op::BiasExpand { .. } | Op::BiasCollect { .. } | Op::RopeTable { .. } | Op::Zero { .. } => Work::call(),
            Op::Part { .. }
            | Op::Clip
            | Op::DecodeStep { .. }
            | Op::Hold { .. }
            | Op::CacheAppend { .. }
            | Op::AttentionStep { .. }
            | Op::CrossStep { .. } => Work::default(),
        }
    }
}
