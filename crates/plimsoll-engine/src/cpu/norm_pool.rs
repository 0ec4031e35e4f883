//! What is behind a convolution, in one pass: `out = pool(drop(activation(norm(x)))) + pool(skip)`, and its gradient.
//!
//! Nothing of what is between `x` and `out` is kept: the backward pass computes it again, and finds again which step of
//! each pool was the largest (the first of them, as PyTorch does; a NaN wins). Steps that fill no pool are left out, and
//! count for the norm's statistics all the same.

use plimsoll_plan::op::{PoolShape, REDUCE_CHUNKS, Write};
use plimsoll_plan::place::aligned;
use plimsoll_plan::spec::Activation;

use super::batch_norm::{Doubles, doubles};
use super::{Cores, Dropper};
use crate::math::{gelu_erf, gelu_erf_with_slope};
use crate::philox::BLOCK;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Statistics (means, then inverse deviations), weight and bias of a norm.
#[derive(Clone, Copy, Debug)]
pub struct Normed<'a> {
    /// Means, then inverse deviations.
    pub stats: &'a [f32],
    /// Weight.
    pub weight: &'a [f32],
    /// Bias.
    pub bias: &'a [f32],
}

/// The norm as a factor and a term of each channel.
fn line<'a>(norm: Option<Normed>, width: usize, workspace: &'a mut [f32]) -> (&'a [f32], &'a [f32], &'a mut [f32]) {
    let (factors, rest) = workspace.split_at_mut(aligned(width));
    let (terms, rest) = rest.split_at_mut(aligned(width));
    for c in 0..width {
        (factors[c], terms[c]) = norm.map_or((1.0, 0.0), |n| {
            let factor = n.stats[width + c] * n.weight[c];
            (factor, n.bias[c] - n.stats[c] * factor)
        });
    }
    (&factors[..width], &terms[..width], rest)
}

/// What tasks of both passes read.
#[derive(Clone, Copy)]
struct Given<'a> {
    shape: PoolShape,
    x: &'a [f32],
    factors: &'a [f32],
    terms: &'a [f32],
    skip: Option<&'a [f32]>,
    drop: Option<Dropper>,
    /// Index of the first sample in the effective batch.
    first: u32,
}

/// The largest of a pool, column by column.
struct Largest {
    value: [f32; BLOCK],
    /// Before the activation.
    z: [f32; BLOCK],
    x: [f32; BLOCK],
    factor: [f32; BLOCK],
    at: [u32; BLOCK],
}

impl Given<'_> {
    fn pooled(&self) -> usize {
        self.shape.steps / self.shape.pool
    }

    /// First row of a pool.
    fn row(&self, pool: usize) -> usize {
        let pooled = self.pooled();
        pool / pooled * self.shape.steps + pool % pooled * self.shape.pool
    }

    /// The largest of columns `from ..` of a pool, after norm, activation and dropout.
    #[inline(always)]
    fn largest(&self, pool: usize, from: usize) -> Largest {
        let width = self.shape.width;
        let (pooled, count) = (self.pooled(), BLOCK.min(width - from));
        let (sample, step) = (self.first + (pool / pooled) as u32, pool % pooled * self.shape.pool);
        let mut best = Largest {
            value: [f32::NEG_INFINITY; BLOCK],
            z: [0.0; BLOCK],
            x: [0.0; BLOCK],
            factor: [1.0; BLOCK],
            at: [0; BLOCK],
        };
        for nth in 0..self.shape.pool {
            let row = self.row(pool) + nth;
            let x = &self.x[row * width + from..][..count];
            let drops = match &self.drop {
                Some(dropper) => dropper.block(sample, (step + nth) as u64, width, from / BLOCK),
                None => [1.0; BLOCK],
            };
            let (mut z, mut value) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
            for (z, ((x, f), t)) in z.iter_mut().zip(x.iter().zip(&self.factors[from..]).zip(&self.terms[from..])) {
                *z = x.mul_add(*f, *t);
            }
            match self.shape.activation {
                // Not `max`: that would turn NaN into 0, and a broken weight would go unseen.
                Activation::Relu => {
                    value.iter_mut().zip(&z).for_each(|(v, z)| *v = if *z <= 0.0 { 0.0 } else { *z });
                }
                Activation::Gelu => value.iter_mut().zip(&z).for_each(|(v, z)| *v = gelu_erf(*z)),
            }
            for c in 0..count {
                let v = value[c] * drops[c];
                let wins = (v > best.value[c]) | v.is_nan();
                best.value[c] = if wins { v } else { best.value[c] };
                best.z[c] = if wins { z[c] } else { best.z[c] };
                best.x[c] = if wins { x[c] } else { best.x[c] };
                best.factor[c] = if wins { drops[c] } else { best.factor[c] };
                best.at[c] = if wins { nth as u32 } else { best.at[c] };
            }
        }
        best
    }

    /// The largest of columns `from ..` of what is skipped, and which step it is.
    #[inline(always)]
    fn largest_skipped(&self, skip: &[f32], pool: usize, from: usize) -> ([f32; BLOCK], [u32; BLOCK]) {
        let width = self.shape.width;
        let count = BLOCK.min(width - from);
        let (mut value, mut at) = ([f32::NEG_INFINITY; BLOCK], [0; BLOCK]);
        for nth in 0..self.shape.pool {
            let row = &skip[(self.row(pool) + nth) * width + from..][..count];
            for c in 0..count {
                let wins = (row[c] > value[c]) | row[c].is_nan();
                value[c] = if wins { row[c] } else { value[c] };
                at[c] = if wins { nth as u32 } else { at[c] };
            }
        }
        (value, at)
    }
}

/// Pools that make a task worth its while.
fn grain(width: usize) -> usize {
    (8 * 1024 / width.max(1)).max(1)
}

/// Norm, activation, dropout, pooling, and what is skipped.
pub fn norm_pool_forward(
    cores: Cores,
    shape: PoolShape,
    (first, samples): (u32, usize),
    x: &[f32],
    norm: Option<Normed>,
    skip: Option<&[f32]>,
    out: &mut [f32],
    drop: Option<Dropper>,
    workspace: &mut [f32],
) {
    let (factors, terms, _) = line(norm, shape.width, workspace);
    let given = Given { shape, x, factors, terms, skip, drop, first };
    let pools = samples * given.pooled();
    assert!(x.len() >= samples * shape.steps * shape.width && out.len() >= pools * shape.width);
    let out = Shared(out.as_mut_ptr());
    pool::rows(pools, grain(shape.width * shape.pool), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * shape.width, range.len() * shape.width) };
        pool_rows(cores.simd, given, range.start, out);
    });
}

leveled! {
    fn pool_rows(given: Given, first: usize, out: &mut [f32]) {
        for (nth, out) in out.chunks_exact_mut(given.shape.width).enumerate() {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let best = given.largest(first + nth, block * BLOCK);
                out.iter_mut().zip(&best.value).for_each(|(o, v)| *o = *v);
                if let Some(skip) = given.skip {
                    let (value, _) = given.largest_skipped(skip, first + nth, block * BLOCK);
                    out.iter_mut().zip(&value).for_each(|(o, v)| *o += v);
                }
            }
        }
    }
}

/// Gradients of weight and bias, where they are trained.
pub type NormGradients<'a> = [Option<(&'a mut [f32], Write)>; 2];

/// `dx` and `dskip` are set; the gradients of weight and bias are added to or set.
pub fn norm_pool_backward(
    cores: Cores,
    shape: PoolShape,
    (first, samples): (u32, usize),
    dout: &[f32],
    x: &[f32],
    norm: Option<Normed>,
    skip: Option<&[f32]>,
    dx: &mut [f32],
    dskip: Option<&mut [f32]>,
    gradients: NormGradients,
    drop: Option<Dropper>,
    workspace: &mut [f32],
) {
    let width = shape.width;
    let (factors, terms, rest) = line(norm, width, workspace);
    let given = Given { shape, x, factors, terms, skip, drop, first };
    let (pooled, rows) = (given.pooled(), samples * shape.steps);
    let pools = samples * pooled;
    assert!(x.len() >= rows * width && dx.len() >= rows * width && dout.len() >= pools * width);
    let sums = doubles(rest, 2 * REDUCE_CHUNKS * width);
    let chunk = pools.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = pools.div_ceil(chunk);
    let (dx_at, sums_at) = (Shared(dx.as_mut_ptr()), Doubles(sums.as_mut_ptr()));
    let dskip_at = dskip.map(|d| {
        assert!(d.len() >= rows * width, "every row has its place");
        Shared(d.as_mut_ptr())
    });
    pool::tasks(chunks, |task| {
        // SAFETY: each task has its own sums, and its own pools' rows.
        let sums = unsafe { sums_at.slice(task * 2 * width, 2 * width) };
        sums.fill(0.0);
        for pool in task * chunk..((task + 1) * chunk).min(pools) {
            // The last pool of a sample takes the steps behind it as well.
            let row = given.row(pool);
            let count = if pool % pooled + 1 == pooled { shape.steps - (pooled - 1) * shape.pool } else { shape.pool };
            // SAFETY: these rows are this pool's.
            let dx = unsafe { dx_at.slice(row * width, count * width) };
            // SAFETY: as above.
            let dskip = dskip_at.map(|d| unsafe { d.slice(row * width, count * width) });
            pool_backward(cores.simd, given, norm, pool, &dout[pool * width..(pool + 1) * width], dx, dskip, sums);
        }
    });
    let Some(norm) = norm else { return };
    let (plain, along) = sums.split_at_mut(width);
    for chunk in 1..chunks {
        // The sums of the first chunk take those of the others: 2 * width of each, in their order.
        let (a, b) = along.split_at_mut((chunk * 2 - 1) * width);
        for c in 0..width {
            plain[c] += b[c];
            a[c] += b[width + c];
        }
    }
    let along = &along[..width];
    let [weight_grad, bias_grad] = gradients;
    for (gradient, sum) in [(weight_grad, along), (bias_grad, &*plain)] {
        let Some((grad, write)) = gradient else { continue };
        for (g, s) in grad.iter_mut().zip(sum) {
            *g = if write == Write::Add { *g + *s as f32 } else { *s as f32 };
        }
    }
    let (plain, along) = (&*plain, along);
    let dx = Shared(dx_at.first());
    pool::rows(rows, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let dx = unsafe { dx.slice(range.start * width, range.len() * width) };
        let x = &x[range.start * width..range.end * width];
        through_norm(cores.simd, norm, width, rows as f64, x, dx, plain, along);
    });
}

leveled! {
    /// `dx` gets the gradient before the norm's own; `sums` those of bias and weight.
    fn pool_backward(given: Given, norm: Option<Normed>, pool: usize, dout: &[f32], dx: &mut [f32], dskip: Option<&mut [f32]>, sums: &mut [f64]) {
        let width = given.shape.width;
        dx.fill(0.0);
        let (plain, along) = sums.split_at_mut(width);
        for (block, dout) in dout.chunks(BLOCK).enumerate() {
            let from = block * BLOCK;
            let best = given.largest(pool, from);
            let mut slope = [0.0f32; BLOCK];
            match given.shape.activation {
                Activation::Relu => slope.iter_mut().zip(&best.z).for_each(|(s, z)| *s = if *z > 0.0 { 1.0 } else { 0.0 }),
                Activation::Gelu => slope.iter_mut().zip(&best.z).for_each(|(s, z)| *s = gelu_erf_with_slope(*z).1),
            }
            let mut dz = [0.0f32; BLOCK];
            for c in 0..dout.len() {
                dz[c] = dout[c] * best.factor[c] * slope[c];
            }
            if let Some(norm) = norm {
                let (mean, inverse) = (&norm.stats[from..], &norm.stats[width + from..]);
                for c in 0..dout.len() {
                    plain[from + c] += f64::from(dz[c]);
                    along[from + c] += f64::from(dz[c] * ((best.x[c] - mean[c]) * inverse[c]));
                }
            }
            for nth in 0..given.shape.pool {
                let row = &mut dx[nth * width + from..][..dout.len()];
                for c in 0..dout.len() {
                    row[c] = if best.at[c] == nth as u32 { dz[c] } else { 0.0 };
                }
            }
        }
        let (Some(dskip), Some(skip)) = (dskip, given.skip) else { return };
        dskip.fill(0.0);
        for (block, dout) in dout.chunks(BLOCK).enumerate() {
            let from = block * BLOCK;
            let (_, at) = given.largest_skipped(skip, pool, from);
            for nth in 0..given.shape.pool {
                let row = &mut dskip[nth * width + from..][..dout.len()];
                for c in 0..dout.len() {
                    row[c] = if at[c] == nth as u32 { dout[c] } else { 0.0 };
                }
            }
        }
    }
}

leveled! {
    /// `dx = weight * inverse * (dx - mean of dx - xhat * mean of dx * xhat)`.
    fn through_norm(norm: Normed, width: usize, rows: f64, x: &[f32], dx: &mut [f32], plain: &[f64], along: &[f64]) {
        let (mean, inverse) = norm.stats.split_at(width);
        for (x, dx) in x.chunks_exact(width).zip(dx.chunks_exact_mut(width)) {
            for c in 0..width {
                let hat = (x[c] - mean[c]) * inverse[c];
                let rest = dx[c] - (plain[c] / rows) as f32 - hat * (along[c] / rows) as f32;
                dx[c] = norm.weight[c] * inverse[c] * rest;
            }
        }
    }
}
