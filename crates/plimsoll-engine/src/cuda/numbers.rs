//! The optimizer's numbers of one update, computed in f64 by the host as the CPU's kernels compute them.

use plimsoll_plan::train::OptimizerSpec;

use super::call::Step;

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
        OptimizerSpec::Adafactor {
            lr,
            eps,
            clip_threshold,
            decay_rate,
            beta1,
            weight_decay,
            scale_parameter,
            relative_step,
            warmup_init,
        } => {
            let given = if *relative_step { None } else { scheduled.or(*lr) };
            let rate = given.unwrap_or_else(|| {
                let least = if *warmup_init { 1e-6 * number } else { 1e-2 };
                least.min(1.0 / number.sqrt())
            });
            let beta2 = 1.0 - number.powf(*decay_rate);
            step.rates = [
                rate,
                eps[0],
                eps[1],
                *clip_threshold,
                beta2,
                *weight_decay,
                beta1.unwrap_or(0.0),
                f64::from(u8::from(*scale_parameter)),
            ];
        }
    }
}
