//! `out = gelu_new(h)`, and its gradient in place.

use super::{Cores, grain};
use crate::math::{gelu, gelu_with_slope};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// `out = gelu_new(h)`.
pub fn gelu_forward(cores: Cores, count: usize, width: usize, h: &[f32], out: &mut [f32]) {
    assert!(out.len() >= count * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(count, grain(width), |range| {
        let part = range.start * width..range.end * width;
        // SAFETY: tasks own disjoint rows.
        gelu_all(cores.simd, &h[part.clone()], unsafe { out.slice(part.start, part.len()) });
    });
}

leveled! {
    fn gelu_all(h: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(h).for_each(|(o, h)| *o = gelu(*h));
    }
}

/// `dh *= gelu_new'(h)`.
pub fn gelu_backward(cores: Cores, count: usize, width: usize, dh: &mut [f32], h: &[f32]) {
    assert!(dh.len() >= count * width, "every row has its place");
    let dh = Shared(dh.as_mut_ptr());
    pool::rows(count, grain(width), |range| {
        let part = range.start * width..range.end * width;
        // SAFETY: tasks own disjoint rows.
        gelu_all_backward(cores.simd, unsafe { dh.slice(part.start, part.len()) }, &h[part]);
    });
}

leveled! {
    fn gelu_all_backward(dh: &mut [f32], h: &[f32]) {
        dh.iter_mut().zip(h).for_each(|(d, h)| *d *= gelu_with_slope(*h).1);
    }
}
