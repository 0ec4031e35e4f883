//! `out = drop(gelu(a) * b)` with a and b side by side; gelu is Hugging Face's `gelu_new`.

use plimsoll_engine::cpu::gated_gelu::{gated_gelu_backward, gated_gelu_forward};

use crate::{
    Ragged, assert_close, every_shape, finite_differences, inner_product, numbers, on_all_cores, unwritten, wide,
};

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

fn exact(ab: &[f64], width: usize, factors: &[f64]) -> Vec<f64> {
    let at = |row: usize, col: usize| gelu(ab[row * 2 * width + col]) * ab[row * 2 * width + width + col];
    (0..factors.len()).map(|i| at(i / width, i % width) * factors[i]).collect()
}

/// Inputs from -4 to 4: both tails and the middle of the gate.
fn inputs(n: usize) -> Vec<f32> {
    numbers(n, 1).iter().map(|v| v * 4.0).collect()
}

#[test]
fn forward_is_the_formula() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let (ab, mut out) = (inputs(ragged.len() * 2 * width), unwritten(ragged.len() * width));
            gated_gelu_forward(cores, ragged.rows(), width, &ab, &mut out, drop);
            assert_close(&out, &exact(&wide(&ab), width, &ragged.factors(drop, width)), 3e-6, "out");
        });
    });
}

#[test]
fn backward_is_the_slope_of_the_formula() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            if ragged.len() * width > 500 {
                return;
            }
            let (ab, dh) = (inputs(ragged.len() * 2 * width), numbers(ragged.len() * width, 2));
            let (dh64, factors) = (wide(&dh), ragged.factors(drop, width));
            let mut dab = unwritten(ab.len());
            gated_gelu_backward(cores, ragged.rows(), width, &dh, &ab, &mut dab, drop);
            // An element reaches one output only, so the differences are taken of that one.
            let expected: Vec<f64> = (0..ab.len())
                .map(|i| {
                    let (row, col) = (i / (2 * width), i % (2 * width) % width);
                    let pair = [f64::from(ab[row * 2 * width + col]), f64::from(ab[row * 2 * width + width + col])];
                    let out = row * width + col;
                    let slopes = finite_differences(&pair, |p| dh64[out] * factors[out] * gelu(p[0]) * p[1]);
                    slopes[i % (2 * width) / width]
                })
                .collect();
            assert_close(&dab, &expected, 6e-6, "dab");
        });
    });
}

#[test]
fn far_from_zero_the_gate_is_open_or_shut() {
    on_all_cores(|cores| {
        let (ragged, width) = (Ragged::of(0, &[1]), 3);
        let ab = [-60.0, 60.0, -1e4, 2.0, 2.0, 2.0];
        let (mut out, mut dab) = (unwritten(3), unwritten(6));
        gated_gelu_forward(cores, ragged.rows(), width, &ab, &mut out, None);
        assert_eq!(out, [0.0, 120.0, 0.0]);
        gated_gelu_backward(cores, ragged.rows(), width, &[1.0; 3], &ab, &mut dab, None);
        let slopes = inner_product(&wide(&dab), &[1.0; 6]);
        assert!(slopes.is_finite(), "{dab:?}");
        assert_eq!(dab, [0.0, 2.0, 0.0, 0.0, 60.0, 0.0]);
    });
}
