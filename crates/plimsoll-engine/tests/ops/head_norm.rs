//! RMS norm of each head's columns, read from and written to columns of wider rows.

use plimsoll_engine::cpu::Shared;
use plimsoll_engine::cpu::attention::Columns;
use plimsoll_engine::cpu::head_norm::{head_norm_backward, head_norm_forward};
use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use crate::{
    assert_close, finite_differences, inner_product, numbers, on_all_cores, same_on_all_threads, unwritten, wide,
};

const EPS: f32 = 1e-6;
/// Rows, heads, width of a head, columns before and behind them.
const SHAPES: [(usize, usize, usize, usize, usize); 4] =
    [(1, 1, 1, 0, 0), (5, 3, 4, 2, 7), (40, 2, 17, 0, 5), (23, 4, 16, 9, 0)];

fn exact(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let d = weight.len();
    let rstd = |head: &[f64]| 1.0 / (inner_product(head, head) / d as f64 + f64::from(EPS)).sqrt();
    x.chunks(d).flat_map(|head| head.iter().zip(weight).map(move |(x, w)| x * rstd(head) * w)).collect()
}

/// Rows of `width` columns, set into longer ones that are NaN elsewhere.
fn spread(values: &[f32], width: usize, start: usize, stride: usize) -> Vec<f32> {
    let mut all = unwritten(values.len() / width * stride);
    for (to, from) in all.chunks_mut(stride).zip(values.chunks(width)) {
        to[start..start + width].copy_from_slice(from);
    }
    all
}

fn gathered(all: &[f32], width: usize, start: usize, stride: usize) -> Vec<f32> {
    for row in all.chunks(stride) {
        assert!(row[..start].iter().chain(&row[start + width..]).all(|v| v.is_nan()), "its own columns alone");
    }
    all.chunks(stride).flat_map(|row| row[start..start + width].to_vec()).collect()
}

fn columns(all: &mut [f32], start: usize, stride: usize) -> Columns {
    Columns { data: Shared(all.as_mut_ptr()), start, stride }
}

#[test]
fn forward_is_the_formula_and_backward_its_slope() {
    on_all_cores(|cores| {
        for (count, heads, d, before, behind) in SHAPES {
            let (width, stride) = (heads * d, before + heads * d + behind);
            let (x, weight, dy) = (numbers(count * width, 1), numbers(d, 2), numbers(count * width, 3));
            let (x64, w64, dy64) = (wide(&x), wide(&weight), wide(&dy));
            let (mut all_x, mut out) = (spread(&x, width, before, stride), unwritten(count * (width + 3)));
            let (mut rstd, x_at) = (unwritten(count * heads), columns(&mut all_x, before, stride));
            let out_at = columns(&mut out, 1, width + 3);
            head_norm_forward(cores, count, heads, EPS, x_at, &weight, &mut rstd, out_at);
            assert_close(&gathered(&out, width, 1, width + 3), &exact(&x64, &w64), 2e-6, "out");
            let exact_dx = finite_differences(&x64, |x| inner_product(&dy64, &exact(x, &w64)));
            let exact_dw = finite_differences(&w64, |w| inner_product(&dy64, &exact(&x64, w)));
            for (in_place, write) in [(true, Some(Write::Set)), (false, Some(Write::Add)), (true, None)] {
                let mut all_dy = spread(&dy, width, before, stride);
                let mut all_dx = unwritten(count * stride);
                let (dy_at, mut dx_at) = (columns(&mut all_dy, before, stride), columns(&mut all_dx, before, stride));
                if in_place {
                    dx_at = dy_at;
                }
                let dw_before = if write == Some(Write::Add) { numbers(d, 5) } else { unwritten(d) };
                let (mut dw, mut partial) = (dw_before.clone(), unwritten(REDUCE_CHUNKS * d));
                let grad = write.map(|write| (&mut dw[..], write));
                head_norm_backward(cores, count, heads, dy_at, x_at, &weight, &rstd, dx_at, grad, &mut partial);
                let dx = gathered(if in_place { &all_dy } else { &all_dx }, width, before, stride);
                // The difference quotient of nearly nothing is noise, where a head of one column has hardly any slope.
                assert_close(&dx, &exact_dx, if d == 1 { 1e-4 } else { 1e-5 }, "dx");
                let add = |(e, b): (&f64, &f32)| if write == Some(Write::Add) { e + f64::from(*b) } else { *e };
                if write.is_some() {
                    assert_close(&dw, &exact_dw.iter().zip(&dw_before).map(add).collect::<Vec<f64>>(), 1e-5, "dw");
                }
            }
        }
    });
}

#[test]
fn the_bits_do_not_depend_on_the_threads() {
    let (count, heads, d) = (201, 3, 24);
    let (x, weight, dy) = (numbers(count * heads * d, 1), numbers(d, 2), numbers(count * heads * d, 3));
    same_on_all_threads(|cores| {
        let (mut x, mut dy, mut out) = (x.clone(), dy.clone(), unwritten(count * heads * d));
        let (x, at) = (columns(&mut x, 0, heads * d), columns(&mut dy, 0, heads * d));
        let (mut rstd, mut dw, mut partial) = (unwritten(count * heads), unwritten(d), unwritten(REDUCE_CHUNKS * d));
        head_norm_forward(cores, count, heads, EPS, x, &weight, &mut rstd, columns(&mut out, 0, heads * d));
        let grad = Some((&mut dw[..], Write::Set));
        head_norm_backward(cores, count, heads, at, x, &weight, &rstd, at, grad, &mut partial);
        (out, dy, dw)
    });
}
