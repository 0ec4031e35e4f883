//! Attention: `out = drop(softmax(scale * q k^T + bias)) v`, a tile of query rows and a block of keys at a time.
//!
//! A task is one head of one document. It packs a block of keys and values, then takes the tiles of query rows that see
//! some of them: the only scores that exist are one tile's. Of the softmax, only the log-sum-exp of each row is kept; it is
//! also all that a later block needs to know of the earlier ones.

use std::ops::Range;

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
    pub(super) fn head_out(&self, row: usize, head: usize, d_kv: usize, add: bool, scale: f32) -> Output {
        let at = row * self.stride + self.start + head * d_kv;
        Output { data: self.data.first().wrapping_add(at), stride: self.stride, add, scale, bias: None }
    }

    /// One head's part of one row.
    ///
    /// # Safety
    /// The row lies inside the tensor, and no other live slice overlaps it.
    pub(super) unsafe fn part<'a>(&self, row: usize, head: usize, width: usize) -> &'a mut [f32] {
        // SAFETY: by the caller's promise.
        unsafe { self.data.slice(row * self.stride + self.start + head * width, width) }
    }
}

/// The documents of a batch on both sides: rows that attend to each other and to no others.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// First query row of each document, and the end.
    pub queries: &'a [u32],
    /// First key row of each document, and the end.
    pub keys: &'a [u32],
    /// Index in the effective batch of the sample that each document is part of. Read for dropout alone.
    pub sample: &'a [u32],
    /// First row of each document inside its sample. Read for dropout alone.
    pub offset: &'a [u32],
}

impl Samples<'_> {
    /// Number of documents.
    pub fn count(&self) -> usize {
        self.queries.len() - 1
    }

    /// (first query row, queries, first key row, keys) of a document.
    pub(super) fn get(&self, document: usize) -> (usize, usize, usize, usize) {
        let (q0, q1) = (self.queries[document] as usize, self.queries[document + 1] as usize);
        let (k0, k1) = (self.keys[document] as usize, self.keys[document + 1] as usize);
        // A tensor of some documents begins with the first of them.
        (q0 - self.queries[0] as usize, q1 - q0, k0 - self.keys[0] as usize, k1 - k0)
    }

    /// What dropout needs to know of one head of a document.
    pub(super) fn drops<'a>(
        &self,
        shape: &AttentionShape,
        drop: Option<&'a Dropper>,
        document: usize,
        head: usize,
    ) -> Option<Drops<'a>> {
        let (max_queries, width) = (shape.max_queries, shape.max_keys);
        drop.map(|dropper| Drops {
            dropper,
            sample: self.sample[document],
            first: (head * max_queries) as u64 + u64::from(self.offset[document]),
            width,
        })
    }
}

/// The dropout of one head of one document.
#[derive(Clone, Copy)]
pub(super) struct Drops<'a> {
    dropper: &'a Dropper,
    sample: u32,
    /// The generator's row of the first query.
    first: u64,
    width: usize,
}

impl Drops<'_> {
    /// The factors of 64 keys of a query, from `key` on, a multiple of 64.
    #[inline(always)]
    pub(super) fn block(&self, query: usize, key: usize) -> [f32; BLOCK] {
        self.dropper.block(self.sample, self.first + query as u64, self.width, key / BLOCK)
    }
}

/// Takes the next `words` of a scratch slice.
pub(super) fn take<'a>(rest: &mut &'a mut [f32], words: usize) -> &'a mut [f32] {
    let (head, tail) = std::mem::take(rest).split_at_mut(words);
    *rest = tail;
    head
}

/// First key that a query sees, counted in its document.
pub(super) fn first_seen(shape: &AttentionShape, query: usize) -> usize {
    match shape.window {
        Some(window) if shape.causal => (query + 1).saturating_sub(window),
        _ => 0,
    }
}

/// The keys of a block that a tile of query rows is multiplied with, from whole dropout blocks on (whole panels too); none
/// where no query of the tile sees any.
pub(super) fn met(
    shape: &AttentionShape,
    from: usize,
    tall: usize,
    block: Range<usize>,
    keys: usize,
) -> Option<Range<usize>> {
    let first = first_seen(shape, from).max(block.start);
    let end = if shape.causal { keys.min(from + tall) } else { keys }.min(block.end);
    (first < end).then_some(first / BLOCK * BLOCK..end)
}

/// Which of the `met` keys a query sees, counted from the first of them.
pub(super) fn visible(shape: &AttentionShape, query: usize, met: &Range<usize>) -> Range<usize> {
    let end = if shape.causal { met.end.min(query + 1) } else { met.end }.max(met.start);
    first_seen(shape, query).clamp(met.start, end) - met.start..end - met.start
}

/// Attends. `lse[row, head]`; `out[row, heads * d_kv]`. A query without any key gets zeros.
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
    let rows = (samples.queries[samples.count()] - samples.queries[0]) as usize;
    assert!(out.len() >= rows * shape.heads * shape.d_kv && lse.len() >= rows * shape.heads, "every row has its place");
    let (space, lse) = (Shared(workspace.as_mut_ptr()), Shared(lse.as_mut_ptr()));
    let out = Columns { data: Shared(out.as_mut_ptr()), start: 0, stride: shape.heads * shape.d_kv };
    tasks(samples.count() * shape.heads, |task| {
        // SAFETY: each worker has its own scratch.
        let scratch = unsafe { space.slice(worker() * scratch, scratch) };
        let (document, head) = (task / shape.heads, task % shape.heads);
        let drops = samples.drops(shape, drop, document, head);
        let one = Head { cores, shape, tiles, q, k, v, out, lse, head, drops };
        let delta = bias.map(|b| &b[head * shape.span()..(head + 1) * shape.span()]);
        // SAFETY: this task alone writes this head's columns of this document's rows.
        unsafe { one.run(samples.get(document), delta, scratch) };
    });
}

/// One head of one document.
struct Head<'a> {
    cores: Cores,
    shape: &'a AttentionShape,
    tiles: Tiles,
    q: Columns,
    k: Columns,
    v: Columns,
    out: Columns,
    lse: Shared,
    head: usize,
    drops: Option<Drops<'a>>,
}

impl Head<'_> {
    /// # Safety
    /// Nobody else touches this head's columns of this document's outputs while it runs.
    unsafe fn run(
        &self,
        (q0, queries, k0, keys): (usize, usize, usize, usize),
        delta: Option<&[f32]>,
        scratch: &mut [f32],
    ) {
        let Head { shape, tiles, head, .. } = *self;
        let (simd, d, tile) = (self.cores.simd, shape.d_kv, shape.tile_rows());
        let mut rest = scratch;
        let rest = &mut rest;
        let packed_k = take(rest, tiles.packed_words(shape.key_block(), d));
        let packed_v = take(rest, tiles.packed_words(d, shape.key_block()));
        let scores = take(rest, tile * shape.key_block());
        for query in (0..queries).filter(|query| first_seen(shape, *query) >= keys) {
            // SAFETY: by the caller's promise.
            unsafe {
                self.out.part(q0 + query, head, d).fill(0.0);
                self.lse.slice((q0 + query) * shape.heads + head, 1)[0] = f32::NEG_INFINITY;
            }
        }
        for start in (0..keys).step_by(shape.key_block()) {
            let block = start..(start + shape.key_block()).min(keys);
            let (first, of) = (k0 + start, head / shape.group());
            // SAFETY: this head's keys and values of this document, which nobody writes now.
            let (packed_k, packed_v) = unsafe {
                (
                    pack(simd, block.len(), d, self.k.head(first, of, d).transposed(), packed_k),
                    pack(simd, d, block.len(), self.v.head(first, of, d), packed_v),
                )
            };
            for from in (0..queries).step_by(tile) {
                let tall = tile.min(queries - from);
                let Some(met) = met(shape, from, tall, block.clone(), keys) else { continue };
                let (wide, skipped) = (met.len(), met.start - start);
                let again = start > first_seen(shape, from);
                let into =
                    Output { data: scores.as_mut_ptr(), stride: wide, add: false, scale: shape.scale, bias: None };
                // SAFETY: the tile is `tall x wide`; queries of this document and head.
                unsafe {
                    let (q, k) = (self.q.head(q0 + from, head, d), packed_k.from_column(simd, skipped));
                    matmul_packed(simd, tall, wide, q, k, into, &mut [])
                };
                for i in 0..tall {
                    let query = from + i;
                    let row = &mut scores[i * wide..(i + 1) * wide];
                    let near = delta.map(|d| &d[shape.max_queries - 1 - query + met.start..][..wide]);
                    // SAFETY: by the caller's promise.
                    let (lse, out) = unsafe {
                        let out = again.then(|| self.out.part(q0 + query, head, d));
                        (&mut self.lse.slice((q0 + query) * shape.heads + head, 1)[0], out)
                    };
                    softmax_row(simd, row, visible(shape, query, &met), near, lse, out);
                    if let Some(drops) = &self.drops {
                        drop_scores(simd, drops, query, met.start, row);
                    }
                }
                let probabilities = Matrix { data: scores.as_ptr(), row_stride: wide, col_stride: 1 };
                // SAFETY: this task alone writes this head's columns of these rows; the depth used is `wide`.
                unsafe {
                    let v = packed_v.from_depth(simd, skipped).shallower(wide);
                    let out = self.out.head_out(q0 + from, head, d, again, 1.0);
                    matmul_packed(simd, tall, d, probabilities, v, out, &mut [])
                };
            }
        }
    }
}

leveled! {
    /// Adds the bias, takes the softmax of the `visible` scores, zeroes the others, and leaves the log-sum-exp. Where
    /// earlier blocks have been at `out`, the probabilities and what is there are weighed against each other.
    fn softmax_row(row: &mut [f32], visible: Range<usize>, bias: Option<&[f32]>, lse: &mut f32, out: Option<&mut [f32]>) {
        row[..visible.start].fill(0.0);
        row[visible.end..].fill(0.0);
        let seen = &mut row[visible.clone()];
        if seen.is_empty() {
            if out.is_none() {
                *lse = f32::NEG_INFINITY;
            }
            return;
        }
        if let Some(bias) = bias {
            seen.iter_mut().zip(&bias[visible]).for_each(|(s, b)| *s += b);
        }
        let most = max(seen);
        let mut lanes = [0.0f32; LANES];
        let split = seen.len() / LANES * LANES;
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
        let here = most + sum.ln();
        let inverse = match out {
            None => {
                *lse = here;
                1.0 / sum
            }
            Some(out) => {
                let high = here.max(*lse);
                let both = high + ((here - high).exp() + (*lse - high).exp()).ln();
                let keep = (*lse - both).exp();
                out.iter_mut().for_each(|o| *o *= keep);
                *lse = both;
                (here - both).exp() / sum
            }
        };
        seen.iter_mut().for_each(|s| *s *= inverse);
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
    fn drop_scores(drops: &Drops, query: usize, key: usize, scores: &mut [f32]) {
        for (at, scores) in scores.chunks_mut(BLOCK).enumerate() {
            let factors = drops.block(query, key + at * BLOCK);
            scores.iter_mut().zip(&factors).for_each(|(s, f)| *s *= f);
        }
    }
}
