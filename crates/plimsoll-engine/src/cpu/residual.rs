//! `y = x + drop(y)`, in place.

use super::{Cores, Rows, grain};
use crate::philox::{BLOCK, Dropper};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Adds the residual stream to a layer's dropped output.
pub fn residual_forward(cores: Cores, rows: Rows, width: usize, x: &[f32], y: &mut [f32], drop: Option<&Dropper>) {
    assert!(y.len() >= rows.len() * width, "every row has its place");
    let y = Shared(y.as_mut_ptr());
    pool::rows(rows.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let y = unsafe { y.slice(range.start * width, range.len() * width) };
        residual_rows(cores.simd, rows, range.start, width, x, y, drop);
    });
}

leveled! {
    fn residual_rows(rows: Rows, first: usize, width: usize, x: &[f32], y: &mut [f32], drop: Option<&Dropper>) {
        for (i, y) in y.chunks_exact_mut(width).enumerate() {
            let row = first + i;
            let x = &x[row * width..(row + 1) * width];
            match drop {
                None => y.iter_mut().zip(x).for_each(|(y, x)| *y += x),
                Some(dropper) => {
                    for (block, (y, x)) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)).enumerate() {
                        let factors = dropper.block(rows.sample(row), rows.position(row), width, block);
                        y.iter_mut().zip(x).zip(&factors).for_each(|((y, x), f)| *y = x + *y * f);
                    }
                }
            }
        }
    }
}
