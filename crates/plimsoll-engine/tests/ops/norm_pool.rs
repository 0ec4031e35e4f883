//! Batch norm, activation, dropout and pooling in one pass, and what is skipped beside it.

use plimsoll_engine::cpu::batch_norm::{RunningStats, batch_stats};
use plimsoll_engine::cpu::norm_pool::{Normed, norm_pool_backward, norm_pool_forward};
use plimsoll_engine::cpu::{Cores, Dropper};
use plimsoll_plan::op::{PoolShape, Running, SeriesOp, Side, Write};
use plimsoll_plan::spec::Activation;
use plimsoll_plan::tape::Id;

use crate::{
    assert_close, finite_differences, inner_product, numbers, on_all_cores, planned, same_on_all_threads, unwritten,
    wide,
};

const EPS: f32 = 1e-5;
const FIRST: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Case {
    samples: usize,
    shape: PoolShape,
    normed: bool,
    skips: bool,
    drop: Option<Dropper>,
}

/// What a case reads, in doubles: x, skip, weight, bias.
type Given = [Vec<f64>; 4];

/// erf by its series, in f64.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
        if term.abs() < 1e-20 {
            break;
        }
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Mean and inverse deviation of a column.
fn exact_stats(x: &[f64], width: usize, c: usize) -> (f64, f64) {
    let column: Vec<f64> = x.iter().skip(c).step_by(width).copied().collect();
    let mean = column.iter().sum::<f64>() / column.len() as f64;
    let variance = column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / column.len() as f64;
    (mean, 1.0 / (variance + f64::from(EPS)).sqrt())
}

impl Case {
    fn rows(&self) -> usize {
        self.samples * self.shape.steps
    }

    fn pooled(&self) -> usize {
        self.shape.steps / self.shape.pool
    }

    fn numbers(&self) -> [Vec<f32>; 4] {
        let width = self.shape.width;
        let x = numbers(self.rows() * width, 1).iter().map(|x| 2.0 * x + 0.5).collect();
        [x, numbers(self.rows() * width, 2), numbers(width, 3), numbers(width, 4)]
    }

    /// The output, by the formula.
    fn exact(&self, [x, skip, weight, bias]: &Given) -> Vec<f64> {
        let PoolShape { steps, width, pool, activation } = self.shape;
        let stats: Vec<(f64, f64)> = (0..width).map(|c| exact_stats(x, width, c)).collect();
        let factors = self.factors();
        let value = |row: usize, c: usize| {
            let at = row * width + c;
            let (mean, inverse) = stats[c];
            let z = if self.normed { (x[at] - mean) * inverse * weight[c] + bias[c] } else { x[at] };
            let bent = match activation {
                Activation::Relu => z.max(0.0),
                Activation::Gelu => 0.5 * z * (1.0 + erf(z / 2f64.sqrt())),
            };
            bent * factors[at]
        };
        let mut out = Vec::new();
        for (sample, at) in (0..self.samples).flat_map(|s| (0..self.pooled()).map(move |p| (s, p))) {
            for c in 0..width {
                let rows = || (0..pool).map(|nth| sample * steps + at * pool + nth);
                let most = rows().map(|row| value(row, c)).fold(f64::NEG_INFINITY, f64::max);
                let beside = rows().map(|row| skip[row * width + c]).fold(f64::NEG_INFINITY, f64::max);
                out.push(most + if self.skips { beside } else { 0.0 });
            }
        }
        out
    }

    fn factors(&self) -> Vec<f64> {
        let PoolShape { steps, width, .. } = self.shape;
        let mut factors = vec![1.0f32; self.rows() * width];
        if let Some(dropper) = &self.drop {
            for (row, values) in factors.chunks_exact_mut(width).enumerate() {
                dropper.apply(FIRST + (row / steps) as u32, (row % steps) as u64, values);
            }
        }
        wide(&factors)
    }

    fn scratch(&self, cores: Cores) -> Vec<f32> {
        let (id, shape) = (Id(0), self.shape);
        let running = Running { now: [id; 3], next: [id; 3] };
        let (norm, skip, dskip, drop, weight_grad, bias_grad) = (None, None, None, None, None, None);
        let ops = [
            SeriesOp::BatchStats {
                side: Side::Steps(shape.steps),
                x: id,
                width: shape.width,
                eps: EPS,
                momentum: 0.1,
                running,
                stats: id,
            },
            SeriesOp::NormPool { shape, x: id, norm, skip, out: id, drop },
            SeriesOp::NormPoolBackward {
                shape,
                dout: id,
                x: id,
                norm,
                skip,
                dx: id,
                dskip,
                weight_grad,
                bias_grad,
                drop,
            },
        ];
        planned(cores, self.samples, &ops)
    }

    /// Statistics of the rows.
    fn stats(&self, cores: Cores, x: &[f32]) -> Vec<f32> {
        let width = self.shape.width;
        let mut stats = unwritten(2 * width);
        let mut into = [unwritten(width), unwritten(width), unwritten(1)];
        let from = [vec![0.0; width], vec![1.0; width], vec![0.0]];
        let running = RunningStats {
            now: from.each_ref().map(|v| &v[..]),
            next: into.each_mut().map(|v| &mut v[..]),
            momentum: 0.1,
        };
        batch_stats(cores, self.rows(), width, EPS, x, &mut stats, running, &mut self.scratch(cores));
        stats
    }

    fn forward(&self, cores: Cores) -> Vec<f32> {
        let [x, skip, weight, bias] = self.numbers();
        let stats = self.stats(cores, &x);
        let norm = self.normed.then_some(Normed { stats: &stats, weight: &weight, bias: &bias });
        let mut out = unwritten(self.samples * self.pooled() * self.shape.width);
        let (place, skip) = ((FIRST, self.samples), self.skips.then_some(&skip[..]));
        norm_pool_forward(cores, self.shape, place, &x, norm, skip, &mut out, self.drop, &mut self.scratch(cores));
        out
    }

    /// Gradients of x, skip, weight and bias.
    fn backward(&self, cores: Cores, dout: &[f32]) -> [Vec<f32>; 4] {
        let [x, skip, weight, bias] = self.numbers();
        let stats = self.stats(cores, &x);
        let norm = self.normed.then_some(Normed { stats: &stats, weight: &weight, bias: &bias });
        let (mut dx, mut dskip) = (unwritten(x.len()), unwritten(x.len()));
        let (mut dw, mut db) = (unwritten(weight.len()), numbers(bias.len(), 9));
        let gradients = [Some((&mut dw[..], Write::Set)), Some((&mut db[..], Write::Add))];
        let gradients = if self.normed { gradients } else { [None, None] };
        let (place, given) = ((FIRST, self.samples), self.skips.then_some(&skip[..]));
        let into = self.skips.then_some(&mut dskip[..]);
        let mut space = self.scratch(cores);
        norm_pool_backward(
            cores, self.shape, place, dout, &x, norm, given, &mut dx, into, gradients, self.drop, &mut space,
        );
        [dx, dskip, dw, db]
    }
}

/// Each activation, with and without norm, skip and dropout; steps that fill no pool; pools of one and of three.
fn cases() -> Vec<Case> {
    let drop = Some(Dropper::new(55, 2, 9, 0.3));
    let mut list = Vec::new();
    for (samples, steps, width, pool) in [(1, 2, 1, 2), (2, 7, 5, 2), (3, 4, 17, 1), (1, 8, 66, 3)] {
        for activation in [Activation::Relu, Activation::Gelu] {
            let shape = PoolShape { steps, width, pool, activation };
            list.push(Case { samples, shape, normed: true, skips: false, drop });
            list.push(Case { samples, shape, normed: true, skips: true, drop: None });
            list.push(Case { samples, shape, normed: false, skips: true, drop });
        }
    }
    list
}

#[test]
fn statistics_are_the_mean_and_the_deviation_and_move_the_running_ones() {
    on_all_cores(|cores| {
        for (rows, width) in [(2, 1), (9, 5), (301, 18)] {
            // A mean far from zero: no digits of the variance are lost.
            let x: Vec<f32> = numbers(rows * width, 1).iter().map(|v| v + 100.0).collect();
            let shape = PoolShape { steps: rows, width, pool: 1, activation: Activation::Relu };
            let case = Case { samples: 1, shape, normed: true, skips: false, drop: None };
            let now = [numbers(width, 2), numbers(width, 3).iter().map(|v| v + 2.0).collect(), vec![7.0]];
            let (mut next, mut stats) = ([unwritten(width), unwritten(width), unwritten(1)], unwritten(2 * width));
            let (from, into) = (now.each_ref().map(|v| &v[..]), next.each_mut().map(|v| &mut v[..]));
            let running = RunningStats { now: from, next: into, momentum: 0.25 };
            batch_stats(cores, rows, width, EPS, &x, &mut stats, running, &mut case.scratch(cores));
            let exact: Vec<(f64, f64)> = (0..width).map(|c| exact_stats(&wide(&x), width, c)).collect();
            assert_close(&stats[..width], &exact.iter().map(|s| s.0).collect::<Vec<_>>(), 1e-6, "means");
            assert_close(&stats[width..], &exact.iter().map(|s| s.1).collect::<Vec<_>>(), 1e-6, "inverse deviations");
            let moved = |now: &[f32], to: &dyn Fn(usize) -> f64| -> Vec<f64> {
                now.iter().enumerate().map(|(c, now)| 0.75 * f64::from(*now) + 0.25 * to(c)).collect()
            };
            let unbiased = rows as f64 / (rows as f64 - 1.0);
            let variance = |c: usize| (exact[c].1.powi(-2) - f64::from(EPS)) * unbiased;
            assert_close(&next[0], &moved(&now[0], &|c| exact[c].0), 1e-6, "running means");
            assert_close(&next[1], &moved(&now[1], &variance), 1e-6, "running variances");
            assert_eq!(next[2], [8.0]);
        }
    });
}

#[test]
fn forward_is_the_formula() {
    on_all_cores(|cores| {
        for case in cases() {
            let exact = case.exact(&case.numbers().each_ref().map(|v| wide(v)));
            assert_close(&case.forward(cores), &exact, 5e-6, &format!("{case:?}"));
        }
    });
}

#[test]
fn backward_is_the_slope_of_the_formula() {
    for case in cases() {
        let given = case.numbers().each_ref().map(|v| wide(v));
        let dout = numbers(case.samples * case.pooled() * case.shape.width, 5);
        let slope = |nth: usize| {
            finite_differences(&given[nth], |values| {
                let mut changed = given.clone();
                changed[nth] = values.to_vec();
                inner_product(&wide(&dout), &case.exact(&changed))
            })
        };
        let (dx, dskip, dw) = (slope(0), slope(1), slope(2));
        let before = numbers(case.shape.width, 9);
        let db: Vec<f64> = slope(3).iter().zip(&before).map(|(d, b)| d + f64::from(*b)).collect();
        on_all_cores(|cores| {
            let got = case.backward(cores, &dout);
            assert_close(&got[0], &dx, 5e-5, &format!("dx, {case:?}"));
            if case.skips {
                assert_close(&got[1], &dskip, 1e-5, &format!("dskip, {case:?}"));
            }
            if case.normed {
                assert_close(&got[2], &dw, 5e-5, &format!("dw, {case:?}"));
                assert_close(&got[3], &db, 5e-5, &format!("db, {case:?}"));
            }
        });
    }
}

#[test]
fn a_nan_wins_its_pool() {
    on_all_cores(|cores| {
        let shape = PoolShape { steps: 4, width: 3, pool: 2, activation: Activation::Relu };
        let mut x = numbers(12, 1);
        x[4] = f32::NAN;
        let case = Case { samples: 1, shape, normed: false, skips: false, drop: None };
        let (mut out, mut space) = (unwritten(6), case.scratch(cores));
        norm_pool_forward(cores, shape, (0, 1), &x, None, None, &mut out, None, &mut space);
        assert_eq!(out.iter().map(|v| v.is_nan()).collect::<Vec<_>>(), [false, true, false, false, false, false]);
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let shape = PoolShape { steps: 201, width: 70, pool: 2, activation: Activation::Gelu };
    let drop = Some(Dropper::new(55, 2, 9, 0.3));
    let case = Case { samples: 3, shape, normed: true, skips: true, drop };
    let dout = numbers(case.samples * case.pooled() * shape.width, 5);
    same_on_all_threads(|cores| (case.forward(cores), case.backward(cores, &dout)));
}
