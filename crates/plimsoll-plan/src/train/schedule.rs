//! The learning rate's course over a run: a pure function of the update and the length of the run.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

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

/// The learning rate's course.
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
    /// Linear warm-up, then cosines from the rate down to the least one, each begun anew
    /// (`torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`, stepped with each update; Loshchilov and Hutter 2017).
    CosineWarmRestarts {
        /// Updates of warm-up; PyTorch's has none.
        warmup_steps: u64,
        /// Updates of the first cosine.
        t_0: u64,
        /// How many times longer each cosine is than the one before it.
        t_mult: u64,
        /// The least rate: itself, not a share of the optimizer's.
        eta_min: f64,
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
            ScheduleSpec::CosineWarmRestarts { .. } => "cosine-warm-restarts",
            ScheduleSpec::OneCycle { .. } => "one-cycle",
        }
    }

    /// Updates of warm-up; 0 for one-cycle, which rises by itself.
    pub fn warmup_steps(&self) -> u64 {
        match self {
            ScheduleSpec::Constant { warmup_steps }
            | ScheduleSpec::Linear { warmup_steps }
            | ScheduleSpec::Cosine { warmup_steps, .. }
            | ScheduleSpec::CosineWarmRestarts { warmup_steps, .. } => *warmup_steps,
            ScheduleSpec::OneCycle { .. } => 0,
        }
    }

    /// The rate below which the course never goes by itself; with a warm-up it begins at 0 all the same.
    pub fn least(&self) -> f64 {
        if let ScheduleSpec::CosineWarmRestarts { eta_min, .. } = self { *eta_min } else { 0.0 }
    }

    /// The rate of update `step` (0 is the first) in a run of `total` updates, where the optimizer's is `lr`. With a warm-up the
    /// first is 0, as it is in Hugging Face's schedules. Past the end, one-cycle stays at its last rate.
    pub fn rate(&self, lr: f64, step: u64, total: u64) -> f64 {
        match self.least() {
            least if least > 0.0 && step >= self.warmup_steps() => least + (lr - least) * self.factor(step, total),
            _ => lr * self.factor(step, total),
        }
    }

    /// The rate as a share of the optimizer's; of warm restarts, of what is above the least.
    fn factor(&self, step: u64, total: u64) -> f64 {
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
            ScheduleSpec::CosineWarmRestarts { warmup_steps, t_0, t_mult, .. } => {
                let (at, period) = restarted(step - warmup_steps, *t_0, *t_mult);
                (1.0 + (PI * at as f64 / period as f64).cos()) / 2.0
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

/// Updates since the last start, and how many there are until the next.
fn restarted(step: u64, first: u64, times: u64) -> (u64, u64) {
    let (mut at, mut period) = (step, first.max(1));
    if times <= 1 {
        return (at % period, period);
    }
    while at >= period {
        at -= period;
        period = period.saturating_mul(times);
    }
    (at, period)
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
            let got = schedule.rate(1.0, step as u64, total);
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

    /// As torch 2.15.0 sets it: `CosineAnnealingWarmRestarts(SGD([p], lr), t_0, t_mult, eta_min)`, stepped with each update.
    #[test]
    fn warm_restarts_agree_with_torch() {
        let restarts =
            |t_0, t_mult, eta_min| ScheduleSpec::CosineWarmRestarts { warmup_steps: 0, t_0, t_mult, eta_min };
        let doubled = [
            1.0,
            0.75,
            0.2500000000000001,
            1.0,
            0.9330127018922194,
            0.75,
            0.5,
            0.2500000000000001,
            0.06698729810778065,
            1.0,
            0.9829629131445341,
            0.9330127018922194,
            0.8535533905932737,
            0.75,
            0.6294095225512604,
            0.5,
            0.3705904774487397,
            0.2500000000000001,
            0.14644660940672627,
            0.06698729810778065,
            0.0170370868554659,
            1.0,
            0.9957224306869052,
            0.9829629131445341,
        ];
        agrees(restarts(3, 2, 0.0), 24, &doubled);
        let rates = |schedule: ScheduleSpec, lr: f64, expected: &[f64]| {
            for (step, want) in expected.iter().enumerate() {
                let got = schedule.rate(lr, step as u64, 10);
                assert!((got - want).abs() <= 1e-15 * lr, "{step}: {got} instead of {want}");
            }
        };
        let equal = [0.1, 0.09140576474687263, 0.06890576474687264, 0.04109423525312737, 0.01859423525312737];
        rates(restarts(5, 1, 0.01), 0.1, &[equal, equal].concat());
        let tripled = [
            5e-05,
            2.5500000000000003e-05,
            5e-05,
            4.671762239271875e-05,
            3.775e-05,
            2.5500000000000003e-05,
            1.3250000000000007e-05,
            4.282377607281252e-06,
            5e-05,
            4.96277899487991e-05,
        ];
        rates(restarts(2, 3, 1e-6), 5e-5, &tripled);
        let warm = ScheduleSpec::CosineWarmRestarts { warmup_steps: 4, t_0: 2, t_mult: 3, eta_min: 1e-6 };
        let risen: Vec<f64> = [0.0, 1.25e-5, 2.5e-5, 3.75e-5].into_iter().chain(tripled).collect();
        rates(warm, 5e-5, &risen);
        // A period that no number holds is one without an end.
        assert!(restarts(1, u64::MAX, 0.0).rate(1.0, u64::MAX, 1) <= 1.0);
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
        let restarts = ScheduleSpec::CosineWarmRestarts { warmup_steps: 2, t_0: 3, t_mult: 2, eta_min: 0.1 };
        let linear = ScheduleSpec::Linear { warmup_steps: 7 };
        for schedule in [one_cycle_default(), ScheduleSpec::CONSTANT, linear, warm, restarts] {
            for total in 0..40 {
                for step in 0..=total + 2 {
                    let factor = schedule.rate(1.0, step, total);
                    assert!((0.0..=1.0).contains(&factor), "{schedule} at {step} of {total}: {factor}");
                }
            }
        }
    }
}
