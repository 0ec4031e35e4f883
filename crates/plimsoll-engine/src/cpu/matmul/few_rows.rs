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
        let part = |row: usize| &rows[row][from..][..piece.len()];
        let mut row = 0;
        while row + 4 <= rows.len() {
            let onto = lanes[row..].first_chunk_mut().expect("four rows are left");
            four([part(row), part(row + 1), part(row + 2), part(row + 3)], piece, onto);
            row += 4;
        }
        for row in row..rows.len() {
            one(part(row), piece, &mut lanes[row]);
        }
    }
}

#[inline(always)]
fn one(row: &[f32], piece: &[f32], onto: &mut [f32; LANES]) {
    let mut lanes = *onto;
    let (whole, tail) = piece.as_chunks::<LANES>();
    let (row_whole, row_tail) = row.as_chunks::<LANES>();
    for (x, p) in row_whole.iter().zip(whole) {
        step(&mut lanes, x, p);
    }
    lanes.iter_mut().zip(row_tail).zip(tail).for_each(|((lane, x), p)| *lane = x.mul_add(*p, *lane));
    *onto = lanes;
}

/// The lanes of each row are a variable of its own, or the compiler keeps none in a register.
#[inline(always)]
fn four(rows: [&[f32]; 4], piece: &[f32], onto: &mut [[f32; LANES]; 4]) {
    let [mut a, mut b, mut c, mut d] = *onto;
    let (whole, tail) = piece.as_chunks::<LANES>();
    let [x, y, z, w] = rows.map(|row| row.as_chunks::<LANES>());
    for ((((x, y), z), w), p) in x.0.iter().zip(y.0).zip(z.0).zip(w.0).zip(whole) {
        step(&mut a, x, p);
        step(&mut b, y, p);
        step(&mut c, z, p);
        step(&mut d, w, p);
    }
    *onto = [a, b, c, d];
    for (lanes, row) in onto.iter_mut().zip([x.1, y.1, z.1, w.1]) {
        lanes.iter_mut().zip(row).zip(tail).for_each(|((lane, x), p)| *lane = x.mul_add(*p, *lane));
    }
}

#[inline(always)]
fn step(lanes: &mut [f32; LANES], x: &[f32; LANES], p: &[f32; LANES]) {
    for i in 0..LANES {
        lanes[i] = x[i].mul_add(p[i], lanes[i]);
    }
}
