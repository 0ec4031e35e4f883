//! `out = drop(table[ids] + positions[at])`, and the gradients of the tables.

use super::weights::Weights;
use super::{Cores, Rows, apply, grain};
use crate::philox::{BLOCK, Dropper};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// A table that is added by position.
#[derive(Clone, Copy, Debug)]
pub struct Positions<'a> {
    /// A row for each position.
    pub table: Weights<'a>,
    /// Position of each row in its document.
    pub at: &'a [u32],
}

/// Looks up the rows of the table, and of the positions' table where there is one.
pub fn embed_forward(
    cores: Cores,
    rows: Rows,
    width: usize,
    ids: &[u32],
    table: Weights,
    positions: Option<Positions>,
    out: &mut [f32],
    drop: Option<&Dropper>,
) {
    assert!(out.len() >= ids.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(ids.len(), grain(width), |range| {
        for row in range {
            // SAFETY: tasks own disjoint rows.
            let out = unsafe { out.slice(row * width, width) };
            table.decode(cores.simd, ids[row] as usize * width, out);
            if let Some(positions) = positions {
                add_position(cores, positions, row, out);
            }
            if drop.is_some() {
                drop_row(cores.simd, rows, row, out, drop);
            }
        }
    });
}

/// Adds the row's position to it, a few numbers at a time.
fn add_position(cores: Cores, positions: Positions, row: usize, out: &mut [f32]) {
    let mut piece = [0.0f32; 256];
    let (first, step) = (positions.at[row] as usize * out.len(), piece.len());
    for (nth, out) in out.chunks_mut(step).enumerate() {
        let piece = &mut piece[..out.len()];
        positions.table.decode(cores.simd, first + nth * step, piece);
        out.iter_mut().zip(piece).for_each(|(out, p)| *out += *p);
    }
}

leveled! {
    fn drop_row(rows: Rows, row: usize, out: &mut [f32], drop: Option<&Dropper>) {
        apply(drop, &rows, row, out);
    }
}

/// Adds each row's gradient to that of its position: as for tokens, with positions in their place.
pub fn positions_backward(
    cores: Cores,
    rows: Rows,
    width: usize,
    at: &[u32],
    grad: &[f32],
    table_grad: &mut [f32],
    drop: Option<&Dropper>,
) {
    embed_backward(cores, rows, width, at, grad, table_grad, drop, None);
}

/// Adds each row's gradient to the table's, except for those of token `skip`. Tasks own columns, so rows of one token are
/// added in order.
pub fn embed_backward(
    cores: Cores,
    rows: Rows,
    width: usize,
    ids: &[u32],
    grad: &[f32],
    table_grad: &mut [f32],
    drop: Option<&Dropper>,
    skip: Option<u32>,
) {
    let table_len = table_grad.len();
    let table = Shared(table_grad.as_mut_ptr());
    pool::tasks(width.div_ceil(BLOCK), |block| {
        embed_columns_backward(cores.simd, rows, width, block, ids, grad, table, table_len, drop, skip);
    });
}

leveled! {
    fn embed_columns_backward(rows: Rows, width: usize, block: usize, ids: &[u32], grad: &[f32], table: Shared, table_len: usize, drop: Option<&Dropper>, skip: Option<u32>) {
        let (start, len) = (block * BLOCK, BLOCK.min(width - block * BLOCK));
        for (row, id) in ids.iter().enumerate().filter(|(_, id)| Some(**id) != skip) {
            let g = &grad[row * width + start..][..len];
            let at = *id as usize * width + start;
            assert!(at + len <= table_len);
            // SAFETY: inside the table; no other task owns these columns.
            let into = unsafe { table.slice(at, len) };
            match drop {
                None => into.iter_mut().zip(g).for_each(|(t, g)| *t += g),
                Some(dropper) => {
                    let factors = dropper.block(rows.sample(row), rows.position(row), width, block);
                    into.iter_mut().zip(g).zip(&factors).for_each(|((t, g), f)| *t += g * f);
                }
            }
        }
    }
}
