//! The optimizer's numbers of one update, computed in f64 by the host as the CPU's kernels compute them.

use plimsoll_plan::train::OptimizerSpec;

use super::call::Step;
use crate::cpu::adafactor::AdafactorStep;

/// Writes the numbers of update `update` (from 0) into the step.
pub(crate) fn set_numbers(step: &mut Step, optimizer: &OptimizerSpec, update: u64, scheduled: Option<f64>) {
    let number = (update + 1) as f64;
    let mut put = |values: &[f64]| {
        step.numbers[..values.len()].iter_mut().zip(values).for_each(|(to, value)| *to = *value as f32);
    };
    match optimizer {
        OptimizerSpec::AdamW { lr, betas: [b1, b2], eps, weight_decay }
        | OptimizerSpec::AdamW16bit { lr, betas: [b1, b2], eps, weight_decay }
        | OptimizerSpec::AdamW8bit { lr, betas: [b1, b2], eps, weight_decay } => {
            let lr = scheduled.unwrap_or(*lr);
            let (size, root) = (lr / (1.0 - b1.powf(number)), (1.0 - b2.powf(number)).sqrt());
            put(&[1.0 - lr * weight_decay, size, root, 1.0 - b1, *b2, 1.0 - b2, *eps]);
        }
        OptimizerSpec::Lion { lr, betas: [b1, b2], weight_decay } => {
            let lr = scheduled.unwrap_or(*lr);
            put(&[lr, 1.0 - lr * weight_decay, *b1, 1.0 - b1, *b2, 1.0 - b2]);
        }
        OptimizerSpec::Sgd { lr, momentum, dampening, nesterov, weight_decay } => {
            let lr = scheduled.unwrap_or(*lr);
            // The first update takes the gradient whole, undampened.
            let (keep, take) = if update == 0 { (0.0, 1.0) } else { (*momentum, 1.0 - dampening) };
            put(&[lr, *weight_decay, keep, take, *momentum, f64::from(u8::from(*nesterov))]);
        }
        OptimizerSpec::Adafactor { .. } => {
            let of = AdafactorStep::of(optimizer, scheduled, update + 1, 1.0).expect("it is this optimizer");
            step.rates = [
                of.base_rate(),
                of.eps[0],
                of.eps[1],
                of.clip_threshold,
                of.beta2(),
                of.weight_decay,
                of.beta1.unwrap_or(0.0),
                f64::from(u8::from(of.scale_parameter)),
            ];
        }
    }
}
