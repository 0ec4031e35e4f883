//! The gradient of attention, with the scores of one tile of query rows at a time.
//!
//! With P the probabilities and D = dout . out of each row: dV = drop(P)^T dout, dP = drop(dout V^T), dS = P (dP - D),
//! dQ = dS K, dK = dS^T Q, and the bias gathers dS along its diagonals (Dao et al., FlashAttention, 2022).

use plimsoll_plan::op::AttentionShape;
use plimsoll_plan::tiles::Tiles;

use super::Cores;
use super::attention::{Columns, Samples, drop_row, seen, take};
use super::matmul::{Matrix, Output, matmul_packed, pack};
use crate::math::exp;
use crate::philox::{BLOCK, Dropper};
use crate::pool::{Shared, tasks, worker};
use crate::simd::{dot, leveled};

/// The tensors of the forward pass and the gradient that comes in.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a> {
    /// Queries.
    pub q: Columns,
    /// Keys.
    pub k: Columns,
    /// Values.
    pub v: Columns,
    /// Bias by distance.
    pub bias: Option<&'a [f32]>,
    /// Output.
    pub out: &'a [f32],
    /// Log-sum-exp of each row and head.
    pub lse: &'a [f32],
    /// Gradient of the output.
    pub dout: &'a [f32],
}

/// Gradients of q, k and v; those of the bias are added to `dbias`.
pub fn attention_backward(
    cores: Cores,
    shape: &AttentionShape,
    samples: Samples,
    forward: Forward,
    dq: Columns,
    dk: Columns,
    dv: Columns,
    dbias: Option<&mut [f32]>,
    drop: Option<&Dropper>,
    workspace: &mut [f32],
) {
    let tiles = Tiles::of(cores.simd);
    let scratch = shape.backward_words(&tiles);
    let (space, partial) = workspace.split_at_mut(cores.threads * scratch);
    let sums = if dbias.is_some() { samples.count() * shape.heads * shape.span() } else { 0 };
    assert!(partial.len() >= sums, "workspace is what the plan says");
    let (space, partial_at) = (Shared(space.as_mut_ptr()), Shared(partial.as_mut_ptr()));
    let span = shape.span();
    let wants_bias = dbias.is_some();
    tasks(samples.count() * shape.heads, |task| {
        // SAFETY: each worker has its own scratch, each task its own partial sum of the bias.
        let (scratch, partial) = unsafe {
            (
                space.slice(worker() * scratch, scratch),
                partial_at.slice(if wants_bias { task * span } else { 0 }, if wants_bias { span } else { 0 }),
            )
        };
        partial.fill(0.0);
        let head = Head {
            cores,
            shape,
            tiles,
            forward,
            dq,
            dk,
            dv,
            drop,
            sample: task / shape.heads,
            head: task % shape.heads,
        };
        // SAFETY: this task alone writes this head's columns of this sample's rows.
        unsafe { head.run(samples, scratch, partial) };
    });
    if let Some(dbias) = dbias {
        for sample in 0..samples.count() {
            for head in 0..shape.heads {
                let from = &partial[(sample * shape.heads + head) * span..][..span];
                dbias[head * span..][..span].iter_mut().zip(from).for_each(|(d, p)| *d += p);
            }
        }
    }
}

struct Head<'a> {
    cores: Cores,
    shape: &'a AttentionShape,
    tiles: Tiles,
    forward: Forward<'a>,
    dq: Columns,
    dk: Columns,
    dv: Columns,
    drop: Option<&'a Dropper>,
    sample: usize,
    head: usize,
}

impl Head<'_> {
    /// # Safety
    /// Nobody else touches this head's columns of this sample's gradients while it runs.
    unsafe fn run(&self, samples: Samples, scratch: &mut [f32], partial: &mut [f32]) {
        let Head { cores, shape, tiles, forward, head, .. } = self;
        let (simd, head) = (cores.simd, *head);
        let (q0, queries, k0, keys) = samples.get(self.sample);
        let (d, tile) = (shape.d_kv, shape.tile_rows());
        let inner = shape.heads * d;
        let mut rest = scratch;
        let rest = &mut rest;
        let keys_by_depth = take(rest, tiles.packed_words(shape.max_keys, d));
        let values_by_depth = take(rest, tiles.packed_words(shape.max_keys, d));
        let keys_by_key = take(rest, tiles.packed_words(d, shape.max_keys));
        let tile_q = take(rest, tiles.packed_words(d, tile));
        let tile_dout = take(rest, tiles.packed_words(d, tile));
        let probabilities = take(rest, tile * shape.max_keys);
        let dropped = take(rest, tile * shape.max_keys);
        let dscores = take(rest, tile * shape.max_keys);
        let strip = take(rest, tiles.row_block_words(tile));
        let dots = take(rest, tile);
        let (k, v) = (forward.k.head(k0, head, d), forward.v.head(k0, head, d));
        // SAFETY: this head's keys and values of this sample, which nobody writes now.
        let (k_by_depth, v_by_depth, k_by_key) = unsafe {
            (
                pack(simd, keys, d, k.transposed(), keys_by_depth),
                pack(simd, keys, d, v.transposed(), values_by_depth),
                pack(simd, d, keys, k, keys_by_key),
            )
        };
        let delta = forward.bias.map(|b| &b[head * shape.span()..(head + 1) * shape.span()]);
        for from in (0..queries).step_by(tile) {
            let tall = tile.min(queries - from);
            let wide = seen(shape, keys, from + tall);
            let q = forward.q.head(q0 + from, head, d);
            let dout = Matrix::rows(&forward.dout[(q0 + from) * inner + head * d..], inner);
            let into = |data: *mut f32| Output { data, stride: wide, add: false, scale: 1.0, bias: None };
            // SAFETY: tiles of `tall x wide`; operands of this sample and head.
            unsafe {
                matmul_packed(simd, tall, wide, q, k_by_depth, into(probabilities.as_mut_ptr()), &mut []);
                matmul_packed(simd, tall, wide, dout, v_by_depth, into(dscores.as_mut_ptr()), &mut []);
            }
            for i in 0..tall {
                let row = (q0 + from + i) * inner + head * d;
                dots[i] = row_dot(simd, &forward.dout[row..row + d], &forward.out[row..row + d]);
            }
            for i in 0..tall {
                let query = from + i;
                let visible = seen(shape, wide, query + 1);
                let at = i * wide..(i + 1) * wide;
                let near = delta.map(|d| &d[shape.max_queries - 1 - query..][..wide]);
                let lse = forward.lse[(q0 + query) * shape.heads + head];
                let drop = self
                    .drop
                    .map(|d| (d, samples.first + self.sample as u32, drop_row(shape, head, query), shape.max_keys));
                let rows = Scores {
                    p: &mut probabilities[at.clone()],
                    dropped: &mut dropped[at.clone()],
                    ds: &mut dscores[at],
                };
                scores_backward(simd, rows, visible, near, lse, dots[i], drop);
                if delta.is_some() {
                    let into = &mut partial[shape.max_queries - 1 - query..][..wide];
                    into.iter_mut().zip(&dscores[i * wide..(i + 1) * wide]).for_each(|(p, d)| *p += d);
                }
            }
            let scores = |data: &[f32]| Matrix { data: data.as_ptr(), row_stride: wide, col_stride: 1 };
            // SAFETY: this task alone writes these gradients; later tiles add to keys and values.
            unsafe {
                matmul_packed(
                    simd,
                    tall,
                    d,
                    scores(dscores),
                    k_by_key.shallower(wide),
                    self.dq.head_out(q0 + from, head, d, false),
                    &mut [],
                );
                let q = pack(simd, d, tall, q, tile_q);
                let dout = pack(simd, d, tall, dout, tile_dout);
                if from == 0 && wide < keys {
                    self.clear(self.dk, k0 + wide, keys - wide);
                    self.clear(self.dv, k0 + wide, keys - wide);
                }
                let add = from > 0;
                matmul_packed(
                    simd,
                    wide,
                    d,
                    scores(dscores).transposed(),
                    q,
                    self.dk.head_out(k0, head, d, add),
                    strip,
                );
                matmul_packed(
                    simd,
                    wide,
                    d,
                    scores(dropped).transposed(),
                    dout,
                    self.dv.head_out(k0, head, d, add),
                    strip,
                );
            }
        }
    }

    /// Zeroes the gradient of keys that the first tile does not see, so that later tiles can add.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn clear(&self, into: Columns, row: usize, count: usize) {
        for row in row..row + count {
            // SAFETY: this task owns these columns.
            unsafe { into.data.slice(row * into.stride + into.start + self.head * self.shape.d_kv, self.shape.d_kv) }
                .fill(0.0);
        }
    }
}

/// One row of the three score tiles: raw scores in `p`, raw `dout v^T` in `ds`.
struct Scores<'a> {
    p: &'a mut [f32],
    dropped: &'a mut [f32],
    ds: &'a mut [f32],
}

leveled! {
    fn row_dot(a: &[f32], b: &[f32]) -> f32 {
        dot(a, b)
    }
}

leveled! {
    fn scores_backward(rows: Scores, visible: usize, bias: Option<&[f32]>, lse: f32, dot: f32, drop: Option<(&Dropper, u32, u64, usize)>) {
        let Scores { p, dropped, ds } = rows;
        if let Some(bias) = bias {
            p.iter_mut().zip(bias).for_each(|(p, b)| *p += b);
        }
        p[..visible].iter_mut().for_each(|p| *p = exp(*p - lse));
        p[visible..].fill(0.0);
        match drop {
            None => {
                dropped.copy_from_slice(p);
                ds.iter_mut().zip(p.iter()).for_each(|(d, p)| *d = p * (*d - dot));
            }
            Some((dropper, sample, row, width)) => {
                for (block, ((p, dropped), ds)) in p.chunks(BLOCK).zip(dropped.chunks_mut(BLOCK)).zip(ds.chunks_mut(BLOCK)).enumerate() {
                    let factors = dropper.block(sample, row, width, block);
                    for (((p, dropped), ds), f) in p.iter().zip(dropped).zip(ds).zip(&factors) {
                        *dropped = p * f;
                        *ds = p * (*ds * f - dot);
                    }
                }
            }
        }
    }
}
