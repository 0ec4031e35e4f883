//! Attention: `out = drop(softmax(q k^T + bias)) v`, a tile of query rows at a time; T5 does not scale the scores.
//!
//! A task is one head of one sample. It packs keys and values once, then takes tiles of query rows: the only scores that
//! exist are one tile's. Of the softmax, only the log-sum-exp of each row is kept.

use plimsoll_plan::op::AttentionShape;
use plimsoll_plan::tiles::Tiles;

use super::Cores;
use super::matmul::{Matrix, Output, matmul_packed, pack};
use crate::math::exp;
use crate::philox::{BLOCK, Dropper};
use crate::pool::{Shared, tasks, worker};
use crate::simd::{LANES, fold, leveled};

/// Columns of a row-major tensor.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// The tensor's first element.
    pub data: Shared,
    /// First column.
    pub start: usize,
    /// Length of a row.
    pub stride: usize,
}

impl Columns {
    /// One head's part, from a row on, to read.
    pub(super) fn head(&self, row: usize, head: usize, d_kv: usize) -> Matrix {
        let at = row * self.stride + self.start + head * d_kv;
        Matrix { data: self.data.first().wrapping_add(at), row_stride: self.stride, col_stride: 1 }
    }

    /// One head's part, from a row on, to write.
    pub(super) fn head_out(&self, row: usize, head: usize, d_kv: usize, add: bool) -> Output {
        let at = row * self.stride + self.start + head * d_kv;
        Output { data: self.data.first().wrapping_add(at), stride: self.stride, add, scale: 1.0, bias: None }
    }
}

/// The samples of a batch on both sides: first rows, and one past the last.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// First query row of each sample, and the end.
    pub queries: &'a [u32],
    /// First key row of each sample, and the end.
    pub keys: &'a [u32],
    /// Index of the first sample in the effective batch.
    pub first: u32,
}

impl Samples<'_> {
    /// Number of samples.
    pub fn count(&self) -> usize {
        self.queries.len() - 1
    }

    /// (first query row, queries, first key row, keys) of a sample.
    pub(super) fn get(&self, sample: usize) -> (usize, usize, usize, usize) {
        let (q0, q1) = (self.queries[sample] as usize, self.queries[sample + 1] as usize);
        let (k0, k1) = (self.keys[sample] as usize, self.keys[sample + 1] as usize);
        (q0, q1 - q0, k0, k1 - k0)
    }
}

/// Takes the next `words` of a scratch slice.
pub(super) fn take<'a>(rest: &mut &'a mut [f32], words: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(rest).split_at_mut(words);
    *rest = tail;
    head
}

/// Row of the dropout generator for one query row of one head.
#[inline(always)]
pub(super) fn drop_row(shape: &AttentionShape, head: usize, query: usize) -> u64 {
    (head * shape.max_queries + query) as u64
}

/// Keys that a tile of query rows sees.
pub(super) fn seen(shape: &AttentionShape, keys: usize, end_of_tile: usize) -> usize {
    if shape.causal { keys.min(end_of_tile) } else { keys }
}

/// Attends. `lse[row, head]`; `out[row, heads * d_kv]`.
pub fn attention_forward(
    cores: Cores,
    shape: &AttentionShape,
    samples: Samples,
    q: Columns,
    k: Columns,
    v: Columns,
    bias: Option<&[f32]>,
    out: &mut [f32],
    lse: &mut [f32],
    drop: Option<&Dropper>,
    workspace: &mut [f32],
) {
    let tiles = Tiles::of(cores.simd);
    let scratch = shape.forward_words(&tiles);
    assert!(workspace.len() >= cores.threads * scratch, "workspace is what the plan says");
    let rows = samples.queries[samples.count()] as usize;
    assert!(out.len() >= rows * shape.heads * shape.d_kv && lse.len() >= rows * shape.heads, "every row has its place");
    let (space, lse) = (Shared(workspace.as_mut_ptr()), Shared(lse.as_mut_ptr()));
    let out = Columns { data: Shared(out.as_mut_ptr()), start: 0, stride: shape.heads * shape.d_kv };
    tasks(samples.count() * shape.heads, |task| {
        let (sample, head) = (task / shape.heads, task % shape.heads);
        let (q0, queries, k0, keys) = samples.get(sample);
        let d = shape.d_kv;
        // SAFETY: each worker has its own scratch.
        let mut rest = unsafe { space.slice(worker() * scratch, scratch) };
        let rest = &mut rest;
        let packed_k = take(rest, tiles.packed_words(shape.max_keys, d));
        let packed_v = take(rest, tiles.packed_words(d, shape.max_keys));
        let scores = take(rest, shape.tile_rows() * shape.max_keys);
        // SAFETY: this head's keys and values of this sample, which nobody writes now.
        let (packed_k, packed_v) = unsafe {
            (
                pack(cores.simd, keys, d, k.head(k0, head, d).transposed(), packed_k),
                pack(cores.simd, d, keys, v.head(k0, head, d), packed_v),
            )
        };
        let delta = bias.map(|b| &b[head * shape.span()..(head + 1) * shape.span()]);
        for from in (0..queries).step_by(shape.tile_rows()) {
            let tall = shape.tile_rows().min(queries - from);
            let wide = seen(shape, keys, from + tall);
            let tile = Output { data: scores.as_mut_ptr(), stride: wide, add: false, scale: 1.0, bias: None };
            // SAFETY: the tile is `tall x wide`; queries of this sample and head.
            unsafe { matmul_packed(cores.simd, tall, wide, q.head(q0 + from, head, d), packed_k, tile, &mut []) };
            for i in 0..tall {
                let query = from + i;
                let row = &mut scores[i * wide..(i + 1) * wide];
                let near = delta.map(|d| &d[shape.max_queries - 1 - query..][..wide]);
                let visible = seen(shape, wide, query + 1);
                let value = softmax_row(cores.simd, row, visible, near);
                // SAFETY: this task alone writes this head's column of this sample's rows.
                unsafe { lse.slice((q0 + query) * shape.heads + head, 1)[0] = value };
                if let Some(dropper) = drop {
                    drop_scores(
                        cores.simd,
                        dropper,
                        samples.first + sample as u32,
                        drop_row(shape, head, query),
                        shape.max_keys,
                        row,
                    );
                }
            }
            let probabilities = Matrix { data: scores.as_ptr(), row_stride: wide, col_stride: 1 };
            // SAFETY: this task alone writes this head's columns of these rows; the depth used is `wide`.
            unsafe {
                matmul_packed(
                    cores.simd,
                    tall,
                    d,
                    probabilities,
                    packed_v.shallower(wide),
                    out.head_out(q0 + from, head, d, false),
                    &mut [],
                )
            };
        }
    });
}

leveled! {
    /// Adds the bias, takes the softmax of the first `visible` scores, zeroes the rest; returns the log-sum-exp.
    fn softmax_row(row: &mut [f32], visible: usize, bias: Option<&[f32]>) -> f32 {
        let (seen, unseen) = row.split_at_mut(visible);
        unseen.fill(0.0);
        if let Some(bias) = bias {
            seen.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        let most = max(seen);
        let mut lanes = [0.0f32; LANES];
        let split = visible / LANES * LANES;
        for chunk in seen[..split].chunks_exact_mut(LANES) {
            for i in 0..LANES {
                chunk[i] = exp(chunk[i] - most);
                lanes[i] += chunk[i];
            }
        }
        for (lane, s) in lanes.iter_mut().zip(&mut seen[split..]) {
            *s = exp(*s - most);
            *lane += *s;
        }
        let sum = fold(lanes);
        let inverse = 1.0 / sum;
        seen.iter_mut().for_each(|s| *s *= inverse);
        most + sum.ln()
    }
}

/// Largest element, lane by lane.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let split = values.len() / LANES * LANES;
    for chunk in values[..split].chunks_exact(LANES) {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    values[split..].iter().chain(&lanes).copied().fold(f32::NEG_INFINITY, f32::max)
}

leveled! {
    fn drop_scores(dropper: &Dropper, sample: u32, row: u64, width: usize, scores: &mut [f32]) {
        for (block, scores) in scores.chunks_mut(BLOCK).enumerate() {
            let factors = dropper.block(sample, row, width, block);
            scores.iter_mut().zip(&factors).for_each(|(s, f)| *s *= f);
        }
    }
}
