//! Convolutions over the steps of each sample, and their gradients.
//!
//! Rows are steps and columns channels, so what a step's output is made of (k steps of C channels) is one stretch of the
//! input, and the stretches of neighbouring steps overlap: a convolution is a product whose left side is the input itself,
//! its rows C apart. Only the steps at both ends of a sample are copied, to stand between zeros.
//!
//! Legend: T steps, C channels in, O channels out, k kernel; weights are `[O, C, k]`.

use plimsoll_plan::op::{ConvShape, Write};

use super::Cores;
use super::matmul::{Matrix, Output, matmul, matmul_packed, pack_together};
use crate::pool::{self, Shared, worker};

/// Takes the next `words` of a scratch slice, in whole cache lines.
fn take<'a>(rest: &mut &'a mut [f32], words: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(rest).split_at_mut(plimsoll_plan::place::aligned(words));
    *rest = tail;
    &mut head[..words]
}

/// `out = conv(x) + bias`.
pub fn conv_forward(
    cores: Cores,
    shape: ConvShape,
    samples: usize,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    workspace: &mut [f32],
) {
    let ConvShape { inputs, outputs, kernel, .. } = shape;
    let mut rest = workspace;
    let ordered = take(&mut rest, shape.weights());
    for (o, row) in ordered.chunks_exact_mut(inputs * kernel).enumerate() {
        for i in 0..inputs {
            for j in 0..kernel {
                row[j * inputs + i] = weight[(o * inputs + i) * kernel + j];
            }
        }
    }
    assert_eq!(bias.len(), outputs);
    walk(cores, shape, samples, x, ordered, Some(bias), out, false, rest);
}

/// `dx (+)=` what reaches the input: a convolution of `dy` with the steps of the weight turned round.
pub fn conv_input(
    cores: Cores,
    shape: ConvShape,
    samples: usize,
    dy: &[f32],
    weight: &[f32],
    dx: &mut [f32],
    add: bool,
    workspace: &mut [f32],
) {
    let ConvShape { inputs, outputs, kernel, .. } = shape;
    let mut rest = workspace;
    let ordered = take(&mut rest, shape.weights());
    for (i, row) in ordered.chunks_exact_mut(outputs * kernel).enumerate() {
        for j in 0..kernel {
            for o in 0..outputs {
                row[j * outputs + o] = weight[(o * inputs + i) * kernel + kernel - 1 - j];
            }
        }
    }
    walk(cores, shape.back(), samples, dy, ordered, None, dx, add, rest);
}

/// The product: a tile of steps of one sample is a task.
fn walk(
    cores: Cores,
    shape: ConvShape,
    samples: usize,
    x: &[f32],
    ordered: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    add: bool,
    rest: &mut [f32],
) {
    let ConvShape { steps, inputs, outputs, kernel } = shape;
    assert!(x.len() >= samples * steps * inputs && out.len() >= samples * steps * outputs, "every row has its place");
    let depth = inputs * kernel;
    let mut rest = rest;
    let tiles = plimsoll_plan::tiles::Tiles::of(cores.simd);
    let packed = take(&mut rest, tiles.packed_words(outputs, depth));
    // SAFETY: the ordered weight has `outputs` rows of this depth.
    let packed =
        unsafe { pack_together(cores.simd, outputs, depth, Matrix::rows(ordered, depth).transposed(), packed) };
    assert!(rest.len() >= cores.threads * shape.tile_words(), "workspace is what the plan says");
    let (scratch, out) = (Shared(rest.as_mut_ptr()), Shared(out.as_mut_ptr()));
    let (tile, around) = (shape.tile(), kernel / 2);
    let per_sample = steps.div_ceil(tile);
    pool::tasks(samples * per_sample, |task| {
        let (sample, from) = (task / per_sample, task % per_sample * tile);
        let count = tile.min(steps - from);
        let x = &x[sample * steps * inputs..(sample + 1) * steps * inputs];
        let inside = from >= around && from + count + around <= steps;
        let data = if inside {
            x[(from - around) * inputs..].as_ptr()
        } else {
            // SAFETY: one stretch a worker, and a worker runs one task at a time.
            let copy = unsafe { scratch.slice(worker() * shape.tile_words(), shape.tile_words()) };
            between_zeros(x, steps, inputs, from as isize - around as isize, count + kernel - 1, copy);
            copy.as_ptr()
        };
        let a = Matrix { data, row_stride: inputs, col_stride: 1 };
        let to = out.first().wrapping_add((sample * steps + from) * outputs);
        let to = Output { add, bias: bias.map(|b| b.as_ptr()), ..Output::rows(to, outputs) };
        // SAFETY: `count + kernel - 1` steps are there to read; tasks write disjoint rows.
        unsafe { matmul_packed(cores.simd, count, outputs, a, packed, to, &mut []) };
    });
}

/// `count` steps of a sample from `first` on; those that it does not have are zeros.
fn between_zeros(x: &[f32], steps: usize, width: usize, first: isize, count: usize, to: &mut [f32]) {
    for (at, row) in to[..count * width].chunks_exact_mut(width).enumerate() {
        match usize::try_from(first + at as isize).ok().filter(|step| *step < steps) {
            Some(step) => row.copy_from_slice(&x[step * width..(step + 1) * width]),
            None => row.fill(0.0),
        }
    }
}

/// `grad (+)=` what reaches the weight, sample by sample.
pub fn conv_weight(
    cores: Cores,
    shape: ConvShape,
    samples: usize,
    dy: &[f32],
    x: &[f32],
    grad: &mut [f32],
    write: Write,
    workspace: &mut [f32],
) {
    let ConvShape { steps, inputs, outputs, kernel } = shape;
    assert!(x.len() >= samples * steps * inputs && dy.len() >= samples * steps * outputs, "every row has its place");
    let depth = inputs * kernel;
    let mut rest = workspace;
    let sum = take(&mut rest, shape.weights());
    let copy = take(&mut rest, (steps + kernel - 1) * inputs);
    sum.fill(0.0);
    for sample in 0..samples {
        let x = &x[sample * steps * inputs..(sample + 1) * steps * inputs];
        between_zeros(x, steps, inputs, -((kernel / 2) as isize), steps + kernel - 1, copy);
        let a = Matrix { data: copy.as_ptr(), row_stride: 1, col_stride: inputs };
        let b = Matrix::rows(&dy[sample * steps * outputs..(sample + 1) * steps * outputs], outputs);
        let out = Output { add: true, ..Output::rows(sum.as_mut_ptr(), outputs) };
        // SAFETY: element (j * C + i, t) of A is step t + j of the copy; the sum is `depth` rows of `outputs`.
        unsafe { matmul(cores.simd, cores.threads, depth, outputs, steps, a, b, out, rest) };
    }
    for (o, grad) in grad.chunks_exact_mut(depth).enumerate() {
        for i in 0..inputs {
            for j in 0..kernel {
                let value = sum[(j * inputs + i) * outputs + o];
                let at = &mut grad[i * kernel + j];
                *at = if write == Write::Add { *at + value } else { value };
            }
        }
    }
}
