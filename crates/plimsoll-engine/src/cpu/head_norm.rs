//! RMS norm of each head's columns by itself (Qwen3's q and k): `out = x * rstd * weight` with one weight for all heads.

use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use super::attention::Columns;
use super::norm::add_partials;
use super::{Cores, grain};
use crate::pool::{self, Shared};
use crate::simd::{LANES, dot, fold, leveled};

/// Norms `heads` neighbouring heads of `weight.len()` columns. `rstd[rows, heads]`; `out` overlaps `x` nowhere.
pub fn head_norm_forward(
    cores: Cores,
    count: usize,
    heads: usize,
    eps: f32,
    x: Columns,
    weight: &[f32],
    rstd: &mut [f32],
    out: Columns,
) {
    let width = weight.len();
    assert!(rstd.len() >= count * heads, "every row has its place");
    let rstd = Shared(rstd.as_mut_ptr());
    pool::rows(count, grain(heads * width), |range| {
        for row in range {
            // SAFETY: tasks own disjoint rows; all heads of one row, which lie side by side.
            let (x, out, rstd) = unsafe {
                (x.part(row, 0, heads * width), out.part(row, 0, heads * width), rstd.slice(row * heads, heads))
            };
            norm_heads(cores.simd, eps, x, weight, rstd, out);
        }
    });
}

leveled! {
    fn norm_heads(eps: f32, x: &[f32], weight: &[f32], rstd: &mut [f32], out: &mut [f32]) {
        let width = weight.len();
        for ((x, out), rstd) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(rstd) {
            *rstd = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
            for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
                *o = w * (x * *rstd);
            }
        }
    }
}

/// `dx = norm'(dy)` and, where the weight is trained, `weight_grad (+)= sum over rows and heads`; then `partial` holds
/// `REDUCE_CHUNKS * width` words. `dx` is `dy` itself or overlaps it nowhere.
pub fn head_norm_backward(
    cores: Cores,
    count: usize,
    heads: usize,
    dy: Columns,
    x: Columns,
    weight: &[f32],
    rstd: &[f32],
    dx: Columns,
    weight_grad: Option<(&mut [f32], Write)>,
    partial: &mut [f32],
) {
    let width = weight.len();
    let sums = if weight_grad.is_some() { width } else { 0 };
    assert!(partial.len() >= REDUCE_CHUNKS * sums, "workspace is what the plan says");
    let in_place = (dy.data.first(), dy.start, dy.stride) == (dx.data.first(), dx.start, dx.stride);
    let partial_at = Shared(partial.as_mut_ptr());
    let chunk = count.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = count.div_ceil(chunk);
    pool::tasks(chunks, |task| {
        // SAFETY: each task has its own partial sum.
        let sum = unsafe { partial_at.slice(task * sums, sums) };
        sum.fill(0.0);
        for row in task * chunk..((task + 1) * chunk).min(count) {
            // SAFETY: tasks own disjoint rows; all heads of one row, which lie side by side.
            let (x, dx) = unsafe { (x.part(row, 0, heads * width), dx.part(row, 0, heads * width)) };
            if !in_place {
                // SAFETY: as above, and `dy` lies apart from `dx`.
                dx.copy_from_slice(unsafe { dy.part(row, 0, heads * width) });
            }
            heads_backward(cores.simd, x, weight, &rstd[row * heads..(row + 1) * heads], dx, sum);
        }
    });
    if let Some((grad, write)) = weight_grad {
        add_partials(grad, write, &partial[..chunks * width]);
    }
}

leveled! {
    /// Turns the gradient of the outputs into that of the inputs; `sum` is empty where the weight has no gradient.
    fn heads_backward(x: &[f32], weight: &[f32], rstd: &[f32], d: &mut [f32], sum: &mut [f32]) {
        let width = weight.len();
        for ((x, d), rstd) in x.chunks_exact(width).zip(d.chunks_exact_mut(width)).zip(rstd) {
            let mut lanes = [0.0f32; LANES];
            let split = width / LANES * LANES;
            for c in (0..split).step_by(LANES) {
                for i in 0..LANES {
                    lanes[i] += d[c + i] * weight[c + i] * (x[c + i] * rstd);
                }
            }
            for c in split..width {
                lanes[c - split] += d[c] * weight[c] * (x[c] * rstd);
            }
            for (sum, (d, x)) in sum.iter_mut().zip(d.iter().zip(x)) {
                *sum += d * (x * rstd);
            }
            let mean = fold(lanes) / width as f32;
            for c in 0..width {
                d[c] = rstd * (d[c] * weight[c] - x[c] * rstd * mean);
            }
        }
    }
}
