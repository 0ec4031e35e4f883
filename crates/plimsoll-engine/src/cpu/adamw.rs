//! AdamW, as `torch.optim.AdamW` computes it.

use super::Cores;
use crate::pool::{self, Shared};
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

/// Elements of one task.
const GRAIN: usize = 1 << 16;

/// Updates one parameter.
pub fn adamw(
    cores: Cores,
    step: &AdamWStep,
    weight: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [f32],
    exp_avg_sq: &mut [f32],
) {
    assert!(
        [weight.len(), exp_avg.len(), exp_avg_sq.len()] == [grad.len(); 3],
        "state and gradient are the weight's size"
    );
    let (w, m, v) = (Shared(weight.as_mut_ptr()), Shared(exp_avg.as_mut_ptr()), Shared(exp_avg_sq.as_mut_ptr()));
    pool::rows(grad.len(), GRAIN, |range| {
        let (at, len) = (range.start, range.len());
        // SAFETY: tasks own disjoint ranges.
        let (w, m, v) = unsafe { (w.slice(at, len), m.slice(at, len), v.slice(at, len)) };
        adamw_range(cores.simd, step, w, &grad[range], m, v);
    });
}

leveled! {
    fn adamw_range(step: &AdamWStep, weight: &mut [f32], grad: &[f32], exp_avg: &mut [f32], exp_avg_sq: &mut [f32]) {
        let [b1, b2] = step.betas;
        let decay = (1.0 - step.lr * step.weight_decay) as f32;
        let size = (step.lr / (1.0 - b1.powf(step.step as f64))) as f32;
        let root = (1.0 - b2.powf(step.step as f64)).sqrt() as f32;
        let (one_b1, b2, one_b2, eps) = ((1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32, step.eps as f32);
        let scale = step.grad_scale;
        for (((w, g), m), v) in weight.iter_mut().zip(grad).zip(exp_avg).zip(exp_avg_sq) {
            let g = g * scale;
            *m += (g - *m) * one_b1;
            *v = *v * b2 + one_b2 * g * g;
            *w = *w * decay - size * (*m / (v.sqrt() / root + eps));
        }
    }
}
