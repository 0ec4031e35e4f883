//! Ops over samples of equal length: convolutions, batch norm, pooling, LSTM, attention over steps, and their losses.
//!
//! Rows are steps, sample by sample, and columns are channels: a convolution's input for a step is then one stretch of
//! memory. Letters: B samples, T steps, C channels, H width of an LSTM's state.

use super::{Cols, Gradient, MaxRows, Place, REDUCE_CHUNKS, Side, Write, summed};
use crate::place::aligned;
use crate::spec::{Activation, Mixup, SeriesLoss};
use crate::tape::Id;
use crate::tiles::{Tiles, matmul_workspace};

/// A convolution that makes as many steps as it gets: zeros stand before the first and behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Steps of a sample.
    pub steps: usize,
    /// Channels that it gets.
    pub inputs: usize,
    /// Channels that it makes.
    pub outputs: usize,
    /// Steps that it looks at; odd.
    pub kernel: usize,
}

/// Steps that one task of a convolution works on at a time.
const CONV_STEPS: usize = 512;

impl ConvShape {
    /// Steps that one task works on at a time.
    pub fn tile(&self) -> usize {
        self.steps.min(CONV_STEPS)
    }

    /// The convolution that its input gradient is.
    pub fn back(&self) -> ConvShape {
        ConvShape { inputs: self.outputs, outputs: self.inputs, ..*self }
    }

    /// Words of one task: its steps, and those around them.
    pub fn tile_words(&self) -> usize {
        aligned((self.tile() + self.kernel - 1) * self.inputs)
    }

    /// Words of a sample with zeros before and behind it.
    pub fn padded_words(&self) -> usize {
        aligned((self.steps + self.kernel - 1) * self.inputs)
    }

    /// Numbers of the weight.
    pub fn weights(&self) -> usize {
        self.outputs * self.inputs * self.kernel
    }

    fn workspace(&self, tiles: &Tiles, threads: usize) -> usize {
        let depth = self.inputs * self.kernel;
        // The weight in the order of the steps, the same packed, and what each task copies.
        aligned(self.weights()) + tiles.packed_words(self.outputs, depth) + threads * self.tile_words()
    }

    fn weight_workspace(&self, tiles: &Tiles, threads: usize) -> usize {
        let product = matmul_workspace(tiles, threads, self.outputs, self.steps);
        aligned(self.weights()) + self.padded_words() + product
    }
}

/// What is behind a convolution: norm, activation, dropout and pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Steps of a sample before pooling.
    pub steps: usize,
    /// Channels.
    pub width: usize,
    /// Steps of which the largest is taken.
    pub pool: usize,
    /// The bend.
    pub activation: Activation,
}

/// Statistics, weight and bias of a batch norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormed {
    /// Mean and inverse deviation of each channel.
    pub stats: Id,
    /// The weight.
    pub weight: Id,
    /// The bias.
    pub bias: Id,
}

/// Running statistics, and what they will be once the update is made: a step that comes to nothing changes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Mean, variance and number of batches, as they are.
    pub now: [Id; 3],
    /// The same behind this update.
    pub next: [Id; 3],
}

/// One direction of one layer of an LSTM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LstmShape {
    /// Steps of a sample.
    pub steps: usize,
    /// Width of a step.
    pub inputs: usize,
    /// Width of the state.
    pub hidden: usize,
    /// From the last step to the first.
    pub reverse: bool,
    /// First step of those that the op is about, in the order of time.
    pub from: usize,
    /// Behind the last one.
    pub to: usize,
}

/// Steps that an LSTM's weight gradients are cut at, in the order that it walks them. Stretches that are computed again are
/// whole numbers of them, so that the sums are the same bits whatever the stretches are.
pub const LSTM_BLOCK: usize = 64;
/// Rows of a weight gradient's depth that are gathered at a time, at most, where a step of all samples has not more.
const LSTM_ROWS: usize = 512;

impl LstmShape {
    /// Steps that the op is about.
    pub fn count(&self) -> usize {
        self.to - self.from
    }

    /// Whether it is about all of them.
    pub fn is_whole(&self) -> bool {
        self.count() == self.steps
    }

    /// Whether they are the first that the LSTM walks.
    pub fn is_first(&self) -> bool {
        if self.reverse { self.to == self.steps } else { self.from == 0 }
    }

    /// Words of the gates of one sample.
    pub fn gate_words(&self) -> usize {
        self.count() * 4 * self.hidden
    }

    /// Steps whose rows are gathered for a weight gradient at a time: they divide a block of steps.
    pub fn gathered(samples: usize) -> usize {
        let most = LSTM_ROWS / samples.max(1);
        if most >= LSTM_BLOCK { LSTM_BLOCK } else { 1 << most.max(1).ilog2() }
    }

    /// Words from one gate to the next where the gradients of so many rows are turned round: whole cache lines, and one more,
    /// so that gates do not all fall on the same lines of a cache.
    pub fn turned_stride(rows: usize) -> usize {
        aligned(rows) + aligned(1)
    }

    fn weight_workspace(&self, samples: usize, tiles: &Tiles, threads: usize) -> usize {
        let (hidden, inputs) = (self.hidden, self.inputs);
        // The most of any number of samples up to this one.
        let rows = (samples * LSTM_BLOCK.min(self.count())).min(LSTM_ROWS.max(samples));
        let products = [inputs, hidden].map(|width| matmul_workspace(tiles, threads, width, rows));
        let gathered = [inputs, hidden].map(|width| aligned(rows * width));
        let turned = aligned(4 * hidden * LstmShape::turned_stride(rows));
        aligned(4 * hidden) + turned + gathered.iter().sum::<usize>() + products[0].max(products[1])
    }
}

/// The weights of one direction of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LstmWeights {
    /// `[4H, inputs]`.
    pub input: Id,
    /// `[4H, H]`.
    pub state: Id,
    /// `[4H]`.
    pub input_bias: Id,
    /// `[4H]`.
    pub state_bias: Id,
}

impl LstmWeights {
    fn all(&self) -> [Id; 4] {
        [self.input, self.state, self.input_bias, self.state_bias]
    }
}

/// A head's outputs, and the gradient of them; none where there is no backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `[B, outputs]`.
    pub out: Id,
    /// Its gradient.
    pub grad: Option<Id>,
    /// Numbers of a sample.
    pub outputs: usize,
}

/// One op. Gradients are sums over samples; the update divides.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are tensors named by what they hold
pub enum SeriesOp {
    /// The batch, mixed or as it is.
    Input { out: Id, width: usize, mixup: Option<Mixup> },
    /// `out[t] = sum over j of x[t + j - kernel / 2] weight[:, :, j] + bias`.
    Conv { shape: ConvShape, x: Id, weight: Id, bias: Id, out: Id },
    /// `dx (+)=` what reaches the input.
    ConvInput { shape: ConvShape, dy: Id, weight: Id, dx: Id, add: bool },
    /// `grad (+)=` what reaches the weight.
    ConvWeight { shape: ConvShape, dy: Id, x: Id, grad: Id, write: Write },
    /// `stats` of the rows: mean and inverse deviation of each column; and what running ones will be.
    BatchStats { side: Side, x: Id, width: usize, eps: f32, momentum: f32, running: Running, stats: Id },
    /// `stats` from running ones.
    RunningStats { mean: Id, variance: Id, stats: Id, width: usize, eps: f32 },
    /// `out = pool(drop(activation(norm(x)))) + pool(skip)`.
    NormPool { shape: PoolShape, x: Id, norm: Option<BatchNormed>, skip: Option<Id>, out: Id, drop: Option<Place> },
    /// Gradients of `x` and of `skip`, set, and those of weight and bias.
    NormPoolBackward {
        shape: PoolShape,
        dout: Id,
        x: Id,
        norm: Option<BatchNormed>,
        skip: Option<Id>,
        dx: Id,
        dskip: Option<Id>,
        weight_grad: Gradient,
        bias_grad: Gradient,
        drop: Option<Place>,
    },
    /// Some steps of an LSTM: their gates `[B, steps, 4H]`, cells `[B, steps, H]`, and outputs. `start` holds the cells
    /// before them, `end` gets those behind them; both `[B, H]`.
    Lstm {
        shape: LstmShape,
        x: Id,
        weights: LstmWeights,
        gates: Id,
        cells: Id,
        start: Option<Id>,
        end: Option<Id>,
        out: Cols,
    },
    /// Gates become their gradients, in place. `carry[B, 2H]`: gradients of output and cells from the steps behind these,
    /// then of those before them; nothing comes in at the end that the LSTM walks to.
    LstmBackward {
        shape: LstmShape,
        gates: Id,
        cells: Id,
        start: Option<Id>,
        state_weight: Id,
        dout: Cols,
        carry: Id,
        last: bool,
    },
    /// `dx (+)=` what reaches these steps' inputs.
    LstmInput { shape: LstmShape, dgates: Id, input_weight: Id, dx: Id, add: bool },
    /// Gradients of all four weights, in their order.
    LstmWeight { shape: LstmShape, dgates: Id, x: Id, out: Cols, grads: [Gradient; 4] },
    /// `out = drop(gelu(h))`, the exact form.
    GeluErf { side: Side, h: Id, out: Id, width: usize, drop: Option<Place> },
    /// `dh *= drop' gelu'(h)`, in place.
    GeluErfBackward { side: Side, dh: Id, h: Id, width: usize, drop: Option<Place> },
    /// `u = tanh(u)` in place, `weights[B, T] = softmax over steps of (u weight + bias)`, `out[B, C]` the sum of x by them.
    AdditivePool { steps: usize, width: usize, units: usize, x: Id, u: Id, weight: Id, bias: Id, weights: Id, out: Id },
    /// `dx` is set; `u` becomes its gradient.
    AdditivePoolBackward {
        steps: usize,
        width: usize,
        units: usize,
        dout: Id,
        x: Id,
        u: Id,
        weight: Id,
        weights: Id,
        dx: Id,
        weight_grad: Gradient,
        bias_grad: Gradient,
    },
    /// `out[B, C]`: the last step, and the mean of all added to it.
    Summary { steps: usize, width: usize, mean: bool, x: Id, out: Id },
    /// `dx` is set.
    SummaryBackward { steps: usize, width: usize, mean: bool, dout: Id, dx: Id },
    /// `out = x + table` of each step.
    Positions { steps: usize, width: usize, x: Id, table: Id, out: Id },
    /// `grad (+)=` the sum over samples of each step; steps that are not there have none.
    PositionsBackward { steps: usize, width: usize, dy: Id, grad: Id, write: Write },
    /// The loss of each sample, and the gradients of the answers.
    Loss { classes: Option<Answer>, confidence: Option<Answer>, values: Option<Answer>, losses: Id, terms: SeriesLoss },
    /// Running statistics become what they are behind this update.
    Commit { from: Id, to: Id },
}

impl SeriesOp {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            SeriesOp::Input { .. } => "input of series",
            SeriesOp::Conv { .. } | SeriesOp::ConvInput { .. } | SeriesOp::ConvWeight { .. } => "convolution",
            SeriesOp::BatchStats { .. } | SeriesOp::RunningStats { .. } | SeriesOp::Commit { .. } => "batch norm",
            SeriesOp::NormPool { .. } | SeriesOp::NormPoolBackward { .. } => "pooling",
            SeriesOp::Lstm { .. }
            | SeriesOp::LstmBackward { .. }
            | SeriesOp::LstmInput { .. }
            | SeriesOp::LstmWeight { .. } => "LSTM",
            SeriesOp::GeluErf { .. } | SeriesOp::GeluErfBackward { .. } => "exact GELU",
            SeriesOp::AdditivePool { .. } | SeriesOp::AdditivePoolBackward { .. } => "additive attention",
            SeriesOp::Summary { .. } | SeriesOp::SummaryBackward { .. } => "summary of steps",
            SeriesOp::Positions { .. } | SeriesOp::PositionsBackward { .. } => "positions of steps",
            SeriesOp::Loss { .. } => "loss of series",
        }
    }

    /// Calls `f` with every tensor whose numbers the op takes: those that it adds to as well.
    pub fn reads(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            SeriesOp::Input { .. } => {}
            SeriesOp::Conv { x, weight, bias, .. } => all(&[*x, *weight, *bias]),
            SeriesOp::ConvInput { dy, weight, dx, add, .. } => {
                all(&[*dy, *weight]);
                add.then_some(*dx).into_iter().for_each(f);
            }
            SeriesOp::ConvWeight { dy, x, grad, write, .. } => {
                all(&[*dy, *x]);
                summed(&Some((*grad, *write))).into_iter().for_each(f);
            }
            SeriesOp::BatchStats { x, running, .. } => {
                all(&[*x]);
                all(&running.now);
                all(&running.next);
            }
            SeriesOp::RunningStats { mean, variance, .. } => all(&[*mean, *variance]),
            SeriesOp::NormPool { x, norm, skip, .. } => {
                all(&[*x]);
                norm.iter().for_each(|n| all(&[n.stats, n.weight, n.bias]));
                skip.iter().for_each(|id| f(*id));
            }
            SeriesOp::NormPoolBackward { dout, x, norm, skip, weight_grad, bias_grad, .. } => {
                all(&[*dout, *x]);
                norm.iter().for_each(|n| all(&[n.stats, n.weight, n.bias]));
                skip.iter().copied().chain(summed(weight_grad)).chain(summed(bias_grad)).for_each(f);
            }
            SeriesOp::Lstm { x, weights, start, out, .. } => {
                all(&[*x]);
                all(&weights.all());
                start.iter().for_each(|id| f(*id));
                // Its own earlier steps.
                f(out.id);
            }
            SeriesOp::LstmBackward { gates, cells, start, state_weight, dout, carry, last, .. } => {
                all(&[*gates, *cells, *state_weight, dout.id]);
                start.iter().copied().chain((!last).then_some(*carry)).for_each(f);
            }
            SeriesOp::LstmInput { dgates, input_weight, dx, add, .. } => {
                all(&[*dgates, *input_weight]);
                add.then_some(*dx).into_iter().for_each(f);
            }
            SeriesOp::LstmWeight { dgates, x, out, grads, .. } => {
                all(&[*dgates, *x, out.id]);
                grads.iter().filter_map(summed).for_each(f);
            }
            SeriesOp::GeluErf { h, .. } => all(&[*h]),
            SeriesOp::GeluErfBackward { dh, h, .. } => all(&[*dh, *h]),
            SeriesOp::AdditivePool { x, u, weight, bias, .. } => all(&[*x, *u, *weight, *bias]),
            SeriesOp::AdditivePoolBackward { dout, x, u, weight, weights, weight_grad, bias_grad, .. } => {
                all(&[*dout, *x, *u, *weight, *weights]);
                summed(weight_grad).into_iter().chain(summed(bias_grad)).for_each(f);
            }
            SeriesOp::Summary { x, .. } => all(&[*x]),
            SeriesOp::SummaryBackward { dout, .. } => all(&[*dout]),
            SeriesOp::Positions { x, table, .. } => all(&[*x, *table]),
            SeriesOp::PositionsBackward { dy, grad, write, .. } => {
                all(&[*dy]);
                summed(&Some((*grad, *write))).into_iter().for_each(f);
            }
            SeriesOp::Loss { classes, confidence, values, .. } => {
                [classes, confidence, values].into_iter().flatten().for_each(|answer| f(answer.out));
            }
            SeriesOp::Commit { from, .. } => all(&[*from]),
        }
    }

    /// Calls `f` with every tensor that the op changes.
    pub fn writes(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        let of = |gradient: &Gradient| gradient.map(|(id, _)| id);
        match self {
            SeriesOp::Input { out, .. }
            | SeriesOp::Conv { out, .. }
            | SeriesOp::NormPool { out, .. }
            | SeriesOp::GeluErf { out, .. }
            | SeriesOp::Summary { out, .. }
            | SeriesOp::Positions { out, .. } => all(&[*out]),
            SeriesOp::ConvInput { dx, .. }
            | SeriesOp::LstmInput { dx, .. }
            | SeriesOp::SummaryBackward { dx, .. }
            | SeriesOp::GeluErfBackward { dh: dx, .. } => all(&[*dx]),
            SeriesOp::ConvWeight { grad, .. } | SeriesOp::PositionsBackward { grad, .. } => all(&[*grad]),
            SeriesOp::BatchStats { running, stats, .. } => {
                all(&[*stats]);
                all(&running.next);
            }
            SeriesOp::RunningStats { stats, .. } => all(&[*stats]),
            SeriesOp::NormPoolBackward { dx, dskip, weight_grad, bias_grad, .. } => {
                [Some(*dx), *dskip, of(weight_grad), of(bias_grad)].into_iter().flatten().for_each(f);
            }
            SeriesOp::Lstm { gates, cells, end, out, .. } => {
                all(&[*gates, *cells, out.id]);
                end.iter().for_each(|id| f(*id));
            }
            SeriesOp::LstmBackward { gates, carry, .. } => all(&[*gates, *carry]),
            SeriesOp::LstmWeight { grads, .. } => grads.iter().filter_map(of).for_each(f),
            SeriesOp::AdditivePool { u, weights, out, .. } => all(&[*u, *weights, *out]),
            SeriesOp::AdditivePoolBackward { u, dx, weight_grad, bias_grad, .. } => {
                all(&[*u, *dx]);
                of(weight_grad).into_iter().chain(of(bias_grad)).for_each(f);
            }
            SeriesOp::Loss { classes, confidence, values, losses, .. } => {
                all(&[*losses]);
                [classes, confidence, values].into_iter().flatten().filter_map(|answer| answer.grad).for_each(f);
            }
            SeriesOp::Commit { to, .. } => all(&[*to]),
        }
    }

    /// Calls `f` with every tensor that stays f32 where activations are of 16 bits: statistics, sums, states, losses.
    pub(super) fn always_f32(&self, f: &mut impl FnMut(Id)) {
        let mut all = |ids: &[Id]| ids.iter().for_each(|id| f(*id));
        match self {
            SeriesOp::BatchStats { stats, .. } | SeriesOp::RunningStats { stats, .. } => all(&[*stats]),
            SeriesOp::NormPool { norm, .. } | SeriesOp::NormPoolBackward { norm, .. } => {
                norm.iter().for_each(|n| all(&[n.stats]));
            }
            SeriesOp::Lstm { cells, start, end, .. } => {
                all(&[*cells]);
                start.iter().chain(end).for_each(|id| f(*id));
            }
            SeriesOp::LstmBackward { cells, start, carry, .. } => {
                all(&[*cells, *carry]);
                start.iter().for_each(|id| f(*id));
            }
            SeriesOp::AdditivePool { weights, .. } | SeriesOp::AdditivePoolBackward { weights, .. } => all(&[*weights]),
            SeriesOp::Loss { losses, .. } => all(&[*losses]),
            _ => {}
        }
    }

    /// Words of scratch while it runs.
    pub fn workspace(&self, rows: &MaxRows, tiles: &Tiles, threads: usize) -> usize {
        match self {
            SeriesOp::Conv { shape, .. } => shape.workspace(tiles, threads),
            SeriesOp::ConvInput { shape, .. } => shape.back().workspace(tiles, threads),
            SeriesOp::ConvWeight { shape, .. } => shape.weight_workspace(tiles, threads),
            // Two sums of doubles.
            SeriesOp::BatchStats { width, .. } => 2 * 2 * REDUCE_CHUNKS * width,
            SeriesOp::NormPool { shape, .. } => 2 * aligned(shape.width),
            SeriesOp::NormPoolBackward { shape, .. } => {
                2 * aligned(shape.width) + (2 * 2 * REDUCE_CHUNKS + 2) * aligned(shape.width)
            }
            SeriesOp::Lstm { shape, .. } => {
                let (inputs, hidden) = (shape.inputs, shape.hidden);
                tiles.packed_words(4 * hidden, inputs) + tiles.packed_words(4 * hidden, hidden)
            }
            SeriesOp::LstmBackward { shape, .. } => tiles.packed_words(shape.hidden, 4 * shape.hidden),
            SeriesOp::LstmInput { shape, .. } => tiles.packed_words(shape.inputs, 4 * shape.hidden),
            SeriesOp::LstmWeight { shape, .. } => shape.weight_workspace(rows.samples, tiles, threads),
            SeriesOp::AdditivePoolBackward { units, .. } => REDUCE_CHUNKS * aligned(units + 1),
            _ => 0,
        }
    }

    /// What it does is wanted even if no later op reads what it writes.
    pub(super) fn is_deed(&self) -> bool {
        matches!(self, SeriesOp::Loss { .. })
    }
}
