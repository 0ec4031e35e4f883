//! `out = drop(g)`: a dropout, and the gradient through one.

use super::{Cores, Rows, grain};
use crate::philox::{BLOCK, Dropper};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Multiplies each row by its factors, into another tensor.
pub fn drop_rows(cores: Cores, rows: Rows, width: usize, g: &[f32], out: &mut [f32], dropper: &Dropper) {
    assert!(out.len() >= rows.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        drop_range(cores.simd, rows, range.start, width, g, out, dropper);
    });
}

leveled! {
    fn drop_range(rows: Rows, first: usize, width: usize, g: &[f32], out: &mut [f32], dropper: &Dropper) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let row = first + i;
            let g = &g[row * width..(row + 1) * width];
            for (block, (out, g)) in out.chunks_mut(BLOCK).zip(g.chunks(BLOCK)).enumerate() {
                let factors = dropper.block(rows.sample(row), rows.position(row), width, block);
                out.iter_mut().zip(g).zip(&factors).for_each(|((o, g), f)| *o = g * f);
            }
        }
    }
}
