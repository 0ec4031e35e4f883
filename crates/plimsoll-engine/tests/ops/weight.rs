//! Weights stored in bf16, updated in f32 and rounded stochastically, by every optimizer.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::adafactor::{AdafactorStep, SecondMoment, adafactor};
use plimsoll_engine::cpu::adamw::{AdamWStep, adamw};
use plimsoll_engine::cpu::adamw8bit::adamw8bit;
use plimsoll_engine::cpu::adamw16bit::{Rounding, adamw16bit};
use plimsoll_engine::cpu::lion::{LionStep, lion};
use plimsoll_engine::cpu::sgd::{SgdStep, sgd};
use plimsoll_engine::cpu::weight::WeightMut;
use plimsoll_plan::op::REDUCE_CHUNKS;
use plimsoll_plan::place::aligned;
use plimsoll_plan::train::eight_bit_words;

use crate::{numbers, on_all_cores, same_on_all_threads, unwritten, wide};

fn value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn cut(values: &[f32]) -> Vec<u16> {
    values.iter().map(|v| (v.to_bits() >> 16) as u16).collect()
}

/// `w -= rate * grad`, rounded.
fn descend(cores: Cores, bits: &mut [u16], grad: &[f32], rate: f64, update: u64, param: u32) {
    let step = SgdStep {
        lr: rate,
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.0,
        step: update + 1,
        grad_scale: 1.0,
    };
    sgd(cores, &step, WeightMut::Bf16 { bits, seed: 5, update, param }, grad, &mut []);
}

#[test]
fn the_mean_of_many_rounded_updates_is_the_update() {
    on_all_cores(|cores| {
        // A step of a fortieth of the spacing around 1.5 (1/128): cutting or rounding to the nearest would lose it.
        let (n, updates, step) = (4096, 50, 1.0 / 128.0 / 40.0);
        let grad: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let mut bits = cut(&vec![1.5; n]);
        for update in 0..updates {
            descend(cores, &mut bits, &grad, step, update, 3);
        }
        for parity in 0..2 {
            let sum: f64 = bits.iter().skip(parity).step_by(2).map(|b| f64::from(value(*b)) - 1.5).sum();
            let expected = step * updates as f64 * if parity == 0 { -1.0 } else { 1.0 };
            let mean = sum / (n / 2) as f64;
            // Fifty draws of variance p (1 - p) spacing^2 each, 2048 elements: one deviation is 2 % of the way.
            assert!((mean - expected).abs() < 0.1 * expected.abs(), "{mean} for {expected}");
        }
    });
}

#[test]
fn rounding_goes_to_one_of_two_neighbours_as_often_as_it_is_near() {
    on_all_cores(|cores| {
        let n = 20_000;
        for (start, share) in [(1.0f32, 0.25f64), (-3.0, 0.7), (1e-3, 0.5), (-2e5, 0.1)] {
            let start = value(cut(&[start])[0]);
            let next = value(cut(&[start])[0] + 1);
            let mut bits = cut(&vec![start; n]);
            descend(cores, &mut bits, &vec![start - next; n], share, 0, 0);
            assert!(bits.iter().all(|b| value(*b) == start || value(*b) == next));
            let up = bits.iter().filter(|b| value(**b) == next).count() as f64 / n as f64;
            assert!((up - share).abs() < 0.015, "{up} for {share} from {start}");
        }
    });
}

#[test]
fn values_on_the_grid_stay() {
    on_all_cores(|cores| {
        // Every finite bf16, zeros and the smallest ones included.
        let all: Vec<u16> = (0..=u16::MAX).filter(|b| value(*b).is_finite()).collect();
        let mut bits = all.clone();
        for update in 0..3 {
            descend(cores, &mut bits, &vec![0.0; all.len()], 0.5, update, 1);
        }
        let same = |(a, b): (&u16, &u16)| a == b || (value(*a) == 0.0 && value(*b) == 0.0);
        assert!(bits.iter().zip(&all).all(same));
        let mut broken = cut(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        broken.push(0x7FFF);
        // Lion, because SGD's decay multiplies even by zero.
        let step = LionStep { lr: 0.5, betas: [0.9, 0.99], weight_decay: 0.0, grad_scale: 1.0 };
        let weight = WeightMut::Bf16 { bits: &mut broken, seed: 5, update: 0, param: 1 };
        lion(cores, &step, weight, &[0.0; 4], &mut [0.0; 4]);
        assert_eq!((value(broken[0]), value(broken[1])), (f32::INFINITY, f32::NEG_INFINITY));
        assert!(value(broken[2]).is_nan() && value(broken[3]).is_nan());
    });
}

#[test]
fn updates_and_parameters_round_differently() {
    on_all_cores(|cores| {
        let n = 500;
        let run = |update, param| {
            let mut bits = cut(&vec![1.0; n]);
            descend(cores, &mut bits, &vec![1.0; n], 1.0 / 512.0, update, param);
            bits
        };
        assert_eq!(run(1, 2), run(1, 2));
        assert_ne!(run(1, 2), run(2, 2));
        assert_ne!(run(1, 2), run(1, 3));
    });
}

const KINDS: [&str; 8] =
    ["adamw", "adamw16bit", "adamw8bit", "lion", "sgd", "adafactor matrix", "adafactor vector", "adafactor scaled"];

/// One update of each kind of optimizer, over a matrix of `rows x cols`.
fn updated(cores: Cores, kind: &str, weight: WeightMut, rows: usize, cols: usize, state: &mut [Vec<f32>; 2]) {
    let n = rows * cols;
    let grad = numbers(n, 9);
    let factors = AdafactorStep {
        lr: Some(0.01),
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1: Some(0.5),
        weight_decay: 0.1,
        scale_parameter: kind == "adafactor scaled",
        warmup_init: false,
        step: 1,
        grad_scale: 0.5,
    };
    let adam = AdamWStep { lr: 0.01, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1, step: 1, grad_scale: 0.5 };
    let [first, second] = state;
    let (mut row, mut col) = (vec![0.0; rows], vec![0.0; cols]);
    let mut space = unwritten(aligned(rows) + aligned(cols) + REDUCE_CHUNKS * cols);
    let average = Some(&mut first[..n]);
    match kind {
        "adamw" => adamw(cores, &adam, weight, &grad, &mut first[..n], &mut second[..n]),
        "adamw16bit" => {
            let (rounding, words) = (Rounding { seed: 1, update: 0, param: 7 }, n.div_ceil(2));
            adamw16bit(cores, &adam, rounding, weight, &grad, &mut first[..words], &mut second[..words]);
        }
        "adamw8bit" => {
            let words = eight_bit_words(n);
            adamw8bit(cores, &adam, weight, &grad, &mut first[..words], &mut second[..words]);
        }
        "lion" => {
            let step = LionStep { lr: 0.01, betas: [0.9, 0.99], weight_decay: 0.1, grad_scale: 0.5 };
            lion(cores, &step, weight, &grad, &mut first[..n]);
        }
        "sgd" => {
            let step = SgdStep {
                lr: 0.01,
                momentum: 0.9,
                dampening: 0.0,
                nesterov: true,
                weight_decay: 0.1,
                step: 1,
                grad_scale: 0.5,
            };
            sgd(cores, &step, weight, &grad, &mut first[..n]);
        }
        "adafactor vector" => {
            adafactor(cores, &factors, weight, &grad, SecondMoment::Whole(&mut second[..n]), average, &mut space)
        }
        _ => {
            let moment = SecondMoment::Factored { row: &mut row, col: &mut col };
            adafactor(cores, &factors, weight, &grad, moment, average, &mut space)
        }
    }
}

#[test]
fn every_optimizer_rounds_what_it_would_have_written() {
    on_all_cores(|cores| {
        for kind in KINDS {
            for (rows, cols) in [(1, 1), (7, 30), (3, 300), (90, 61)] {
                let n = rows * cols;
                let mut bits = cut(&numbers(n, 1));
                let mut plain: Vec<f32> = bits.iter().map(|b| value(*b)).collect();
                let (mut state, mut plain_state) = ([vec![0.0; n], vec![0.0; n]], [vec![0.0; n], vec![0.0; n]]);
                updated(cores, kind, WeightMut::F32(&mut plain), rows, cols, &mut plain_state);
                let weight = WeightMut::Bf16 { bits: &mut bits, seed: 1, update: 0, param: 7 };
                updated(cores, kind, weight, rows, cols, &mut state);
                if kind == "adafactor scaled" {
                    // The mean square is summed in other pieces.
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * (1e-3 + b.abs());
                    assert!(wide(&state[0]).iter().zip(&wide(&plain_state[0])).all(close), "{kind}");
                } else {
                    let same =
                        |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(state.iter().zip(&plain_state).all(same), "{kind}, {rows}x{cols}: the state");
                }
                for (at, (bits, exact)) in bits.iter().zip(&plain).enumerate() {
                    let spacing = f32::from_bits((exact.to_bits() & 0x7F80_0000).max(0x0400_0000)) / 127.0;
                    assert!(
                        (value(*bits) - exact).abs() <= spacing,
                        "{kind}: element {at} is {} for {exact}",
                        value(*bits)
                    );
                }
            }
        }
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    for kind in KINDS {
        let (rows, cols) = (401, 500);
        let n = rows * cols;
        let start = cut(&numbers(n, 1));
        same_on_all_threads(|cores| {
            let (mut bits, mut state) = (start.clone(), [vec![0.0; n], vec![0.0; n]]);
            for update in 0..2 {
                let weight = WeightMut::Bf16 { bits: &mut bits, seed: 1, update, param: 7 };
                updated(cores, kind, weight, rows, cols, &mut state);
            }
            (bits, state.map(|words| words.iter().map(|w| w.to_bits()).collect::<Vec<u32>>()))
        });
    }
}
