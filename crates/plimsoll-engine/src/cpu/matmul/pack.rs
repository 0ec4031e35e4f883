//! Packing: columns of B in panels, rows of A in strips, each as the micro-kernel reads them.

use plimsoll_plan::tiles::{STRIPS, Simd};

use super::Matrix;
use crate::simd::leveled;

/// Packs rows of A as strips: `into[(strip * deep + d) * nr + row]`.
///
/// # Safety
/// The rows and depths lie inside A.
pub(super) unsafe fn pack_rows(
    a: Matrix,
    first: usize,
    count: usize,
    from: usize,
    deep: usize,
    nr: usize,
    into: &mut [f32],
) {
    if a.row_stride == 1 && nr == 6 && count == nr * STRIPS {
        // Whole cache lines across the rows, six elements to each strip.
        for d in 0..deep {
            // SAFETY: `count` contiguous elements at this depth.
            let line = unsafe { std::slice::from_raw_parts(a.data.add(first + (from + d) * a.col_stride), 6 * STRIPS) };
            for (strip, six) in line.chunks_exact(6).enumerate() {
                into[(strip * deep + d) * 6..][..6].copy_from_slice(six);
            }
        }
        return;
    }
    for row in 0..count {
        for d in 0..deep {
            // SAFETY: inside A.
            let value = unsafe { *a.data.add((first + row) * a.row_stride + (from + d) * a.col_stride) };
            into[(row / nr * deep + d) * nr + row % nr] = value;
        }
    }
}

/// Packs `wide` columns of B as `into[d * mr + col]`, zero behind the last column.
///
/// # Safety
/// The columns and depths lie inside B.
pub(super) unsafe fn pack_columns(
    simd: Simd,
    b: Matrix,
    depth: usize,
    deep: usize,
    from: usize,
    wide: usize,
    mr: usize,
    into: &mut [f32],
) {
    // SAFETY: by the caller's promise.
    let start = unsafe { b.data.add(depth * b.row_stride + from * b.col_stride) };
    if b.col_stride == 1 {
        for (d, to) in into.chunks_exact_mut(mr).take(deep).enumerate() {
            // SAFETY: `wide` contiguous columns at this depth.
            let row = unsafe { std::slice::from_raw_parts(start.add(d * b.row_stride), wide) };
            to[..wide].copy_from_slice(row);
            to[wide..].fill(0.0);
        }
    } else if b.row_stride == 1 {
        // SAFETY: column c is `deep` contiguous elements.
        let column = |c: usize| unsafe { std::slice::from_raw_parts(start.add(c * b.col_stride), deep) };
        if wide < mr {
            into.fill(0.0);
        }
        let mut c = 0;
        while c + 16 <= wide {
            transpose_16(simd, &std::array::from_fn(|i| column(c + i)), c, mr, into);
            c += 16;
        }
        for c in c..wide {
            column(c).iter().enumerate().for_each(|(d, v)| into[d * mr + c] = *v);
        }
    } else {
        into.fill(0.0);
        for d in 0..deep {
            for c in 0..wide {
                // SAFETY: inside B.
                into[d * mr + c] = unsafe { *start.add(d * b.row_stride + c * b.col_stride) };
            }
        }
    }
}

leveled! {
    /// Writes 16 columns side by side into a panel: `into[d * mr + c + i] = columns[i][d]`.
    fn transpose_16(columns: &[&[f32]; 16], c: usize, mr: usize, into: &mut [f32]) {
        let deep = columns[0].len();
        let mut d = 0;
        while d + 16 <= deep {
            let mut tile = [[0.0f32; 16]; 16];
            for i in 0..16 {
                tile[i].copy_from_slice(&columns[i][d..d + 16]);
            }
            transpose_tile(&mut tile);
            for (r, row) in tile.iter().enumerate() {
                into[(d + r) * mr + c..][..16].copy_from_slice(row);
            }
            d += 16;
        }
        for d in d..deep {
            for i in 0..16 {
                into[d * mr + c + i] = columns[i][d];
            }
        }
    }
}

/// Transposes in four rounds of interleaving rows that are half the tile apart; each round is a shuffle of two registers.
#[inline(always)]
fn transpose_tile(tile: &mut [[f32; 16]; 16]) {
    for _ in 0..4 {
        let from = *tile;
        for i in 0..8 {
            for j in 0..8 {
                tile[2 * i][2 * j] = from[i][j];
                tile[2 * i][2 * j + 1] = from[i + 8][j];
                tile[2 * i + 1][2 * j] = from[i][j + 8];
                tile[2 * i + 1][2 * j + 1] = from[i + 8][j + 8];
            }
        }
    }
}
