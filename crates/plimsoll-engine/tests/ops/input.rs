//! Windows of a batch: copied, or mixed with those behind them.

use plimsoll_engine::cpu::input::input_forward;
use plimsoll_engine::cpu::series_loss::Mix;

use crate::{assert_close, numbers, on_all_cores, unwritten};

#[test]
fn a_mixed_window_is_its_share_and_the_rest_of_the_one_behind_it() {
    on_all_cores(|_| {
        for (samples, width) in [(2, 1), (3, 17), (5, 64)] {
            let (x, mut out) = (numbers(samples * width, 1), unwritten(samples * width));
            input_forward(width, &x, None, &mut out);
            assert_eq!(out, x);
            for (share, shift) in [(0.25f32, 1), (0.9, samples - 1), (1.0, 1), (0.0, 1)] {
                input_forward(width, &x, Some(Mix { share, shift }), &mut out);
                let at = |sample: usize, c: usize| f64::from(x[sample % samples * width + c]);
                let (own, rest) = (f64::from(share), 1.0 - f64::from(share));
                let mixed = |i: usize| own * at(i / width, i % width) + rest * at(i / width + shift, i % width);
                let exact: Vec<f64> = (0..x.len()).map(mixed).collect();
                assert_close(&out, &exact, 1e-6, &format!("{samples} samples, share {share}, shift {shift}"));
            }
        }
    });
}
