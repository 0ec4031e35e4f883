//! `y = x + drop(y)`, in place.

use plimsoll_engine::cpu::residual::residual_forward;

use crate::{assert_close, every_shape, numbers, on_all_cores, wide};

#[test]
fn the_stream_is_added_to_what_dropout_leaves() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let n = ragged.len() * width;
            let (x, y) = (numbers(n, 1), numbers(n, 2));
            let (x64, y64, factors) = (wide(&x), wide(&y), ragged.factors(drop, width));
            let expected: Vec<f64> = (0..n).map(|i| x64[i] + y64[i] * factors[i]).collect();
            let mut got = y.clone();
            residual_forward(cores, ragged.rows(), width, &x, &mut got, drop);
            assert_close(&got, &expected, 2e-7, "y");
        });
    });
}
