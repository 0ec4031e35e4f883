//! One parameter's update: from the optimizer's spec to its kernel.

use plimsoll_plan::train::OptimizerSpec;

use crate::cpu::Cores;
use crate::cpu::adafactor::{AdafactorStep, SecondMoment, adafactor};
use crate::cpu::adamw::{AdamWStep, adamw};
use crate::cpu::adamw8bit::adamw8bit;
use crate::cpu::adamw16bit::{Rounding, adamw16bit};
use crate::cpu::lion::{LionStep, lion};
use crate::cpu::sgd::{SgdStep, sgd};
use crate::cpu::weight::WeightMut;

/// What changes from update to update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Which update, from 0.
    pub update: u64,
    /// Scheduled learning rate, where the optimizer has one.
    pub lr: Option<f64>,
    /// Turns the summed gradient into the clipped mean.
    pub grad_scale: f32,
    /// The run's seed.
    pub seed: u64,
    /// Index of the parameter.
    pub param: u32,
}

/// Updates a parameter; `state` yields its state tensors in the optimizer's order.
pub(crate) fn update(
    cores: Cores,
    optimizer: &OptimizerSpec,
    step: Step,
    weight: WeightMut,
    grad: &[f32],
    matrix: bool,
    state: &mut dyn Iterator<Item = &mut [f32]>,
    workspace: &mut [f32],
) {
    let mut next = || state.next().expect("the plan declared this state");
    let grad_scale = step.grad_scale;
    let number = step.update + 1;
    match optimizer {
        OptimizerSpec::AdamW { lr, betas, eps, weight_decay }
        | OptimizerSpec::AdamW16bit { lr, betas, eps, weight_decay }
        | OptimizerSpec::AdamW8bit { lr, betas, eps, weight_decay } => {
            let rounding = Rounding { seed: step.seed, update: step.update, param: step.param };
            let step = AdamWStep {
                lr: step.lr.unwrap_or(*lr),
                betas: *betas,
                eps: *eps,
                weight_decay: *weight_decay,
                step: number,
                grad_scale,
            };
            match optimizer {
                OptimizerSpec::AdamW8bit { .. } => adamw8bit(cores, &step, weight, grad, next(), next()),
                OptimizerSpec::AdamW16bit { .. } => {
                    adamw16bit(cores, &step, rounding, weight, grad, next(), next());
                }
                _ => adamw(cores, &step, weight, grad, next(), next()),
            }
        }
        OptimizerSpec::Lion { lr, betas, weight_decay } => {
            let step = LionStep { lr: step.lr.unwrap_or(*lr), betas: *betas, weight_decay: *weight_decay, grad_scale };
            lion(cores, &step, weight, grad, next());
        }
        OptimizerSpec::Sgd { lr, momentum, dampening, nesterov, weight_decay } => {
            let step = SgdStep {
                lr: step.lr.unwrap_or(*lr),
                momentum: *momentum,
                dampening: *dampening,
                nesterov: *nesterov,
                weight_decay: *weight_decay,
                step: number,
                grad_scale,
            };
            let buffer = if *momentum == 0.0 { &mut [] } else { next() };
            sgd(cores, &step, weight, grad, buffer);
        }
        OptimizerSpec::Adafactor { beta1, .. } => {
            let step = AdafactorStep::of(optimizer, step.lr, number, grad_scale).expect("it is this optimizer");
            let moment =
                if matrix { SecondMoment::Factored { row: next(), col: next() } } else { SecondMoment::Whole(next()) };
            let average = beta1.map(|_| next());
            adafactor(cores, &step, weight, grad, moment, average, workspace);
        }
    }
}
