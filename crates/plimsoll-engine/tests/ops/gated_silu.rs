//! `out = silu(a) * b` with a and b side by side.

use plimsoll_engine::cpu::gated_silu::{gated_silu_backward, gated_silu_forward};

use crate::{WIDTHS, assert_close, finite_differences, numbers, on_all_cores, unwritten, wide};

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Inputs from -6 to 6: both tails and the middle of the gate.
fn inputs(n: usize) -> Vec<f32> {
    numbers(n, 1).iter().map(|v| v * 6.0).collect()
}

#[test]
fn forward_is_the_formula_and_backward_its_slope() {
    on_all_cores(|cores| {
        for width in WIDTHS {
            for count in [1, 7, 50] {
                let (mut ab, mut dh) = (inputs(count * 2 * width), numbers(count * width, 2));
                let (ab64, dh64) = (wide(&ab), wide(&dh));
                let pair =
                    |at: usize| [at / width * 2 * width + at % width, at / width * 2 * width + width + at % width];
                let mut out = unwritten(count * width);
                gated_silu_forward(cores, count, width, &ab, &mut out);
                let exact: Vec<f64> =
                    (0..count * width).map(|at| silu(ab64[pair(at)[0]]) * ab64[pair(at)[1]]).collect();
                assert_close(&out, &exact, 2e-6, "out");
                gated_silu_backward(cores, count, width, &mut dh, &mut ab);
                assert_close(&dh, &exact, 2e-6, "out again");
                let mut slopes = vec![0.0; ab.len()];
                for at in 0..count * width {
                    let [a, b] = pair(at);
                    let slope = finite_differences(&[ab64[a], ab64[b]], |p| dh64[at] * silu(p[0]) * p[1]);
                    (slopes[a], slopes[b]) = (slope[0], slope[1]);
                }
                assert_close(&ab, &slopes, 5e-6, "dab");
            }
        }
    });
}

#[test]
fn far_from_zero_the_gate_is_open_or_shut() {
    on_all_cores(|cores| {
        let mut ab = [-200.0, 200.0, -1e6, 2.0, 2.0, 2.0];
        let (mut out, mut dh) = (unwritten(3), [1.0; 3]);
        gated_silu_forward(cores, 1, 3, &ab, &mut out);
        gated_silu_backward(cores, 1, 3, &mut dh, &mut ab);
        for out in [&out[..], &dh] {
            assert_close(out, &[0.0, 400.0, 0.0], 1e-6, "out");
        }
        assert_close(&ab, &[0.0, 2.0, 0.0, 0.0, 200.0, 0.0], 1e-6, "dab");
    });
}
