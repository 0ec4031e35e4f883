//! `out = silu(a) * b` with a and b side by side, and its gradient.

use super::{Cores, grain};
use crate::math::{silu, silu_with_slope};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// The gate.
pub fn gated_silu_forward(cores: Cores, count: usize, width: usize, ab: &[f32], out: &mut [f32]) {
    assert!(out.len() >= count * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(count, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        gate_rows(cores.simd, width, &ab[range.start * 2 * width..range.end * 2 * width], out);
    });
}

leveled! {
    fn gate_rows(width: usize, ab: &[f32], out: &mut [f32]) {
        for (out, ab) in out.chunks_exact_mut(width).zip(ab.chunks_exact(2 * width)) {
            let (a, b) = ab.split_at(width);
            out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o = silu(*a) * b);
        }
    }
}

/// Gradients of both inputs in their place, and the gate itself in that of its gradient.
pub fn gated_silu_backward(cores: Cores, count: usize, width: usize, dh: &mut [f32], ab: &mut [f32]) {
    assert!(dh.len() >= count * width && ab.len() >= count * 2 * width, "every row has its place");
    let (dh, ab) = (Shared(dh.as_mut_ptr()), Shared(ab.as_mut_ptr()));
    pool::rows(count, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let dh = unsafe { dh.slice(range.start * width, range.len() * width) };
        // SAFETY: as above.
        let ab = unsafe { ab.slice(range.start * 2 * width, range.len() * 2 * width) };
        gate_rows_backward(cores.simd, width, dh, ab);
    });
}

leveled! {
    fn gate_rows_backward(width: usize, dh: &mut [f32], ab: &mut [f32]) {
        for (ab, dh) in ab.chunks_exact_mut(2 * width).zip(dh.chunks_exact_mut(width)) {
            let (a, b) = ab.split_at_mut(width);
            for ((a, b), dh) in a.iter_mut().zip(b).zip(dh) {
                let (value, slope) = silu_with_slope(*a);
                let (up, down) = (*b, *dh);
                *a = down * up * slope;
                *b = down * value;
                *dh = value * up;
            }
        }
    }
}
