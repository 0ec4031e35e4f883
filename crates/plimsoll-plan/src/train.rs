//! How weights are updated: the optimizer with its numbers, and the learning rate's course over a run.
//!
//! Names, defaults and meanings are Hugging Face's and PyTorch's, so that a job can be carried over as it stands.
//! Numbers are `f64`, because Python's are. Nothing here touches a tensor: the engine reads these values, and the tape
//! asks them only which state an optimizer keeps.

mod schedule;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use schedule::{Anneal, ScheduleSpec};

/// An optimizer and every number it needs; no default is left open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// `torch.optim.AdamW`: decoupled weight decay, bias correction.
    #[serde(rename = "adamw")]
    AdamW {
        /// Learning rate before the schedule.
        lr: f64,
        /// Decay of the first and of the second moment.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
        /// Decoupled weight decay, times the learning rate.
        weight_decay: f64,
    },
    /// `transformers.Adafactor`.
    #[serde(rename = "adafactor")]
    Adafactor {
        /// Learning rate before the schedule; none with `relative_step`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lr: Option<f64>,
        /// Added to the squared gradient; floor of the parameter scale.
        eps: [f64; 2],
        /// Root mean square above which an update is scaled down.
        clip_threshold: f64,
        /// Exponent of the running average's decay, negative.
        decay_rate: f64,
        /// Decay of the first moment; none keeps no first moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beta1: Option<f64>,
        /// Weight decay, times the learning rate.
        weight_decay: f64,
        /// Scale the rate by the root mean square of the parameter.
        scale_parameter: bool,
        /// The rate follows from the step number instead of `lr`.
        relative_step: bool,
        /// Start the relative rate at 1e-6 times the step; only with `relative_step`.
        warmup_init: bool,
    },
    /// AdamW with both moments in bf16, rounded stochastically.
    #[serde(rename = "adamw16bit")]
    AdamW16bit {
        /// Learning rate before the schedule.
        lr: f64,
        /// Decay of the first and of the second moment.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
        /// Decoupled weight decay, times the learning rate.
        weight_decay: f64,
    },
    /// AdamW with both moments in 8 bits, block-wise (`bitsandbytes.optim.AdamW8bit`); parameters of fewer than
    /// [`EIGHT_BIT_LEAST`] elements keep theirs in f32.
    #[serde(rename = "adamw8bit")]
    AdamW8bit {
        /// Learning rate before the schedule.
        lr: f64,
        /// Decay of the first and of the second moment.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
        /// Decoupled weight decay, times the learning rate.
        weight_decay: f64,
    },
    /// Lion (Chen et al. 2023): steps of one size, in the direction of a running average.
    #[serde(rename = "lion")]
    Lion {
        /// Learning rate before the schedule.
        lr: f64,
        /// Share of the average in the direction, and the average's decay.
        betas: [f64; 2],
        /// Decoupled weight decay, times the learning rate.
        weight_decay: f64,
    },
    /// `torch.optim.SGD`.
    #[serde(rename = "sgd")]
    Sgd {
        /// Learning rate before the schedule.
        lr: f64,
        /// Momentum; 0 keeps no momentum buffer.
        momentum: f64,
        /// Dampening of the gradient that enters the momentum.
        dampening: f64,
        /// Nesterov momentum.
        nesterov: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f64,
    },
}

impl OptimizerSpec {
    /// The name that a job file gives it.
    pub fn name(&self) -> &'static str {
        match self {
            OptimizerSpec::AdamW { .. } => "adamw",
            OptimizerSpec::Adafactor { .. } => "adafactor",
            OptimizerSpec::AdamW16bit { .. } => "adamw16bit",
            OptimizerSpec::AdamW8bit { .. } => "adamw8bit",
            OptimizerSpec::Lion { .. } => "lion",
            OptimizerSpec::Sgd { .. } => "sgd",
        }
    }

    /// The learning rate that the schedule multiplies; none where the rate follows from the step number.
    pub fn lr(&self) -> Option<f64> {
        match self {
            OptimizerSpec::AdamW { lr, .. }
            | OptimizerSpec::AdamW16bit { lr, .. }
            | OptimizerSpec::AdamW8bit { lr, .. }
            | OptimizerSpec::Lion { lr, .. }
            | OptimizerSpec::Sgd { lr, .. } => Some(*lr),
            OptimizerSpec::Adafactor { lr, .. } => *lr,
        }
    }

    /// AdamW with PyTorch's defaults, but no weight decay (Hugging Face's trainer has none either).
    pub fn adamw(lr: f64) -> OptimizerSpec {
        OptimizerSpec::AdamW { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 }
    }

    /// Adafactor at a fixed rate, as Hugging Face's trainer and T5 recipes set it: no relative step, no parameter scale.
    pub fn adafactor(lr: f64) -> OptimizerSpec {
        OptimizerSpec::Adafactor {
            lr: Some(lr),
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            weight_decay: 0.0,
            scale_parameter: false,
            relative_step: false,
            warmup_init: false,
        }
    }

    /// Adafactor with the defaults of its Hugging Face class: the rate follows from step and parameter scale.
    pub fn adafactor_relative() -> OptimizerSpec {
        OptimizerSpec::Adafactor {
            lr: None,
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            weight_decay: 0.0,
            scale_parameter: true,
            relative_step: true,
            warmup_init: false,
        }
    }

    /// AdamW with moments in bf16 and the numbers of [`OptimizerSpec::adamw`].
    pub fn adamw16bit(lr: f64) -> OptimizerSpec {
        OptimizerSpec::AdamW16bit { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 }
    }

    /// 8-bit AdamW with the numbers of [`OptimizerSpec::adamw`].
    pub fn adamw8bit(lr: f64) -> OptimizerSpec {
        OptimizerSpec::AdamW8bit { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0 }
    }

    /// Lion with its paper's averages, no weight decay.
    pub fn lion(lr: f64) -> OptimizerSpec {
        OptimizerSpec::Lion { lr, betas: [0.9, 0.99], weight_decay: 0.0 }
    }

    /// Plain SGD.
    pub fn sgd(lr: f64) -> OptimizerSpec {
        OptimizerSpec::Sgd { lr, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

/// Elements from which on a parameter's moments are kept in 8 bits.
pub const EIGHT_BIT_LEAST: usize = 4096;
/// Elements of an 8-bit moment that share one scale.
pub const EIGHT_BIT_BLOCK: usize = 256;

/// Words of one moment of 8-bit AdamW: codes, a byte each, then an f32 a block; or an f32 each, where they are few.
pub fn eight_bit_words(elements: usize) -> usize {
    if elements < EIGHT_BIT_LEAST { elements } else { elements.div_ceil(4) + elements.div_ceil(EIGHT_BIT_BLOCK) }
}

impl fmt::Display for OptimizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lr() {
            Some(lr) => write!(f, "{}, lr {lr}", self.name()),
            None => write!(f, "{}, relative step", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_is_read_as_it_was_written() {
        for (spec, text) in [
            (OptimizerSpec::adamw8bit(1e-3), "adamw8bit, lr 0.001"),
            (OptimizerSpec::lion(1e-4), "lion, lr 0.0001"),
            (OptimizerSpec::sgd(0.5), "sgd, lr 0.5"),
        ] {
            let json = serde_json::to_value(&spec).unwrap();
            assert_eq!(json["name"], spec.name());
            assert_eq!(serde_json::from_value::<OptimizerSpec>(json).unwrap(), spec);
            assert_eq!(spec.to_string(), text);
        }
    }
}
