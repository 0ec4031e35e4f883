//! One decoding step's attention: over each hypothesis' own cache, and over the encoder's keys and values.
//!
//! Hypotheses that beam search reorders do not move their cache: `origin[row, position]` says which row of the cache
//! holds the keys and values of a position.

use plimsoll_plan::op::AttentionShape;

use super::Cores;
use super::attention::{Columns, max};
use crate::math::exp;
use crate::pool::{Shared, tasks, worker};
use crate::simd::{dot, leveled};

/// Writes this step's keys and values behind the earlier ones.
pub fn cache_append(rows: usize, kv: Columns, width: usize, max_len: usize, position: usize, cache: &mut [f32]) {
    for row in 0..rows {
        // SAFETY: keys and values of this row, side by side, which nobody writes now.
        let from = unsafe { kv.data.slice(row * kv.stride + kv.start, width) };
        cache[(row * max_len + position) * width..][..width].copy_from_slice(from);
    }
}

/// Where one row's keys and values lie.
struct Past<'a> {
    data: &'a [f32],
    /// First element of each position's keys; values follow them.
    starts: &'a dyn Fn(usize) -> usize,
    count: usize,
    inner: usize,
}

/// Attends one row per hypothesis over its cache.
pub fn attention_step(
    cores: Cores,
    shape: &AttentionShape,
    rows: usize,
    q: Columns,
    cache: &[f32],
    origin: &[u32],
    position: usize,
    bias: &[f32],
    out: &mut [f32],
    workspace: &mut [f32],
) {
    let inner = shape.heads * shape.d_kv;
    let max_len = shape.max_keys;
    each_row(cores, shape, rows, q, out, workspace, |row, head, q, scores, out| {
        let starts = |at: usize| (origin[row * max_len + at] as usize * max_len + at) * 2 * inner;
        let past = Past { data: cache, starts: &starts, count: position + 1, inner };
        let near = &bias[head * shape.span() + shape.max_queries - 1 - position..][..position + 1];
        attend(cores, shape, head, q, past, Some(near), scores, out);
    });
}

/// Attends one row per hypothesis over the encoder's rows of its prompt.
pub fn cross_step(
    cores: Cores,
    shape: &AttentionShape,
    rows: usize,
    beams: usize,
    q: Columns,
    kv: Columns,
    source_rows: &[u32],
    out: &mut [f32],
    workspace: &mut [f32],
) {
    let inner = shape.heads * shape.d_kv;
    let total = *source_rows.last().unwrap_or(&0) as usize;
    // SAFETY: the encoder's keys and values, which nobody writes now.
    let data: &[f32] = unsafe { kv.data.slice(0, total * kv.stride) };
    each_row(cores, shape, rows, q, out, workspace, |row, head, q, scores, out| {
        let prompt = row / beams;
        let (first, end) = (source_rows[prompt] as usize, source_rows[prompt + 1] as usize);
        let starts = |at: usize| (first + at) * kv.stride + kv.start;
        attend(cores, shape, head, q, Past { data, starts: &starts, count: end - first, inner }, None, scores, out);
    });
}

fn each_row(
    cores: Cores,
    shape: &AttentionShape,
    rows: usize,
    q: Columns,
    out: &mut [f32],
    workspace: &mut [f32],
    f: impl Fn(usize, usize, &[f32], &mut [f32], &mut [f32]) + Sync + Send,
) {
    let d = shape.d_kv;
    assert!(workspace.len() >= cores.threads * shape.max_keys, "workspace is what the plan says");
    assert!(out.len() >= rows * shape.heads * d, "every row has its place");
    let (space, out) = (Shared(workspace.as_mut_ptr()), Shared(out.as_mut_ptr()));
    tasks(rows, |row| {
        // SAFETY: each worker has its own scratch.
        let scores = unsafe { space.slice(worker() * shape.max_keys, shape.max_keys) };
        for head in 0..shape.heads {
            // SAFETY: this task alone reads and writes this row.
            let (q, out) = unsafe {
                (q.data.slice(row * q.stride + q.start + head * d, d), out.slice((row * shape.heads + head) * d, d))
            };
            f(row, head, q, scores, out);
        }
    });
}

fn attend(
    cores: Cores,
    shape: &AttentionShape,
    head: usize,
    q: &[f32],
    past: Past,
    bias: Option<&[f32]>,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let d = shape.d_kv;
    let scores = &mut scores[..past.count];
    for (at, score) in scores.iter_mut().enumerate() {
        let keys = &past.data[(past.starts)(at) + head * d..][..d];
        *score = row_dot(cores.simd, q, keys) + bias.map_or(0.0, |b| b[at]);
    }
    softmax(cores.simd, scores);
    out.fill(0.0);
    for (at, p) in scores.iter().enumerate() {
        let values = &past.data[(past.starts)(at) + past.inner + head * d..][..d];
        add_scaled(cores.simd, out, values, *p);
    }
}

leveled! {
    fn row_dot(a: &[f32], b: &[f32]) -> f32 {
        dot(a, b)
    }
}

leveled! {
    fn add_scaled(out: &mut [f32], values: &[f32], p: f32) {
        out.iter_mut().zip(values).for_each(|(o, v)| *o += p * v);
    }
}

leveled! {
    fn softmax(scores: &mut [f32]) {
        let most = max(scores);
        let mut sum = 0.0;
        for s in scores.iter_mut() {
            *s = exp(*s - most);
            sum += *s;
        }
        scores.iter_mut().for_each(|s| *s /= sum);
    }
}
