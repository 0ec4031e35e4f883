//! The ops: a closed list. Each names its tensors; `touches` and `workspace` are all that the planner needs to know.
//!
//! Letters: R rows (real tokens of one side), D model width, F feed-forward width, I width of all heads, V vocabulary.

mod series;

use crate::place::aligned;
use crate::spec::RopeSpec;
use crate::tape::{Id, Store};
use crate::tiles::{Tiles, matmul_workspace};

pub use series::{Answer, BatchNormed, ConvShape, LSTM_BLOCK, LstmShape, LstmWeights, PoolShape, Running, SeriesOp};

/// Which rows an op runs over; how many there are is known when a batch arrives, the most is in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Source tokens (encoder).
    Source,
    /// Target tokens (decoder).
    Target,
    /// One row per hypothesis (generation).
    Beam,
    /// So many rows of each sample (series).
    Steps(usize),
}

/// A place where dropout happens, and how much. The number is part of the generator's key, so it is the same in a
/// recomputed block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Key of the place.
    pub key: u32,
    /// Probability of dropping an element.
    pub rate: f32,
}

/// How a gradient is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrites.
    Set,
    /// Overwrites in the first micro-batch of an update, adds in the others.
    SetFirst,
    /// Adds.
    Add,
}

/// Columns of a row-major tensor: `start .. start + width` of rows that are `stride` long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cols {
    /// The tensor.
    pub id: Id,
    /// First column.
    pub start: usize,
    /// Length of a row.
    pub stride: usize,
}

/// The fixed part of an attention op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Rows of the queries.
    pub queries: Side,
    /// Rows of the keys and values.
    pub keys: Side,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; divides `heads`. Query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub d_kv: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// A query sees no later key.
    pub causal: bool,
    /// With `causal`: a query sees at most this many keys, the last ones, itself included.
    pub window: Option<usize>,
    /// Most queries of a sample.
    pub max_queries: usize,
    /// Most keys of a sample.
    pub max_keys: usize,
}

/// Keys that attention works on at a time: packed keys and values and a tile of scores of this many stay in a core's
/// second-level cache, whatever the context.
const KEY_BLOCK: usize = 512;

impl AttentionShape {
    /// Keys worked on at a time.
    pub fn key_block(&self) -> usize {
        self.max_keys.min(KEY_BLOCK)
    }

    /// Query rows worked on at a time: the score tile of one task is `tile_rows x key_block`, never queries x keys.
    pub fn tile_rows(&self) -> usize {
        64.min(self.max_queries.max(1))
    }

    /// Query heads that read one head of keys and values.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Distances between a query and a key, counted from the most negative.
    pub fn span(&self) -> usize {
        self.max_queries + self.max_keys - 1
    }

    /// Words of scratch of one forward task: a block of packed keys and values, one tile of scores.
    pub fn forward_words(&self, tiles: &Tiles) -> usize {
        let (keys, d) = (self.key_block(), self.d_kv);
        tiles.packed_words(keys, d) + tiles.packed_words(d, keys) + aligned(self.tile_rows() * keys)
    }

    /// Words of scratch of one backward task: a block of keys packed both ways, of values, the tile's queries and output
    /// gradients, three tiles of scores, one block of packed rows, one number a row.
    pub fn backward_words(&self, tiles: &Tiles) -> usize {
        let (keys, d, tile) = (self.key_block(), self.d_kv, self.tile_rows());
        2 * tiles.packed_words(keys, d)
            + tiles.packed_words(d, keys)
            + 2 * tiles.packed_words(d, tile)
            + 3 * aligned(tile * keys)
            + aligned(tiles.row_block_words(tile))
            + aligned(tile)
    }
}

/// A gradient to write, where there is one: frozen weights have none.
pub type Gradient = Option<(Id, Write)>;

/// One op. Gradients are sums over tokens; the update divides.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are tensors named by what they hold
pub enum Op {
    /// Those that follow run over part `nth` of the batch.
    Part { nth: usize },
    /// `out[R, D] = drop(table[ids] + positions[at])`; target ids are the labels shifted right.
    Embed { side: Side, table: Id, positions: Option<Id>, out: Id, width: usize, drop: Option<Place> },
    /// Adds `drop(grad)` to the rows of `table_grad`: by token, except for `skip`, or by position.
    EmbedBackward {
        side: Side,
        grad: Id,
        table_grad: Id,
        width: usize,
        drop: Option<Place>,
        by_position: bool,
        skip: Option<u32>,
    },
    /// RMS norm: `stats = 1 / rms(x)`, `out = drop(x * stats * weight)`. With a bias layer norm: `stats` has mean and
    /// inverse deviation, `out = drop((x - mean) * inverse * weight + bias)`.
    Norm {
        side: Side,
        x: Id,
        weight: Id,
        bias: Option<Id>,
        stats: Id,
        out: Id,
        width: usize,
        eps: f32,
        drop: Option<Place>,
    },
    /// `out` again from `stats`, bit-equal to what `Norm` wrote.
    NormApply { side: Side, x: Id, weight: Id, bias: Option<Id>, stats: Id, out: Id, width: usize, drop: Option<Place> },
    /// `dx (+)= norm'(dy)`, and the gradients of weight and bias.
    NormBackward {
        side: Side,
        dy: Id,
        x: Id,
        weight: Id,
        bias: Option<Id>,
        stats: Id,
        dx: Id,
        add: bool,
        weight_grad: Gradient,
        bias_grad: Gradient,
        width: usize,
    },
    /// RMS norm of each head's columns.
    HeadNorm { side: Side, x: Cols, weight: Id, rstd: Id, out: Cols, heads: usize, width: usize, eps: f32 },
    /// `dx = norm'(dy)` of each head's columns; `dx` may be `dy`.
    HeadNormBackward {
        side: Side,
        dy: Cols,
        x: Cols,
        weight: Id,
        rstd: Id,
        dx: Cols,
        weight_grad: Gradient,
        heads: usize,
        width: usize,
    },
    /// `out[len, width]`: cosines, then sines, of each position's angles.
    RopeTable { out: Id, rope: RopeSpec, width: usize, len: usize },
    /// Turns each head's columns by its row's angles, in place; `back` by minus them.
    Rope { side: Side, x: Cols, table: Id, heads: usize, width: usize, back: bool },
    /// `out (+)= scale * x[R, inputs] weight^T + bias`; the weight is `[outputs, inputs]`, or `[inputs, outputs]`.
    Linear {
        side: Side,
        x: Id,
        weight: Id,
        bias: Option<Id>,
        out: Cols,
        add: bool,
        scale: f32,
        inputs: usize,
        outputs: usize,
        in_out: bool,
    },
    /// `dx[R, inputs] (+)= scale * dy[R, outputs] weight`.
    LinearInput {
        side: Side,
        dy: Cols,
        weight: Id,
        dx: Id,
        add: bool,
        scale: f32,
        inputs: usize,
        outputs: usize,
        in_out: bool,
    },
    /// `grad (+)= scale * dy^T x`, in the weight's own layout.
    LinearWeight {
        side: Side,
        dy: Cols,
        x: Id,
        grad: Id,
        write: Write,
        scale: f32,
        inputs: usize,
        outputs: usize,
        in_out: bool,
    },
    /// `grad (+)= sum of dy over rows`: a bias.
    ColumnSum { side: Side, dy: Cols, grad: Id, write: Write, width: usize },
    /// `y = x + drop(y)`, in place.
    Residual { side: Side, x: Id, y: Id, width: usize, drop: Option<Place> },
    /// `out = drop(g)`.
    Drop { side: Side, g: Id, out: Id, width: usize, drop: Place },
    /// `to = from`, some columns.
    Copy { side: Side, from: Cols, to: Cols, width: usize },
    /// `h = drop(relu(h))`, in place.
    Relu { side: Side, h: Id, width: usize, drop: Option<Place> },
    /// `dh *= relu'(h) * drop'`, in place; `h` as `Relu` left it says both.
    ReluBackward { side: Side, dh: Id, h: Id, width: usize, drop: Option<Place> },
    /// `out = gelu(h)`.
    Gelu { side: Side, h: Id, out: Id, width: usize },
    /// `dh *= gelu'(h)`, in place.
    GeluBackward { side: Side, dh: Id, h: Id, width: usize },
    /// `out = drop(gelu(ab[:, :F]) * ab[:, F:])`.
    GatedGelu { side: Side, ab: Id, out: Id, width: usize, drop: Option<Place> },
    /// `dab` from `dh`.
    GatedGeluBackward { side: Side, dh: Id, ab: Id, dab: Id, width: usize, drop: Option<Place> },
    /// `out = silu(ab[:, :F]) * ab[:, F:]`.
    GatedSilu { side: Side, ab: Id, out: Id, width: usize },
    /// In place: `ab` becomes its gradient, and `dh`, the gradient of what it gates, becomes that.
    GatedSiluBackward { side: Side, dh: Id, ab: Id, width: usize },
    /// `delta[heads, span]`: the bias by distance, from the bucket table.
    BiasExpand { table: Id, delta: Id, shape: AttentionShape, buckets: BiasBuckets },
    /// `table_grad` from the gradient by distance.
    BiasCollect { ddelta: Id, table_grad: Id, write: Write, shape: AttentionShape, buckets: BiasBuckets },
    /// Softmax attention; keeps the log-sum-exp of each row, never the matrix of scores.
    Attention {
        shape: AttentionShape,
        q: Cols,
        k: Cols,
        v: Cols,
        bias: Option<Id>,
        out: Id,
        lse: Id,
        drop: Option<Place>,
    },
    /// Gradients of q, k, v and, added, of the bias by distance.
    AttentionBackward {
        shape: AttentionShape,
        q: Cols,
        k: Cols,
        v: Cols,
        bias: Option<Id>,
        out: Id,
        lse: Id,
        dout: Id,
        dq: Cols,
        dk: Cols,
        dv: Cols,
        dbias: Option<Id>,
        drop: Option<Place>,
    },
    /// Cross entropy over the vocabulary, `chunk` rows at a time, with the gradients of its input and of the head.
    Loss {
        hidden: Id,
        weight: Id,
        losses: Id,
        dhidden: Id,
        grad: Gradient,
        logits: Id,
        chunk: usize,
        width: usize,
        vocab: usize,
        scale: f32,
    },
    /// Cross entropy alone.
    LossOnly { hidden: Id, weight: Id, losses: Id, logits: Id, chunk: usize, width: usize, vocab: usize, scale: f32 },
    /// Does nothing: the tensors live until here at least.
    Hold { tensors: Vec<Id> },
    /// Zeroes a tensor, in the first micro-batch of an update or always.
    Zero { tensor: Id, write: Write },
    /// Adds the squares of complete gradients to the norm; one that is not finite ends the tape.
    GradientNorm { gradients: Vec<Id> },
    /// The norm is complete: from here on gradients are clipped by it.
    Clip,
    /// The optimizer's update of one parameter.
    Update { param: usize, weight: Id, grad: Id, state: Vec<Id> },
    /// Writes this step's keys and values behind the earlier ones of each hypothesis.
    CacheAppend { kv: Cols, cache: Id, start: usize, width: usize, stride: usize, max_len: usize },
    /// Attention of one row per hypothesis over its cached keys and values.
    AttentionStep { shape: AttentionShape, q: Cols, cache: Id, bias: Id, out: Id },
    /// Attention of one row per hypothesis over its prompt's keys and values, then over its cached ones.
    DecodeStep { shape: AttentionShape, q: Cols, prompt: Cols, cache: Id, out: Id },
    /// Attention of one row per hypothesis over the encoder's keys and values.
    CrossStep { shape: AttentionShape, q: Cols, kv: Cols, out: Id },
    /// `out[R, V] = scale * hidden weight^T`.
    Logits { hidden: Id, weight: Id, out: Id, width: usize, vocab: usize, scale: f32 },
    /// An op over samples of equal length.
    Series(SeriesOp),
}

/// The buckets of T5's position bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasBuckets {
    /// How many.
    pub count: usize,
    /// Distance from which all positions share the last one.
    pub max_distance: usize,
}

/// Rows of each side that a tape is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxRows {
    /// Source tokens.
    pub source: usize,
    /// Target tokens.
    pub target: usize,
    /// Hypotheses.
    pub beam: usize,
    /// Samples.
    pub samples: usize,
}

impl MaxRows {
    /// The most rows of a side.
    pub fn of(&self, side: Side) -> usize {
        match side {
            Side::Source => self.source,
            Side::Target => self.target,
            Side::Beam => self.beam,
            Side::Steps(steps) => self.samples * steps,
        }
    }
}

/// Row chunks that reductions over rows are cut into, whatever the thread count: sums come out the same.
pub const REDUCE_CHUNKS: usize = 16;
/// Elements of a parameter that one partial sum of squares covers.
pub const NORM_CHUNK: usize = 1 << 16;

impl Op {
    /// Calls `f` with every tensor that the op reads or writes.
    pub fn touches(&self, f: &mut impl FnMut(Id)) {
        self.reads(f);
        self.writes(f);
    }

    /// Calls `f` with every tensor whose numbers the op takes: those that it adds to as well.
    pub fn reads(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            Op::Embed { table, positions, .. } => {
                all(&[*table]);
                positions.iter().for_each(|id| f(*id));
            }
            Op::EmbedBackward { grad, table_grad, .. } => all(&[*grad, *table_grad]),
            Op::Norm { x, weight, bias, .. } => {
                all(&[*x, *weight]);
                bias.iter().for_each(|id| f(*id));
            }
            Op::NormApply { x, weight, bias, stats, .. } => {
                all(&[*x, *weight, *stats]);
                bias.iter().for_each(|id| f(*id));
            }
            Op::NormBackward { dy, x, weight, stats, dx, add, weight_grad, bias_grad, .. } => {
                all(&[*dy, *x, *weight, *stats]);
                add.then_some(*dx).into_iter().chain(summed(weight_grad)).chain(summed(bias_grad)).for_each(f);
            }
            Op::HeadNorm { x, weight, .. } => all(&[x.id, *weight]),
            Op::HeadNormBackward { dy, x, weight, rstd, weight_grad, .. } => {
                all(&[dy.id, x.id, *weight, *rstd]);
                summed(weight_grad).into_iter().for_each(f);
            }
            Op::RopeTable { .. } | Op::Part { .. } | Op::Clip | Op::Zero { .. } => {}
            Op::Rope { x, table, .. } => all(&[x.id, *table]),
            Op::Linear { x, weight, bias, out, add, .. } => {
                all(&[*x, *weight]);
                bias.iter().copied().chain(add.then_some(out.id)).for_each(f);
            }
            Op::LinearInput { dy, weight, dx, add, .. } => {
                all(&[dy.id, *weight]);
                add.then_some(*dx).into_iter().for_each(f);
            }
            Op::LinearWeight { dy, x, grad, write, .. } => {
                all(&[dy.id, *x]);
                summed(&Some((*grad, *write))).into_iter().for_each(f);
            }
            Op::ColumnSum { dy, grad, write, .. } => {
                all(&[dy.id]);
                summed(&Some((*grad, *write))).into_iter().for_each(f);
            }
            Op::Residual { x, y, .. } => all(&[*x, *y]),
            Op::Drop { g, .. } => all(&[*g]),
            Op::Copy { from, .. } => all(&[from.id]),
            Op::Relu { h, .. } | Op::Gelu { h, .. } => all(&[*h]),
            Op::ReluBackward { dh, h, .. } | Op::GeluBackward { dh, h, .. } => all(&[*dh, *h]),
            Op::GatedGelu { ab, .. } | Op::GatedSilu { ab, .. } => all(&[*ab]),
            Op::GatedGeluBackward { dh, ab, .. } | Op::GatedSiluBackward { dh, ab, .. } => all(&[*dh, *ab]),
            Op::BiasExpand { table, .. } => all(&[*table]),
            Op::BiasCollect { ddelta, table_grad, write, .. } => {
                all(&[*ddelta]);
                summed(&Some((*table_grad, *write))).into_iter().for_each(f);
            }
            Op::Attention { q, k, v, bias, .. } => {
                all(&[q.id, k.id, v.id]);
                bias.iter().for_each(|id| f(*id));
            }
            Op::AttentionBackward { q, k, v, bias, out, lse, dout, dbias, .. } => {
                all(&[q.id, k.id, v.id, *out, *lse, *dout]);
                bias.iter().chain(dbias).for_each(|id| f(*id));
            }
            Op::Loss { hidden, weight, grad, .. } => {
                all(&[*hidden, *weight]);
                summed(grad).into_iter().for_each(f);
            }
            Op::LossOnly { hidden, weight, .. } | Op::Logits { hidden, weight, .. } => all(&[*hidden, *weight]),
            Op::GradientNorm { gradients: tensors } | Op::Hold { tensors } => all(tensors),
            Op::Update { weight, grad, state, .. } => {
                all(&[*weight, *grad]);
                all(state);
            }
            Op::CacheAppend { kv, cache, .. } => all(&[kv.id, *cache]),
            Op::AttentionStep { q, cache, bias, .. } => all(&[q.id, *cache, *bias]),
            Op::DecodeStep { q, prompt, cache, .. } => all(&[q.id, prompt.id, *cache]),
            Op::CrossStep { q, kv, .. } => all(&[q.id, kv.id]),
            Op::Series(op) => op.reads(f),
        }
    }

    /// Calls `f` with every tensor that the op changes.
    pub fn writes(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            Op::Embed { out, .. }
            | Op::NormApply { out, .. }
            | Op::RopeTable { out, .. }
            | Op::Drop { out, .. }
            | Op::Gelu { out, .. }
            | Op::GatedGelu { out, .. }
            | Op::GatedSilu { out, .. }
            | Op::AttentionStep { out, .. }
            | Op::DecodeStep { out, .. }
            | Op::CrossStep { out, .. }
            | Op::Logits { out, .. } => all(&[*out]),
            Op::EmbedBackward { table_grad, .. } => all(&[*table_grad]),
            Op::Norm { stats, out, .. } => all(&[*stats, *out]),
            Op::NormBackward { dx, weight_grad, bias_grad, .. } => {
                [Some(*dx), weight_grad.map(|g| g.0), bias_grad.map(|g| g.0)].into_iter().flatten().for_each(f);
            }
            Op::HeadNorm { rstd, out, .. } => all(&[*rstd, out.id]),
            Op::HeadNormBackward { dx, weight_grad, .. } => {
                [Some(dx.id), weight_grad.map(|g| g.0)].into_iter().flatten().for_each(f);
            }
            Op::Rope { x, .. } => all(&[x.id]),
            Op::Linear { out, .. } | Op::Copy { to: out, .. } => all(&[out.id]),
            Op::LinearInput { dx, .. } => all(&[*dx]),
            Op::LinearWeight { grad, .. } | Op::ColumnSum { grad, .. } => all(&[*grad]),
            Op::Residual { y, .. } => all(&[*y]),
            Op::Relu { h, .. } => all(&[*h]),
            Op::ReluBackward { dh, .. } | Op::GeluBackward { dh, .. } => all(&[*dh]),
            Op::GatedGeluBackward { dab, .. } => all(&[*dab]),
            Op::GatedSiluBackward { dh, ab, .. } => all(&[*dh, *ab]),
            Op::BiasExpand { delta, .. } => all(&[*delta]),
            Op::BiasCollect { table_grad, .. } => all(&[*table_grad]),
            Op::Attention { out, lse, .. } => all(&[*out, *lse]),
            Op::AttentionBackward { dq, dk, dv, dbias, .. } => {
                all(&[dq.id, dk.id, dv.id]);
                dbias.iter().for_each(|id| f(*id));
            }
            Op::Loss { losses, dhidden, grad, logits, .. } => {
                all(&[*losses, *dhidden, *logits]);
                grad.iter().for_each(|(id, _)| f(*id));
            }
            Op::LossOnly { losses, logits, .. } => all(&[*losses, *logits]),
            Op::Zero { tensor, .. } => all(&[*tensor]),
            Op::Update { weight, state, .. } => {
                all(&[*weight]);
                all(state);
            }
            Op::CacheAppend { cache, .. } => all(&[*cache]),
            Op::Series(op) => op.writes(f),
            Op::GradientNorm { .. } | Op::Hold { .. } | Op::Part { .. } | Op::Clip => {}
        }
    }

    /// Calls `f` with every tensor that is f32 whatever the form of activations: statistics, sums, tables, gradients of
    /// weights.
    pub fn always_f32(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            Op::Norm { stats, .. } | Op::NormApply { stats, .. } => all(&[*stats]),
            Op::NormBackward { stats, weight_grad, bias_grad, .. } => {
                all(&[*stats]);
                weight_grad.iter().chain(bias_grad).for_each(|(id, _)| f(*id));
            }
            Op::HeadNorm { rstd, .. } => all(&[*rstd]),
            Op::HeadNormBackward { rstd, weight_grad, .. } => {
                all(&[*rstd]);
                weight_grad.iter().for_each(|(id, _)| f(*id));
            }
            Op::RopeTable { out, .. } => all(&[*out]),
            Op::Rope { table, .. } => all(&[*table]),
            Op::EmbedBackward { table_grad, .. } | Op::BiasCollect { table_grad, .. } => all(&[*table_grad]),
            Op::BiasExpand { delta, .. } => all(&[*delta]),
            Op::LinearWeight { grad, .. } | Op::ColumnSum { grad, .. } => all(&[*grad]),
            Op::Attention { bias, lse, .. } => {
                all(&[*lse]);
                bias.iter().for_each(|id| f(*id));
            }
            Op::AttentionBackward { bias, lse, dbias, .. } => {
                all(&[*lse]);
                bias.iter().chain(dbias).for_each(|id| f(*id));
            }
            Op::Loss { losses, grad, .. } => {
                all(&[*losses]);
                grad.iter().for_each(|(id, _)| f(*id));
            }
            Op::LossOnly { losses, .. } => all(&[*losses]),
            Op::GradientNorm { gradients } => all(gradients),
            Op::Update { grad, state, .. } => {
                all(&[*grad]);
                all(state);
            }
            Op::Series(op) => op.always_f32(f),
            _ => {}
        }
    }

    /// What it does is wanted even if no later op reads what it writes.
    pub fn is_deed(&self) -> bool {
        matches!(
            self,
            Op::Part { .. }
                | Op::Clip
                | Op::Loss { .. }
                | Op::LossOnly { .. }
                | Op::Logits { .. }
                | Op::GradientNorm { .. }
                | Op::Update { .. }
                | Op::Hold { .. }
                | Op::CacheAppend { .. }
        ) || matches!(self, Op::Series(op) if op.is_deed())
    }

    /// Words of scratch that the op needs while it runs, on `threads` threads. The engine asserts the same formula.
    pub fn workspace(&self, rows: &MaxRows, tiles: &Tiles, threads: usize, facts: &Store) -> usize {
        let space = |n: usize, k: usize| matmul_workspace(tiles, threads, n, k);
        match self {
            Op::Linear { inputs, outputs, .. } => space(*outputs, *inputs),
            Op::LinearInput { inputs, outputs, .. } => space(*inputs, *outputs),
            Op::LinearWeight { side, inputs, outputs, in_out, .. } => {
                space(if *in_out { *outputs } else { *inputs }, rows.of(*side))
            }
            Op::Logits { width, vocab, .. } => space(*vocab, *width),
            Op::LossOnly { width, vocab, .. } => space(*vocab, *width),
            Op::Loss { width, vocab, chunk, .. } => {
                space(*vocab, *width).max(space(*width, *vocab)).max(space(*width, *chunk))
            }
            Op::NormBackward { width, bias, .. } => REDUCE_CHUNKS * width * (1 + usize::from(bias.is_some())),
            Op::HeadNormBackward { width, .. } | Op::ColumnSum { width, .. } => REDUCE_CHUNKS * width,
            Op::Attention { shape, .. } => threads * shape.forward_words(tiles),
            Op::AttentionBackward { shape, dbias, .. } => {
                let samples = rows.of(shape.queries) / shape.max_queries;
                let partial = if dbias.is_some() { samples * shape.heads * shape.span() } else { 0 };
                threads * shape.backward_words(tiles) + partial
            }
            Op::AttentionStep { shape, .. } | Op::CrossStep { shape, .. } | Op::DecodeStep { shape, .. } => {
                threads * shape.max_keys
            }
            Op::Update { param, .. } => {
                let shape = facts.param(*param);
                // Row factors, column factors, and the column sums of each chunk.
                aligned(shape.rows) + aligned(shape.cols) + REDUCE_CHUNKS * shape.cols
            }
            Op::Series(op) => op.workspace(rows, tiles, threads),
            Op::Part { .. }
            | Op::Clip
            | Op::Embed { .. }
            | Op::GradientNorm { .. }
            | Op::EmbedBackward { .. }
            | Op::Norm { .. }
            | Op::NormApply { .. }
            | Op::HeadNorm { .. }
            | Op::RopeTable { .. }
            | Op::Rope { .. }
            | Op::Residual { .. }
            | Op::Drop { .. }
            | Op::Copy { .. }
            | Op::Relu { .. }
            | Op::ReluBackward { .. }
            | Op::Gelu { .. }
            | Op::GeluBackward { .. }
            | Op::GatedGelu { .. }
            | Op::GatedGeluBackward { .. }
            | Op::GatedSilu { .. }
            | Op::GatedSiluBackward { .. }
            | Op::BiasExpand { .. }
            | Op::BiasCollect { .. }
            | Op::Hold { .. }
            | Op::Zero { .. }
            | Op::CacheAppend { .. } => 0,
        }
    }
}

/// A gradient that is added to.
fn summed(gradient: &Gradient) -> Option<Id> {
    gradient.filter(|(_, write)| *write != Write::Set).map(|(id, _)| id)
}

/// A parameter as the optimizers see it: a matrix, or one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamShape {
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}
