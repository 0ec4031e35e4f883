//! `out = gelu_new(h)` and its gradient in place.

use plimsoll_engine::cpu::gelu::{gelu_backward, gelu_forward};

use crate::{WIDTHS, assert_close, finite_differences, numbers, on_all_cores, unwritten, wide};

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

#[test]
fn forward_is_the_formula_and_backward_its_slope() {
    on_all_cores(|cores| {
        for width in WIDTHS {
            for count in [1, 300] {
                let h: Vec<f32> = numbers(count * width, 1).iter().map(|v| v * 5.0).collect();
                let (mut out, mut dh) = (unwritten(h.len()), numbers(h.len(), 2));
                let (h64, dh64) = (wide(&h), wide(&dh));
                gelu_forward(cores, count, width, &h, &mut out);
                assert_close(&out, &h64.iter().map(|h| gelu(*h)).collect::<Vec<f64>>(), 2e-6, "out");
                gelu_backward(cores, count, width, &mut dh, &h);
                let slope = |(h, d): (&f64, &f64)| d * finite_differences(&[*h], |h| gelu(h[0]))[0];
                assert_close(&dh, &h64.iter().zip(&dh64).map(slope).collect::<Vec<f64>>(), 5e-6, "dh");
            }
        }
    });
}
