//! Rotary positions: pairs of a head's columns, i and i + width / 2, are turned by an angle that grows with the position.
//!
//! Cosines and sines come from a table that is filled once. Turning back by the same angle is the gradient.

use plimsoll_plan::spec::RopeSpec;

use super::attention::Columns;
use super::{Cores, grain};
use crate::pool;
use crate::simd::leveled;

/// Fills `[len, width]`: the cosines of a position's width / 2 angles, then their sines. Angles are f32 products, as
/// transformers takes them.
pub fn rope_table(spec: &RopeSpec, width: usize, len: usize, out: &mut [f32]) {
    let half = width / 2;
    assert!(width.is_multiple_of(2) && out.len() >= len * width, "every position has its place");
    for i in 0..half {
        let frequency = spec.frequency(i, width);
        for (position, row) in out.chunks_exact_mut(width).take(len).enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            (row[i], row[half + i]) = (cos as f32, sin as f32);
        }
    }
}

/// Turns `heads` neighbouring heads in place, each row by its position; `back` turns by minus the angle.
pub fn rope(cores: Cores, positions: &[u32], heads: usize, width: usize, columns: Columns, table: &[f32], back: bool) {
    pool::rows(positions.len(), grain(heads * width), |range| {
        for row in range {
            let angles = &table[positions[row] as usize * width..][..width];
            // SAFETY: tasks own disjoint rows; all heads of one row, which lie side by side.
            let heads = unsafe { columns.part(row, 0, heads * width) };
            turn(cores.simd, angles, heads, if back { -1.0 } else { 1.0 });
        }
    });
}

leveled! {
    fn turn(angles: &[f32], heads: &mut [f32], sign: f32) {
        let width = angles.len();
        let (cos, sin) = angles.split_at(width / 2);
        for head in heads.chunks_exact_mut(width) {
            let (low, high) = head.split_at_mut(width / 2);
            for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let sin = sin * sign;
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}
