//! RMS norm: `out = drop(x * rstd * weight)` with `rstd = 1 / sqrt(mean(x^2) + eps)`.

use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use super::{Cores, Rows, apply, grain};
use crate::philox::Dropper;
use crate::pool::{self, Shared};
use crate::simd::{LANES, dot, fold, leveled};

/// Computes `rstd` and the normed rows.
pub fn norm_forward(
    cores: Cores,
    rows: Rows,
    width: usize,
    eps: f32,
    x: &[f32],
    weight: &[f32],
    rstd: &mut [f32],
    out: &mut [f32],
    drop: Option<&Dropper>,
) {
    assert!(out.len() >= rows.len() * width && rstd.len() >= rows.len(), "every row has its place");
    let (out, rstd) = (Shared(out.as_mut_ptr()), Shared(rstd.as_mut_ptr()));
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let (out, rstd) =
            unsafe { (out.slice(range.start * width, range.len() * width), rstd.slice(range.start, range.len())) };
        rstds(cores.simd, width, eps, &x[range.start * width..range.end * width], rstd);
        scale_rows(cores.simd, rows, range.start, width, x, weight, rstd, out, drop);
    });
}

/// Writes the normed rows again, from `rstd`.
pub fn norm_apply(
    cores: Cores,
    rows: Rows,
    width: usize,
    x: &[f32],
    weight: &[f32],
    rstd: &[f32],
    out: &mut [f32],
    drop: Option<&Dropper>,
) {
    assert!(out.len() >= rows.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        scale_rows(cores.simd, rows, range.start, width, x, weight, &rstd[range.start..range.end], out, drop);
    });
}

leveled! {
    fn rstds(width: usize, eps: f32, x: &[f32], rstd: &mut [f32]) {
        for (row, rstd) in x.chunks_exact(width).zip(rstd) {
            *rstd = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        }
    }
}

leveled! {
    fn scale_rows(rows: Rows, first: usize, width: usize, x: &[f32], weight: &[f32], rstd: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
        for ((i, out), rstd) in out.chunks_exact_mut(width).enumerate().zip(rstd) {
            let row = first + i;
            for ((o, x), w) in out.iter_mut().zip(&x[row * width..(row + 1) * width]).zip(weight) {
                *o = w * (x * rstd);
            }
            apply(drop, &rows, row, out);
        }
    }
}

/// `dx (+)= norm'(dy)` and, where the weight is trained, `weight_grad (+)= sum over rows`; then `partial` holds
/// `REDUCE_CHUNKS * width` words.
pub fn norm_backward(
    cores: Cores,
    count: usize,
    width: usize,
    dy: &[f32],
    x: &[f32],
    weight: &[f32],
    rstd: &[f32],
    dx: &mut [f32],
    add: bool,
    weight_grad: Option<(&mut [f32], Write)>,
    partial: &mut [f32],
) {
    assert!([dy.len(), x.len(), dx.len()].iter().all(|len| *len >= count * width), "every row has its place");
    let sums = if weight_grad.is_some() { width } else { 0 };
    assert!(partial.len() >= REDUCE_CHUNKS * sums, "workspace is what the plan says");
    let (dx, partial_at) = (Shared(dx.as_mut_ptr()), Shared(partial.as_mut_ptr()));
    let chunk = count.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = count.div_ceil(chunk);
    pool::tasks(chunks, |task| {
        let range = task * chunk..((task + 1) * chunk).min(count);
        // SAFETY: tasks own disjoint rows and each its own partial sum.
        let (dx, sum) =
            unsafe { (dx.slice(range.start * width, range.len() * width), partial_at.slice(task * sums, sums)) };
        sum.fill(0.0);
        let part = range.start * width..range.end * width;
        norm_rows_backward(cores.simd, width, &dy[part.clone()], &x[part], weight, &rstd[range], dx, add, sum);
    });
    if let Some((grad, write)) = weight_grad {
        add_partials(grad, write, &partial[..chunks * width]);
    }
}

/// `grad (+)=` the sums of the chunks, in their order.
pub(super) fn add_partials(grad: &mut [f32], write: Write, partial: &[f32]) {
    if write != Write::Add {
        grad.fill(0.0);
    }
    for sum in partial.chunks_exact(grad.len()) {
        grad.iter_mut().zip(sum).for_each(|(g, s)| *g += s);
    }
}

leveled! {
    /// `sum` is empty where the weight has no gradient.
    fn norm_rows_backward(width: usize, dy: &[f32], x: &[f32], weight: &[f32], rstd: &[f32], dx: &mut [f32], add: bool, sum: &mut [f32]) {
        for (((dy, x), dx), rstd) in dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(rstd) {
            let mut lanes = [0.0f32; LANES];
            let split = width / LANES * LANES;
            for c in (0..split).step_by(LANES) {
                for i in 0..LANES {
                    lanes[i] += dy[c + i] * weight[c + i] * (x[c + i] * rstd);
                }
            }
            for c in split..width {
                lanes[c - split] += dy[c] * weight[c] * (x[c] * rstd);
            }
            for (sum, (dy, x)) in sum.iter_mut().zip(dy.iter().zip(x)) {
                *sum += dy * (x * rstd);
            }
            let mean = fold(lanes) / width as f32;
            for c in 0..width {
                let value = rstd * (dy[c] * weight[c] - x[c] * rstd * mean);
                dx[c] = if add { dx[c] + value } else { value };
            }
        }
    }
}
