//! Work of ops over samples of equal length.

use super::{Scale, Sides, Unit, Work};
use crate::op::{ConvShape, LstmShape, SeriesOp};
use crate::spec::Activation;

const PLAIN: Sides = super::PLAIN;
/// Exponentials of an exact GELU, and of its slope.
const GELU: f64 = 2.0;

impl Scale<'_> {
    fn conv(&self, shape: &ConvShape) -> Work {
        self.product((self.rows.samples * shape.steps, shape.outputs, shape.inputs * shape.kernel), PLAIN)
    }

    /// Four gates from rows of a width.
    fn gates(&self, shape: &LstmShape, width: usize) -> Work {
        self.product((self.rows.samples * shape.count(), 4 * shape.hidden, width), PLAIN)
    }

    /// How much longer it takes to walk samples step by step than if all threads had their part of it: each walks some of them alone, and the
    /// others are idle. A product of one row in each step goes as fast as one of many (`bench series`, `batch=1 threads=1`).
    fn walked(&self) -> f64 {
        let samples = self.rows.samples.max(1);
        self.threads as f64 / samples.div_ceil(samples.div_ceil(self.threads)) as f64
    }

    /// Work of one op with full batches.
    pub(super) fn series(&self, op: &SeriesOp) -> Work {
        let samples = self.rows.samples;
        let moved = |words: usize| Work::call().moved(4 * words);
        match op {
            SeriesOp::Input { width, .. } => moved(2 * samples * width),
            SeriesOp::Conv { shape, .. } => self.conv(shape),
            SeriesOp::ConvInput { shape, .. } => self.conv(&shape.back()),
            SeriesOp::ConvWeight { shape, .. } => {
                let sides = Sides { left_packed: true, ..PLAIN };
                self.product((shape.inputs * shape.kernel, shape.outputs, shape.steps), sides) * samples as f64
            }
            SeriesOp::BatchStats { side, width, .. } => moved(self.rows.of(*side) * width),
            SeriesOp::RunningStats { .. } | SeriesOp::Commit { .. } | SeriesOp::Loss { .. } => Work::call(),
            SeriesOp::NormPool { shape, drop, .. } | SeriesOp::NormPoolBackward { shape, drop, .. } => {
                let words = samples * shape.steps * shape.width;
                let passes = if matches!(op, SeriesOp::NormPool { .. }) { 2 } else { 6 };
                let bends = if shape.activation == Activation::Gelu { GELU } else { 0.0 };
                let drops = if drop.is_some() { words as f64 } else { 0.0 };
                moved(passes * words).with(Unit::Exponentials, bends * words as f64).with(Unit::Drops, drops)
            }
            SeriesOp::Lstm { shape, .. } => {
                let cells = (samples * shape.count() * shape.hidden) as f64;
                let all = self.gates(shape, shape.inputs) + self.gates(shape, shape.hidden);
                all.with(Unit::Exponentials, 5.0 * cells).slower(self.walked())
            }
            SeriesOp::LstmBackward { shape, .. } => {
                let cells = (samples * shape.count() * shape.hidden) as f64;
                self.gates(shape, shape.hidden).with(Unit::Exponentials, cells).slower(self.walked())
            }
            SeriesOp::LstmInput { shape, .. } => self.gates(shape, shape.inputs),
            SeriesOp::LstmWeight { shape, .. } => {
                let (m, k) = (4 * shape.hidden, samples * shape.count());
                let of = |n: usize| self.product((m, n, k), Sides { left_packed: true, ..PLAIN });
                of(shape.inputs) + of(shape.hidden)
            }
            SeriesOp::GeluErf { side, width, .. } | SeriesOp::GeluErfBackward { side, width, .. } => {
                let words = self.rows.of(*side) * width;
                moved(3 * words).with(Unit::Exponentials, GELU * words as f64)
            }
            SeriesOp::AdditivePool { steps, width, units, .. }
            | SeriesOp::AdditivePoolBackward { steps, width, units, .. } => {
                let rows = samples * steps;
                moved(rows * (3 * width + 2 * units)).with(Unit::Exponentials, (rows * units) as f64)
            }
            SeriesOp::Summary { steps, width, .. } | SeriesOp::SummaryBackward { steps, width, .. } => {
                moved(samples * steps * width)
            }
            SeriesOp::Positions { steps, width, .. } | SeriesOp::PositionsBackward { steps, width, .. } => {
                moved(2 * samples * steps * width)
            }
        }
    }
}
