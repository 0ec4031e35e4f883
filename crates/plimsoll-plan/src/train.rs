//! How weights are updated: the optimizer with its numbers, and the learning rate's course over a run.
//!
//! Names, defaults and meanings are Hugging Face's and PyTorch's, so that a job can be carried over as it stands.
//! Numbers are `f64`, because Python's are. Nothing here touches a tensor: the engine reads these values, and the tape
//! asks them only which state an optimizer keeps.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

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

/// How one-cycle moves between two rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Anneal {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

impl Anneal {
    fn between(self, start: f64, end: f64, share: f64) -> f64 {
        match self {
            Anneal::Cos => end + (start - end) / 2.0 * ((PI * share).cos() + 1.0),
            Anneal::Linear => (end - start) * share + start,
        }
    }
}

/// The learning rate's course, as a factor on the optimizer's rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleSpec {
    /// Linear warm-up, then 1.
    Constant {
        /// Updates of warm-up.
        warmup_steps: u64,
    },
    /// Linear warm-up, then linearly down to 0 at the end of the run.
    Linear {
        /// Updates of warm-up.
        warmup_steps: u64,
    },
    /// Linear warm-up, then a cosine.
    Cosine {
        /// Updates of warm-up.
        warmup_steps: u64,
        /// Waves of the cosine; a half goes once from 1 to 0.
        num_cycles: f64,
    },
    /// `torch.optim.lr_scheduler.OneCycleLR` with `max_lr` = the optimizer's rate. Momentum is not cycled
    /// (`cycle_momentum=False`).
    OneCycle {
        /// Share of the run spent rising.
        pct_start: f64,
        /// Form of the rise and of the fall.
        anneal_strategy: Anneal,
        /// The first rate is the highest, divided by this.
        div_factor: f64,
        /// The last rate is the first, divided by this.
        final_div_factor: f64,
        /// Fall back to the first rate as fast as it rose, then on to the last.
        three_phase: bool,
    },
}

impl ScheduleSpec {
    /// The rate as given, throughout.
    pub const CONSTANT: ScheduleSpec = ScheduleSpec::Constant { warmup_steps: 0 };

    /// The name that a job file gives it.
    pub fn name(&self) -> &'static str {
        match self {
            ScheduleSpec::Constant { .. } => "constant",
            ScheduleSpec::Linear { .. } => "linear",
            ScheduleSpec::Cosine { .. } => "cosine",
            ScheduleSpec::OneCycle { .. } => "one-cycle",
        }
    }

    /// Updates of warm-up; 0 for one-cycle, which rises by itself.
    pub fn warmup_steps(&self) -> u64 {
        match self {
            ScheduleSpec::Constant { warmup_steps }
            | ScheduleSpec::Linear { warmup_steps }
            | ScheduleSpec::Cosine { warmup_steps, .. } => *warmup_steps,
            ScheduleSpec::OneCycle { .. } => 0,
        }
    }

    /// The factor of update `step` (0 is the first) in a run of `total` updates. With a warm-up the first factor is 0,
    /// as it is in Hugging Face's schedules. Past the end, one-cycle stays at its last rate.
    pub fn factor(&self, step: u64, total: u64) -> f64 {
        if step < self.warmup_steps() {
            return step as f64 / self.warmup_steps() as f64;
        }
        let past_warmup = |warmup: u64| (step - warmup) as f64 / (total.saturating_sub(warmup)).max(1) as f64;
        match self {
            ScheduleSpec::Constant { .. } => 1.0,
            ScheduleSpec::Linear { warmup_steps } => {
                total.saturating_sub(step) as f64 / total.saturating_sub(*warmup_steps).max(1) as f64
            }
            ScheduleSpec::Cosine { warmup_steps, num_cycles } => {
                (0.5 * (1.0 + (PI * num_cycles * 2.0 * past_warmup(*warmup_steps)).cos())).max(0.0)
            }
            ScheduleSpec::OneCycle { pct_start, anneal_strategy, div_factor, final_div_factor, three_phase } => {
                let (first, last) = (1.0 / div_factor, 1.0 / div_factor / final_div_factor);
                let rise_end = pct_start * total as f64 - 1.0;
                let end = total.saturating_sub(1) as f64;
                let step = (step as f64).min(end);
                if *three_phase {
                    let fall_end = 2.0 * pct_start * total as f64 - 2.0;
                    let phases = [(rise_end, first, 1.0), (fall_end, 1.0, first), (end, first, last)];
                    one_cycle(step, &phases, *anneal_strategy)
                } else {
                    one_cycle(step, &[(rise_end, first, 1.0), (end, 1.0, last)], *anneal_strategy)
                }
            }
        }
    }
}

/// The factor at `step`, where each phase is (last step, factor at its start, factor at its end).
fn one_cycle(step: f64, phases: &[(f64, f64, f64)], anneal: Anneal) -> f64 {
    let mut begin = 0.0;
    for (i, &(end, from, to)) in phases.iter().enumerate() {
        if step <= end || i + 1 == phases.len() {
            // A phase of no length (PyTorch divides by zero there) is at its end.
            let share = if end > begin { (step - begin) / (end - begin) } else { 1.0 };
            return anneal.between(from, to, share);
        }
        begin = end;
    }
    1.0
}

impl fmt::Display for ScheduleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.warmup_steps() {
            0 => f.write_str(self.name()),
            steps => write!(f, "{}, {steps} steps of warm-up", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` is what the schedule of transformers 5.22.2 or torch 2.15.0 set as rate, for a rate of 1, update by update.
    fn agrees(schedule: ScheduleSpec, total: u64, expected: &[f64]) {
        for (step, want) in expected.iter().enumerate() {
            let got = schedule.factor(step as u64, total);
            assert!((got - want).abs() <= 1e-15, "{} at {step}: {got} instead of {want}", schedule.name());
        }
    }

    fn one_cycle_default() -> ScheduleSpec {
        ScheduleSpec::OneCycle {
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

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

    #[test]
    fn constant_and_linear_agree_with_transformers() {
        let constant = ScheduleSpec::Constant { warmup_steps: 4 };
        agrees(constant, 10, &[0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let linear = [
            0.0,
            0.3333333333333333,
            0.6666666666666666,
            1.0,
            0.8571428571428571,
            0.7142857142857143,
            0.5714285714285714,
            0.42857142857142855,
            0.2857142857142857,
            0.14285714285714285,
        ];
        agrees(ScheduleSpec::Linear { warmup_steps: 3 }, 10, &linear);
        agrees(ScheduleSpec::Linear { warmup_steps: 0 }, 5, &[1.0, 0.8, 0.6, 0.4, 0.2]);
    }

    #[test]
    fn cosine_agrees_with_transformers() {
        let half = [
            0.0,
            0.3333333333333333,
            0.6666666666666666,
            1.0,
            0.9504844339512095,
            0.8117449009293668,
            0.6112604669781572,
            0.38873953302184283,
            0.18825509907063326,
            0.04951556604879048,
        ];
        agrees(ScheduleSpec::Cosine { warmup_steps: 3, num_cycles: 0.5 }, 10, &half);
        let waves = [
            1.0,
            0.6913417161825449,
            0.14644660940672627,
            0.038060233744356575,
            0.4999999999999999,
            0.9619397662556433,
            0.8535533905932738,
            0.3086582838174551,
        ];
        agrees(ScheduleSpec::Cosine { warmup_steps: 0, num_cycles: 1.5 }, 8, &waves);
    }

    #[test]
    fn one_cycle_agrees_with_torch() {
        let cos = [
            0.040000000000000036,
            0.52,
            1.0,
            0.9504846320134737,
            0.8117456539497631,
            0.6112620219362893,
            0.38874197806371075,
            0.18825834605023697,
            0.049519367986526286,
            4e-06,
        ];
        agrees(one_cycle_default(), 10, &cos);
        agrees(one_cycle_default(), 1, &[4e-06]);
        let linear = ScheduleSpec::OneCycle {
            pct_start: 0.25,
            anneal_strategy: Anneal::Linear,
            div_factor: 10.0,
            final_div_factor: 100.0,
            three_phase: false,
        };
        agrees(linear, 9, &[0.1, 0.8200000000000001, 0.889, 0.741, 0.593, 0.445, 0.297, 0.149, 0.001]);
        let falls = ScheduleSpec::OneCycle {
            pct_start: 0.0,
            anneal_strategy: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        };
        agrees(falls, 4, &[0.8535539763797113, 0.500002, 0.14645002362028864, 4e-06]);
    }

    #[test]
    fn one_cycle_in_three_phases_agrees_with_torch() {
        let three = ScheduleSpec::OneCycle {
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: true,
        };
        let expected = [
            0.040000000000000036,
            0.3497896542195831,
            0.8792851591221287,
            0.9450188923135407,
            0.4621423934774446,
            0.05394792763549498,
            0.0381516932425798,
            0.031224618933116923,
            0.02108466989389118,
            0.010634768002885594,
            0.0028665701910005545,
            4e-06,
        ];
        agrees(three, 12, &expected);
    }

    #[test]
    fn a_factor_is_finite_and_between_0_and_1_for_every_run_length() {
        let warm = ScheduleSpec::Cosine { warmup_steps: 7, num_cycles: 0.5 };
        for schedule in [one_cycle_default(), ScheduleSpec::CONSTANT, ScheduleSpec::Linear { warmup_steps: 7 }, warm] {
            for total in 0..40 {
                for step in 0..=total + 2 {
                    let factor = schedule.factor(step, total);
                    assert!((0.0..=1.0).contains(&factor), "{schedule} at {step} of {total}: {factor}");
                }
            }
        }
    }
}
