//! `out = drop(gelu(a) * b)` with a and b side by side, and its gradient.

use super::{Cores, Rows, apply, grain};
use crate::math::{gelu, gelu_with_slope};
use crate::philox::{BLOCK, Dropper};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// The gate.
pub fn gated_gelu_forward(cores: Cores, rows: Rows, width: usize, ab: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
    assert!(out.len() >= rows.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        gated_gelu_rows(cores.simd, rows, range.start, width, ab, out, drop);
    });
}

leveled! {
    fn gated_gelu_rows(rows: Rows, first: usize, width: usize, ab: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let row = first + i;
            let (a, b) = ab[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o = gelu(*a) * b);
            apply(drop, &rows, row, out);
        }
    }
}

/// Gradients of both inputs.
pub fn gated_gelu_backward(
    cores: Cores,
    rows: Rows,
    width: usize,
    dh: &[f32],
    ab: &[f32],
    dab: &mut [f32],
    drop: Option<&Dropper>,
) {
    assert!(dab.len() >= rows.len() * 2 * width, "every row has its place");
    let dab = Shared(dab.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let dab = unsafe { dab.slice(range.start * 2 * width, range.len() * 2 * width) };
        gated_gelu_rows_backward(cores.simd, rows, range.start, width, dh, ab, dab, drop);
    });
}

leveled! {
    fn gated_gelu_rows_backward(rows: Rows, first: usize, width: usize, dh: &[f32], ab: &[f32], dab: &mut [f32], drop: Option<&Dropper>) {
        for (i, dab) in dab.chunks_exact_mut(2 * width).enumerate() {
            let row = first + i;
            let (a, b) = ab[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            let (da, db) = dab.split_at_mut(width);
            let dh = &dh[row * width..(row + 1) * width];
            for at in (0..width).step_by(BLOCK) {
                let end = (at + BLOCK).min(width);
                let factors = match drop {
                    Some(dropper) => dropper.block(rows.sample(row), rows.position(row), width, at / BLOCK),
                    None => [1.0; BLOCK],
                };
                for c in at..end {
                    let d = dh[c] * factors[c - at];
                    let (value, slope) = gelu_with_slope(a[c]);
                    da[c] = d * b[c] * slope;
                    db[c] = d * value;
                }
            }
        }
    }
}
