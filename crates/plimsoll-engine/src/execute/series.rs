//! Ops over samples of equal length: each becomes one kernel call.

use plimsoll_plan::op::{Answer, BatchNormed, SeriesOp};

use super::Frame;
use crate::cpu::additive_pool::{AdditiveShape, additive_pool_backward, additive_pool_forward};
use crate::cpu::batch_norm::{RunningStats, batch_stats, running_stats};
use crate::cpu::conv::{conv_forward, conv_input, conv_weight};
use crate::cpu::gelu_erf::{gelu_erf_backward, gelu_erf_forward};
use crate::cpu::input::input_forward;
use crate::cpu::lstm::{Ends, LstmWeights, lstm_forward};
use crate::cpu::lstm_backward::{lstm_backward, lstm_input, lstm_weight};
use crate::cpu::norm_pool::{Normed, norm_pool_backward, norm_pool_forward};
use crate::cpu::positions::{positions_backward, positions_forward};
use crate::cpu::series_loss::{Answers, Labels, series_loss};
use crate::cpu::summary::{summary_backward, summary_forward};
use crate::series_staging::SeriesStaging;
use crate::step::NotFinite;

impl<'a> Frame<'a> {
    /// The batch.
    pub(super) fn windows(&self) -> &'a SeriesStaging {
        self.series.expect("a tape of series runs over series")
    }

    fn normed(&self, norm: &Option<BatchNormed>) -> Option<Normed<'a>> {
        norm.map(|n| Normed { stats: self.get(n.stats), weight: self.get(n.weight), bias: self.get(n.bias) })
    }

    fn answers(&self, answer: &Option<Answer>) -> Option<Answers<'a>> {
        answer.map(|Answer { out, grad, outputs }| Answers {
            outputs,
            out: self.get(out),
            grad: grad.map(|grad| self.get_mut(grad)),
        })
    }

    pub(super) fn execute_series(&mut self, op: &SeriesOp) {
        let (cores, windows) = (self.cores, self.windows());
        let samples = windows.samples();
        let place = (windows.first(), samples);
        match op {
            SeriesOp::Input { out, width, mixup } => {
                self.mix = mixup.and_then(|mixup| windows.mix(mixup, self.seed, self.update));
                input_forward(*width, windows.inputs(), self.mix, &mut self.get_mut(*out)[..samples * width]);
            }
            SeriesOp::Conv { shape, x, weight, bias, out } => {
                let (x, weight, bias) = (self.get(*x), self.get(*weight), self.get(*bias));
                conv_forward(cores, *shape, samples, x, weight, bias, self.get_mut(*out), self.workspace());
            }
            SeriesOp::ConvInput { shape, dy, weight, dx, add } => {
                let (dy, weight, dx) = (self.get(*dy), self.get(*weight), self.get_mut(*dx));
                conv_input(cores, *shape, samples, dy, weight, dx, *add, self.workspace());
            }
            SeriesOp::ConvWeight { shape, dy, x, grad, write } => {
                let (dy, x, grad, write) = (self.get(*dy), self.get(*x), self.get_mut(*grad), self.write(*write));
                conv_weight(cores, *shape, samples, dy, x, grad, write, self.workspace());
            }
            SeriesOp::BatchStats { side, x, width, eps, momentum, running, stats } => {
                // A later micro-batch of an update goes on from the one before it.
                let from = if self.first_micro { running.now } else { running.next };
                let next = running.next.map(|id| self.get_mut(id));
                let running = RunningStats { now: from.map(|id| self.get(id)), next, momentum: *momentum };
                let (rows, stats) = (self.count(*side), self.get_mut(*stats));
                batch_stats(cores, rows, *width, *eps, self.get(*x), stats, running, self.workspace());
            }
            SeriesOp::RunningStats { mean, variance, stats, eps, .. } => {
                running_stats(self.get(*mean), self.get(*variance), *eps, self.get_mut(*stats));
            }
            SeriesOp::NormPool { shape, x, norm, skip, out, drop } => {
                let (norm, skip, drop) = (self.normed(norm), skip.map(|id| self.get(id)), self.dropper(*drop));
                let (x, out) = (self.get(*x), self.get_mut(*out));
                norm_pool_forward(cores, *shape, place, x, norm, skip, out, drop, self.workspace());
            }
            SeriesOp::NormPoolBackward { shape, dout, x, norm, skip, dx, dskip, weight_grad, bias_grad, drop } => {
                let (norm, skip, drop) = (self.normed(norm), skip.map(|id| self.get(id)), self.dropper(*drop));
                let gradients = [self.gradient(*weight_grad), self.gradient(*bias_grad)];
                let (dx, dskip) = (self.get_mut(*dx), dskip.map(|id| self.get_mut(id)));
                let (dout, x, space) = (self.get(*dout), self.get(*x), self.workspace());
                norm_pool_backward(cores, *shape, place, dout, x, norm, skip, dx, dskip, gradients, drop, space);
            }
            SeriesOp::Lstm { shape, x, weights, gates, cells, start, end, out } => {
                let weights = LstmWeights {
                    input: self.get(weights.input),
                    state: self.get(weights.state),
                    input_bias: self.get(weights.input_bias),
                    state_bias: self.get(weights.state_bias),
                };
                let ends = Ends { start: start.map(|id| self.get(id)), end: end.map(|id| self.get_mut(id)) };
                let (gates, cells, out) = (self.get_mut(*gates), self.get_mut(*cells), self.columns(*out));
                let (x, space) = (self.get(*x), self.workspace());
                lstm_forward(cores, shape, samples, x, weights, gates, cells, ends, out, space);
            }
            SeriesOp::LstmBackward { shape, gates, cells, start, state_weight, dout, carry, last } => {
                lstm_backward(
                    cores,
                    shape,
                    samples,
                    self.get_mut(*gates),
                    self.get(*cells),
                    start.map(|id| self.get(id)),
                    self.get(*state_weight),
                    self.columns(*dout),
                    self.get_mut(*carry),
                    *last,
                    self.workspace(),
                );
            }
            SeriesOp::LstmInput { shape, dgates, input_weight, dx, add } => {
                let (dgates, weight, dx) = (self.get(*dgates), self.get(*input_weight), self.get_mut(*dx));
                lstm_input(cores, shape, samples, dgates, weight, dx, *add, self.workspace());
            }
            SeriesOp::LstmWeight { shape, dgates, x, out, grads } => {
                let grads = grads.map(|grad| self.gradient(grad));
                let (dgates, x, out) = (self.get(*dgates), self.get(*x), self.columns(*out));
                lstm_weight(cores, shape, samples, dgates, x, out, grads, self.workspace());
            }
            SeriesOp::GeluErf { side, h, out, width, drop } => {
                let (rows, drop) = (self.rows(*side), self.dropper(*drop));
                gelu_erf_forward(cores, rows, *width, self.get(*h), self.get_mut(*out), drop.as_ref());
            }
            SeriesOp::GeluErfBackward { side, dh, h, width, drop } => {
                let (rows, drop) = (self.rows(*side), self.dropper(*drop));
                gelu_erf_backward(cores, rows, *width, self.get_mut(*dh), self.get(*h), drop.as_ref());
            }
            SeriesOp::AdditivePool { steps, width, units, x, u, weight, bias, weights, out } => {
                let shape = AdditiveShape { steps: *steps, width: *width, units: *units };
                let (x, u, line) = (self.get(*x), self.get_mut(*u), (self.get(*weight), self.get(*bias)[0]));
                let (weights, out) = (self.get_mut(*weights), self.get_mut(*out));
                additive_pool_forward(cores, shape, samples, x, u, line, weights, out);
            }
            SeriesOp::AdditivePoolBackward {
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
            } => {
                additive_pool_backward(
                    cores,
                    AdditiveShape { steps: *steps, width: *width, units: *units },
                    samples,
                    self.get(*dout),
                    self.get(*x),
                    self.get_mut(*u),
                    self.get(*weight),
                    self.get(*weights),
                    self.get_mut(*dx),
                    [self.gradient(*weight_grad), self.gradient(*bias_grad)],
                    self.workspace(),
                );
            }
            SeriesOp::Summary { steps, width, mean, x, out } => {
                let out = &mut self.get_mut(*out)[..samples * width];
                summary_forward(cores, (*steps, *width, *mean), self.get(*x), out);
            }
            SeriesOp::SummaryBackward { steps, width, mean, dout, dx } => {
                let dout = &self.get(*dout)[..samples * width];
                summary_backward((*steps, *width, *mean), dout, self.get_mut(*dx));
            }
            SeriesOp::Positions { steps, width, x, table, out } => {
                positions_forward(samples, (*steps, *width), self.get(*x), self.get(*table), self.get_mut(*out));
            }
            SeriesOp::PositionsBackward { steps, width, dy, grad, write } => {
                let (grad, write) = (self.get_mut(*grad), self.write(*write));
                positions_backward(samples, (*steps, *width), self.get(*dy), grad, write);
            }
            SeriesOp::Loss { classes, confidence, values, losses, terms } => {
                let labels = Labels { classes: windows.classes(), values: windows.values(), mix: self.mix };
                let trains = [classes, confidence, values].into_iter().flatten().any(|answer| answer.grad.is_some());
                let losses = self.get_mut(*losses);
                let [classes, confidence, values] = [classes, confidence, values].map(|answer| self.answers(answer));
                series_loss(terms, labels, classes, confidence, values, losses);
                self.loss_sum += losses[..samples].iter().map(|l| f64::from(*l)).sum::<f64>();
                if trains {
                    self.stopped = if self.loss_sum.is_finite() { self.spoiled } else { Some(NotFinite::Loss) };
                }
            }
            SeriesOp::Commit { from, to } => self.get_mut(*to).copy_from_slice(self.get(*from)),
        }
    }
}
