//! `out = drop(table[ids])`, and the gradient of the table.

use super::{Cores, Rows, apply, grain};
use crate::philox::{BLOCK, Dropper};
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Looks up the rows of the table.
pub fn embed_forward(
    cores: Cores,
    rows: Rows,
    width: usize,
    ids: &[u32],
    table: &[f32],
    out: &mut [f32],
    drop: Option<&Dropper>,
) {
    assert!(out.len() >= ids.len() * width, "every row has its place");
    let out = Shared(out.as_mut_ptr());
    pool::rows(ids.len(), grain(width), |range| {
        // SAFETY: tasks own disjoint rows.
        let out = unsafe { out.slice(range.start * width, range.len() * width) };
        embed_rows(cores.simd, rows, range.start, width, &ids[range.start..range.end], table, out, drop);
    });
}

leveled! {
    fn embed_rows(rows: Rows, first: usize, width: usize, ids: &[u32], table: &[f32], out: &mut [f32], drop: Option<&Dropper>) {
        for ((i, out), id) in out.chunks_exact_mut(width).enumerate().zip(ids) {
            out.copy_from_slice(&table[*id as usize * width..][..width]);
            apply(drop, &rows, first + i, out);
        }
    }
}

/// Adds each row's gradient to the table's. Tasks own columns, so rows of one token are added in order.
pub fn embed_backward(
    cores: Cores,
    rows: Rows,
    width: usize,
    ids: &[u32],
    grad: &[f32],
    table_grad: &mut [f32],
    drop: Option<&Dropper>,
) {
    let table_len = table_grad.len();
    let table = Shared(table_grad.as_mut_ptr());
    pool::tasks(width.div_ceil(BLOCK), |block| {
        embed_columns_backward(cores.simd, rows, width, block, ids, grad, table, table_len, drop);
    });
}

leveled! {
    fn embed_columns_backward(rows: Rows, width: usize, block: usize, ids: &[u32], grad: &[f32], table: Shared, table_len: usize, drop: Option<&Dropper>) {
        let (start, len) = (block * BLOCK, BLOCK.min(width - block * BLOCK));
        for (row, id) in ids.iter().enumerate() {
            let g = &grad[row * width + start..][..len];
            let at = *id as usize * width + start;
            assert!(at + len <= table_len);
            // SAFETY: inside the table; no other task owns these columns.
            let into = unsafe { table.slice(at, len) };
            match drop {
                None => into.iter_mut().zip(g).for_each(|(t, g)| *t += g),
                Some(dropper) => {
                    let factors = dropper.block(rows.sample[row], u64::from(rows.position[row]), width, block);
                    into.iter_mut().zip(g).zip(&factors).for_each(|((t, g), f)| *t += g * f);
                }
            }
        }
    }
}
