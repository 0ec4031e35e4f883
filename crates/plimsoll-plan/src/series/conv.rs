//! Blocks of convolutions: `pool(drop(activation(norm(conv(x)))))`, and the block's input added to it where it is residual.

use super::places;
use crate::layer::{Backward, Pass};
use crate::op::{BatchNormed, Cols, ConvShape, Op, Place, PoolShape, Running, SeriesOp, Side};
use crate::spec::{BATCH_MOMENTUM, ConvNorm, SERIES_EPS, SeriesSpec};
use crate::tape::Id;

/// What the backward pass of a block reads.
pub(super) struct ConvKept {
    x: Id,
    /// What the convolution made; none where it is computed again.
    y: Option<Id>,
    stats: Option<Id>,
}

/// One block.
pub(super) struct Block<'a> {
    spec: &'a SeriesSpec,
    nth: usize,
    shape: ConvShape,
    pool: PoolShape,
}

/// How the block's input reaches its output.
enum Skip {
    Nowhere,
    AsItIs,
    Through { weight: Id, bias: Id },
}

impl<'a> Block<'a> {
    pub fn new(spec: &'a SeriesSpec, nth: usize) -> Block<'a> {
        let ((inputs, steps), block) = (spec.at_block(nth), spec.conv[nth]);
        let shape = ConvShape { steps, inputs, outputs: block.channels, kernel: block.kernel };
        let pool = PoolShape { steps, width: block.channels, pool: spec.pool, activation: spec.activation };
        Block { spec, nth, shape, pool }
    }

    fn weight(&self, pass: &Pass, name: &str) -> Id {
        pass.weight(&format!("cnn_blocks.{}.{name}", self.nth))
    }

    fn side(&self) -> Side {
        Side::Steps(self.shape.steps)
    }

    fn drop(&self, pass: &Pass) -> Option<Place> {
        pass.place(places::CONV + self.nth as u32, self.spec.conv_dropout)
    }

    fn skip(&self, pass: &Pass) -> Skip {
        match (self.spec.residual, self.shape.inputs == self.shape.outputs) {
            (false, _) => Skip::Nowhere,
            (true, true) => Skip::AsItIs,
            (true, false) => {
                let (weight, bias) = (self.weight(pass, "skip.0.weight"), self.weight(pass, "skip.0.bias"));
                Skip::Through { weight, bias }
            }
        }
    }

    fn conv(&self, pass: &mut Pass, x: Id) -> Id {
        let out = pass.activation("convolved", pass.rows(self.side()) * self.shape.outputs);
        let (weight, bias) = (self.weight(pass, "conv.weight"), self.weight(pass, "conv.bias"));
        pass.tape.push(Op::Series(SeriesOp::Conv { shape: self.shape, x, weight, bias, out }));
        out
    }

    /// What is pooled and added to the output.
    fn skipped(&self, pass: &mut Pass, x: Id) -> Option<Id> {
        match self.skip(pass) {
            Skip::Nowhere => None,
            Skip::AsItIs => Some(x),
            Skip::Through { weight, bias } => {
                let ConvShape { inputs, outputs, .. } = self.shape;
                let (side, id) = (self.side(), pass.activation("skipped", pass.rows(self.side()) * outputs));
                let (out, bias) = (Cols { id, start: 0, stride: outputs }, Some(bias));
                let (add, scale, in_out) = (false, 1.0, false);
                pass.tape.push(Op::Linear { side, x, weight, bias, out, add, scale, inputs, outputs, in_out });
                Some(id)
            }
        }
    }

    fn stats(&self, pass: &mut Pass, x: Id) -> Option<Id> {
        if self.spec.norm == ConvNorm::None {
            return None;
        }
        let (width, eps) = (self.shape.outputs, SERIES_EPS);
        let stats = pass.activation("stats", 2 * width);
        let now = ["running_mean", "running_var", "num_batches_tracked"]
            .map(|name| self.weight(pass, &format!("batch_norm.{name}")));
        let op = match pass.trains() {
            true => {
                let next = now.map(|id| pass.store.gradients[id.0 as usize].expect("training keeps the next ones"));
                let (side, momentum) = (self.side(), BATCH_MOMENTUM);
                SeriesOp::BatchStats { side, x, width, eps, momentum, running: Running { now, next }, stats }
            }
            false => SeriesOp::RunningStats { mean: now[0], variance: now[1], stats, width, eps },
        };
        pass.tape.push(Op::Series(op));
        Some(stats)
    }

    fn normed(&self, pass: &Pass, stats: Option<Id>) -> Option<BatchNormed> {
        let of = |name: &str| self.weight(pass, &format!("batch_norm.{name}"));
        stats.map(|stats| BatchNormed { stats, weight: of("weight"), bias: of("bias") })
    }

    /// The block's output, and what is kept; with `again` not what the convolution made.
    pub fn forward(&self, pass: &mut Pass, x: Id, again: bool) -> (ConvKept, Id) {
        let y = self.conv(pass, x);
        let stats = self.stats(pass, y);
        let skip = self.skipped(pass, x);
        let rows = pass.rows(Side::Steps(self.shape.steps / self.pool.pool));
        let out = pass.activation("pooled", rows * self.pool.width);
        let (norm, drop) = (self.normed(pass, stats), self.drop(pass));
        pass.tape.push(Op::Series(SeriesOp::NormPool { shape: self.pool, x: y, norm, skip, out, drop }));
        (ConvKept { x, y: (!again).then_some(y), stats }, out)
    }

    /// The gradient of the block's input.
    pub fn backward(&self, back: &mut Backward, kept: &ConvKept, dout: Id) -> Id {
        let ConvShape { inputs, outputs, .. } = self.shape;
        let (side, shape) = (self.side(), self.shape);
        let y = kept.y.unwrap_or_else(|| self.conv(&mut back.pass, kept.x));
        let skip = self.skipped(&mut back.pass, kept.x);
        let dy = back.temporary("dconvolved", side, outputs);
        let dskip = skip.map(|_| back.temporary("dskipped", side, outputs));
        let (norm, drop) = (self.normed(&back.pass, kept.stats), self.drop(&back.pass));
        let [weight_grad, bias_grad] =
            norm.map_or([None, None], |norm| [norm.weight, norm.bias].map(|id| back.gradient(id)));
        back.push(Op::Series(SeriesOp::NormPoolBackward {
            shape: self.pool,
            dout,
            x: y,
            norm,
            skip,
            dx: dy,
            dskip,
            weight_grad,
            bias_grad,
            drop,
        }));
        let (weight, bias) = (self.weight(&back.pass, "conv.weight"), self.weight(&back.pass, "conv.bias"));
        let as_it_is = matches!(self.skip(&back.pass), Skip::AsItIs);
        let dx = dskip.filter(|_| as_it_is).unwrap_or_else(|| back.temporary("dx", side, inputs));
        back.push(Op::Series(SeriesOp::ConvInput { shape, dy, weight, dx, add: as_it_is }));
        if let Some((grad, write)) = back.gradient(weight) {
            back.push(Op::Series(SeriesOp::ConvWeight { shape, dy, x: kept.x, grad, write }));
        }
        self.column_sum(back, dy, bias);
        if let (Skip::Through { weight, bias }, Some(dskip)) = (self.skip(&back.pass), dskip) {
            let (dy, scale, in_out) = (Cols { id: dskip, start: 0, stride: outputs }, 1.0, false);
            back.push(Op::LinearInput { side, dy, weight, dx, add: true, scale, inputs, outputs, in_out });
            if let Some((grad, write)) = back.gradient(weight) {
                back.push(Op::LinearWeight { side, dy, x: kept.x, grad, write, scale, inputs, outputs, in_out });
            }
            self.column_sum(back, dskip, bias);
        }
        dx
    }

    fn column_sum(&self, back: &mut Backward, dy: Id, bias: Id) {
        let (side, width) = (self.side(), self.shape.outputs);
        if let Some((grad, write)) = back.gradient(bias) {
            back.push(Op::ColumnSum { side, dy: Cols { id: dy, start: 0, stride: width }, grad, write, width });
        }
    }
}
