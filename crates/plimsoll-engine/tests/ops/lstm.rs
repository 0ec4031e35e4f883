//! Both directions of an LSTM, whole and in stretches, against the formula in f64; gradients by finite differences of it.

use plimsoll_engine::cpu::attention::Columns;
use plimsoll_engine::cpu::lstm::{Ends, LstmWeights, lstm_forward};
use plimsoll_engine::cpu::lstm_backward::{lstm_backward, lstm_input, lstm_weight};
use plimsoll_engine::cpu::{Cores, Shared};
use plimsoll_plan::op::{Cols, LSTM_BLOCK, LstmShape, SeriesOp, Write};
use plimsoll_plan::tape::Id;

use crate::{
    assert_close, finite_differences, inner_product, numbers, on_all_cores, planned, same_on_all_threads, unwritten,
    wide,
};

/// Where the direction's outputs stand in a row, as beside those of the other one, and how long the row is.
const BESIDE: usize = 2;

struct Case {
    samples: usize,
    shape: LstmShape,
    x: Vec<f32>,
    /// Of inputs, of the state, and both biases.
    weights: [Vec<f32>; 4],
    dout: Vec<f32>,
}

impl Case {
    fn of(samples: usize, [steps, inputs, hidden]: [usize; 3], reverse: bool) -> Case {
        let shape = LstmShape { steps, inputs, hidden, reverse, from: 0, to: steps };
        let weights = [4 * hidden * inputs, 4 * hidden * hidden, 4 * hidden, 4 * hidden];
        let mut seed = 10;
        let weights = weights.map(|n| {
            seed += 1;
            numbers(n, seed).iter().map(|w| 0.6 * w).collect()
        });
        let (x, dout) = (numbers(samples * steps * inputs, 1), numbers(samples * steps * hidden, 2));
        Case { samples, shape, x, weights, dout }
    }

    /// Outputs of all steps, in the order of time.
    fn exact(&self, x: &[f64], weights: &[Vec<f64>; 4]) -> Vec<f64> {
        let LstmShape { steps, inputs, hidden, reverse, .. } = self.shape;
        let [input, state, input_bias, state_bias] = weights;
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let mut out = vec![0.0; self.samples * steps * hidden];
        for sample in 0..self.samples {
            let (mut h, mut c) = (vec![0.0; hidden], vec![0.0; hidden]);
            for nth in 0..steps {
                let row = sample * steps + if reverse { steps - 1 - nth } else { nth };
                let x = &x[row * inputs..(row + 1) * inputs];
                let gate = |g: usize| {
                    input_bias[g]
                        + state_bias[g]
                        + inner_product(x, &input[g * inputs..(g + 1) * inputs])
                        + inner_product(&h, &state[g * hidden..(g + 1) * hidden])
                };
                let gates: Vec<f64> = (0..4 * hidden).map(gate).collect();
                for at in 0..hidden {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|kind| gates[kind * hidden + at]);
                    c[at] = sigmoid(f) * c[at] + sigmoid(i) * g.tanh();
                    h[at] = sigmoid(o) * c[at].tanh();
                }
                out[row * hidden..(row + 1) * hidden].copy_from_slice(&h);
            }
        }
        out
    }

    fn wide_weights(&self) -> [Vec<f64>; 4] {
        self.weights.each_ref().map(|w| wide(w))
    }

    /// Stretches of so many steps, in the order that they are walked.
    fn stretches(&self, every: usize) -> Vec<LstmShape> {
        let LstmShape { steps, reverse, .. } = self.shape;
        let walked = (0..steps).step_by(every).map(|from| (from, (from + every).min(steps)));
        let in_time = |(from, to): (usize, usize)| if reverse { (steps - to, steps - from) } else { (from, to) };
        walked.map(in_time).map(|(from, to)| LstmShape { from, to, ..self.shape }).collect()
    }

    fn scratch(&self, cores: Cores, shape: LstmShape) -> Vec<f32> {
        let (id, of) = (Id(0), Cols { id: Id(0), start: 0, stride: 0 });
        let weights = plimsoll_plan::op::LstmWeights { input: id, state: id, input_bias: id, state_bias: id };
        let (start, end) = (None, None);
        let ops = [
            SeriesOp::Lstm { shape, x: id, weights, gates: id, cells: id, start, end, out: of },
            SeriesOp::LstmBackward {
                shape,
                gates: id,
                cells: id,
                start,
                state_weight: id,
                dout: of,
                carry: id,
                last: true,
            },
            SeriesOp::LstmInput { shape, dgates: id, input_weight: id, dx: id, add: false },
            SeriesOp::LstmWeight { shape, dgates: id, x: id, out: of, grads: [None; 4] },
        ];
        planned(cores, self.samples, &ops)
    }

    /// A pass over all steps, `every` so many computed again: outputs, the gradient of the input, those of the weights.
    fn pass(&self, cores: Cores, every: usize, before: Option<&[Vec<f32>; 5]>) -> (Vec<f32>, [Vec<f32>; 5]) {
        let LstmShape { steps, hidden, .. } = self.shape;
        let stride = hidden + BESIDE;
        let (mut out, mut dout) = (unwritten(self.samples * steps * stride), unwritten(self.samples * steps * stride));
        for (row, from) in dout.chunks_exact_mut(stride).zip(self.dout.chunks_exact(hidden)) {
            row[BESIDE..].copy_from_slice(from);
        }
        let columns = |data: &mut [f32]| Columns { data: Shared(data.as_mut_ptr()), start: BESIDE, stride };
        let (out_at, dout_at) = (columns(&mut out), columns(&mut dout));
        let [input, state, input_bias, state_bias] = self.weights.each_ref().map(|w| &w[..]);
        let weights = LstmWeights { input, state, input_bias, state_bias };
        let stretches = self.stretches(every);
        let walk = |shape: &LstmShape, start: Option<&[f32]>, end: Option<&mut [f32]>| {
            let rows = self.samples * shape.count();
            let (mut gates, mut cells) = (unwritten(rows * 4 * hidden), unwritten(rows * hidden));
            let (ends, mut space) = (Ends { start, end }, self.scratch(cores, *shape));
            lstm_forward(
                cores,
                shape,
                self.samples,
                &self.x,
                weights,
                &mut gates,
                &mut cells,
                ends,
                out_at,
                &mut space,
            );
            (gates, cells)
        };
        let mut starts: Vec<Option<Vec<f32>>> = vec![None];
        for shape in &stretches {
            let mut end = unwritten(self.samples * hidden);
            walk(shape, starts.last().unwrap().as_deref(), Some(&mut end));
            starts.push(Some(end));
        }
        let [w0, w1, w2, w3] = self.weights.each_ref().map(|w| unwritten(w.len()));
        let fresh = [unwritten(self.x.len()), w0, w1, w2, w3];
        let [mut dx, mut d0, mut d1, mut d2, mut d3] = before.unwrap_or(&fresh).clone();
        let mut carry = unwritten(self.samples * 2 * hidden);
        for (nth, (shape, start)) in stretches.iter().zip(&starts).enumerate().rev() {
            let (mut gates, cells) = walk(shape, start.as_deref(), None);
            let (last, mut space) = (nth + 1 == stretches.len(), self.scratch(cores, *shape));
            let (samples, start) = (self.samples, start.as_deref());
            lstm_backward(
                cores, shape, samples, &mut gates, &cells, start, state, dout_at, &mut carry, last, &mut space,
            );
            let mut space = self.scratch(cores, *shape);
            lstm_input(cores, shape, samples, &gates, input, &mut dx, before.is_some(), &mut space);
            let write = if last && before.is_none() { Write::Set } else { Write::Add };
            let grads = [&mut d0, &mut d1, &mut d2, &mut d3].map(|grad| Some((&mut grad[..], write)));
            let mut space = self.scratch(cores, *shape);
            lstm_weight(cores, shape, samples, &gates, &self.x, out_at, grads, &mut space);
        }
        let out = out.chunks_exact(stride).flat_map(|row| row[BESIDE..].to_vec()).collect();
        (out, [dx, d0, d1, d2, d3])
    }
}

/// One of each; no width a multiple of a register; more samples than a strip of a product has rows; more steps than a block.
fn cases() -> Vec<Case> {
    let sizes = [(1, [1, 1, 1]), (2, [5, 3, 4]), (9, [4, 2, 5]), (1, [70, 2, 3])];
    sizes
        .into_iter()
        .flat_map(|(samples, size)| [false, true].map(|reverse| Case::of(samples, size, reverse)))
        .collect()
}

#[test]
fn outputs_and_gradients_are_those_of_the_formula() {
    for case in cases() {
        let (x, weights, dout) = (wide(&case.x), case.wide_weights(), wide(&case.dout));
        let out = case.exact(&x, &weights);
        let dx = finite_differences(&x, |x| inner_product(&dout, &case.exact(x, &weights)));
        let mut exact = vec![dx];
        for nth in 0..4 {
            exact.push(finite_differences(&weights[nth], |w| {
                let mut changed = weights.clone();
                changed[nth] = w.to_vec();
                inner_product(&dout, &case.exact(&x, &changed))
            }));
        }
        let shape = case.shape;
        on_all_cores(|cores| {
            let (got, gradients) = case.pass(cores, shape.steps, None);
            assert_close(&got, &out, 2e-6, &format!("outputs of {shape:?}"));
            for (nth, (got, exact)) in gradients.iter().zip(&exact).enumerate() {
                assert_close(got, exact, 2e-5, &format!("gradient {nth} of {shape:?}"));
            }
            let before = gradients.each_ref().map(|g| numbers(g.len(), 77));
            let (_, added) = case.pass(cores, shape.steps, Some(&before));
            for (nth, ((got, exact), before)) in added.iter().zip(&exact).zip(&before).enumerate() {
                let exact: Vec<f64> = exact.iter().zip(before).map(|(e, b)| e + f64::from(*b)).collect();
                assert_close(got, &exact, 2e-5, &format!("gradient {nth} of {shape:?}, added"));
            }
        });
    }
}

#[test]
fn stretches_of_whole_blocks_and_any_number_of_threads_give_the_same_bits() {
    // Steps in two blocks and a part; so many gates that their products are cut; a state of one panel and a part.
    for (samples, size) in
        [(3, [2 * LSTM_BLOCK + 5, 6, 9]), (2, [LSTM_BLOCK + 1, 5, 130]), (20, [LSTM_BLOCK + 3, 3, 4])]
    {
        for reverse in [false, true] {
            let case = Case::of(samples, size, reverse);
            same_on_all_threads(|cores| {
                let whole = case.pass(cores, case.shape.steps, None);
                for every in [LSTM_BLOCK, 2 * LSTM_BLOCK] {
                    assert!(case.pass(cores, every, None) == whole, "every {every}, {:?}", case.shape);
                }
                whole
            });
        }
    }
}
