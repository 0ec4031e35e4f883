//! Adafactor, as `transformers.Adafactor` computes it: the second moment of a matrix is kept as one number a row and one
//! a column (Shazeer and Stern, 2018).
//!
//! Three passes over the gradient: row and column means of its squares, the size of the update, the update. Sums are
//! taken in row chunks that do not depend on the threads.

use std::ops::Range;

use plimsoll_plan::op::REDUCE_CHUNKS;
use plimsoll_plan::train::OptimizerSpec;

use super::Cores;
use super::weight::{SharedWeight, WeightMut};
use crate::pool::{self, Shared};
use crate::simd::{LANES, fold, leveled};

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdafactorStep {
    /// Learning rate of this update; none: by the step.
    pub lr: Option<f64>,
    /// Added to the squared gradient; floor of the parameter scale.
    pub eps: [f64; 2],
    /// Root mean square above which an update is scaled down.
    pub clip_threshold: f64,
    /// Exponent of the second moment's decay.
    pub decay_rate: f64,
    /// Decay of the first moment, where one is kept.
    pub beta1: Option<f64>,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The learning rate is multiplied by the parameter's root mean square.
    pub scale_parameter: bool,
    /// The relative step starts small.
    pub warmup_init: bool,
    /// Which update, from 1.
    pub step: u64,
    /// Factor that turns the summed gradient into the mean, clipped.
    pub grad_scale: f32,
}

impl AdafactorStep {
    /// Update `step`, from 1, as the spec has it; none where that is another optimizer's.
    pub fn of(spec: &OptimizerSpec, scheduled: Option<f64>, step: u64, grad_scale: f32) -> Option<AdafactorStep> {
        let OptimizerSpec::Adafactor {
            lr,
            eps,
            clip_threshold,
            decay_rate,
            beta1,
            weight_decay,
            scale_parameter,
            relative_step,
            warmup_init,
        } = *spec
        else {
            return None;
        };
        let lr = if relative_step { None } else { scheduled.or(lr) };
        let of = AdafactorStep {
            lr,
            eps,
            clip_threshold,
            decay_rate,
            beta1,
            weight_decay,
            scale_parameter,
            warmup_init,
            step,
            grad_scale,
        };
        Some(of)
    }

    /// Weight of the old second moment.
    pub fn beta2(&self) -> f64 {
        1.0 - (self.step as f64).powf(self.decay_rate)
    }

    /// The learning rate, whatever the parameter.
    pub fn base_rate(&self) -> f64 {
        let step = self.step as f64;
        self.lr.unwrap_or_else(|| {
            let least = if self.warmup_init { 1e-6 * step } else { 1e-2 };
            least.min(1.0 / step.sqrt())
        })
    }

    /// The learning rate for a parameter with this root mean square.
    fn rate(&self, rms: f64) -> f64 {
        let base = self.base_rate();
        if self.scale_parameter { base * rms.max(self.eps[1]) } else { base }
    }
}

/// What is kept of the second moment.
pub enum SecondMoment<'a> {
    /// Of a matrix: means of its rows and of its columns.
    Factored {
        /// One a row.
        row: &'a mut [f32],
        /// One a column.
        col: &'a mut [f32],
    },
    /// Of a vector: every element.
    Whole(&'a mut [f32]),
}

/// Sums `f` over row chunks, in chunk order.
fn reduce(rows: usize, f: impl Fn(usize, std::ops::Range<usize>) -> f64 + Sync + Send) -> f64 {
    struct Sums(*mut f64);
    // SAFETY: each task writes its own element.
    unsafe impl Send for Sums {}
    // SAFETY: as above.
    unsafe impl Sync for Sums {}
    let mut sums = [0.0f64; REDUCE_CHUNKS];
    let chunk = rows.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = rows.div_ceil(chunk);
    let at = &Sums(sums.as_mut_ptr());
    pool::tasks(chunks, |task| {
        let sum = f(task, task * chunk..((task + 1) * chunk).min(rows));
        // SAFETY: `task` is below the number of chunks, and nobody else writes this element.
        unsafe { at.0.add(task).write(sum) };
    });
    sums[..chunks].iter().sum()
}

/// Updates one parameter. The second moment of a vector is kept whole; vectors are short, so one thread does them.
pub fn adafactor<'a>(
    cores: Cores,
    step: &AdafactorStep,
    weight: impl Into<WeightMut<'a>>,
    grad: &[f32],
    moment: SecondMoment,
    exp_avg: Option<&mut [f32]>,
    workspace: &mut [f32],
) {
    let weight = weight.into();
    match moment {
        SecondMoment::Factored { row, col } => factored(cores, step, weight, grad, row, col, exp_avg, workspace),
        SecondMoment::Whole(square) => whole(cores, step, weight, grad, square, exp_avg),
    }
}

fn factored(
    cores: Cores,
    step: &AdafactorStep,
    mut weight: WeightMut,
    grad: &[f32],
    row: &mut [f32],
    col: &mut [f32],
    exp_avg: Option<&mut [f32]>,
    workspace: &mut [f32],
) {
    let (rows, cols) = (row.len(), col.len());
    let aligned = plimsoll_plan::place::aligned;
    assert!(weight.len() == rows * cols && grad.len() == rows * cols, "state and gradient fit the weight");
    assert!(exp_avg.as_ref().is_none_or(|m| m.len() == grad.len()), "the first moment is the weight's size");
    assert!(workspace.len() >= aligned(rows) + aligned(cols) + REDUCE_CHUNKS * cols, "workspace is what the plan says");
    let (row_factor, rest) = workspace.split_at_mut(aligned(rows));
    let (col_factor, partial) = rest.split_at_mut(aligned(cols));
    let (row_factor, col_factor) = (&mut row_factor[..rows], &mut col_factor[..cols]);
    let partial_at = Shared(partial.as_mut_ptr());
    let sums_at = Shared(row_factor.as_mut_ptr());
    let (eps, scale) = (step.eps[0] as f32, step.grad_scale);
    let squares = reduce(rows, |task, range| {
        // SAFETY: each task has its own partial sum and its own rows.
        let (by_col, by_row) =
            unsafe { (partial_at.slice(task * cols, cols), sums_at.slice(range.start, range.len())) };
        by_col.fill(0.0);
        let part = range.start * cols..range.end * cols;
        square_sums(cores.simd, cols, &grad[part.clone()], scale, eps, by_row, by_col);
        if step.scale_parameter { weight.sum_of_squares(cores, part) } else { 0.0 }
    });
    let (keep, take) = (step.beta2() as f32, (1.0 - step.beta2()) as f32);
    for (state, sum) in row.iter_mut().zip(&*row_factor) {
        *state = *state * keep + take * (sum / cols as f32);
    }
    col_factor.fill(0.0);
    for by_col in partial[..rows.div_ceil(rows.div_ceil(REDUCE_CHUNKS).max(1)) * cols].chunks_exact(cols) {
        col_factor.iter_mut().zip(by_col).for_each(|(c, p)| *c += p);
    }
    for (state, sum) in col.iter_mut().zip(&*col_factor) {
        *state = *state * keep + take * (sum / rows as f32);
    }
    let mean = (row.iter().map(|v| f64::from(*v)).sum::<f64>() / rows as f64) as f32;
    row_factor.iter_mut().zip(&*row).for_each(|(f, r)| *f = 1.0 / (r / mean).sqrt());
    col_factor.iter_mut().zip(&*col).for_each(|(f, c)| *f = 1.0 / c.sqrt());
    let (row_factor, col_factor) = (&*row_factor, &*col_factor);
    let size = reduce(rows, |_, range| {
        update_squares(cores.simd, &grad[range.start * cols..range.end * cols], &row_factor[range], col_factor, scale)
    });
    let numbers = Numbers::of(step, size, squares, grad.len());
    let (shared, average) = (weight.shared(cores), exp_avg.map(|m| Shared(m.as_mut_ptr())));
    let whole_rows = matches!(shared, SharedWeight::F32(_));
    pool::rows(rows, super::grain(cols), |range| {
        // SAFETY: pieces of a weight are disjoint.
        let average = |part: &Range<usize>| average.map(|m| unsafe { m.slice(part.start, part.len()) });
        if whole_rows {
            let of_rows = |part: Range<usize>, w: &mut [f32]| {
                let average = average(&part);
                apply_rows(cores.simd, numbers, w, &grad[part], &row_factor[range.clone()], col_factor, average);
            };
            // SAFETY: tasks own disjoint rows.
            unsafe { shared.update(range.start * cols..range.end * cols, &of_rows) };
            return;
        }
        for row in range {
            let of_row = |part: Range<usize>, w: &mut [f32]| {
                let (average, at) = (average(&part), part.start - row * cols);
                let (row_factor, col_factor) = (&row_factor[row..=row], &col_factor[at..at + part.len()]);
                apply_rows(cores.simd, numbers, w, &grad[part], row_factor, col_factor, average);
            };
            // SAFETY: tasks own disjoint rows.
            unsafe { shared.update(row * cols..(row + 1) * cols, &of_row) };
        }
    });
}

/// The factors of the last pass.
#[derive(Clone, Copy)]
struct Numbers {
    /// On the gradient times its factors.
    scale: f32,
    /// On the weight.
    keep: f32,
    beta1: f32,
}

impl Numbers {
    fn of(step: &AdafactorStep, update_squares: f64, weight_squares: f64, n: usize) -> Numbers {
        let rms = (update_squares / n as f64).sqrt();
        let clip = (rms / step.clip_threshold).max(1.0);
        let lr = step.rate((weight_squares / n as f64).sqrt());
        Numbers {
            scale: (lr / clip) as f32 * step.grad_scale,
            keep: (1.0 - step.weight_decay * lr) as f32,
            beta1: step.beta1.unwrap_or(0.0) as f32,
        }
    }
}

fn whole(
    cores: Cores,
    step: &AdafactorStep,
    mut weight: WeightMut,
    grad: &[f32],
    square: &mut [f32],
    exp_avg: Option<&mut [f32]>,
) {
    let (keep, take) = (step.beta2() as f32, (1.0 - step.beta2()) as f32);
    let (eps, scale) = (step.eps[0] as f32, step.grad_scale);
    let mut size = 0.0f64;
    for (state, g) in square.iter_mut().zip(grad) {
        let g = g * scale;
        *state = *state * keep + take * (g * g + eps);
        size += f64::from(g / state.sqrt()).powi(2);
    }
    let squares = if step.scale_parameter { weight.sum_of_squares(cores, 0..grad.len()) } else { 0.0 };
    let numbers = Numbers::of(step, size, squares, grad.len());
    let average = exp_avg.map(|m| Shared(m.as_mut_ptr()));
    let square = &*square;
    let apply = |part: Range<usize>, w: &mut [f32]| {
        // SAFETY: pieces of a weight are disjoint.
        let mut average = average.map(|m| unsafe { m.slice(part.start, part.len()) });
        for (i, (w, at)) in w.iter_mut().zip(part).enumerate() {
            let mut update = grad[at] * numbers.scale / square[at].sqrt();
            if let Some(m) = average.as_deref_mut() {
                m[i] = m[i] * numbers.beta1 + (1.0 - numbers.beta1) * update;
                update = m[i];
            }
            *w = *w * numbers.keep - update;
        }
    };
    // SAFETY: the whole weight, on this thread alone.
    unsafe { weight.shared(cores).update(0..grad.len(), &apply) };
}

leveled! {
    fn square_sums(cols: usize, grad: &[f32], scale: f32, eps: f32, by_row: &mut [f32], by_col: &mut [f32]) {
        for (g, sum) in grad.chunks_exact(cols).zip(by_row) {
            let mut lanes = [0.0f32; LANES];
            let split = cols / LANES * LANES;
            for (g, col) in g[..split].chunks_exact(LANES).zip(by_col[..split].chunks_exact_mut(LANES)) {
                for i in 0..LANES {
                    let v = g[i] * scale;
                    let square = v * v + eps;
                    lanes[i] += square;
                    col[i] += square;
                }
            }
            for (lane, (g, col)) in lanes.iter_mut().zip(g[split..].iter().zip(&mut by_col[split..])) {
                let v = g * scale;
                let square = v * v + eps;
                *lane += square;
                *col += square;
            }
            *sum = fold(lanes);
        }
    }
}

leveled! {
    fn update_squares(grad: &[f32], row_factor: &[f32], col_factor: &[f32], scale: f32) -> f64 {
        let cols = col_factor.len();
        let mut total = 0.0f64;
        for (g, r) in grad.chunks_exact(cols).zip(row_factor) {
            let mut lanes = [0.0f32; LANES];
            let split = cols / LANES * LANES;
            for (g, c) in g[..split].chunks_exact(LANES).zip(col_factor[..split].chunks_exact(LANES)) {
                for i in 0..LANES {
                    let u = g[i] * scale * r * c[i];
                    lanes[i] += u * u;
                }
            }
            for (lane, (g, c)) in lanes.iter_mut().zip(g[split..].iter().zip(&col_factor[split..])) {
                let u = g * scale * r * c;
                *lane += u * u;
            }
            total += f64::from(fold(lanes));
        }
        total
    }
}

leveled! {
    fn apply_rows(numbers: Numbers, weight: &mut [f32], grad: &[f32], row_factor: &[f32], col_factor: &[f32], average: Option<&mut [f32]>) {
        let cols = col_factor.len();
        let Numbers { scale, keep, beta1 } = numbers;
        match average {
            None => {
                for ((w, g), r) in weight.chunks_exact_mut(cols).zip(grad.chunks_exact(cols)).zip(row_factor) {
                    let r = r * scale;
                    w.iter_mut().zip(g).zip(col_factor).for_each(|((w, g), c)| *w = *w * keep - g * r * c);
                }
            }
            Some(average) => {
                for (((w, g), m), r) in weight.chunks_exact_mut(cols).zip(grad.chunks_exact(cols)).zip(average.chunks_exact_mut(cols)).zip(row_factor) {
                    let r = r * scale;
                    for (((w, g), m), c) in w.iter_mut().zip(g).zip(m).zip(col_factor) {
                        *m = *m * beta1 + (1.0 - beta1) * (g * r * c);
                        *w = *w * keep - *m;
                    }
                }
            }
        }
    }
}
