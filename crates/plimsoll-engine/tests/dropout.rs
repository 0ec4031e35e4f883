//! Dropout: it acts, it keeps the expectation, and it depends on the sample and never on the micro-batch.

mod fixture;
mod random;

use fixture::{Batch, choices};
use plimsoll_engine::cpu::embed::embed_forward;
use plimsoll_engine::cpu::norm::norm_forward;
use plimsoll_engine::cpu::residual::residual_forward;
use plimsoll_engine::cpu::weights::Weights;
use plimsoll_engine::cpu::{Cores, Dropper, Rows};
use plimsoll_engine::{Engine, Loss, MicroStep, Updates, with_cores};
use plimsoll_plan::program::{EvalJob, Job, compile};
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, fill, job, v10, v11, weights};

const LENS: (usize, usize) = (20, 15);
const SAMPLES: usize = 8;

fn with_engine<R: Send>(job: &Job, micro_batch: usize, seed: u64, f: impl FnOnce(&mut Engine) -> R + Send) -> R {
    let job = Job { eval: Some(EvalJob { beams: 1, max_new: 0 }), ..job.clone() };
    let program = compile(&job, &choices(micro_batch));
    let run = move || {
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: None, seed };
        let mut engine = Engine::start(program, Some(updates)).unwrap();
        fill(&mut engine, &weights(&job.spec, 3));
        f(&mut engine)
    };
    with_cores(2, || {}, run).unwrap()
}

/// The training loss of some samples of a batch, said to be samples `first ..` of their effective batch.
fn loss(engine: &mut Engine, batch: &Batch, samples: std::ops::Range<usize>, first: usize, update: u64) -> Loss {
    batch.part(samples.clone()).stage(engine);
    engine.micro_step(MicroStep { update, samples: samples.len(), first_sample: first as u32, lr: Some(0.0) }).unwrap()
}

#[test]
fn training_drops_and_evaluation_does_not() {
    for spec in [v10(0.1), v11(0.1)] {
        let batch = &batches(&spec, 1, SAMPLES, LENS, true, 4)[0];
        let job = job(spec, LENS, SAMPLES, OptimizerSpec::sgd(0.0), false);
        let measure = |seed| {
            with_engine(&job, SAMPLES, seed, |engine| {
                let losses = [0, 0, 1].map(|update| loss(engine, batch, 0..SAMPLES, 0, update).sum);
                batch.stage(engine);
                (losses, engine.eval(SAMPLES).unwrap().sum)
            })
        };
        let ([first, repeated, other_update], evaluated) = measure(1);
        let ([other_seed, ..], evaluated_again) = measure(2);
        assert_eq!(first, repeated, "the same update drops the same");
        assert_eq!(evaluated, evaluated_again, "evaluation has no randomness");
        for (what, other) in [("another update", other_update), ("another seed", other_seed), ("evaluation", evaluated)]
        {
            assert!((first - other).abs() > 1e-4 * first, "{what} gives the same loss: {first} and {other}");
        }
        let mut dry = job.clone();
        dry.spec.set_dropout(0.0);
        let undropped = with_engine(&dry, SAMPLES, 1, |engine| loss(engine, batch, 0..SAMPLES, 0, 0).sum);
        assert!(
            (undropped - evaluated).abs() < 1e-6 * evaluated,
            "a rate of 0 is evaluation: {undropped} and {evaluated}"
        );
    }
}

#[test]
fn a_sample_drops_the_same_in_any_micro_batch() {
    for spec in [v10(0.2), v11(0.2)] {
        let batch = &batches(&spec, 1, SAMPLES, LENS, true, 4)[0];
        let job = job(spec, LENS, SAMPLES, OptimizerSpec::sgd(0.0), false);
        let alone = with_engine(&job, 1, 1, |engine| {
            (0..SAMPLES).map(|k| loss(engine, batch, k..k + 1, k, 3)).collect::<Vec<Loss>>()
        });
        for micro_batch in [2, 3, 4, SAMPLES] {
            with_engine(&job, micro_batch, 1, |engine| {
                for start in (0..SAMPLES).step_by(micro_batch) {
                    let samples = start..(start + micro_batch).min(SAMPLES);
                    let together = loss(engine, batch, samples.clone(), start, 3);
                    let expected: f64 = alone[samples.clone()].iter().map(|l| l.sum).sum();
                    assert_eq!(together.tokens, alone[samples].iter().map(|l| l.tokens).sum::<u64>());
                    let apart = (together.sum - expected).abs() / expected;
                    assert!(apart < 1e-6, "micro-batch {micro_batch} from {start}: {apart:e}");
                }
            });
        }
        // The check can fail: the same sample in another place of its effective batch drops something else.
        let moved = with_engine(&job, 1, 1, |engine| loss(engine, batch, 2..3, 5, 3));
        assert!((moved.sum - alone[2].sum).abs() > 1e-4 * moved.sum);
    }
}

const RATE: f64 = 0.1;
const ROWS: usize = 12;
const WIDTH: usize = 100;

/// Mean over seeds of what a linear place leaves of each element, less the undropped value, in standard errors.
fn deviations(place: impl Fn(Cores, Rows, Option<&Dropper>) -> Vec<f32> + Send + Sync) -> Vec<f64> {
    const SEEDS: u64 = 2000;
    let (sample, position): (Vec<u32>, Vec<u32>) = (0..ROWS as u32).map(|r| (r / 5, r % 5)).unzip();
    let rows = Rows::Listed { sample: &sample, position: &position };
    let cores = Cores { simd: plimsoll_engine::simd::detect(), threads: 1 };
    let run = || {
        let whole = place(cores, rows, None);
        let mut sum = vec![0.0f64; whole.len()];
        for seed in 0..SEEDS {
            let dropper = Dropper::new(seed, 3, 40, RATE as f32);
            sum.iter_mut().zip(place(cores, rows, Some(&dropper))).for_each(|(s, v)| *s += f64::from(v));
        }
        // An element x becomes x / (1 - p) with probability 1 - p: variance x^2 p / (1 - p).
        let error = |x: f64| x.abs() * (RATE / (1.0 - RATE) / SEEDS as f64).sqrt();
        sum.iter().zip(whole).map(|(s, x)| (s / SEEDS as f64 - f64::from(x)) / error(f64::from(x))).collect()
    };
    with_cores(1, || {}, run).unwrap()
}

/// Elements between 0.5 and 1.5, so that none is lost in rounding.
fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| 0.5 + (i * 37 % 101) as f32 / 101.0).collect()
}

#[test]
fn a_linear_place_keeps_its_expectation() {
    let n = ROWS * WIDTH;
    let embed = deviations(|cores, rows, drop| {
        let (ids, mut out) = ((0..ROWS as u32).collect::<Vec<u32>>(), vec![f32::NAN; n]);
        embed_forward(cores, rows, WIDTH, &ids, Weights::f32(&values(n)), None, &mut out, drop);
        out
    });
    let residual = deviations(|cores, rows, drop| {
        let mut out = values(n);
        residual_forward(cores, rows, WIDTH, &vec![0.0; n], &mut out, drop);
        out
    });
    let norm = deviations(|cores, rows, drop| {
        let (mut rstd, mut out) = (vec![f32::NAN; ROWS], vec![f32::NAN; n]);
        norm_forward(cores, rows, WIDTH, 1e-6, &values(n), &vec![1.0; WIDTH], &mut rstd, &mut out, drop);
        out
    });
    for (what, z) in [("embed", embed), ("residual", residual), ("norm", norm)] {
        // Independent elements: their sum is one normal number, the largest of 1200 stays below 5, squares average to 1.
        let total = z.iter().sum::<f64>() / (n as f64).sqrt();
        let largest = z.iter().fold(0.0f64, |most, z| most.max(z.abs()));
        let spread = z.iter().map(|z| z * z).sum::<f64>() / n as f64;
        assert!(total.abs() < 4.0, "{what}: the mean is {total} standard errors off");
        assert!(largest < 5.0, "{what}: an element is {largest} standard errors off");
        assert!((spread - 1.0).abs() < 4.0 * (2.0 / n as f64).sqrt(), "{what}: squares average to {spread}");
    }
}

/// Which elements of a row are dropped, 1 or 0.
fn dropped(seed: u64, update: u32, place: u32, sample: u32, row: u64, width: usize) -> Vec<f64> {
    let mut values = vec![1.0f32; width];
    Dropper::new(seed, update, place, RATE as f32).apply(sample, row, &mut values);
    values.iter().map(|v| f64::from(u8::from(*v == 0.0))).collect()
}

#[test]
fn masks_that_differ_in_one_part_of_their_key_are_independent() {
    const N: usize = 200_000;
    let base = dropped(1, 1, 1, 1, 1, N);
    let others = [
        ("seed", dropped(2, 1, 1, 1, 1, N)),
        ("high word of the seed", dropped(1 | 1 << 40, 1, 1, 1, 1, N)),
        ("update", dropped(1, 2, 1, 1, 1, N)),
        ("place", dropped(1, 1, 2, 1, 1, N)),
        ("sample", dropped(1, 1, 1, 2, 1, N)),
        ("row", dropped(1, 1, 1, 1, 2, N)),
        // 2^28 rows of 3125 blocks of 16 counters later, the low 32 bits of the counter are the same again.
        ("row behind the counter's first word", dropped(1, 1, 1, 1, 1 + (1 << 28), N)),
        ("column", base[1..].iter().copied().chain([0.0]).collect()),
        ("block of columns", base[64..].iter().copied().chain([0.0; 64]).collect()),
    ];
    for (what, other) in others {
        let together = base.iter().zip(&other).map(|(a, b)| (a - RATE) * (b - RATE)).sum::<f64>();
        let z = together / (RATE * (1.0 - RATE) * (N as f64).sqrt());
        assert!(z.abs() < 4.0, "masks of another {what} go together: {z} standard errors");
    }
}
