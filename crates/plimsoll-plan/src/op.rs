//! The ops: a closed list. Each names its tensors; `touches` and `workspace` are all that the planner needs to know.
//!
//! Letters: R rows (real tokens of one side), D model width, F feed-forward width, I width of all heads, V vocabulary.

use crate::place::aligned;
use crate::tape::Id;
use crate::tiles::{Tiles, matmul_workspace};

/// Which rows an op runs over; how many there are is known when a batch arrives, the most is in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Source tokens (encoder).
    Source,
    /// Target tokens (decoder).
    Target,
    /// One row per hypothesis (generation).
    Beam,
}

/// A place where dropout happens. The number is part of the generator's key, so it is the same in a recomputed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub u32);

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

/// One op. Gradients are sums over tokens; the update divides.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are tensors named by what they hold
pub enum Op {
    /// `out[R, D] = drop(table[ids])`; target ids are the labels shifted right.
    Embed { side: Side, table: Id, out: Id, width: usize, drop: Option<Place> },
    /// Adds `drop(grad)` to the rows of `table_grad`.
    EmbedBackward { side: Side, grad: Id, table_grad: Id, width: usize, drop: Option<Place> },
    /// `rstd = 1 / rms(x)`, `out = drop(x * rstd * weight)`.
    Norm { side: Side, x: Id, weight: Id, rstd: Id, out: Id, width: usize, drop: Option<Place> },
    /// `out = drop(x * rstd * weight)` again, bit-equal to what `Norm` wrote.
    NormApply { side: Side, x: Id, weight: Id, rstd: Id, out: Id, width: usize, drop: Option<Place> },
    /// `dx (+)= norm'(dy)`, `weight_grad (+)= sum dy * x * rstd`.
    NormBackward {
        side: Side,
        dy: Id,
        x: Id,
        weight: Id,
        rstd: Id,
        dx: Id,
        add: bool,
        weight_grad: Id,
        write: Write,
        width: usize,
    },
    /// `out[R, outputs] = x[R, inputs] weight[outputs, inputs]^T`.
    Linear { side: Side, x: Id, weight: Id, out: Id, inputs: usize, outputs: usize },
    /// `dx[R, inputs] (+)= dy[R, outputs] weight`.
    LinearInput { side: Side, dy: Id, weight: Id, dx: Id, add: bool, inputs: usize, outputs: usize },
    /// `grad[outputs, inputs] (+)= dy^T x`.
    LinearWeight { side: Side, dy: Id, x: Id, grad: Id, write: Write, inputs: usize, outputs: usize },
    /// `y = x + drop(y)`, in place.
    Residual { side: Side, x: Id, y: Id, width: usize, drop: Option<Place> },
    /// `out = drop(g)`.
    DropBackward { side: Side, g: Id, out: Id, width: usize, drop: Place },
    /// `h = drop(relu(h))`, in place.
    Relu { side: Side, h: Id, width: usize, drop: Option<Place> },
    /// `dh *= relu'(h) * drop'`, in place; `h` as `Relu` left it says both.
    ReluBackward { side: Side, dh: Id, h: Id, width: usize, drop: Option<Place> },
    /// `out = drop(gelu(ab[:, :F]) * ab[:, F:])`.
    GatedGelu { side: Side, ab: Id, out: Id, width: usize, drop: Option<Place> },
    /// `dab` from `dh`.
    GatedGeluBackward { side: Side, dh: Id, ab: Id, dab: Id, width: usize, drop: Option<Place> },
    /// `delta[heads, span]`: the bias by distance, from the bucket table.
    BiasExpand { table: Id, delta: Id, shape: AttentionShape },
    /// `table_grad` from the gradient by distance.
    BiasCollect { ddelta: Id, table_grad: Id, write: Write, shape: AttentionShape },
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
        grad: Id,
        write: Write,
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
    /// Sum of squares of all persistent gradients.
    GradientNorm { gradients: Vec<Id> },
    /// The optimizer's update of one parameter.
    Update { param: usize, weight: Id, grad: Id, state: Vec<Id> },
    /// Writes this step's keys and values behind the earlier ones of each hypothesis.
    CacheAppend { kv: Cols, cache: Id, width: usize, max_len: usize },
    /// Attention of one row per hypothesis over its cached keys and values.
    AttentionStep { shape: AttentionShape, q: Cols, cache: Id, bias: Id, out: Id },
    /// Attention of one row per hypothesis over the encoder's keys and values.
    CrossStep { shape: AttentionShape, q: Cols, kv: Cols, out: Id },
    /// `out[R, V] = scale * hidden weight^T`.
    Logits { hidden: Id, weight: Id, out: Id, width: usize, vocab: usize, scale: f32 },
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
}

impl MaxRows {
    /// The most rows of a side.
    pub fn of(&self, side: Side) -> usize {
        match side {
            Side::Source => self.source,
            Side::Target => self.target,
            Side::Beam => self.beam,
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
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            Op::Embed { table, out, .. } => all(&[*table, *out]),
            Op::EmbedBackward { grad, table_grad, .. } => all(&[*grad, *table_grad]),
            Op::Norm { x, weight, rstd, out, .. } | Op::NormApply { x, weight, rstd, out, .. } => {
                all(&[*x, *weight, *rstd, *out])
            }
            Op::NormBackward { dy, x, weight, rstd, dx, weight_grad, .. } => {
                all(&[*dy, *x, *weight, *rstd, *dx, *weight_grad])
            }
            Op::Linear { x, weight, out, .. } => all(&[*x, *weight, *out]),
            Op::LinearInput { dy, weight, dx, .. } => all(&[*dy, *weight, *dx]),
            Op::LinearWeight { dy, x, grad, .. } => all(&[*dy, *x, *grad]),
            Op::Residual { x, y, .. } => all(&[*x, *y]),
            Op::DropBackward { g, out, .. } => all(&[*g, *out]),
            Op::Relu { h, .. } => all(&[*h]),
            Op::ReluBackward { dh, h, .. } => all(&[*dh, *h]),
            Op::GatedGelu { ab, out, .. } => all(&[*ab, *out]),
            Op::GatedGeluBackward { dh, ab, dab, .. } => all(&[*dh, *ab, *dab]),
            Op::BiasExpand { table, delta, .. } => all(&[*table, *delta]),
            Op::BiasCollect { ddelta, table_grad, .. } => all(&[*ddelta, *table_grad]),
            Op::Attention { q, k, v, bias, out, lse, .. } => {
                all(&[q.id, k.id, v.id, *out, *lse]);
                bias.iter().for_each(|id| f(*id));
            }
            Op::AttentionBackward { q, k, v, bias, out, lse, dout, dq, dk, dv, dbias, .. } => {
                all(&[q.id, k.id, v.id, *out, *lse, *dout, dq.id, dk.id, dv.id]);
                bias.iter().chain(dbias).for_each(|id| f(*id));
            }
            Op::Loss { hidden, weight, losses, dhidden, grad, logits, .. } => {
                all(&[*hidden, *weight, *losses, *dhidden, *grad, *logits])
            }
            Op::LossOnly { hidden, weight, losses, logits, .. } => all(&[*hidden, *weight, *losses, *logits]),
            Op::Zero { tensor, .. } => all(&[*tensor]),
            Op::GradientNorm { gradients: tensors } | Op::Hold { tensors } => all(tensors),
            Op::Update { weight, grad, state, .. } => {
                all(&[*weight, *grad]);
                all(state);
            }
            Op::CacheAppend { kv, cache, .. } => all(&[kv.id, *cache]),
            Op::AttentionStep { q, cache, bias, out, .. } => all(&[q.id, *cache, *bias, *out]),
            Op::CrossStep { q, kv, out, .. } => all(&[q.id, kv.id, *out]),
            Op::Logits { hidden, weight, out, .. } => all(&[*hidden, *weight, *out]),
        }
    }

    /// Words of scratch that the op needs while it runs, on `threads` threads. The engine asserts the same formula.
    pub fn workspace(
        &self,
        rows: &MaxRows,
        tiles: &Tiles,
        threads: usize,
        param_words: &dyn Fn(usize) -> ParamShape,
    ) -> usize {
        match self {
            Op::Linear { inputs, outputs, .. } => matmul_workspace(tiles, threads, *outputs, *inputs),
            Op::LinearInput { inputs, outputs, .. } => matmul_workspace(tiles, threads, *inputs, *outputs),
            Op::LinearWeight { side, inputs, .. } => matmul_workspace(tiles, threads, *inputs, rows.of(*side)),
            Op::Logits { width, vocab, .. } | Op::LossOnly { width, vocab, .. } => {
                matmul_workspace(tiles, threads, *vocab, *width)
            }
            Op::Loss { width, vocab, chunk, .. } => matmul_workspace(tiles, threads, *vocab, *width)
                .max(matmul_workspace(tiles, threads, *width, *vocab))
                .max(matmul_workspace(tiles, threads, *width, *chunk)),
            Op::NormBackward { width, .. } => REDUCE_CHUNKS * width,
            Op::Attention { shape, .. } => threads * shape.forward_words(tiles),
            Op::AttentionBackward { shape, dbias, .. } => {
                let samples = rows.of(shape.queries) / shape.max_queries;
                let partial = if dbias.is_some() { samples * shape.heads * shape.span() } else { 0 };
                threads * shape.backward_words(tiles) + partial
            }
            Op::AttentionStep { shape, .. } | Op::CrossStep { shape, .. } => threads * shape.max_keys,
            Op::Update { param, .. } => {
                let shape = param_words(*param);
                // Row factors, column factors, and the column sums of each chunk.
                aligned(shape.rows) + aligned(shape.cols) + REDUCE_CHUNKS * shape.cols
            }
            Op::Embed { .. }
            | Op::GradientNorm { .. }
            | Op::EmbedBackward { .. }
            | Op::Norm { .. }
            | Op::NormApply { .. }
            | Op::Residual { .. }
            | Op::DropBackward { .. }
            | Op::Relu { .. }
            | Op::ReluBackward { .. }
            | Op::GatedGelu { .. }
            | Op::GatedGeluBackward { .. }
            | Op::BiasExpand { .. }
            | Op::BiasCollect { .. }
            | Op::Hold { .. }
            | Op::Zero { .. }
            | Op::CacheAppend { .. } => 0,
        }
    }
}

/// A parameter as the optimizers see it: a matrix, or one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamShape {
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}
