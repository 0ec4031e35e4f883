//! `out = drop(gelu(h))` in its exact form, and its gradient in place.

use super::{Cores, Rows, apply, grain};
use crate::math::{gelu_erf, gelu_erf_with_slope};
use crate::philox::Dropper;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Bends and drops.
pub fn gelu_erf_forward(cores: Cores, rows: Rows, width: usize, h: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
    assert!(out.len() >= rows.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        forward_rows(cores.simd, rows, range.start, width, &h[range.start * width..range.end * width], out, drop);
    });
}

leveled! {
    fn forward_rows(rows: Rows, first: usize, width: usize, h: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
        for (i, (out, h)) in out.chunks_exact_mut(width).zip(h.chunks_exact(width)).enumerate() {
            out.iter_mut().zip(h).for_each(|(o, h)| *o = gelu_erf(*h));
            apply(drop, &rows, first + i, out);
        }
    }
}

/// `dh *= drop' gelu'(h)`.
pub fn gelu_erf_backward(cores: Cores, rows: Rows, width: usize, dh: &mut [f32], h: &[f32], drop: Option<&Dropper>) {
    assert!(dh.len() >= rows.len() * width, "every row has its place");
    let dh = Shared(dh.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let dh = unsafe { dh.slice(range.start * width, range.len() * width) };
        backward_rows(cores.simd, rows, range.start, width, &h[range.start * width..range.end * width], dh, drop);
    });
}

leveled! {
    fn backward_rows(rows: Rows, first: usize, width: usize, h: &[f32], dh: &mut [f32], drop: Option<&Dropper>) {
        for (i, (dh, h)) in dh.chunks_exact_mut(width).zip(h.chunks_exact(width)).enumerate() {
            dh.iter_mut().zip(h).for_each(|(d, h)| *d *= gelu_erf_with_slope(*h).1);
            apply(drop, &rows, first + i, dh);
        }
    }
}
