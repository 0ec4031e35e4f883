//! 8-bit AdamW: its maps, and its course beside AdamW's.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::adamw::{AdamWStep, adamw};
use plimsoll_engine::cpu::adamw8bit::{CodeMap, adamw8bit};
use plimsoll_plan::train::{EIGHT_BIT_BLOCK, EIGHT_BIT_LEAST, eight_bit_words};

use crate::{numbers, on_all_cores, same_on_all_threads};

const STEP: AdamWStep =
    AdamWStep { lr: 0.01, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, step: 1, grad_scale: 1.0 };

#[test]
fn the_maps_rise_over_256_values_and_reach_from_a_millionth_to_one() {
    for signed in [true, false] {
        let values = CodeMap::new(signed).values;
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "256 values, ascending");
        assert_eq!(values[255], 1.0);
        assert!(values.contains(&0.0));
        let least = values.iter().copied().filter(|v| *v > 0.0).fold(1.0, f32::min);
        assert!(least < 1e-6 && least > 1e-7);
        if signed {
            let below: Vec<f32> = values[..127].iter().rev().map(|v| -v).collect();
            assert_eq!(below, values[128..255], "the same on both sides, but for one");
        } else {
            assert_eq!(values[0], 0.0);
        }
    }
}

#[test]
fn the_nearest_value_is_found() {
    for signed in [true, false] {
        let map = CodeMap::new(signed);
        for (code, value) in map.values.iter().enumerate() {
            assert_eq!(usize::from(map.nearest(*value)), code, "{value}");
        }
        let sizes = numbers(50_000, 1).into_iter().enumerate().map(|(i, v)| v * 10f32.powi(-(i as i32 % 9)));
        for x in sizes.map(|x| if signed { x } else { x.abs() }) {
            let apart = |code: usize| (f64::from(map.values[code]) - f64::from(x)).abs();
            let least = (0..256).map(apart).fold(f64::INFINITY, f64::min);
            let got = apart(usize::from(map.nearest(x)));
            // The middle of two values is itself rounded.
            assert!(got <= least + 1e-7 * f64::from(x.abs()), "{x}: {got:e}, least {least:e}");
        }
    }
}

/// The gradient of `sum of curve * (w - goal)^2 / 2`, with noise.
struct Quadratic {
    goal: Vec<f32>,
    curve: Vec<f32>,
}

impl Quadratic {
    fn of(n: usize) -> Quadratic {
        let curve = numbers(n, 3).iter().map(|c| 0.6 + 0.5 * c).collect();
        Quadratic { goal: numbers(n, 2), curve }
    }

    fn gradient(&self, weight: &[f32], number: u64) -> Vec<f32> {
        let noise = numbers(weight.len(), 100 + number);
        (0..weight.len()).map(|i| self.curve[i] * (weight[i] - self.goal[i]) + 0.1 * noise[i]).collect()
    }

    fn loss(&self, weight: &[f32]) -> f64 {
        let part = |i: usize| f64::from(self.curve[i]) * f64::from(weight[i] - self.goal[i]).powi(2) / 2.0;
        (0..weight.len()).map(part).sum::<f64>() / weight.len() as f64
    }

    fn run(&self, cores: Cores, updates: u64, eight: bool) -> Vec<f32> {
        let n = self.goal.len();
        let mut weight = vec![0.0f32; n];
        let words = if eight { eight_bit_words(n) } else { n };
        let (mut m, mut v) = (vec![0.0f32; words], vec![0.0f32; words]);
        for number in 1..=updates {
            let grad = self.gradient(&weight, number);
            let step = AdamWStep { step: number, ..STEP };
            let update = if eight { adamw8bit } else { adamw };
            update(cores, &step, &mut weight, &grad, &mut m, &mut v);
        }
        weight
    }
}

#[test]
fn two_hundred_updates_stay_close_to_adamw() {
    on_all_cores(|cores| {
        let quadratic = Quadratic::of(5000);
        let (eight, full) = (quadratic.run(cores, 200, true), quadratic.run(cores, 200, false));
        let rms = |apart: &mut dyn Iterator<Item = f32>| {
            (apart.map(|a| f64::from(a).powi(2)).sum::<f64>() / eight.len() as f64).sqrt()
        };
        let apart = rms(&mut eight.iter().zip(&full).map(|(a, b)| a - b));
        let moved = rms(&mut full.iter().copied());
        assert!(apart < 0.03 * moved, "{apart} apart after moving {moved}");
        let (start, end) = (quadratic.loss(&vec![0.0; 5000]), quadratic.loss(&eight));
        assert!(end < 0.05 * start, "{start} to {end}");
        assert!(end < quadratic.loss(&full) * 1.1 + 1e-4);
    });
}

#[test]
fn small_parameters_are_updated_as_adamw_does_it() {
    on_all_cores(|cores| {
        let quadratic = Quadratic::of(EIGHT_BIT_LEAST - 1);
        assert_eq!(eight_bit_words(EIGHT_BIT_LEAST - 1), EIGHT_BIT_LEAST - 1);
        assert_eq!(quadratic.run(cores, 5, true), quadratic.run(cores, 5, false));
    });
}

#[test]
fn the_first_update_is_adamws_own_and_the_bits_do_not_depend_on_the_threads() {
    // The moments are stored after the weight is written.
    let quadratic = Quadratic::of(2 * 65_536 + EIGHT_BIT_BLOCK + 3);
    same_on_all_threads(|cores| {
        let first = quadratic.run(cores, 1, true);
        assert_eq!(first, quadratic.run(cores, 1, false));
        quadratic.run(cores, 3, true)
    });
}

#[test]
fn state_takes_about_a_byte_a_number() {
    assert_eq!(eight_bit_words(1 << 20), (1 << 18) + (1 << 12));
    assert_eq!(eight_bit_words(EIGHT_BIT_LEAST + 1), 1025 + 17);
}
