//! Plans of a model of series on a card: what is computed again for the budget, and what its ops take.

use super::cost::{Cost, Product};
use crate::choices::Choices;
use crate::choose::Pins;
use crate::device::LSTM_WALKED;
use crate::op::{ConvShape, LstmShape, Op, SeriesOp};
use crate::series::distances;
use crate::spec::SeriesSpec;

/// Parts that an LSTM's steps are cut into, the fewest first.
const PARTS: [usize; 4] = [4, 8, 16, 32];
/// Seconds of a step of an LSTM, beside its sums: most of it is waiting, so a step of both directions together takes as long. And
/// floating-point operations a second of one processor in those sums, which no tensor core does. Both measured on an H200, see
/// `docs/benchmarks.md`.
const STEP: f64 = 3e-6;
const PLAIN_FLOPS: f64 = 0.2e12;

/// A frame with less and less kept: first convolutions are computed again, which takes little, then the steps of the LSTM,
/// which are most of the time.
pub(super) fn levels(spec: &SeriesSpec, pins: &Pins, frame: Choices) -> Vec<Choices> {
    let blocks = spec.conv.len();
    let distances = pins.lstm_every.map_or_else(|| distances(spec, &PARTS), |every| vec![every]);
    let again: Vec<usize> = match pins.recompute {
        Some(held) => vec![held.min(blocks)],
        None => (0..=blocks).collect(),
    };
    let most = again.last().copied().unwrap_or(0);
    let of = |recompute: usize, lstm_every: usize| Choices { recompute, lstm_every, ..frame };
    let convolutions = again.iter().map(|recompute| of(*recompute, distances[0]));
    convolutions.chain(distances[1..].iter().map(|every| of(most, *every))).collect()
}

/// Rows, columns and depth of the product that most of an op is, and how often it is done; none where there is none.
fn product(op: &SeriesOp, samples: usize) -> Option<((usize, usize, usize), f64)> {
    let conv = |shape: &ConvShape| (samples * shape.steps, shape.outputs, shape.depth());
    let gates = |shape: &LstmShape, width: usize| (samples * shape.count(), 4 * shape.hidden, width);
    Some(match op {
        SeriesOp::Conv { shape, .. } => (conv(shape), 1.0),
        SeriesOp::ConvInput { shape, .. } => (conv(&shape.back()), 1.0),
        SeriesOp::ConvWeight { shape, .. } => {
            let (m, n, k) = conv(shape);
            ((n, k, m), 1.0)
        }
        SeriesOp::Lstm { shape, .. } => (gates(shape, shape.inputs), 1.0),
        SeriesOp::LstmInput { shape, .. } => {
            let (m, n, k) = gates(shape, shape.inputs);
            ((m, k, n), 1.0)
        }
        SeriesOp::LstmWeight { shape, .. } => {
            let (m, n, k) = gates(shape, shape.inputs.max(shape.hidden));
            ((n, k, m), 2.0)
        }
        _ => return None,
    })
}

/// The LSTM whose steps an op walks, one after the other.
fn walked(op: &SeriesOp) -> Option<&LstmShape> {
    match op {
        SeriesOp::Lstm { shape, .. } | SeriesOp::LstmBackward { shape, .. } => Some(shape),
        _ => None,
    }
}

/// Floating-point operations of its steps, beside the products over all of them.
fn step_flops(shape: &LstmShape, samples: usize) -> f64 {
    8.0 * (samples * shape.count()) as f64 * (shape.hidden * shape.hidden) as f64
}

/// Floating-point operations of an op.
pub(super) fn flops(op: &SeriesOp, samples: usize) -> f64 {
    let of = product(op, samples).map_or(0.0, |((m, n, k), times)| 2.0 * times * m as f64 * n as f64 * k as f64);
    of + walked(op).map_or(0.0, |shape| step_flops(shape, samples))
}

impl Cost<'_> {
    /// Seconds of an op over series.
    pub(super) fn series(&self, op: &SeriesOp) -> f64 {
        let samples = self.placed.rows.samples;
        let width = self.width();
        let of_product = product(op, samples).map_or(0.0, |((m, n, k), times)| {
            let gathered = match op {
                SeriesOp::Conv { .. } | SeriesOp::ConvInput { .. } => 2 * m * k * width,
                SeriesOp::ConvWeight { .. } => 2 * n * k * width,
                _ => 0,
            };
            times * self.product(Product { m, n, k, out: m * n * width }) + self.moved(gathered)
        });
        let of_steps = walked(op).map_or(0.0, |shape| self.steps(shape, samples));
        of_product + of_steps + self.moved(4 * self.touched(&Op::Series(op.clone()))) + self.launch()
    }
    /// Seconds of the steps of an LSTM.
    fn steps(&self, shape: &LstmShape, samples: usize) -> f64 {
        let (count, wide) = (shape.count() as f64, 4 * shape.hidden);
        if shape.hidden > LSTM_WALKED {
            // A product and a launch each.
            let out = samples * wide * self.width();
            return count * (self.product(Product { m: samples, n: wide, k: shape.hidden, out }) + self.launch());
        }
        // Directions are walked together where both are walked whole; half of it is this one's.
        let together = shape.is_whole() && self.is_bidirectional();
        let each = if together { STEP / 2.0 } else { STEP };
        count * each + step_flops(shape, samples) / (PLAIN_FLOPS * self.card.processors.max(1) as f64)
    }

    fn is_bidirectional(&self) -> bool {
        self.program.spec.series().is_some_and(|spec| spec.lstm.bidirectional)
    }
}
