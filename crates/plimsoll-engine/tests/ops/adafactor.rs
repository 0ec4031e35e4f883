//! Adafactor: several updates, of matrices and vectors, against the same updates in f64.

use plimsoll_engine::cpu::adafactor::{AdafactorStep, SecondMoment, adafactor};
use plimsoll_plan::op::REDUCE_CHUNKS;
use plimsoll_plan::place::aligned;

use crate::{assert_close, numbers, on_all_cores, unwritten, wide};

const PLAIN: AdafactorStep = AdafactorStep {
    lr: Some(0.01),
    eps: [1e-30, 1e-3],
    clip_threshold: 1.0,
    decay_rate: -0.8,
    beta1: None,
    weight_decay: 0.0,
    scale_parameter: false,
    warmup_init: false,
    step: 1,
    grad_scale: 0.5,
};

/// The paper's update as transformers writes it, with every number in f64.
struct Exact {
    rows: usize,
    cols: usize,
    weight: Vec<f64>,
    row: Vec<f64>,
    col: Vec<f64>,
    whole: Vec<f64>,
    average: Vec<f64>,
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

impl Exact {
    fn of(rows: usize, cols: usize, weight: &[f32]) -> Exact {
        let n = rows * cols;
        let weight = wide(weight);
        Exact {
            rows,
            cols,
            weight,
            row: vec![0.0; rows],
            col: vec![0.0; cols],
            whole: vec![0.0; n],
            average: vec![0.0; n],
        }
    }

    fn update(&mut self, step: &AdafactorStep, grad: &[f32], matrix: bool) {
        let (rows, cols, t) = (self.rows, self.cols, step.step as f64);
        let grad: Vec<f64> = grad.iter().map(|g| f64::from(*g) * f64::from(step.grad_scale)).collect();
        let beta2 = 1.0 - t.powf(step.decay_rate);
        let squares: Vec<f64> = grad.iter().map(|g| g * g + step.eps[0]).collect();
        let mix = |old: f64, new: f64| beta2 * old + (1.0 - beta2) * new;
        let mut update: Vec<f64> = if matrix {
            for r in 0..rows {
                self.row[r] = mix(self.row[r], (0..cols).map(|c| squares[r * cols + c]).sum::<f64>() / cols as f64);
            }
            for c in 0..cols {
                self.col[c] = mix(self.col[c], (0..rows).map(|r| squares[r * cols + c]).sum::<f64>() / rows as f64);
            }
            let mean = self.row.iter().sum::<f64>() / rows as f64;
            (0..grad.len()).map(|i| grad[i] / (self.row[i / cols] / mean).sqrt() / self.col[i % cols].sqrt()).collect()
        } else {
            (0..grad.len()).for_each(|i| self.whole[i] = mix(self.whole[i], squares[i]));
            (0..grad.len()).map(|i| grad[i] / self.whole[i].sqrt()).collect()
        };
        let base = step.lr.unwrap_or_else(|| (if step.warmup_init { 1e-6 * t } else { 1e-2 }).min(1.0 / t.sqrt()));
        let lr = base * if step.scale_parameter { rms(&self.weight).max(step.eps[1]) } else { 1.0 };
        let shorten = (rms(&update) / step.clip_threshold).max(1.0);
        update.iter_mut().for_each(|u| *u *= lr / shorten);
        if let Some(beta1) = step.beta1 {
            self.average.iter_mut().zip(&update).for_each(|(m, u)| *m = beta1 * *m + (1.0 - beta1) * u);
            update.clone_from(&self.average);
        }
        self.weight.iter_mut().zip(&update).for_each(|(w, u)| *w -= step.weight_decay * lr * *w + u);
    }
}

fn follows_transformers(plain: AdafactorStep) {
    on_all_cores(|cores| {
        for (rows, cols, matrix) in [
            (1, 1, true),
            (1, 40, true),
            (40, 1, true),
            (33, 70, true),
            (100, 17, true),
            (5, 64, true),
            (1, 1, false),
            (1, 83, false),
        ] {
            let n = rows * cols;
            let mut weight = numbers(n, 1);
            let mut exact = Exact::of(rows, cols, &weight);
            let (mut row, mut col, mut whole) = (vec![0.0; rows], vec![0.0; cols], vec![0.0; n]);
            let mut average = vec![0.0; n];
            for number in 1..=4 {
                let grad = numbers(n, 20 + number);
                let step = AdafactorStep { step: number, ..plain };
                let mut space = unwritten(aligned(rows) + aligned(cols) + REDUCE_CHUNKS * cols);
                let moment = if matrix {
                    SecondMoment::Factored { row: &mut row, col: &mut col }
                } else {
                    SecondMoment::Whole(&mut whole)
                };
                adafactor(cores, &step, &mut weight, &grad, moment, plain.beta1.map(|_| &mut average[..]), &mut space);
                exact.update(&step, &grad, matrix);
            }
            let what = format!("{rows}x{cols}, matrix {matrix}, {plain:?}");
            assert_close(&weight, &exact.weight, 2e-6, &what);
            let states = [(&row, &exact.row), (&col, &exact.col), (&whole, &exact.whole), (&average, &exact.average)];
            states.iter().for_each(|(got, exact)| assert_close(got, exact, 2e-6, &what));
        }
    });
}

#[test]
fn updates_at_a_fixed_rate_agree() {
    follows_transformers(PLAIN);
}

#[test]
fn momentum_and_decay_agree() {
    follows_transformers(AdafactorStep { beta1: Some(0.9), weight_decay: 0.1, ..PLAIN });
}

#[test]
fn a_low_threshold_shortens_the_update() {
    follows_transformers(AdafactorStep { clip_threshold: 0.3, lr: Some(0.1), ..PLAIN });
}

#[test]
fn relative_steps_and_parameter_scale_agree() {
    follows_transformers(AdafactorStep { lr: None, scale_parameter: true, ..PLAIN });
    follows_transformers(AdafactorStep {
        lr: None,
        scale_parameter: true,
        eps: [1e-8, 2.0],
        decay_rate: -0.5,
        ..PLAIN
    });
}

#[test]
fn a_warm_up_moves_by_a_millionth_of_the_step() {
    on_all_cores(|cores| {
        let (rows, cols) = (9, 20);
        let before = numbers(rows * cols, 1);
        let (mut weight, mut exact) =
            (before.iter().map(|w| w * 1e-3).collect::<Vec<f32>>(), Exact::of(rows, cols, &[]));
        exact.weight = wide(&weight);
        let start = exact.weight.clone();
        let (mut row, mut col) = (vec![0.0; rows], vec![0.0; cols]);
        for number in 1..=10 {
            let step = AdafactorStep { lr: None, warmup_init: true, step: number, ..PLAIN };
            let grad = numbers(rows * cols, 40 + number);
            let mut space = unwritten(aligned(rows) + aligned(cols) + REDUCE_CHUNKS * cols);
            let moment = SecondMoment::Factored { row: &mut row, col: &mut col };
            adafactor(cores, &step, &mut weight, &grad, moment, None, &mut space);
            exact.update(&step, &grad, true);
        }
        // The moves themselves, in millionths: the weights hardly change.
        let moves = |after: Vec<f64>| -> Vec<f64> { after.iter().zip(&start).map(|(a, b)| (a - b) * 1e6).collect() };
        let (got, expected) = (moves(wide(&weight)), moves(exact.weight));
        assert!(rms(&expected) > 1.0);
        assert_close(&got.iter().map(|v| *v as f32).collect::<Vec<f32>>(), &expected, 1e-3, "moves");
    });
}

#[test]
fn a_row_and_a_column_without_gradient_stay() {
    on_all_cores(|cores| {
        let (rows, cols) = (6, 19);
        let mut grad = numbers(rows * cols, 1);
        grad[2 * cols..3 * cols].fill(0.0);
        (0..rows).for_each(|r| grad[r * cols + 4] = 0.0);
        let before = numbers(rows * cols, 2);
        let (mut weight, mut row, mut col) = (before.clone(), vec![0.0; rows], vec![0.0; cols]);
        let mut space = unwritten(aligned(rows) + aligned(cols) + REDUCE_CHUNKS * cols);
        adafactor(
            cores,
            &PLAIN,
            &mut weight,
            &grad,
            SecondMoment::Factored { row: &mut row, col: &mut col },
            None,
            &mut space,
        );
        for (i, (after, before)) in weight.iter().zip(&before).enumerate() {
            let still = i / cols == 2 || i % cols == 4;
            assert!(after.is_finite());
            assert_eq!(after == before, still, "element {i}");
        }
    });
}
