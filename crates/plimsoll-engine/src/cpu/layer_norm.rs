//! Layer norm: `out = (x - mean) * rstd * weight + bias` with `rstd = 1 / sqrt(var(x) + eps)`.
//!
//! `stats` keeps two words a row, mean and rstd: from them the normed rows can be written again, and the gradient follows.

use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use super::norm::add_partials;
use super::{Cores, grain};
use crate::pool::{self, Shared};
use crate::simd::{LANES, fold, leveled};

/// Computes `stats` and the normed rows.
pub fn layer_norm_forward(
    cores: Cores,
    count: usize,
    width: usize,
    eps: f32,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    stats: &mut [f32],
    out: &mut [f32],
) {
    assert!(out.len() >= count * width && stats.len() >= 2 * count, "every row has its place");
    let (out, stats) = (Shared(out.as_mut_ptr()), Shared(stats.as_mut_ptr()));
    pool::rows(count, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let (out, stats) = unsafe {
            (out.slice(range.start * width, range.len() * width), stats.slice(2 * range.start, 2 * range.len()))
        };
        let x = &x[range.start * width..range.end * width];
        measure(cores.simd, width, eps, x, stats);
        norm_rows(cores.simd, width, x, weight, bias, stats, out);
    });
}

/// Writes the normed rows again, from `stats`.
pub fn layer_norm_apply(
    cores: Cores,
    count: usize,
    width: usize,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    stats: &[f32],
    out: &mut [f32],
) {
    assert!(out.len() >= count * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(count, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        let x = &x[range.start * width..range.end * width];
        norm_rows(cores.simd, width, x, weight, bias, &stats[2 * range.start..2 * range.end], out);
    });
}

leveled! {
    fn measure(width: usize, eps: f32, x: &[f32], stats: &mut [f32]) {
        for (x, stats) in x.chunks_exact(width).zip(stats.chunks_exact_mut(2)) {
            let split = width / LANES * LANES;
            let mut lanes = [0.0f32; LANES];
            for chunk in x[..split].chunks_exact(LANES) {
                for i in 0..LANES {
                    lanes[i] += chunk[i];
                }
            }
            for (lane, x) in lanes.iter_mut().zip(&x[split..]) {
                *lane += x;
            }
            let mean = fold(lanes) / width as f32;
            let mut lanes = [0.0f32; LANES];
            for chunk in x[..split].chunks_exact(LANES) {
                for i in 0..LANES {
                    let apart = chunk[i] - mean;
                    lanes[i] = apart.mul_add(apart, lanes[i]);
                }
            }
            for (lane, x) in lanes.iter_mut().zip(&x[split..]) {
                let apart = x - mean;
                *lane = apart.mul_add(apart, *lane);
            }
            stats[0] = mean;
            stats[1] = 1.0 / (fold(lanes) / width as f32 + eps).sqrt();
        }
    }
}

leveled! {
    fn norm_rows(width: usize, x: &[f32], weight: &[f32], bias: &[f32], stats: &[f32], out: &mut [f32]) {
        for ((out, x), stats) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(stats.chunks_exact(2)) {
            let (mean, rstd) = (stats[0], stats[1]);
            for (((o, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *o = (x - mean) * rstd * w + b;
            }
        }
    }
}

/// `dx (+)= norm'(dy)` and, where they are trained, `weight_grad (+)= sum dy * xhat` and `bias_grad (+)= sum dy` over rows.
/// `partial` holds `REDUCE_CHUNKS * width` words for each of the two that is asked for.
pub fn layer_norm_backward(
    cores: Cores,
    count: usize,
    width: usize,
    dy: &[f32],
    x: &[f32],
    weight: &[f32],
    stats: &[f32],
    dx: &mut [f32],
    add: bool,
    weight_grad: Option<(&mut [f32], Write)>,
    bias_grad: Option<(&mut [f32], Write)>,
    partial: &mut [f32],
) {
    assert!([dy.len(), x.len(), dx.len()].iter().all(|len| *len >= count * width), "every row has its place");
    let sums = |wanted: bool| if wanted { width } else { 0 };
    let (of_weight, of_bias) = (sums(weight_grad.is_some()), sums(bias_grad.is_some()));
    assert!(partial.len() >= REDUCE_CHUNKS * (of_weight + of_bias), "workspace is what the plan says");
    let (for_weight, for_bias) = partial.split_at_mut(REDUCE_CHUNKS * of_weight);
    let (dx, weight_at, bias_at) =
        (Shared(dx.as_mut_ptr()), Shared(for_weight.as_mut_ptr()), Shared(for_bias.as_mut_ptr()));
    let chunk = count.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = count.div_ceil(chunk);
    pool::tasks(chunks, |task| {
        let range = task * chunk..((task + 1) * chunk).min(count);
        // SAFETY: tasks own disjoint rows and each its own partial sums.
        let (dx, dw, db) = unsafe {
            (
                dx.slice(range.start * width, range.len() * width),
                weight_at.slice(task * of_weight, of_weight),
                bias_at.slice(task * of_bias, of_bias),
            )
        };
        dw.fill(0.0);
        db.fill(0.0);
        let part = range.start * width..range.end * width;
        let stats = &stats[2 * range.start..2 * range.end];
        rows_backward(cores.simd, width, &dy[part.clone()], &x[part], weight, stats, dx, add, dw, db);
    });
    if let Some((grad, write)) = weight_grad {
        add_partials(grad, write, &for_weight[..chunks * width]);
    }
    if let Some((grad, write)) = bias_grad {
        add_partials(grad, write, &for_bias[..chunks * width]);
    }
}

leveled! {
    /// `dw` and `db` are empty where they are not asked for.
    fn rows_backward(width: usize, dy: &[f32], x: &[f32], weight: &[f32], stats: &[f32], dx: &mut [f32], add: bool, dw: &mut [f32], db: &mut [f32]) {
        for (((dy, x), dx), stats) in dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(stats.chunks_exact(2)) {
            let (mean, rstd) = (stats[0], stats[1]);
            let split = width / LANES * LANES;
            let (mut plain, mut along) = ([0.0f32; LANES], [0.0f32; LANES]);
            for c in (0..split).step_by(LANES) {
                for i in 0..LANES {
                    let g = dy[c + i] * weight[c + i];
                    plain[i] += g;
                    along[i] += g * ((x[c + i] - mean) * rstd);
                }
            }
            for c in split..width {
                let g = dy[c] * weight[c];
                plain[c - split] += g;
                along[c - split] += g * ((x[c] - mean) * rstd);
            }
            for (sum, (dy, x)) in dw.iter_mut().zip(dy.iter().zip(x)) {
                *sum += dy * ((x - mean) * rstd);
            }
            for (sum, dy) in db.iter_mut().zip(dy) {
                *sum += dy;
            }
            let (plain, along) = (fold(plain) / width as f32, fold(along) / width as f32);
            for c in 0..width {
                let value = rstd * (dy[c] * weight[c] - plain - (x[c] - mean) * rstd * along);
                dx[c] = if add { dx[c] + value } else { value };
            }
        }
    }
}
