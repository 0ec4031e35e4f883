//! Gradients of some steps of an LSTM: of its gates, step by step back; then of inputs and weights, from all steps at once.

use plimsoll_plan::op::{LstmShape, Write};
use plimsoll_plan::place::aligned;

use super::Cores;
use super::attention::Columns;
use super::lstm::{before, group, step};
use super::matmul::{Matrix, Output, matmul, matmul_packed, pack_together, transpose_16};
use crate::math::tanh;
use crate::pool::{self, Shared};
use crate::simd::{LANES, fold, leveled};

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
    let weight = unsafe { pack_together(cores.simd, hidden, wide, Matrix::rows(state_weight, hidden), workspace) };
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
                unsafe { matmul_packed(cores.simd, many, hidden, a, weight, to, &mut []) };
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

/// Depth of one product of gates; the next is added to it, while the columns of both fit a core's cache.
const GATES_DEPTH: usize = 512;
/// Steps of a sample that one task takes to their inputs.
const INPUT_STEPS: usize = 128;

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
    // SAFETY: the weight has `4H` rows.
    let weight = unsafe { pack_together(cores.simd, inputs, wide, Matrix::rows(input_weight, inputs), workspace) };
    let dx = Shared(dx.as_mut_ptr());
    let parts = count.div_ceil(INPUT_STEPS);
    pool::tasks(samples * parts, |task| {
        let (sample, first) = (task / parts, task % parts * INPUT_STEPS);
        let many = INPUT_STEPS.min(count - first);
        for depth in (0..wide).step_by(GATES_DEPTH) {
            let part = weight.from_depth(cores.simd, depth).shallower(GATES_DEPTH.min(wide - depth));
            let a = Matrix::rows(&dgates[(sample * count + first) * wide + depth..], wide);
            let to = dx.first().wrapping_add((sample * steps + from + first) * inputs);
            let to = Output { add: add || depth > 0, ..Output::rows(to, inputs) };
            // SAFETY: these rows are this task's.
            unsafe { matmul_packed(cores.simd, many, inputs, a, part, to, &mut []) };
        }
    });
}

/// Gradients of the four weights that are trained, in their order: of inputs, of the state, and both biases.
///
/// Steps are gathered a few at a time, from those that were walked last to those that were walked first, and the gradients
/// are added up in this order: so the bits are the same whatever stretches the steps were cut into.
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
    let LstmShape { inputs, hidden, .. } = *shape;
    let (wide, count) = (4 * hidden, shape.count());
    let each = LstmShape::gathered(samples);
    let rows = samples * each.min(count);
    let (sums, rest) = workspace.split_at_mut(aligned(wide));
    let (gates, rest) = rest.split_at_mut(aligned(wide * LstmShape::turned_stride(rows)));
    let (read, rest) = rest.split_at_mut(aligned(rows * inputs));
    let (earlier, rest) = rest.split_at_mut(aligned(rows * hidden));
    let mut grads = grads;
    for nth in (0..count.div_ceil(each)).rev() {
        let (begin, end) = (nth * each, ((nth + 1) * each).min(count));
        let (begin, end) = if shape.reverse { (count - end, count - begin) } else { (begin, end) };
        gather(cores, shape, samples, begin..end, dgates, x, out, Gathered { sums, gates, read, earlier });
        let deep = samples * (end - begin);
        let [of_input, of_state, of_input_bias, of_state_bias] = &mut grads;
        for (grad, rows, width) in [(of_input, &*read, inputs), (of_state, &*earlier, hidden)] {
            let Some((grad, write)) = grad else { continue };
            let (a, b) = (Matrix::rows(gates, LstmShape::turned_stride(deep)), Matrix::rows(rows, width));
            let to = Output { add: *write == Write::Add, ..Output::rows(grad.as_mut_ptr(), width) };
            // SAFETY: so many columns of gradients were gathered, and as many rows of what they belong to.
            unsafe { matmul(cores.simd, cores.threads, wide, width, deep, a, b, to, rest) };
            *write = Write::Add;
        }
        for (grad, write) in [of_input_bias, of_state_bias].into_iter().flatten() {
            match write {
                Write::Add => grad.iter_mut().zip(&*sums).for_each(|(g, s)| *g += s),
                _ => grad.copy_from_slice(&sums[..wide]),
            }
            *write = Write::Add;
        }
    }
}

/// Some steps of all samples, sample by sample.
struct Gathered<'a> {
    /// Sum of each gate's gradients.
    sums: &'a mut [f32],
    /// Gradients of the gates, a row for each gate: a product reads them in place.
    gates: &'a mut [f32],
    /// Rows that the steps read.
    read: &'a mut [f32],
    /// Outputs of the steps before them.
    earlier: &'a mut [f32],
}

/// Gates that one task turns round.
const TURNED: usize = 128;

/// Gathers the local steps `range`: tasks are some gates each, then a sample each.
fn gather(
    cores: Cores,
    shape: &LstmShape,
    samples: usize,
    range: std::ops::Range<usize>,
    dgates: &[f32],
    x: &[f32],
    out: Columns,
    to: Gathered,
) {
    let LstmShape { steps, inputs, hidden, from, .. } = *shape;
    let (wide, count, many) = (4 * hidden, shape.count(), range.len());
    let (deep, stride) = (samples * many, LstmShape::turned_stride(samples * many));
    let [sums, gates, read, earlier] = [to.sums, to.gates, to.read, to.earlier].map(|to| Shared(to.as_mut_ptr()));
    let parts = wide.div_ceil(TURNED);
    pool::tasks(parts + samples, |task| {
        if let Some(sample) = task.checked_sub(parts) {
            // SAFETY: a task is a sample.
            let read = unsafe { read.slice(sample * many * inputs, many * inputs) };
            let first = (sample * steps + from + range.start) * inputs;
            read.copy_from_slice(&x[first..first + many * inputs]);
            for (nth, local) in range.clone().enumerate() {
                let before = before(shape, from + local);
                // SAFETY: as above; the outputs are only read now.
                unsafe {
                    let to = earlier.slice((sample * many + nth) * hidden, hidden);
                    match before < steps {
                        true => to.copy_from_slice(out.part(sample * steps + before, 0, hidden)),
                        false => to.fill(0.0),
                    }
                }
            }
            return;
        }
        let (first, these) = (task * TURNED, TURNED.min(wide - task * TURNED));
        // SAFETY: a task is some gates.
        let (sums, gates) = unsafe { (sums.slice(first, these), gates.slice(first * stride, these * stride)) };
        let row = |nth: usize| &dgates[((nth / many) * count + range.start + nth % many) * wide + first..][..these];
        let whole = deep / 16 * 16;
        for nth in (0..whole).step_by(16) {
            transpose_16(cores.simd, &std::array::from_fn(|i| row(nth + i)), nth, stride, gates);
        }
        for nth in whole..deep {
            row(nth).iter().enumerate().for_each(|(gate, value)| gates[gate * stride + nth] = *value);
        }
        sum_gates(cores.simd, deep, stride, gates, sums);
    });
}

leveled! {
    /// The sum of each gate's first `deep` numbers.
    fn sum_gates(deep: usize, stride: usize, gates: &[f32], sums: &mut [f32]) {
        for (sum, row) in sums.iter_mut().zip(gates.chunks_exact(stride)) {
            let (whole, tail) = row[..deep].as_chunks::<LANES>();
            let mut lanes = [0.0f32; LANES];
            for part in whole {
                for i in 0..LANES {
                    lanes[i] += part[i];
                }
            }
            lanes.iter_mut().zip(tail).for_each(|(lane, value)| *lane += value);
            *sum = fold(lanes);
        }
    }
}
