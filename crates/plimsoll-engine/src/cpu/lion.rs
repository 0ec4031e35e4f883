//! Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023): every element moves by the rate, in the
//! direction of a blend of the gradient and its running average.

use super::Cores;
use super::weight::WeightMut;
use crate::pool::Shared;
use crate::simd::leveled;

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct LionStep {
    /// Learning rate of this update.
    pub lr: f64,
    /// Share of the average in the direction, and its decay.
    pub betas: [f64; 2],
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Factor that turns the summed gradient into the mean, clipped.
    pub grad_scale: f32,
}

/// Updates one parameter.
pub fn lion<'a>(cores: Cores, step: &LionStep, weight: impl Into<WeightMut<'a>>, grad: &[f32], exp_avg: &mut [f32]) {
    let mut weight = weight.into();
    assert!([weight.len(), exp_avg.len()] == [grad.len(); 2], "state and gradient are the weight's size");
    let m = Shared(exp_avg.as_mut_ptr());
    weight.update(cores, |range, w| {
        // SAFETY: the pieces of a weight are disjoint.
        let m = unsafe { m.slice(range.start, range.len()) };
        lion_range(cores.simd, step, w, &grad[range], m);
    });
}

leveled! {
    fn lion_range(step: &LionStep, weight: &mut [f32], grad: &[f32], exp_avg: &mut [f32]) {
        let [b1, b2] = step.betas;
        let (lr, decay) = (step.lr as f32, (1.0 - step.lr * step.weight_decay) as f32);
        let (one_b1, one_b2, b1, b2) = ((1.0 - b1) as f32, (1.0 - b2) as f32, b1 as f32, b2 as f32);
        for ((w, g), m) in weight.iter_mut().zip(grad).zip(exp_avg) {
            let g = g * step.grad_scale;
            let blend = b1 * *m + one_b1 * g;
            // Nothing moves where the blend is zero, unlike `signum`.
            let sign = if blend > 0.0 { 1.0 } else if blend < 0.0 { -1.0 } else { 0.0 };
            *w = *w * decay - lr * sign;
            *m = b2 * *m + one_b2 * g;
        }
    }
}
