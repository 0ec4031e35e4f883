//! Some steps of one direction of an LSTM, for all samples.
//!
//! The gates of all steps are first the product of the inputs; then, step by step, the product of the last output is added
//! and the cells move on. Samples know nothing of each other, so a task is a group of them and walks all its steps alone:
//! threads meet once, at the end. Each row's numbers are summed in the same order however samples are grouped and steps
//! are cut, so steps computed again are the same bits.
//!
//! Legend: B samples, T steps, H width of the state, I width of a step. Gates are i, f, g, o of H each.

use plimsoll_plan::op::LstmShape;
use plimsoll_plan::tiles::Tiles;

use super::Cores;
use super::attention::Columns;
use super::matmul::{Matrix, Output, matmul_packed, pack_together};
use crate::math::{sigmoid, tanh};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// The weights of one direction of one layer.
#[derive(Clone, Copy, Debug)]
pub struct LstmWeights<'a> {
    /// `[4H, I]`.
    pub input: &'a [f32],
    /// `[4H, H]`.
    pub state: &'a [f32],
    /// `[4H]`.
    pub input_bias: &'a [f32],
    /// `[4H]`.
    pub state_bias: &'a [f32],
}

/// Cells before and behind some steps, `[B, H]` each.
#[derive(Debug, Default)]
pub struct Ends<'a> {
    /// Before them; none at the beginning.
    pub start: Option<&'a [f32]>,
    /// Behind them, where they are asked for.
    pub end: Option<&'a mut [f32]>,
}

/// Samples of a task: as many tasks as threads, of as many samples as may be.
pub(super) fn group(cores: Cores, samples: usize) -> usize {
    samples.div_ceil(cores.threads).max(1)
}

/// The step that is walked `nth` of those of a shape.
pub(super) fn step(shape: &LstmShape, nth: usize) -> usize {
    if shape.reverse { shape.to - 1 - nth } else { shape.from + nth }
}

/// The step that is walked before this one; one that is not there at the very beginning.
pub(super) fn before(shape: &LstmShape, step: usize) -> usize {
    if shape.reverse { step + 1 } else { step.wrapping_sub(1) }
}

/// Gates, cells and outputs of the steps.
pub fn lstm_forward(
    cores: Cores,
    shape: &LstmShape,
    samples: usize,
    x: &[f32],
    weights: LstmWeights,
    gates: &mut [f32],
    cells: &mut [f32],
    ends: Ends,
    out: Columns,
    workspace: &mut [f32],
) {
    let LstmShape { steps, inputs, hidden, from, .. } = *shape;
    let (wide, count) = (4 * hidden, shape.count());
    assert!(x.len() >= samples * steps * inputs && gates.len() >= samples * count * wide, "every row has its place");
    assert!(cells.len() >= samples * count * hidden, "every row has its place");
    let tiles = Tiles::of(cores.simd);
    let (for_input, for_state) = workspace.split_at_mut(tiles.packed_words(wide, inputs));
    // SAFETY: the weights have `4H` rows of these widths.
    let (of_input, of_state) = unsafe {
        let of = |weight: &[f32], depth: usize, into: &mut [f32]| {
            pack_together(cores.simd, wide, depth, Matrix::rows(weight, depth).transposed(), into)
        };
        (of(weights.input, inputs, for_input), of(weights.state, hidden, for_state))
    };
    let (gates, cells) = (Shared(gates.as_mut_ptr()), Shared(cells.as_mut_ptr()));
    let (start, end) = (ends.start, ends.end.map(|end| Shared(end.as_mut_ptr())));
    let each = group(cores, samples);
    pool::tasks(samples.div_ceil(each), |task| {
        let (first, many) = (task * each, each.min(samples - task * each));
        // The inputs' share: rows of a sample stand together, and all of them do where every step is asked for.
        let (blocks, rows) = if shape.is_whole() { (1, many * count) } else { (many, count) };
        for block in 0..blocks {
            let a = Matrix::rows(&x[((first + block) * steps + from) * inputs..], inputs);
            let to = gates.first().wrapping_add((first + block) * count * wide);
            let to = Output { bias: Some(weights.input_bias.as_ptr()), ..Output::rows(to, wide) };
            // SAFETY: these rows of gates are this task's.
            unsafe { matmul_packed(cores.simd, rows, wide, a, of_input, to, &mut []) };
        }
        for nth in 0..count {
            let (t, begins) = (step(shape, nth), nth == 0 && shape.is_first());
            let local = t - from;
            if !begins {
                let at = (first * steps + before(shape, t)) * out.stride + out.start;
                let a =
                    Matrix { data: out.data.first().wrapping_add(at), row_stride: steps * out.stride, col_stride: 1 };
                let to = gates.first().wrapping_add((first * count + local) * wide);
                let to = Output { add: true, ..Output::rows(to, count * wide) };
                // SAFETY: the outputs before this step are there; these gates are this task's.
                unsafe { matmul_packed(cores.simd, many, wide, a, of_state, to, &mut []) };
            }
            for sample in first..first + many {
                // SAFETY: rows of this task's samples; the cells before these steps lie in another row or tensor.
                unsafe {
                    let gate = gates.slice((sample * count + local) * wide, wide);
                    let cell = cells.slice((sample * count + local) * hidden, hidden);
                    let last: Option<&[f32]> = match (nth, begins) {
                        (_, true) => None,
                        (0, false) => start.map(|s| &s[sample * hidden..(sample + 1) * hidden]),
                        _ => {
                            let row = sample * count + before(shape, t) - from;
                            Some(&*cells.slice(row * hidden, hidden))
                        }
                    };
                    let h = out.part(sample * steps + t, 0, hidden);
                    move_on(cores.simd, gate, weights.state_bias, last, cell, h);
                    if let Some(end) = end.filter(|_| nth + 1 == count) {
                        end.slice(sample * hidden, hidden).copy_from_slice(cell);
                    }
                }
            }
        }
    });
}

leveled! {
    /// Gates through their bends, in place; the cell; the output.
    fn move_on(gates: &mut [f32], bias: &[f32], last: Option<&[f32]>, cell: &mut [f32], h: &mut [f32]) {
        let hidden = cell.len();
        let (i, rest) = gates.split_at_mut(hidden);
        let (f, rest) = rest.split_at_mut(hidden);
        let (g, o) = rest.split_at_mut(hidden);
        let (bi, rest) = bias.split_at(hidden);
        let (bf, rest) = rest.split_at(hidden);
        let (bg, bo) = rest.split_at(hidden);
        let (o, bo, h) = (&mut o[..hidden], &bo[..hidden], &mut h[..hidden]);
        for c in 0..hidden {
            i[c] = sigmoid(i[c] + bi[c]);
            f[c] = sigmoid(f[c] + bf[c]);
            g[c] = tanh(g[c] + bg[c]);
            o[c] = sigmoid(o[c] + bo[c]);
        }
        match last {
            Some(last) => {
                let last = &last[..hidden];
                for c in 0..hidden {
                    cell[c] = f[c].mul_add(last[c], i[c] * g[c]);
                }
            }
            None => {
                for c in 0..hidden {
                    cell[c] = i[c] * g[c];
                }
            }
        }
        for c in 0..hidden {
            h[c] = o[c] * tanh(cell[c]);
        }
    }
}
