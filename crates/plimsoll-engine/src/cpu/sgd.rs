//! SGD, as `torch.optim.SGD` computes it.

use super::Cores;
use super::weight::WeightMut;
use crate::pool::Shared;
use crate::simd::leveled;

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct SgdStep {
    /// Learning rate of this update.
    pub lr: f64,
    /// Momentum; 0 keeps no buffer.
    pub momentum: f64,
    /// Dampening of the momentum.
    pub dampening: f64,
    /// Nesterov's form.
    pub nesterov: bool,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Which update, from 1.
    pub step: u64,
    /// Factor that turns the summed gradient into the mean, clipped.
    pub grad_scale: f32,
}

/// Updates one parameter; `buffer` is empty without momentum.
pub fn sgd<'a>(cores: Cores, step: &SgdStep, weight: impl Into<WeightMut<'a>>, grad: &[f32], buffer: &mut [f32]) {
    let mut weight = weight.into();
    assert!(
        weight.len() == grad.len() && (buffer.is_empty() || buffer.len() == grad.len()),
        "state and gradient are the weight's size"
    );
    let (b, kept) = (Shared(buffer.as_mut_ptr()), !buffer.is_empty());
    weight.update(cores, |range, w| {
        // SAFETY: the pieces of a weight are disjoint.
        let b = if kept { unsafe { b.slice(range.start, range.len()) } } else { &mut [] };
        sgd_range(cores.simd, step, w, &grad[range], b);
    });
}

leveled! {
    fn sgd_range(step: &SgdStep, weight: &mut [f32], grad: &[f32], buffer: &mut [f32]) {
        let (lr, decay, scale) = (step.lr as f32, step.weight_decay as f32, step.grad_scale);
        if buffer.is_empty() {
            weight.iter_mut().zip(grad).for_each(|(w, g)| *w -= lr * (g * scale + decay * *w));
            return;
        }
        let (momentum, fresh) = (step.momentum as f32, (1.0 - step.dampening) as f32);
        // The first update takes the gradient whole, undampened.
        let (keep, take) = if step.step == 1 { (0.0, 1.0) } else { (momentum, fresh) };
        for ((w, g), b) in weight.iter_mut().zip(grad).zip(buffer) {
            let g = g * scale + decay * *w;
            *b = keep * *b + take * g;
            let direction = if step.nesterov { g + momentum * *b } else { *b };
            *w -= lr * direction;
        }
    }
}
