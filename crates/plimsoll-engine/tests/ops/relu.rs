//! `h = drop(relu(h))`, in place, and its gradient from what it left.

use plimsoll_engine::cpu::relu::{relu_backward, relu_forward};

use crate::{assert_close, every_shape, finite_differences, inner_product, numbers, on_all_cores, wide};

#[test]
fn forward_is_the_formula_and_backward_its_slope() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let n = ragged.len() * width;
            let (h, dy) = (numbers(n, 1), numbers(n, 2));
            let (h64, dy64, factors) = (wide(&h), wide(&dy), ragged.factors(drop, width));
            let exact = |h: &[f64]| -> Vec<f64> { h.iter().zip(&factors).map(|(h, f)| h.max(0.0) * f).collect() };
            let mut kept = h.clone();
            relu_forward(cores, ragged.rows(), width, &mut kept, drop);
            assert_close(&kept, &exact(&h64), 2e-7, "h");
            let mut dh = dy.clone();
            relu_backward(cores, ragged.len(), width, &mut dh, &kept, drop.map_or(1.0, |d| d.scale));
            if n <= 300 {
                assert_close(
                    &dh,
                    &finite_differences(&h64, |h| inner_product(&dy64, &exact(h))),
                    1e-6,
                    "dh by differences",
                );
            }
            let slope: Vec<f64> = (0..n).map(|i| if h64[i] > 0.0 { dy64[i] * factors[i] } else { 0.0 }).collect();
            assert_close(&dh, &slope, 2e-7, "dh");
        });
    });
}

#[test]
fn a_zero_has_no_slope() {
    on_all_cores(|cores| {
        let mut h = vec![0.0, -0.0, -1.0, 2.0];
        let ragged = crate::Ragged::of(0, &[1]);
        relu_forward(cores, ragged.rows(), 4, &mut h, None);
        let mut dh = vec![3.0; 4];
        relu_backward(cores, 1, 4, &mut dh, &h, 1.0);
        assert_eq!((h, dh), (vec![0.0, 0.0, 0.0, 2.0], vec![0.0, 0.0, 0.0, 3.0]));
    });
}

#[test]
fn a_broken_number_is_not_hidden() {
    on_all_cores(|cores| {
        let mut h = vec![-1.0; 20];
        (h[3], h[18]) = (f32::NAN, f32::INFINITY);
        relu_forward(cores, crate::Ragged::of(0, &[1]).rows(), 20, &mut h, None);
        assert!(h[3].is_nan() && h[18] == f32::INFINITY);
        assert_eq!(h.iter().filter(|v| **v == 0.0).count(), 18);
    });
}
