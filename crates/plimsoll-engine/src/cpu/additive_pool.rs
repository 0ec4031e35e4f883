//! Additive attention: the steps of a sample summed by `softmax(tanh(u) w + b)`, and its gradient.
//!
//! Legend: T steps, C width of a step, U units.

use plimsoll_plan::op::{REDUCE_CHUNKS, Write};
use plimsoll_plan::place::aligned;

use super::Cores;
use crate::math::{exp, tanh};
use crate::pool::{self, Shared};
use crate::simd::{dot, leveled};

/// Steps, width and units.
#[derive(Clone, Copy, Debug)]
pub struct AdditiveShape {
    /// Steps of a sample.
    pub steps: usize,
    /// Width of a step.
    pub width: usize,
    /// Units between.
    pub units: usize,
}

/// `u = tanh(u)` in place, `weights` the softmax over steps, `out` the sum of `x` by them.
pub fn additive_pool_forward(
    cores: Cores,
    shape: AdditiveShape,
    samples: usize,
    x: &[f32],
    u: &mut [f32],
    (weight, bias): (&[f32], f32),
    weights: &mut [f32],
    out: &mut [f32],
) {
    let AdditiveShape { steps, width, units } = shape;
    assert!(x.len() >= samples * steps * width && u.len() >= samples * steps * units, "every row has its place");
    assert!(weights.len() >= samples * steps && out.len() >= samples * width, "every row has its place");
    let (u, weights, out) = (Shared(u.as_mut_ptr()), Shared(weights.as_mut_ptr()), Shared(out.as_mut_ptr()));
    pool::tasks(samples, |sample| {
        // SAFETY: a task is a sample.
        let (u, weights, out) = unsafe {
            (
                u.slice(sample * steps * units, steps * units),
                weights.slice(sample * steps, steps),
                out.slice(sample * width, width),
            )
        };
        let x = &x[sample * steps * width..(sample + 1) * steps * width];
        sum_up(cores.simd, shape, x, u, weight, bias, weights, out);
    });
}

leveled! {
    fn sum_up(shape: AdditiveShape, x: &[f32], u: &mut [f32], weight: &[f32], bias: f32, weights: &mut [f32], out: &mut [f32]) {
        for (u, score) in u.chunks_exact_mut(shape.units).zip(weights.iter_mut()) {
            u.iter_mut().for_each(|u| *u = tanh(*u));
            *score = dot(u, weight) + bias;
        }
        let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for w in weights.iter_mut() {
            *w = exp(*w - most);
            sum += *w;
        }
        weights.iter_mut().for_each(|w| *w /= sum);
        out.fill(0.0);
        for (x, w) in x.chunks_exact(shape.width).zip(weights.iter()) {
            out.iter_mut().zip(x).for_each(|(o, x)| *o = w.mul_add(*x, *o));
        }
    }
}

/// `dx` is set, `u` becomes its gradient, those of the weight and of the bias are added to or set.
pub fn additive_pool_backward(
    cores: Cores,
    shape: AdditiveShape,
    samples: usize,
    dout: &[f32],
    x: &[f32],
    u: &mut [f32],
    weight: &[f32],
    weights: &[f32],
    dx: &mut [f32],
    [weight_grad, bias_grad]: [Option<(&mut [f32], Write)>; 2],
    partial: &mut [f32],
) {
    let AdditiveShape { steps, width, units } = shape;
    assert!(dx.len() >= samples * steps * width && u.len() >= samples * steps * units, "every row has its place");
    let words = aligned(units + 1);
    assert!(partial.len() >= REDUCE_CHUNKS * words, "workspace is what the plan says");
    let chunk = samples.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = samples.div_ceil(chunk);
    let (u, dx, sums) = (Shared(u.as_mut_ptr()), Shared(dx.as_mut_ptr()), Shared(partial.as_mut_ptr()));
    pool::tasks(chunks, |task| {
        // SAFETY: each task has its own sums.
        let sum = unsafe { sums.slice(task * words, units + 1) };
        sum.fill(0.0);
        for sample in task * chunk..((task + 1) * chunk).min(samples) {
            // SAFETY: tasks own disjoint samples.
            let (u, dx) = unsafe {
                (u.slice(sample * steps * units, steps * units), dx.slice(sample * steps * width, steps * width))
            };
            let x = &x[sample * steps * width..(sample + 1) * steps * width];
            let weights = &weights[sample * steps..(sample + 1) * steps];
            let dout = &dout[sample * width..(sample + 1) * width];
            spread(cores.simd, shape, dout, x, u, weight, weights, dx, sum);
        }
    });
    let sums = || partial.chunks_exact(words).take(chunks);
    if let Some((grad, write)) = weight_grad {
        if write != Write::Add {
            grad.fill(0.0);
        }
        sums().for_each(|sum| grad.iter_mut().zip(sum).take(units).for_each(|(g, s)| *g += s));
    }
    if let Some((grad, write)) = bias_grad {
        let before = if write == Write::Add { grad[0] } else { 0.0 };
        grad[0] = before + sums().map(|sum| sum[units]).sum::<f32>();
    }
}

leveled! {
    /// `sum` takes the gradients of the weight, then of the bias.
    fn spread(shape: AdditiveShape, dout: &[f32], x: &[f32], u: &mut [f32], weight: &[f32], weights: &[f32], dx: &mut [f32], sum: &mut [f32]) {
        let mean: f32 = x.chunks_exact(shape.width).zip(weights).map(|(x, w)| w * dot(x, dout)).sum();
        let rows = x.chunks_exact(shape.width).zip(dx.chunks_exact_mut(shape.width));
        for (((x, dx), u), w) in rows.zip(u.chunks_exact_mut(shape.units)).zip(weights) {
            let score = w * (dot(x, dout) - mean);
            dx.iter_mut().zip(dout).for_each(|(d, g)| *d = w * g);
            for ((u, weight), sum) in u.iter_mut().zip(weight).zip(sum.iter_mut()) {
                *sum += score * *u;
                *u = score * weight * (1.0 - *u * *u);
            }
            sum[shape.units] += score;
        }
    }
}
