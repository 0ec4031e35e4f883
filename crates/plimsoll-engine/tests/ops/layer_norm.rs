//! Layer norm: `out = (x - mean) * rstd * weight + bias`, `rstd = 1 / sqrt(var(x) + eps)`.

use plimsoll_engine::cpu::layer_norm::{layer_norm_apply, layer_norm_backward, layer_norm_forward};
use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use crate::{
    assert_close, finite_differences, inner_product, numbers, on_all_cores, same_on_all_threads, unwritten, wide,
};

const EPS: f32 = 1e-5;
const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 37), (3, 16), (19, 5), (40, 18), (90, 65)];

fn exact_stats(x: &[f64], width: usize) -> Vec<f64> {
    let row = |r: &[f64]| {
        let mean = r.iter().sum::<f64>() / width as f64;
        let variance = r.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        [mean, 1.0 / (variance + f64::from(EPS)).sqrt()]
    };
    x.chunks(width).flat_map(row).collect()
}

fn exact(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let width = weight.len();
    let stats = exact_stats(x, width);
    let at = |i: usize| (x[i] - stats[i / width * 2]) * stats[i / width * 2 + 1] * weight[i % width] + bias[i % width];
    (0..x.len()).map(at).collect()
}

#[test]
fn forward_is_the_formula_and_apply_repeats_its_bits() {
    on_all_cores(|cores| {
        for (count, width) in SHAPES {
            // A mean far from zero: the variance is taken around it.
            let x: Vec<f32> = numbers(count * width, 1).iter().map(|v| v + 3.0).collect();
            let (weight, bias) = (numbers(width, 2), numbers(width, 3));
            let (mut stats, mut out) = (unwritten(2 * count), unwritten(count * width));
            layer_norm_forward(cores, count, width, EPS, &x, &weight, &bias, &mut stats, &mut out);
            if width > 1 {
                assert_close(&stats, &exact_stats(&wide(&x), width), 5e-6, "stats");
            }
            assert_close(&out, &exact(&wide(&x), &wide(&weight), &wide(&bias)), 5e-6, "out");
            let mut again = unwritten(count * width);
            layer_norm_apply(cores, count, width, &x, &weight, &bias, &stats, &mut again);
            assert_eq!(again, out);
        }
    });
}

#[test]
fn backward_is_the_slope_of_the_formula() {
    on_all_cores(|cores| {
        for (count, width) in &SHAPES[1..5] {
            let (count, width) = (*count, *width);
            let n = count * width;
            let (x, weight, bias, dy) = (numbers(n, 1), numbers(width, 2), numbers(width, 3), numbers(n, 4));
            let (x64, w64, b64, dy64) = (wide(&x), wide(&weight), wide(&bias), wide(&dy));
            let exact_dx = finite_differences(&x64, |x| inner_product(&dy64, &exact(x, &w64, &b64)));
            let exact_dw = finite_differences(&w64, |w| inner_product(&dy64, &exact(&x64, w, &b64)));
            let exact_db = finite_differences(&b64, |b| inner_product(&dy64, &exact(&x64, &w64, b)));
            let stats: Vec<f32> = exact_stats(&x64, width).iter().map(|s| *s as f32).collect();
            for (add, write) in [(false, Write::Set), (true, Write::Add)] {
                let before = |n, seed| if add { numbers(n, seed) } else { unwritten(n) };
                let (dx0, dw0, db0) = (before(n, 5), before(width, 6), before(width, 7));
                let plus = |exact: &[f64], before: &[f32]| -> Vec<f64> {
                    exact.iter().zip(before).map(|(e, b)| if add { e + f64::from(*b) } else { *e }).collect()
                };
                for (of_weight, of_bias) in [(true, true), (true, false), (false, true), (false, false)] {
                    let (mut dx, mut dw, mut db) = (dx0.clone(), dw0.clone(), db0.clone());
                    let mut partial =
                        unwritten((usize::from(of_weight) + usize::from(of_bias)) * REDUCE_CHUNKS * width);
                    layer_norm_backward(
                        cores,
                        count,
                        width,
                        &dy,
                        &x,
                        &weight,
                        &stats,
                        &mut dx,
                        add,
                        of_weight.then_some((&mut dw[..], write)),
                        of_bias.then_some((&mut db[..], write)),
                        &mut partial,
                    );
                    assert_close(&dx, &plus(&exact_dx, &dx0), 1e-5, &format!("dx {count}x{width}"));
                    if of_weight {
                        assert_close(&dw, &plus(&exact_dw, &dw0), 1e-5, &format!("dw {count}x{width}"));
                    }
                    if of_bias {
                        assert_close(&db, &plus(&exact_db, &db0), 1e-5, &format!("db {count}x{width}"));
                    }
                }
            }
        }
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let (count, width) = (301, 40);
    let (x, weight, dy) = (numbers(count * width, 1), numbers(width, 2), numbers(count * width, 3));
    same_on_all_threads(|cores| {
        let (mut stats, mut out) = (unwritten(2 * count), unwritten(count * width));
        layer_norm_forward(cores, count, width, EPS, &x, &weight, &weight, &mut stats, &mut out);
        let (mut dx, mut dw, mut db) = (unwritten(count * width), unwritten(width), unwritten(width));
        let mut partial = unwritten(2 * REDUCE_CHUNKS * width);
        let (for_weight, for_bias) = (Some((&mut dw[..], Write::Set)), Some((&mut db[..], Write::Set)));
        layer_norm_backward(
            cores,
            count,
            width,
            &dy,
            &x,
            &weight,
            &stats,
            &mut dx,
            false,
            for_weight,
            for_bias,
            &mut partial,
        );
        (out, dx, dw, db)
    });
}
