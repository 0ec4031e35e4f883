//! AdamW, as `torch.optim.AdamW` computes it.

use super::Cores;
use super::weight::WeightMut;
use crate::pool::Shared;
use crate::simd::leveled;

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Learning rate of this update.
    pub lr: f64,
    /// Decay of both moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Which update, from 1.
    pub step: u64,
    /// Factor that turns the summed gradient into the mean, clipped.
    pub grad_scale: f32,
}

/// The numbers that all elements share.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    decay: f32,
    size: f32,
    root: f32,
    one_b1: f32,
    b2: f32,
    one_b2: f32,
    eps: f32,
    scale: f32,
}

impl Numbers {
    pub(super) fn of(step: &AdamWStep) -> Numbers {
        let [b1, b2] = step.betas;
        Numbers {
            decay: (1.0 - step.lr * step.weight_decay) as f32,
            size: (step.lr / (1.0 - b1.powf(step.step as f64))) as f32,
            root: (1.0 - b2.powf(step.step as f64)).sqrt() as f32,
            one_b1: (1.0 - b1) as f32,
            b2: b2 as f32,
            one_b2: (1.0 - b2) as f32,
            eps: step.eps as f32,
            scale: step.grad_scale,
        }
    }
}

/// Updates one parameter.
pub fn adamw<'a>(
    cores: Cores,
    step: &AdamWStep,
    weight: impl Into<WeightMut<'a>>,
    grad: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
) {
    let mut weight = weight.into();
    assert!(
        [weight.len(), exp_avg.len(), exp_avg_sq.len()] == [grad.len(); 3],
        "state and gradient are the weight's size"
    );
    let (m, v) = (Shared(exp_avg.as_mut_ptr()), Shared(exp_avg_sq.as_mut_ptr()));
    let numbers = Numbers::of(step);
    weight.update(cores, |range, w| {
        // SAFETY: the pieces of a weight are disjoint.
        let (m, v) = unsafe { (m.slice(range.start, range.len()), v.slice(range.start, range.len())) };
        adamw_range(cores.simd, numbers, w, &grad[range], m, v);
    });
}

leveled! {
    pub(super) fn adamw_range(numbers: Numbers, weight: &mut [f32], grad: &[f32], exp_avg: &mut [f32], exp_avg_sq: &mut [f32]) {
        let Numbers { decay, size, root, one_b1, b2, one_b2, eps, scale } = numbers;
        for (((w, g), m), v) in weight.iter_mut().zip(grad).zip(exp_avg).zip(exp_avg_sq) {
            let g = g * scale;
            *m += (g - *m) * one_b1;
            *v = *v * b2 + one_b2 * g * g;
            *w = *w * decay - size * (*m / (v.sqrt() / root + eps));
        }
    }
}
