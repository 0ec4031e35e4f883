//! Gradients of some steps of an LSTM: of its gates, step by step back; then of inputs and weights, from all steps at once.

use plimsoll_plan::op::{LstmShape, Write};
use plimsoll_plan::place::aligned;

use super::Cores;
use super::attention::Columns;
use super::column_sum::column_sum;
use super::lstm::{Weights, before, group, step};
use super::matmul::{Matrix, Output, matmul, matmul_packed, pack};
use crate::math::tanh;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Gates become their gradients. `carry` brings the gradients of output and cell from the steps behind these (with `last`
/// there are none) and takes those for the steps before them.
pub fn lstm_backward(
    cores: Cores,
    shape: &LstmShape,
    samples: usize,
    gates: &mut [f32],
    cells: &[f32],
    start: Option<&[f32]>,
    state_weight: &[f32],
    dout: Columns,
    carry: &mut [f32],
    last: bool,
    workspace: &mut [f32],
) {
    let LstmShape { steps, hidden, from, .. } = *shape;
    let (wide, count) = (4 * hidden, shape.count());
    assert!(gates.len() >= samples * count * wide && cells.len() >= samples * count * hidden);
    assert!(carry.len() >= samples * 2 * hidden, "every row has its place");
    // SAFETY: the weight has `4H` rows of H.
    let weight = Weights(unsafe { pack(cores.simd, hidden, wide, Matrix::rows(state_weight, hidden), workspace) });
    let (gates, carry) = (Shared(gates.as_mut_ptr()), Shared(carry.as_mut_ptr()));
    let each = group(cores, samples);
    pool::tasks(samples.div_ceil(each), |task| {
        let (first, many) = (task * each, each.min(samples - task * each));
        if last {
            // SAFETY: rows of this task's samples.
            unsafe { carry.slice(first * 2 * hidden, many * 2 * hidden) }.fill(0.0);
        }
        for nth in (0..count).rev() {
            let (t, begins) = (step(shape, nth), nth == 0 && shape.is_first());
            let local = t - from;
            for sample in first..first + many {
                let earlier = match (nth, begins) {
                    (_, true) => None,
                    (0, false) => start.map(|s| &s[sample * hidden..(sample + 1) * hidden]),
                    _ => {
                        let row = sample * count + before(shape, t) - from;
                        Some(&cells[row * hidden..(row + 1) * hidden])
                    }
                };
                let cell = &cells[(sample * count + local) * hidden..][..hidden];
                // SAFETY: rows of this task's samples.
                unsafe {
                    let gate = gates.slice((sample * count + local) * wide, wide);
                    let carry = carry.slice(sample * 2 * hidden, 2 * hidden);
                    let dh = dout.part(sample * steps + t, 0, hidden);
                    back_through(cores.simd, gate, cell, earlier, dh, carry);
                }
            }
            if !begins {
                let a = gates.first().wrapping_add((first * count + local) * wide);
                let a = Matrix { data: a, row_stride: count * wide, col_stride: 1 };
                let to = Output::rows(carry.first().wrapping_add(first * 2 * hidden), 2 * hidden);
                // SAFETY: these gates are gradients now, and theirs the rows of the carry.
                unsafe { matmul_packed(cores.simd, many, hidden, a, weight.get(), to, &mut []) };
            }
        }
    });
}

leveled! {
    /// One step of one sample. Its carry's first half is read; its second half becomes that of the step before.
    fn back_through(gates: &mut [f32], cell: &[f32], earlier: Option<&[f32]>, dh: &[f32], carry: &mut [f32]) {
        let hidden = cell.len();
        let (i, rest) = gates.split_at_mut(hidden);
        let (f, rest) = rest.split_at_mut(hidden);
        let (g, o) = rest.split_at_mut(hidden);
        let (carry_h, carry_c) = carry.split_at_mut(hidden);
        let (o, carry_c, dh) = (&mut o[..hidden], &mut carry_c[..hidden], &dh[..hidden]);
        for c in 0..hidden {
            let (i_, f_, g_, o_) = (i[c], f[c], g[c], o[c]);
            let dh = dh[c] + carry_h[c];
            let t = tanh(cell[c]);
            let dc = carry_c[c] + dh * o_ * (1.0 - t * t);
            o[c] = dh * t * o_ * (1.0 - o_);
            i[c] = dc * g_ * i_ * (1.0 - i_);
            g[c] = dc * i_ * (1.0 - g_ * g_);
            carry_c[c] = dc * f_;
            // What forgets gets the earlier cell below.
            f[c] = dc * f_ * (1.0 - f_);
        }
        match earlier {
            Some(earlier) => f.iter_mut().zip(earlier).for_each(|(f, e)| *f *= e),
            None => f.fill(0.0),
        }
    }
}

/// `dx (+)= dgates W` of these steps.
pub fn lstm_input(
    cores: Cores,
    shape: &LstmShape,
    samples: usize,
    dgates: &[f32],
    input_weight: &[f32],
    dx: &mut [f32],
    add: bool,
    workspace: &mut [f32],
) {
    let LstmShape { steps, inputs, hidden, from, .. } = *shape;
    let (wide, count) = (4 * hidden, shape.count());
    assert!(dx.len() >= samples * steps * inputs && dgates.len() >= samples * count * wide);
    let weight = Matrix::rows(input_weight, inputs);
    if shape.is_whole() {
        let (a, out) = (Matrix::rows(dgates, wide), Output { add, ..Output::rows(dx.as_mut_ptr(), inputs) });
        // SAFETY: as the shapes say.
        return unsafe {
            matmul(cores.simd, cores.threads, samples * steps, inputs, wide, a, weight, out, workspace);
        };
    }
    // SAFETY: the weight has `4H` rows.
    let weight = Weights(unsafe { pack(cores.simd, inputs, wide, weight, workspace) });
    let dx = Shared(dx.as_mut_ptr());
    pool::tasks(samples, |sample| {
        let a = Matrix::rows(&dgates[sample * count * wide..], wide);
        let to = dx.first().wrapping_add((sample * steps + from) * inputs);
        let to = Output { add, ..Output::rows(to, inputs) };
        // SAFETY: these rows are this sample's.
        unsafe { matmul_packed(cores.simd, count, inputs, a, weight.get(), to, &mut []) };
    });
}

/// Gradients of the four weights that are trained, in their order: of inputs, of the state, and both biases.
pub fn lstm_weight(
    cores: Cores,
    shape: &LstmShape,
    samples: usize,
    dgates: &[f32],
    x: &[f32],
    out: Columns,
    grads: [Option<(&mut [f32], Write)>; 4],
    workspace: &mut [f32],
) {
    let LstmShape { steps, inputs, hidden, from, .. } = *shape;
    let (wide, count) = (4 * hidden, shape.count());
    let at_a_time = shape.gathered(samples);
    let (gathered, rest) = workspace.split_at_mut(aligned(at_a_time * count * inputs.max(hidden)));
    let [of_input, of_state, of_input_bias, of_state_bias] = grads;
    // Adds `dgates^T rows` of some samples.
    let product =
        |first: usize, many: usize, rows: &[f32], width: usize, grad: &mut [f32], add: bool, rest: &mut [f32]| {
            let a = Matrix::rows(&dgates[first * count * wide..], wide).transposed();
            let (b, to) = (Matrix::rows(rows, width), Output { add, ..Output::rows(grad.as_mut_ptr(), width) });
            // SAFETY: `many` samples have these rows of gradients, and as many of what they belong to.
            unsafe { matmul(cores.simd, cores.threads, wide, width, many * count, a, b, to, rest) };
        };
    if let Some((grad, write)) = of_input {
        let add = write == Write::Add;
        if shape.is_whole() {
            product(0, samples, x, inputs, grad, add, rest);
        } else {
            for first in (0..samples).step_by(at_a_time) {
                let many = at_a_time.min(samples - first);
                let to = Shared(gathered.as_mut_ptr());
                pool::tasks(many, |nth| {
                    let from = ((first + nth) * steps + from) * inputs;
                    // SAFETY: one stretch a sample.
                    let to = unsafe { to.slice(nth * count * inputs, count * inputs) };
                    to.copy_from_slice(&x[from..from + count * inputs]);
                });
                product(first, many, gathered, inputs, grad, add || first > 0, rest);
            }
        }
    }
    if let Some((grad, write)) = of_state {
        for first in (0..samples).step_by(at_a_time) {
            let many = at_a_time.min(samples - first);
            let to = Shared(gathered.as_mut_ptr());
            pool::tasks(many, |nth| {
                for local in 0..count {
                    let t = from + local;
                    // SAFETY: one stretch a sample; the outputs are only read now.
                    unsafe {
                        let to = to.slice((nth * count + local) * hidden, hidden);
                        let earlier = before(shape, t);
                        match earlier < steps {
                            true => to.copy_from_slice(out.part((first + nth) * steps + earlier, 0, hidden)),
                            false => to.fill(0.0),
                        }
                    }
                }
            });
            product(first, many, gathered, hidden, grad, write == Write::Add || first > 0, rest);
        }
    }
    for (grad, write) in [of_input_bias, of_state_bias].into_iter().flatten() {
        let columns = Columns { data: Shared(dgates.as_ptr().cast_mut()), start: 0, stride: wide };
        column_sum(cores, samples * count, columns, grad, write, rest);
    }
}
