//! AdamW with moments in bf16 beside AdamW: the first update is the same, the mean of many roundings is right, and a small
//! change of the second moment is not lost.

use plimsoll_engine::cpu::adamw::{AdamWStep, adamw};
use plimsoll_engine::cpu::adamw16bit::{Rounding, adamw16bit};

use crate::{numbers, on_all_cores};

fn step(number: u64, lr: f64) -> AdamWStep {
    AdamWStep { lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, step: number, grad_scale: 1.0 }
}

fn moment(words: &[f32], at: usize) -> f32 {
    let word = words[at / 2].to_bits();
    let half = if at.is_multiple_of(2) { word & 0xFFFF } else { word >> 16 };
    f32::from_bits(half << 16)
}

#[test]
fn the_first_update_is_adamws_and_moments_are_its_moments_rounded() {
    on_all_cores(|cores| {
        for n in [1, 2, 255, 256, 1001] {
            let (grad, start) = (numbers(n, 3), numbers(n, 4));
            let (mut plain, mut m, mut v) = (start.clone(), vec![0.0; n], vec![0.0; n]);
            adamw(cores, &step(1, 0.01), &mut plain, &grad, &mut m, &mut v);
            let (mut narrow, mut m16, mut v16) = (start, vec![0.0; n.div_ceil(2)], vec![0.0; n.div_ceil(2)]);
            let rounding = Rounding { seed: 1, update: 0, param: 3 };
            adamw16bit(cores, &step(1, 0.01), rounding, &mut narrow, &grad, &mut m16, &mut v16);
            assert_eq!(plain, narrow, "{n}: moments are rounded after they were used");
            for at in 0..n {
                for (exact, stored) in [(m[at], moment(&m16, at)), (v[at], moment(&v16, at))] {
                    assert!((stored - exact).abs() <= exact.abs() / 127.0, "{n}: {stored} for {exact}");
                }
            }
        }
    });
}

#[test]
fn a_second_moment_that_falls_by_a_thousandth_a_step_falls() {
    on_all_cores(|cores| {
        let n = 4096;
        // From one, without any gradient: after 700 steps 0.999^700 of it is left, on average.
        let one = 0x3F80_3F80u32;
        let (mut weight, mut m, mut v) = (vec![0.0; n], vec![0.0; n / 2], vec![f32::from_bits(one); n / 2]);
        for update in 0..700 {
            let rounding = Rounding { seed: 9, update, param: 1 };
            adamw16bit(cores, &step(update + 1, 0.0), rounding, &mut weight, &vec![0.0; n], &mut m, &mut v);
        }
        let mean = (0..n).map(|at| f64::from(moment(&v, at))).sum::<f64>() / n as f64;
        let right = 0.999f64.powi(700);
        assert!((mean / right - 1.0).abs() < 0.01, "{mean} for {right}");
    });
}
