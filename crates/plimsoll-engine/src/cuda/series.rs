//! Ops over samples of equal length on a card.
//!
//! A convolution is a product whose left side is gathered, some rows at a time: the steps around each step, in the order of
//! the weight as it lies. Sums over rows are taken in doubles where the CPU does.

use plimsoll_plan::device::{gathered_rows, panel_words, row_chunks, stats_chunks};
use plimsoll_plan::op::{Answer, BatchNormed, ConvShape, Gradient, Op, PoolShape, SeriesOp, Side, Write};
use plimsoll_plan::place::aligned;
use plimsoll_plan::spec::{Activation, SeriesLoss};
use plimsoll_plan::tape::Id;

use super::call::Call;
use super::card::Address;
use super::error::CudaError;
use super::execute::{BLOCK, Run, walk};
use super::kernels::Kernel;
use super::lt::{Into, Number, Operand};
use super::staged::{Array, Fact};
use super::tables::Table;

/// What a pooling reads (`norm_pool.cu`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Pool {
    x: Address,
    stats: Address,
    weight: Address,
    bias: Address,
    steps: u32,
    width: u32,
    pool: u32,
    gelu: u32,
}

/// A head's outputs and where their gradient goes (`series_loss.cu`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Answered {
    out: Address,
    grad: Address,
    outputs: u32,
    zero: u32,
}

/// Factors of the loss (`series_loss.cu`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Terms {
    label_smoothing: f32,
    focal_gamma: f32,
    classes: f32,
    confidence: f32,
    values: f32,
    class_weights: u32,
}

const _: () = assert!(size_of::<Pool>() == 48 && size_of::<Answered>() == 24 && size_of::<Terms>() == 24);

/// One row a sample.
const SAMPLES: Side = Side::Steps(1);

impl Run<'_> {
    /// Samples that launches are sized for.
    pub(super) fn samples(&self) -> usize {
        self.rows(SAMPLES)
    }

    /// An address some numbers of activations further.
    pub(super) fn past(&self, at: Address, numbers: usize) -> Address {
        at + (numbers * self.act().bytes()) as u64
    }

    /// Scratch behind a weight that is written out there.
    pub(super) fn behind_panel(&self, weight: Id) -> Address {
        self.scratch() + 4 * panel_words(&self.program.store, weight, &self.form) as u64
    }

    pub(super) fn series(&mut self, index: usize, op: &SeriesOp) -> Result<(), CudaError> {
        let (step, samples) = (self.step(), self.samples());
        match op {
            SeriesOp::Input { out, width, mixup } => {
                let facts = if mixup.is_some() { self.layout.fact(Fact::Mix) } else { 0 };
                let call = Call::new().at(self.array(Array::Windows)).at(facts).at(self.at(*out)).u32(*width);
                let call = call.at(self.rows_at(SAMPLES));
                self.launch(self.kernel("windows", "windows_input"), walk(samples * width), BLOCK, 0, call)
            }
            SeriesOp::Conv { shape, x, weight, bias, out } => self.conv(shape, *x, *weight, *bias, *out),
            SeriesOp::ConvInput { shape, dy, weight, dx, add } => self.conv_input(shape, *dy, *weight, *dx, *add),
            SeriesOp::ConvWeight { shape, dy, x, grad, write } => self.conv_weight(shape, *dy, *x, (*grad, *write)),
            SeriesOp::BatchStats { side, x, width, eps, momentum, running, stats } => {
                let (chunks, partial) = (stats_chunks(self.rows(*side)), self.scratch());
                let call = Call::new().at(self.at(*x)).at(partial).u32(*width).at(self.rows_at(*side));
                let grid = (width.div_ceil(64), chunks);
                self.launch(self.kernel("batch_norm", "batch_stats_partial"), grid, BLOCK, 0, call)?;
                let running: [Address; 6] =
                    std::array::from_fn(|nth| self.at(if nth < 3 { running.now[nth] } else { running.next[nth - 3] }));
                let call = Call::new().at(partial).u32(chunks).u32(*width).with(*eps).with(*momentum);
                let call = call.at(self.at(*stats)).with(running).at(self.rows_at(*side)).at(step);
                let kernel = self.kernel("batch_norm", "batch_stats_finish");
                self.launch(kernel, (width.div_ceil(32), 1), BLOCK, 0, call)
            }
            SeriesOp::RunningStats { mean, variance, stats, width, eps } => {
                let call = Call::new().at(self.at(*mean)).at(self.at(*variance)).at(self.at(*stats));
                let kernel = self.kernel("batch_norm", "running_stats");
                self.launch(kernel, walk(*width), BLOCK, 0, call.u32(*width).with(*eps))
            }
            SeriesOp::Commit { from, to } => {
                let words = self.words(*to);
                let call = Call::new().at(self.at(*from)).at(self.at(*to)).u32(words).at(step);
                self.launch(self.kernel("batch_norm", "commit"), walk(words), BLOCK, 0, call)
            }
            SeriesOp::NormPool { shape, x, norm, skip, out, drop } => {
                let place = self.drop(Side::Steps(shape.steps), *drop);
                let call = Call::new().with(self.pool(shape, *x, norm)).at(self.of(*skip)).at(self.at(*out));
                let call = call.at(self.rows_at(SAMPLES)).with(place).at(step);
                let threads = samples * (shape.steps / shape.pool) * shape.width.div_ceil(64) * 16;
                // A thread has four columns of a pool.
                let grid = walk(4 * threads);
                self.launch(self.kernel("norm_pool", "norm_pool_forward"), grid, BLOCK, 0, call)
            }
            SeriesOp::NormPoolBackward { shape, dout, x, norm, skip, dx, dskip, weight_grad, bias_grad, drop } => {
                let (pool, place) = (self.pool(shape, *x, norm), self.drop(Side::Steps(shape.steps), *drop));
                let (chunks, partial) = (stats_chunks(samples * (shape.steps / shape.pool)), self.scratch());
                let call = Call::new().with(pool).at(self.of(*skip)).at(self.at(*dout)).at(self.at(*dx));
                let call = call.at(self.of(*dskip)).at(partial).at(self.rows_at(SAMPLES)).with(place).at(step);
                let grid = (shape.width.div_ceil(64), chunks);
                self.launch(self.kernel("norm_pool", "norm_pool_backward"), grid, BLOCK, 0, call)?;
                if norm.is_none() {
                    return Ok(());
                }
                let (side, means) = (Side::Steps(shape.steps), partial + (8 * 2 * chunks * shape.width) as u64);
                let call = Call::new().at(partial).u32(chunks).u32(shape.width).at(means);
                let call = self.written(self.written(call, *weight_grad), *bias_grad).at(self.rows_at(side)).at(step);
                let grid = (shape.width.div_ceil(32), 1);
                self.launch(self.kernel("norm_pool", "norm_pool_sums"), grid, BLOCK, 0, call)?;
                let call = Call::new().with(pool).at(self.at(*dx)).at(means).at(self.rows_at(side));
                let grid = walk(self.rows(side) * shape.width);
                self.launch(self.kernel("norm_pool", "norm_pool_through"), grid, BLOCK, 0, call)
            }
            SeriesOp::Lstm { .. }
            | SeriesOp::LstmBackward { .. }
            | SeriesOp::LstmInput { .. }
            | SeriesOp::LstmWeight { .. } => self.recurrent(index, op),
            SeriesOp::GeluErf { side, h, out: other, width, drop }
            | SeriesOp::GeluErfBackward { side, dh: h, h: other, width, drop } => {
                let forward = matches!(op, SeriesOp::GeluErf { .. });
                let name = if forward { "gelu_erf_forward" } else { "gelu_erf_backward" };
                let call = Call::new().at(self.at(*h)).at(self.at(*other)).u32(*width).at(self.rows_at(*side));
                let call = call.with(self.drop(*side, *drop)).at(step);
                self.launch(self.kernel("gelu_erf", name), walk(self.rows(*side) * width), BLOCK, 0, call)
            }
            SeriesOp::AdditivePool { steps, width, units, x, u, weight, bias, weights, out } => {
                let (side, weight) = (Side::Steps(*steps), self.weight(*weight)?);
                let call = Call::new().at(self.at(*u)).at(weight).at(self.at(*bias)).at(self.at(*weights));
                let call = call.u32(*units).at(self.rows_at(side));
                let grid = (self.rows(side).div_ceil(8), 1);
                self.launch(self.kernel("additive_pool", "additive_pool_scores"), grid, BLOCK, 0, call)?;
                let call = Call::new().at(self.at(*weights)).u32(*steps);
                self.launch(self.kernel("additive_pool", "additive_pool_softmax"), (samples, 1), BLOCK, 0, call)?;
                let call = Call::new().at(self.at(*x)).at(self.at(*weights)).at(self.at(*out)).u32(*steps).u32(*width);
                let grid = (samples, width.div_ceil(32));
                self.launch(self.kernel("additive_pool", "additive_pool_sum"), grid, BLOCK, 0, call)
            }
            SeriesOp::AdditivePoolBackward { .. } => self.additive_pool_backward(op),
            SeriesOp::Summary { steps, width, mean, x, out } => {
                let call = Call::new().at(self.at(*x)).at(self.at(*out)).u32(*steps).u32(*width);
                let grid = (samples, width.div_ceil(32));
                self.launch(self.kernel("summary", "summary_forward"), grid, BLOCK, 0, call.u32(usize::from(*mean)))
            }
            SeriesOp::SummaryBackward { steps, width, mean, dout, dx } => {
                let side = Side::Steps(*steps);
                let call = Call::new().at(self.at(*dout)).at(self.at(*dx)).u32(*steps).u32(*width);
                let call = call.u32(usize::from(*mean)).at(self.rows_at(side));
                self.launch(self.kernel("summary", "summary_backward"), walk(self.rows(side) * width), BLOCK, 0, call)
            }
            SeriesOp::Positions { steps, width, x, table, out } => {
                let side = Side::Steps(*steps);
                let call = Call::new().at(self.at(*x)).at(self.at(*table)).at(self.at(*out)).u32(*steps).u32(*width);
                let grid = walk(self.rows(side) * width);
                self.launch(self.kernel("positions", "positions_forward"), grid, BLOCK, 0, call.at(self.rows_at(side)))
            }
            SeriesOp::PositionsBackward { steps, width, dy, grad, write } => {
                let elements = self.words(*grad);
                let call = Call::new().at(self.at(*dy)).at(self.at(*grad)).u32(*steps).u32(*width).u32(elements);
                let call = call.u32(Self::code(*write)).at(self.rows_at(SAMPLES)).at(step);
                self.launch(self.kernel("positions", "positions_backward"), walk(8 * elements), BLOCK, 0, call)
            }
            SeriesOp::Loss { classes, confidence, values, losses, terms } => {
                self.series_loss(index, [classes, confidence, values], *losses, terms)
            }
        }
    }

    /// A tensor, or null.
    fn of(&self, id: Option<Id>) -> Address {
        id.map_or(0, |id| self.at(id))
    }

    /// One more gradient to a call: where it goes and how, null where there is none.
    fn written(&self, call: Call, gradient: Gradient) -> Call {
        match gradient {
            Some((id, write)) => call.at(self.at(id)).u32(Self::code(write)),
            None => call.at(0).u32(0),
        }
    }

    fn pool(&self, shape: &PoolShape, x: Id, norm: &Option<BatchNormed>) -> Pool {
        let [stats, weight, bias] = norm.map_or([0; 3], |n| [n.stats, n.weight, n.bias].map(|id| self.at(id)));
        let PoolShape { steps, width, pool, activation } = *shape;
        let gelu = u32::from(activation == Activation::Gelu);
        Pool { x: self.at(x), stats, weight, bias, steps: steps as u32, width: width as u32, pool: pool as u32, gelu }
    }

    /// The steps around each of some rows, as the left side of a product; where a convolution looks at one step, the rows
    /// themselves.
    fn gathered(
        &mut self,
        shape: &ConvShape,
        x: Address,
        to: Address,
        (first, limit): (usize, usize),
        turned: bool,
    ) -> Result<Operand, CudaError> {
        let (channels, depth) = (shape.inputs, shape.depth());
        if shape.kernel == 1 {
            return Ok(Operand { at: self.past(x, first * channels), stride: channels, transposed: false });
        }
        let call = Call::new().at(x).at(to).u32(shape.steps).u32(channels).u32(shape.kernel);
        let call = call.u32(usize::from(turned)).u32(first).u32(limit);
        self.launch(self.kernel("conv", "conv_gather"), walk(limit * depth), BLOCK, 0, call)?;
        Ok(Operand { at: to, stride: depth, transposed: false })
    }

    fn conv(&mut self, shape: &ConvShape, x: Id, weight: Id, bias: Id, out: Id) -> Result<(), CudaError> {
        let (space, side, depth) = (self.behind_panel(weight), Side::Steps(shape.steps), shape.depth());
        let b = Operand { at: self.weight(weight)?, stride: depth, transposed: true };
        let (rows, number, outputs) = (self.rows(side), self.act(), shape.outputs);
        let (x, out) = (self.at(x), self.at(out));
        let each = gathered_rows(rows, depth, &self.form);
        for first in (0..rows).step_by(each) {
            let limit = each.min(rows - first);
            let a = self.gathered(shape, x, space, (first, limit), false)?;
            let at = self.past(out, first * outputs);
            let into = Into { at, stride: outputs, number, alpha: 1.0, add: false, bias: None };
            self.product(number, (limit, outputs, depth), a, b, into)?;
        }
        let call = Call::new().at(self.at(bias)).at(out).u32(outputs).u32(outputs).at(self.rows_at(side));
        self.launch(self.kernel("column_sum", "bias_add"), walk(rows * outputs), BLOCK, 0, call)
    }

    fn conv_input(&mut self, shape: &ConvShape, dy: Id, weight: Id, dx: Id, add: bool) -> Result<(), CudaError> {
        let (turned, number, inputs) = (self.behind_panel(weight), self.act(), shape.inputs);
        let space = turned + 4 * aligned(self.form.activations.words(shape.weights())) as u64;
        let call = Call::new().at(self.weight(weight)?).at(turned).u32(inputs).u32(shape.outputs).u32(shape.kernel);
        self.launch(self.kernel("conv", "conv_turn"), walk(shape.weights()), BLOCK, 0, call)?;
        let (back, rows) = (shape.back(), self.rows(Side::Steps(shape.steps)));
        let (depth, b) = (back.depth(), Operand { at: turned, stride: inputs, transposed: false });
        let (dy, dx) = (self.at(dy), self.at(dx));
        let each = gathered_rows(rows, depth, &self.form);
        for first in (0..rows).step_by(each) {
            let limit = each.min(rows - first);
            let a = self.gathered(&back, dy, space, (first, limit), true)?;
            let into = Into { at: self.past(dx, first * inputs), stride: inputs, number, alpha: 1.0, add, bias: None };
            self.product(number, (limit, inputs, depth), a, b, into)?;
        }
        Ok(())
    }

    fn conv_weight(&mut self, shape: &ConvShape, dy: Id, x: Id, (grad, write): (Id, Write)) -> Result<(), CudaError> {
        let (rows, depth, outputs) = (self.rows(Side::Steps(shape.steps)), shape.depth(), shape.outputs);
        let (space, number, x, dy) = (self.scratch(), self.act(), self.at(x), self.at(dy));
        let each = gathered_rows(rows, depth, &self.form);
        for first in (0..rows).step_by(each) {
            let limit = each.min(rows - first);
            let b = self.gathered(shape, x, space, (first, limit), false)?;
            let a = Operand { at: self.past(dy, first * outputs), stride: outputs, transposed: true };
            let add = first > 0 || self.adds(write);
            let into = Into { at: self.at(grad), stride: depth, number: Number::F32, alpha: 1.0, add, bias: None };
            self.product(number, (outputs, depth, limit), a, b, into)?;
        }
        Ok(())
    }

    fn additive_pool_backward(&mut self, op: &SeriesOp) -> Result<(), CudaError> {
        let SeriesOp::AdditivePoolBackward {
            steps,
            width,
            units,
            dout,
            x,
            u,
            weight,
            weights,
            dx,
            weight_grad,
            bias_grad,
        } = op
        else {
            return Ok(());
        };
        let (side, samples, dots) = (Side::Steps(*steps), self.samples(), self.behind_panel(*weight));
        let (rows, weight) = (self.rows(side), self.weight(*weight)?);
        let (chunks, sums) = (row_chunks(rows), dots + 4 * aligned(rows) as u64);
        let partial = sums + 4 * aligned(samples) as u64;
        let call = Call::new().at(self.at(*dout)).at(self.at(*x)).at(self.at(*weights)).at(self.at(*dx)).at(dots);
        let call = call.u32(*steps).u32(*width).at(self.rows_at(side));
        let grid = (rows.div_ceil(8), 1);
        self.launch(self.kernel("additive_pool", "additive_pool_dots"), grid, BLOCK, 0, call)?;
        let call = Call::new().at(dots).at(self.at(*weights)).at(sums).u32(*steps);
        self.launch(self.kernel("additive_pool", "additive_pool_shares"), (samples, 1), BLOCK, 0, call)?;
        let call = Call::new().at(self.at(*u)).at(dots).at(weight).at(partial).u32(*units).at(self.rows_at(side));
        let grid = (units.div_ceil(64), chunks);
        self.launch(self.kernel("additive_pool", "additive_pool_units"), grid, BLOCK, 0, call)?;
        if let Some(grad) = weight_grad {
            self.sum_partials(partial, chunks, *units, *grad)?;
        }
        match bias_grad {
            Some(grad) => self.sum_partials(sums, samples, 1, *grad),
            None => Ok(()),
        }
    }

    fn series_loss(
        &mut self,
        index: usize,
        answers: [&Option<Answer>; 3],
        losses: Id,
        terms: &SeriesLoss,
    ) -> Result<(), CudaError> {
        let answered = |answer: &Option<Answer>| {
            answer.map_or(Answered::default(), |Answer { out, grad, outputs }| Answered {
                out: self.at(out),
                grad: self.of(grad),
                outputs: outputs as u32,
                zero: 0,
            })
        };
        let [classes, confidence, values] = answers.map(answered);
        let weights = if let Table::Words(at, _) = self.tables[index] { at } else { 0 };
        let of = Terms {
            label_smoothing: terms.label_smoothing,
            focal_gamma: terms.focal_gamma,
            classes: terms.classes,
            confidence: terms.confidence,
            values: terms.values,
            class_weights: terms.class_weights.len() as u32,
        };
        let call = Call::new().with(classes).with(confidence).with(values).with(of);
        let call = call.at(self.array(Array::Classes)).at(self.array(Array::Values)).at(self.layout.fact(Fact::Mix));
        let call = call.at(weights).at(self.at(losses)).at(self.rows_at(SAMPLES)).at(self.step());
        let grid = (self.samples().div_ceil(BLOCK), 1);
        self.launch(self.kernel("series_loss", "series_loss"), grid, BLOCK, 0, call)?;
        let kernel = Kernel { wgt: self.act(), ..self.kernel("loss", "loss_total") };
        let call = Call::new().at(self.at(losses)).at(self.rows_at(SAMPLES)).at(self.step());
        self.launch(kernel, (1, 1), 1024, 0, call)
    }

    /// What a captured run of the tape counts as, of the ops that the plan has memory for.
    pub(super) fn launches(&mut self) -> usize {
        let placed = self.placed;
        let mut count = plimsoll_plan::device::tape_launches(&placed.tape, &placed.rows, &self.form);
        for op in &placed.tape.ops {
            if let Op::Series(SeriesOp::Lstm { shape, .. } | SeriesOp::LstmBackward { shape, .. }) = op {
                count += self.steps_apart(shape);
            }
        }
        count
    }
}
