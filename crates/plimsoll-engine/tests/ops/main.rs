//! Every op of the CPU engine against a plain reference in f64: forward by the formula, backward by finite differences of
//! the formula or by its derivative, at every instruction level of this machine and on one and several threads.
//!
//! Outputs and scratch are full of NaN before each call, so whatever is read before it is written shows. The reference
//! shares no code with the kernels; of the engine it takes only the dropout generator's own row function.

mod adafactor;
mod adamw;
mod adamw16bit;
mod adamw8bit;
mod attention;
mod bias;
mod cache;
mod column_sum;
mod conv;
mod drop;
mod embed;
mod gated_gelu;
mod gated_silu;
mod gelu;
mod gradient_norm;
mod head_norm;
mod input;
mod layer_norm;
mod lion;
mod loss;
mod lstm;
mod norm;
mod norm_pool;
mod relu;
mod residual;
mod rope;
mod series_loss;
mod sgd;
mod storage;
mod weight;

use plimsoll_engine::cpu::{Cores, Dropper, Rows};
use plimsoll_engine::{simd, with_cores};
use plimsoll_plan::op::{MaxRows, SeriesOp};
use plimsoll_plan::tiles::{Simd, Tiles};

/// Numbers in -1 .. 1, the same for the same seed.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..n).map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A tensor that nobody has written.
fn unwritten(n: usize) -> Vec<f32> {
    vec![f32::NAN; n]
}

/// What the plan gives any of these ops to work in.
fn planned(cores: Cores, samples: usize, ops: &[SeriesOp]) -> Vec<f32> {
    let rows = MaxRows { source: 0, target: 0, beam: 0, samples };
    let words = ops.iter().map(|op| op.workspace(&rows, &Tiles::of(cores.simd), cores.threads));
    unwritten(words.max().unwrap_or(0))
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// The level of this machine and all below it.
fn levels() -> &'static [Simd] {
    match simd::detect() {
        Simd::Avx512 => &[Simd::Avx512, Simd::Avx2, Simd::Baseline],
        Simd::Avx2 => &[Simd::Avx2, Simd::Baseline],
        Simd::Baseline => &[Simd::Baseline],
    }
}

/// Runs `f` at every instruction level, on one thread and on three.
fn on_all_cores(f: impl Fn(Cores) + Send + Sync) {
    for threads in [1, 3] {
        let f = &f;
        let run = move || levels().iter().for_each(|simd| f(Cores { simd: *simd, threads }));
        with_cores(threads, || {}, run).unwrap();
    }
}

/// What `f` gives on one thread and on three, at every instruction level, is the same.
#[track_caller]
fn same_on_all_threads<T: PartialEq + std::fmt::Debug + Send>(f: impl Fn(Cores) -> T + Send + Sync) {
    for simd in levels() {
        let on = |threads: usize| {
            let f = &f;
            with_cores(threads, || {}, move || f(Cores { simd: *simd, threads })).unwrap()
        };
        assert_eq!(on(1), on(3), "{simd:?}");
    }
}

/// Every element lies within `tolerance` of the exact one, relative to it or to one.
#[track_caller]
fn assert_close(got: &[f32], exact: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), exact.len(), "{what}");
    for (at, (g, e)) in got.iter().zip(exact).enumerate() {
        let apart = (f64::from(*g) - e).abs();
        assert!(apart <= tolerance * e.abs().max(1.0), "{what}: element {at} is {g}, exactly {e}, {apart:e} apart");
    }
}

/// The gradient of `loss` at `x`, by central differences.
fn finite_differences(x: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut at = x.to_vec();
    (0..x.len())
        .map(|i| {
            let step = 1e-5 * x[i].abs().max(1.0);
            at[i] = x[i] + step;
            let above = loss(&at);
            at[i] = x[i] - step;
            let below = loss(&at);
            at[i] = x[i];
            (above - below) / (2.0 * step)
        })
        .collect()
}

fn inner_product(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The rows of samples with these lengths, the first of them being sample `first` of its effective batch.
struct Ragged {
    sample: Vec<u32>,
    position: Vec<u32>,
    starts: Vec<u32>,
}

impl Ragged {
    fn of(first: u32, lens: &[usize]) -> Ragged {
        let (mut sample, mut position, mut starts) = (Vec::new(), Vec::new(), vec![0]);
        for (i, len) in lens.iter().enumerate() {
            sample.extend(std::iter::repeat_n(first + i as u32, *len));
            position.extend(0..*len as u32);
            starts.push(sample.len() as u32);
        }
        Ragged { sample, position, starts }
    }

    fn rows(&self) -> Rows<'_> {
        Rows::Listed { sample: &self.sample, position: &self.position }
    }

    fn len(&self) -> usize {
        self.sample.len()
    }

    /// What dropout multiplies each element of these rows with.
    fn factors(&self, drop: Option<&Dropper>, width: usize) -> Vec<f64> {
        let mut factors = vec![1.0f32; self.len() * width];
        if let Some(dropper) = drop {
            for (row, values) in factors.chunks_exact_mut(width).enumerate() {
                dropper.apply(self.sample[row], u64::from(self.position[row]), values);
            }
        }
        wide(&factors)
    }
}

/// One row; one sample; ragged samples; enough rows for several tasks and chunks.
const ROWS: [&[usize]; 4] = [&[1], &[7], &[5, 1, 12, 3], &[40, 9, 1, 33]];
/// Below, at and around the lanes (16) and the dropout block (64).
const WIDTHS: [usize; 7] = [1, 5, 16, 37, 64, 65, 200];

/// Runs `f` for every shape of rows, every width, with dropout off and on.
fn every_shape(f: impl Fn(&Ragged, usize, Option<&Dropper>)) {
    let dropper = Dropper::new(0x1234_5678_9ABC, 3, 17, 0.3);
    for lens in ROWS {
        for width in WIDTHS {
            for drop in [None, Some(&dropper)] {
                f(&Ragged::of(6, lens), width, drop);
            }
        }
    }
}
