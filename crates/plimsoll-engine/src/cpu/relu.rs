//! `h = drop(relu(h))`, in place, and its gradient.
//!
//! What is left of `h` is positive exactly where the input was positive and kept, so the backward pass needs no mask.

use super::{Cores, Rows, apply, grain};
use crate::philox::Dropper;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Rectifies and drops.
pub fn relu_forward(cores: Cores, rows: Rows, width: usize, h: &mut [f32], drop: Option<&Dropper>) {
    assert!(h.len() >= rows.len() * width, "every row has its place");
    let h = Shared(h.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let h = unsafe { h.slice(range.start * width, range.len() * width) };
        relu_rows(cores.simd, rows, range.start, width, h, drop);
    });
}

leveled! {
    fn relu_rows(rows: Rows, first: usize, width: usize, h: &mut [f32], drop: Option<&Dropper>) {
        for (i, h) in h.chunks_exact_mut(width).enumerate() {
            // Not `max`: that would turn NaN into 0, and a broken weight would go unseen.
            h.iter_mut().for_each(|v| *v = if *v <= 0.0 { 0.0 } else { *v });
            apply(drop, &rows, first + i, h);
        }
    }
}

/// `dh *= scale` where `h > 0`, else 0.
pub fn relu_backward(cores: Cores, count: usize, width: usize, dh: &mut [f32], h: &[f32], scale: f32) {
    assert!(dh.len() >= count * width, "every row has its place");
    let dh = Shared(dh.as_mut_ptr());
    pool::rows(count, grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let dh = unsafe { dh.slice(range.start * width, range.len() * width) };
        relu_rows_backward(cores.simd, dh, &h[range.start * width..range.end * width], scale);
    });
}

leveled! {
    fn relu_rows_backward(dh: &mut [f32], h: &[f32], scale: f32) {
        dh.iter_mut().zip(h).for_each(|(d, h)| *d = if *h > 0.0 { *d * scale } else { 0.0 });
    }
}
