//! Products of few rows, as a decoding step has them: B is read once and never packed.

use plimsoll_plan::tiles::Simd;

use super::{Matrix, Output, Right};
use crate::pool::tasks;
use crate::simd::{LANES, fold, leveled};

/// Rows up to which packing B costs more than reading it once per row: a decoding step has one row per hypothesis.
pub(super) const FEW_ROWS: usize = 16;
/// Columns of one task of such a product.
const FEW_ROWS_COLUMNS: usize = 64;
/// Elements of stored weights that are decoded at a time, on the stack: they stay in the nearest cache. Whole lanes.
const PIECE: usize = 512;

/// The lanes of each row's sum.
type Lanes = [[f32; LANES]; FEW_ROWS];

/// A product of few rows with a B whose depth is contiguous: dot products, up to four rows at a time.
///
/// # Safety
/// As for `matmul`.
pub(super) unsafe fn few_rows(simd: Simd, m: usize, n: usize, k: usize, a: Matrix, b: Right, c: Output) {
    // SAFETY: row i of A is `k` contiguous elements.
    let row = |i: usize| unsafe { std::slice::from_raw_parts({ a }.data.add(i.min(m - 1) * a.row_stride), k) };
    tasks(n.div_ceil(FEW_ROWS_COLUMNS), |task| {
        let rows: [&[f32]; FEW_ROWS] = std::array::from_fn(row);
        for j in task * FEW_ROWS_COLUMNS..((task + 1) * FEW_ROWS_COLUMNS).min(n) {
            let mut lanes = [[0.0f32; LANES]; FEW_ROWS];
            match b {
                Right::Plain(b) => {
                    // SAFETY: column j of B is `k` contiguous elements.
                    let column = unsafe { std::slice::from_raw_parts({ b }.data.add(j * b.col_stride), k) };
                    accumulate(simd, &rows[..m], 0, column, &mut lanes);
                }
                Right::Stored(b) => {
                    let mut piece = [0.0f32; PIECE];
                    for from in (0..k).step_by(PIECE) {
                        let piece = &mut piece[..PIECE.min(k - from)];
                        b.weights.decode(simd, b.first + j * b.stride + from, piece);
                        accumulate(simd, &rows[..m], from, piece, &mut lanes);
                    }
                }
            }
            // SAFETY: there is a bias for each column.
            let bias = c.bias.map(|bias| unsafe { *bias.add(j) });
            for (i, lanes) in lanes.into_iter().take(m).enumerate() {
                // SAFETY: each task writes its own columns of C.
                let out = unsafe { &mut *{ c }.data.add(i * c.stride + j) };
                let sum = c.scale * fold(lanes);
                *out = match bias {
                    Some(bias) => sum + bias,
                    None if c.add => *out + sum,
                    None => sum,
                };
            }
        }
    });
}

leveled! {
    /// Adds the products of rows with a piece of one column, from depth `from` on, to their lanes.
    fn accumulate(rows: &[&[f32]], from: usize, piece: &[f32], lanes: &mut Lanes) {
        for (rows, lanes) in rows.chunks(4).zip(lanes.as_chunks_mut::<4>().0) {
            match *rows {
                [a] => products([a], from, piece, lanes),
                [a, b] => products([a, b], from, piece, lanes),
                [a, b, c] => products([a, b, c], from, piece, lanes),
                [a, b, c, d] => products([a, b, c, d], from, piece, lanes),
                _ => {}
            }
        }
    }
}

#[inline(always)]
fn products<const ROWS: usize>(rows: [&[f32]; ROWS], from: usize, piece: &[f32], onto: &mut [[f32; LANES]; 4]) {
    let rows = rows.map(|row| &row[from..][..piece.len()]);
    let mut lanes: [[f32; LANES]; ROWS] = std::array::from_fn(|row| onto[row]);
    let split = piece.len() / LANES * LANES;
    for at in (0..split).step_by(LANES) {
        for (lanes, row) in lanes.iter_mut().zip(&rows) {
            for i in 0..LANES {
                lanes[i] = row[at + i].mul_add(piece[at + i], lanes[i]);
            }
        }
    }
    for at in split..piece.len() {
        for (lanes, row) in lanes.iter_mut().zip(&rows) {
            lanes[at - split] = row[at].mul_add(piece[at], lanes[at - split]);
        }
    }
    onto[..ROWS].copy_from_slice(&lanes);
}
