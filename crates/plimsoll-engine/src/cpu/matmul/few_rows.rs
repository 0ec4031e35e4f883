//! Products of few rows, as a decoding step has them: B is read once and never packed.

use plimsoll_plan::tiles::Simd;

use super::{Matrix, Output};
use crate::pool::tasks;
use crate::simd::{LANES, fold, leveled};

/// Rows up to which packing B costs more than reading it once per row: a decoding step has one row per hypothesis.
pub(super) const FEW_ROWS: usize = 16;
/// Columns of one task of such a product.
const FEW_ROWS_COLUMNS: usize = 64;

/// A product of few rows with a B whose depth is contiguous: dot products, four rows at a time.
///
/// # Safety
/// As for `matmul`.
pub(super) unsafe fn few_rows(simd: Simd, m: usize, n: usize, k: usize, a: Matrix, b: Matrix, c: Output) {
    // SAFETY: row i of A and column j of B are `k` contiguous elements.
    let row = |i: usize| unsafe { std::slice::from_raw_parts({ a }.data.add(i * a.row_stride), k) };
    // SAFETY: as above.
    let column = |j: usize| unsafe { std::slice::from_raw_parts({ b }.data.add(j * b.col_stride), k) };
    tasks(n.div_ceil(FEW_ROWS_COLUMNS), |task| {
        for j in task * FEW_ROWS_COLUMNS..((task + 1) * FEW_ROWS_COLUMNS).min(n) {
            for first in (0..m).step_by(4) {
                let last = m - 1;
                let sums = dots(
                    simd,
                    [row(first), row((first + 1).min(last)), row((first + 2).min(last)), row((first + 3).min(last))],
                    column(j),
                );
                for (i, sum) in (first..m).zip(sums) {
                    // SAFETY: each task writes its own columns of C.
                    let out = unsafe { &mut *{ c }.data.add(i * c.stride + j) };
                    *out = if c.add { *out + c.scale * sum } else { c.scale * sum };
                }
            }
        }
    });
}

leveled! {
    /// Dot products of four rows with one column, in lane order.
    fn dots(rows: [&[f32]; 4], column: &[f32]) -> [f32; 4] {
        let mut lanes = [[0.0f32; LANES]; 4];
        let n = column.len();
        let split = n / LANES * LANES;
        let rows = rows.map(|r| &r[..n]);
        for at in (0..split).step_by(LANES) {
            for (lanes, row) in lanes.iter_mut().zip(&rows) {
                for i in 0..LANES {
                    lanes[i] = row[at + i].mul_add(column[at + i], lanes[i]);
                }
            }
        }
        for at in split..n {
            for (lanes, row) in lanes.iter_mut().zip(&rows) {
                lanes[at - split] = row[at].mul_add(column[at], lanes[at - split]);
            }
        }
        lanes.map(fold)
    }
}
