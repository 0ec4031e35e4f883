//! RMS norm: `out = drop(x * rstd * weight)`, `rstd = 1 / sqrt(mean(x^2) + eps)`.

use plimsoll_engine::cpu::norm::{norm_apply, norm_backward, norm_forward};
use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use crate::{assert_close, every_shape, finite_differences, inner_product, numbers, on_all_cores, unwritten, wide};

const EPS: f32 = 1e-6;

fn exact_rstd(x: &[f64], width: usize) -> Vec<f64> {
    x.chunks(width).map(|r| 1.0 / (inner_product(r, r) / width as f64 + f64::from(EPS)).sqrt()).collect()
}

fn exact(x: &[f64], weight: &[f64], factors: &[f64]) -> Vec<f64> {
    let width = weight.len();
    let rstd = exact_rstd(x, width);
    (0..x.len()).map(|i| x[i] * rstd[i / width] * weight[i % width] * factors[i]).collect()
}

#[test]
fn forward_is_the_formula_and_apply_repeats_its_bits() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let n = ragged.len() * width;
            let (x, weight) = (numbers(n, 1), numbers(width, 2));
            let (mut rstd, mut out) = (unwritten(ragged.len()), unwritten(n));
            norm_forward(cores, ragged.rows(), width, EPS, &x, &weight, &mut rstd, &mut out, drop);
            let expected = exact(&wide(&x), &wide(&weight), &ragged.factors(drop, width));
            assert_close(&rstd, &exact_rstd(&wide(&x), width), 1e-6, "rstd");
            assert_close(&out, &expected, 2e-6, "out");
            let mut again = unwritten(n);
            norm_apply(cores, ragged.rows(), width, &x, &weight, &rstd, &mut again, drop);
            assert_eq!(again, out);
        });
    });
}

#[test]
fn backward_is_the_slope_of_the_formula() {
    on_all_cores(|cores| {
        for (count, width) in [(1, 1), (1, 37), (3, 16), (19, 5), (40, 18)] {
            let n = count * width;
            let (x, weight, dy) = (numbers(n, 1), numbers(width, 2), numbers(n, 3));
            let (x64, w64, dy64) = (wide(&x), wide(&weight), wide(&dy));
            let ones = vec![1.0; n];
            let exact_dx = finite_differences(&x64, |x| inner_product(&dy64, &exact(x, &w64, &ones)));
            let exact_dw = finite_differences(&w64, |w| inner_product(&dy64, &exact(&x64, w, &ones)));
            let rstd: Vec<f32> = exact_rstd(&x64, width).iter().map(|r| *r as f32).collect();
            for (add, write) in [(false, Write::Set), (true, Write::Add), (true, Write::SetFirst)] {
                // With `SetFirst` a kernel is called for the first micro-batch: the frame turns later ones into `Add`.
                let before = if add { numbers(n, 4) } else { unwritten(n) };
                let weight_before = if write == Write::Add { numbers(width, 5) } else { unwritten(width) };
                let (mut dx, mut dw, mut partial) =
                    (before.clone(), weight_before.clone(), unwritten(REDUCE_CHUNKS * width));
                norm_backward(
                    cores,
                    count,
                    width,
                    &dy,
                    &x,
                    &weight,
                    &rstd,
                    &mut dx,
                    add,
                    Some((&mut dw, write)),
                    &mut partial,
                );
                let mut frozen = before.clone();
                norm_backward(cores, count, width, &dy, &x, &weight, &rstd, &mut frozen, add, None, &mut []);
                assert_eq!(frozen, dx, "the same without the weight's gradient");
                let plus = |exact: &[f64], before: &[f32], add: bool| -> Vec<f64> {
                    exact.iter().zip(before).map(|(e, b)| if add { e + f64::from(*b) } else { *e }).collect()
                };
                assert_close(&dx, &plus(&exact_dx, &before, add), 5e-6, &format!("dx {count}x{width}"));
                assert_close(
                    &dw,
                    &plus(&exact_dw, &weight_before, write == Write::Add),
                    5e-6,
                    &format!("dw {count}x{width}"),
                );
            }
        }
    });
}
