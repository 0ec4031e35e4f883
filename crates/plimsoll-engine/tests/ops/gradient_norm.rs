//! Sum of squares of a gradient, in f64.

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::gradient_norm::sum_of_squares;
use plimsoll_engine::with_cores;
use plimsoll_plan::op::NORM_CHUNK;

use crate::{inner_product, levels, numbers, on_all_cores, wide};

const LENGTHS: [usize; 8] = [0, 1, 15, 1025, NORM_CHUNK, NORM_CHUNK + 1, 2 * NORM_CHUNK - 1, 5 * NORM_CHUNK + 77];

#[test]
fn the_sum_is_exact_to_single_precision() {
    on_all_cores(|cores| {
        for n in LENGTHS {
            let values = numbers(n, 1);
            let exact = inner_product(&wide(&values), &wide(&values));
            let got = sum_of_squares(cores, &values);
            assert!((got - exact).abs() <= 1e-6 * exact, "{n}: {got} and {exact}");
        }
    });
}

#[test]
fn large_and_small_gradients_neither_overflow_nor_vanish() {
    on_all_cores(|cores| {
        for size in [1e-15f32, 1e15] {
            let got = sum_of_squares(cores, &vec![size; 3000]);
            let exact = 3000.0 * f64::from(size).powi(2);
            assert!((got - exact).abs() < 1e-5 * exact, "{size:e}: {got:e} and {exact:e}");
        }
    });
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let values = numbers(7 * NORM_CHUNK + 5, 2);
    for simd in levels() {
        let sums = [1, 2, 3, 4].map(|threads| {
            with_cores(threads, || {}, || sum_of_squares(Cores { simd: *simd, threads }, &values).to_bits()).unwrap()
        });
        assert_eq!(sums, [sums[0]; 4]);
    }
}
