//! The gradient of attention, with the scores of one tile of query rows and one block of keys at a time.
//!
//! With P the probabilities and D = dout . out of each row: dV = drop(P)^T dout, dP = drop(dout V^T), dS = P (dP - D),
//! dQ = scale dS K, dK = scale dS^T Q, and the bias gathers dS along its diagonals (Dao et al., FlashAttention, 2022).
//!
//! A task is one head of keys and values of one document. It takes all query heads that read it, one after the other, so
//! that the sums over them need no partial sums. Keys are outside, query rows inside: dK and dV of a block are written
//! while its keys are packed, dQ is added to from block to block.

use std::ops::Range;

use plimsoll_plan::op::AttentionShape;
use plimsoll_plan::tiles::Tiles;

use super::Cores;
use super::attention::{Columns, Drops, Samples, first_seen, met, take, visible};
use super::matmul::{Matrix, Output, Packed, matmul_packed, pack};
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
    let (span, group) = (shape.span(), shape.group());
    let own = if dbias.is_some() { group * span } else { 0 };
    tasks(samples.count() * shape.kv_heads, |task| {
        // SAFETY: each worker has its own scratch, each task its own partial sums of the bias, a span for each query head.
        let (scratch, partial) =
            unsafe { (space.slice(worker() * scratch, scratch), partial_at.slice(task * own, own)) };
        partial.fill(0.0);
        let (document, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let one = KvHead { cores, shape, tiles, forward, dq, dk, dv, drop, document, kv_head };
        // SAFETY: this task alone writes the columns of these heads of this document's rows.
        unsafe { one.run(samples, scratch, partial) };
    });
    if let Some(dbias) = dbias {
        for document in 0..samples.count() {
            for head in 0..shape.heads {
                let from = &partial[(document * shape.heads + head) * span..][..span];
                dbias[head * span..][..span].iter_mut().zip(from).for_each(|(d, p)| *d += p);
            }
        }
    }
}

/// One head of keys and values of one document.
struct KvHead<'a> {
    cores: Cores,
    shape: &'a AttentionShape,
    tiles: Tiles,
    forward: Forward<'a>,
    dq: Columns,
    dk: Columns,
    dv: Columns,
    drop: Option<&'a Dropper>,
    document: usize,
    kv_head: usize,
}

/// The scratch of one task, behind the packed keys and values.
struct Scratch<'a> {
    tile_q: &'a mut [f32],
    tile_dout: &'a mut [f32],
    probabilities: &'a mut [f32],
    dropped: &'a mut [f32],
    dscores: &'a mut [f32],
    strip: &'a mut [f32],
    dots: &'a mut [f32],
}

/// A block of packed keys and values.
#[derive(Clone, Copy)]
struct Block {
    k_by_depth: Packed,
    v_by_depth: Packed,
    k_by_key: Packed,
    start: usize,
}

impl KvHead<'_> {
    /// # Safety
    /// Nobody else touches these heads' columns of this document's gradients while it runs.
    unsafe fn run(&self, samples: Samples, scratch: &mut [f32], partial: &mut [f32]) {
        let KvHead { shape, tiles, forward, kv_head, document, .. } = self;
        let (simd, d, tile, group) = (self.cores.simd, shape.d_kv, shape.tile_rows(), shape.group());
        let (q0, queries, k0, keys) = samples.get(*document);
        let heads = kv_head * group..(kv_head + 1) * group;
        let most = shape.key_block();
        let mut rest = scratch;
        let rest = &mut rest;
        let keys_by_depth = take(rest, tiles.packed_words(most, d));
        let values_by_depth = take(rest, tiles.packed_words(most, d));
        let keys_by_key = take(rest, tiles.packed_words(d, most));
        let mut scratch = Scratch {
            tile_q: take(rest, tiles.packed_words(d, tile)),
            tile_dout: take(rest, tiles.packed_words(d, tile)),
            probabilities: take(rest, tile * most),
            dropped: take(rest, tile * most),
            dscores: take(rest, tile * most),
            strip: take(rest, tiles.row_block_words(tile)),
            dots: take(rest, tile),
        };
        for query in (0..queries).filter(|query| first_seen(shape, *query) >= keys) {
            // SAFETY: this task owns these columns.
            heads.clone().for_each(|head| unsafe { self.dq.part(q0 + query, head, d) }.fill(0.0));
        }
        for start in (0..keys).step_by(most) {
            let range = start..(start + most).min(keys);
            let (k, v) = (forward.k.head(k0 + start, *kv_head, d), forward.v.head(k0 + start, *kv_head, d));
            // SAFETY: this head's keys and values of this document, which nobody writes now.
            let block = unsafe {
                Block {
                    k_by_depth: pack(simd, range.len(), d, k.transposed(), keys_by_depth),
                    v_by_depth: pack(simd, range.len(), d, v.transposed(), values_by_depth),
                    k_by_key: pack(simd, d, range.len(), k, keys_by_key),
                    start,
                }
            };
            let mut written = false;
            for head in heads.clone() {
                let drops = samples.drops(shape, self.drop, *document, head);
                let sums = if forward.bias.is_some() && !partial.is_empty() {
                    &mut partial[(head - heads.start) * shape.span()..][..shape.span()]
                } else {
                    &mut []
                };
                for from in (0..queries).step_by(tile) {
                    let tall = tile.min(queries - from);
                    let Some(met) = met(shape, from, tall, range.clone(), keys) else { continue };
                    // SAFETY: this task owns these columns.
                    unsafe {
                        if !written {
                            // Later tiles and heads add, so what the first one does not see begins at zero.
                            self.clear(k0 + range.start..k0 + met.start);
                            self.clear(k0 + met.end..k0 + range.end);
                        }
                        self.tile(block, head, (q0, from, tall), k0, met, written, drops, &mut scratch, sums);
                    }
                    written = true;
                }
            }
            if !written {
                // SAFETY: this task owns these columns.
                unsafe { self.clear(k0 + range.start..k0 + range.end) };
            }
        }
    }

    /// One tile of query rows of one head against the keys of a block that it meets.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn tile(
        &self,
        block: Block,
        head: usize,
        (q0, from, tall): (usize, usize, usize),
        k0: usize,
        met: Range<usize>,
        written: bool,
        drops: Option<Drops>,
        scratch: &mut Scratch,
        sums: &mut [f32],
    ) {
        let KvHead { shape, forward, kv_head, .. } = self;
        let Scratch { tile_q, tile_dout, probabilities, dropped, dscores, strip, dots } = scratch;
        let (simd, d, wide, skipped) = (self.cores.simd, shape.d_kv, met.len(), met.start - block.start);
        let inner = shape.heads * d;
        let delta = forward.bias.map(|b| &b[head * shape.span()..(head + 1) * shape.span()]);
        let q = forward.q.head(q0 + from, head, d);
        let dout = Matrix::rows(&forward.dout[(q0 + from) * inner + head * d..], inner);
        let into = |data: *mut f32, scale: f32| Output { data, stride: wide, add: false, scale, bias: None };
        // SAFETY: tiles of `tall x wide`; operands of this document and head.
        unsafe {
            let (k, v) = (block.k_by_depth.from_column(simd, skipped), block.v_by_depth.from_column(simd, skipped));
            matmul_packed(simd, tall, wide, q, k, into(probabilities.as_mut_ptr(), shape.scale), &mut []);
            matmul_packed(simd, tall, wide, dout, v, into(dscores.as_mut_ptr(), 1.0), &mut []);
        }
        for i in 0..tall {
            let row = (q0 + from + i) * inner + head * d;
            dots[i] = row_dot(simd, &forward.dout[row..row + d], &forward.out[row..row + d]);
        }
        for i in 0..tall {
            let query = from + i;
            let at = i * wide..(i + 1) * wide;
            let near = delta.map(|d| &d[shape.max_queries - 1 - query + met.start..][..wide]);
            let lse = forward.lse[(q0 + query) * shape.heads + head];
            let rows = Scores {
                p: &mut probabilities[at.clone()],
                dropped: &mut dropped[at.clone()],
                ds: &mut dscores[at.clone()],
            };
            let drop = drops.as_ref().map(|drops| (drops, query, met.start));
            scores_backward(simd, rows, visible(shape, query, &met), near, lse, dots[i], drop);
            if !sums.is_empty() {
                let into = &mut sums[shape.max_queries - 1 - query + met.start..][..wide];
                into.iter_mut().zip(&dscores[at]).for_each(|(p, d)| *p += d);
            }
        }
        let scores = |data: &[f32]| Matrix { data: data.as_ptr(), row_stride: wide, col_stride: 1 };
        let kept = if drops.is_some() { dropped } else { probabilities };
        let again = block.start > first_seen(shape, from);
        let first = k0 + met.start;
        // SAFETY: this task alone writes these gradients.
        unsafe {
            let k = block.k_by_key.from_depth(simd, skipped).shallower(wide);
            let dq = self.dq.head_out(q0 + from, head, d, again, shape.scale);
            matmul_packed(simd, tall, d, scores(dscores), k, dq, &mut []);
            let q = pack(simd, d, tall, q, tile_q);
            let dout = pack(simd, d, tall, dout, tile_dout);
            let dk = self.dk.head_out(first, *kv_head, d, written, shape.scale);
            matmul_packed(simd, wide, d, scores(dscores).transposed(), q, dk, strip);
            let dv = self.dv.head_out(first, *kv_head, d, written, 1.0);
            matmul_packed(simd, wide, d, scores(kept).transposed(), dout, dv, strip);
        }
    }

    /// Zeroes the gradients of some rows of keys and values.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn clear(&self, rows: Range<usize>) {
        for row in rows {
            for into in [self.dk, self.dv] {
                // SAFETY: this task owns these columns.
                unsafe { into.part(row, self.kv_head, self.shape.d_kv) }.fill(0.0);
            }
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
    /// Where nothing is dropped, `dropped` stays as it is: the probabilities stand for themselves.
    fn scores_backward(rows: Scores, visible: Range<usize>, bias: Option<&[f32]>, lse: f32, dot: f32, drop: Option<(&Drops, usize, usize)>) {
        let Scores { p, dropped, ds } = rows;
        if let Some(bias) = bias {
            p.iter_mut().zip(bias).for_each(|(p, b)| *p += b);
        }
        p[visible.clone()].iter_mut().for_each(|p| *p = exp(*p - lse));
        p[..visible.start].fill(0.0);
        p[visible.end..].fill(0.0);
        match drop {
            None => ds.iter_mut().zip(p.iter()).for_each(|(d, p)| *d = p * (*d - dot)),
            Some((drops, query, key)) => {
                for (block, ((p, dropped), ds)) in p.chunks(BLOCK).zip(dropped.chunks_mut(BLOCK)).zip(ds.chunks_mut(BLOCK)).enumerate() {
                    let factors = drops.block(query, key + block * BLOCK);
                    for (((p, dropped), ds), f) in p.iter().zip(dropped).zip(ds).zip(&factors) {
                        *dropped = p * f;
                        *ds = p * (*ds * f - dot);
                    }
                }
            }
        }
    }
}
