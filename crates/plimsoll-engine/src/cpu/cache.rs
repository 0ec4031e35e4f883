//! One decoding step's attention: over each hypothesis' own cache, over the encoder's keys and values, or over a prompt's
//! and the cache behind it.
//!
//! Hypotheses that beam search reorders do not move their cache: `origin[row, position]` says which row of the cache
//! holds the keys and values of a position. The hypotheses of a prompt share its keys and values.

use plimsoll_plan::op::AttentionShape;

use super::Cores;
use super::attention::{Columns, first_seen, max};
use crate::math::exp;
use crate::pool::{Shared, tasks, worker};
use crate::simd::{dot, leveled};

/// Writes this step's keys and values behind the earlier ones.
pub fn cache_append(rows: usize, kv: Columns, width: usize, cache: Columns, max_len: usize, position: usize) {
    for row in 0..rows {
        let at = (row * max_len + position) * cache.stride + cache.start;
        // SAFETY: this row's columns, and their place in the cache, which nobody else touches now.
        let (from, to) = unsafe { (kv.data.slice(row * kv.stride + kv.start, width), cache.data.slice(at, width)) };
        to.copy_from_slice(from);
    }
}

/// A stretch of one row's keys, and where each of them lies; its values lie `kv_width` behind it.
#[derive(Clone, Copy)]
struct Past<'a> {
    data: &'a [f32],
    starts: &'a dyn Fn(usize) -> usize,
    count: usize,
}

/// The keys that a prompt's hypotheses share.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Keys, and behind them values, of each row.
    pub kv: Columns,
    /// First row of each prompt, and the end.
    pub starts: &'a [u32],
    /// Hypotheses of each prompt.
    pub beams: usize,
}

impl Prompt<'_> {
    /// (first row, rows) of a hypothesis' prompt.
    fn of(&self, row: usize) -> (usize, usize) {
        let at = row / self.beams;
        (self.starts[at] as usize, (self.starts[at + 1] - self.starts[at]) as usize)
    }

    /// # Safety
    /// Nobody writes the prompt's keys and values now.
    unsafe fn data(&self) -> &[f32] {
        let rows = *self.starts.last().unwrap_or(&0) as usize;
        // SAFETY: by the caller's promise.
        unsafe { self.kv.data.slice(0, rows * self.kv.stride) }
    }
}

/// The keys of this generation.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// `[rows, max_len, keys and values]`.
    pub data: &'a [f32],
    /// Which row of the cache holds each position of each hypothesis.
    pub origin: &'a [u32],
    /// Positions that a row has room for.
    pub max_len: usize,
    /// Position of this step.
    pub position: usize,
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
    let cache = Cache { data: cache, origin, max_len: shape.max_keys, position };
    let none = Prompt { kv: q, starts: &[], beams: 1 };
    attend_rows(cores, shape, rows, q, none, Some(cache), Some(bias), out, workspace);
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
    attend_rows(cores, shape, rows, q, Prompt { kv, starts: source_rows, beams }, None, None, out, workspace);
}

/// Attends one row per hypothesis over its prompt and what it generated since, this step included: one softmax over both.
/// `shape.max_keys` counts both. The bias, where there is one, is by distance.
pub fn decode_step(
    cores: Cores,
    shape: &AttentionShape,
    rows: usize,
    q: Columns,
    prompt: Prompt,
    cache: Cache,
    bias: Option<&[f32]>,
    out: &mut [f32],
    workspace: &mut [f32],
) {
    attend_rows(cores, shape, rows, q, prompt, Some(cache), bias, out, workspace);
}

/// A task is one row and one head of keys and values, with all query heads that read it.
fn attend_rows(
    cores: Cores,
    shape: &AttentionShape,
    rows: usize,
    q: Columns,
    prompt: Prompt,
    cache: Option<Cache>,
    bias: Option<&[f32]>,
    out: &mut [f32],
    workspace: &mut [f32],
) {
    let (d, kv_width) = (shape.d_kv, shape.kv_heads * shape.d_kv);
    assert!(workspace.len() >= cores.threads * shape.max_keys, "workspace is what the plan says");
    assert!(out.len() >= rows * shape.heads * d, "every row has its place");
    let space = Shared(workspace.as_mut_ptr());
    let out = Columns { data: Shared(out.as_mut_ptr()), start: 0, stride: shape.heads * d };
    // SAFETY: the prompt's keys and values, which nobody writes now.
    let prompt_data = unsafe { prompt.data() };
    tasks(rows * shape.kv_heads, |task| {
        let (row, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        // SAFETY: each worker has its own scratch.
        let scores = unsafe { space.slice(worker() * shape.max_keys, shape.max_keys) };
        let (first, prompted) = if prompt.starts.is_empty() { (0, 0) } else { prompt.of(row) };
        let made = cache.map_or(0, |cache| cache.position + 1);
        let query = (prompted + made).saturating_sub(1);
        let skipped = if cache.is_some() { first_seen(shape, query) } else { 0 };
        let (old, new) = (skipped.min(prompted), skipped.saturating_sub(prompted));
        let in_prompt = |at: usize| (first + old + at) * prompt.kv.stride + prompt.kv.start + kv_head * d;
        let in_cache = |at: usize| {
            let (cache, at) = (cache.expect("there are positions in it"), new + at);
            (cache.origin[row * cache.max_len + at] as usize * cache.max_len + at) * 2 * kv_width + kv_head * d
        };
        let pasts = [
            Past { data: prompt_data, starts: &in_prompt, count: prompted - old },
            Past { data: cache.map_or(&[], |cache| cache.data), starts: &in_cache, count: made - new },
        ];
        for head in kv_head * shape.group()..(kv_head + 1) * shape.group() {
            let at = head * shape.span() + shape.max_queries + skipped;
            let near = bias.map(|b| &b[at - 1 - query..][..prompted + made - skipped]);
            // SAFETY: this task alone reads and writes this head of this row.
            let (q, out) = unsafe { (q.part(row, head, d), out.part(row, head, d)) };
            attend(cores, shape.scale, kv_width, q, pasts, near, scores, out);
        }
    });
}

fn attend(
    cores: Cores,
    scale: f32,
    kv_width: usize,
    q: &[f32],
    pasts: [Past; 2],
    bias: Option<&[f32]>,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let d = q.len();
    let scores = &mut scores[..pasts[0].count + pasts[1].count];
    let places = || pasts.iter().flat_map(|past| (0..past.count).map(|at| (past.data, (past.starts)(at))));
    for (score, (data, at)) in scores.iter_mut().zip(places()) {
        *score = scale * row_dot(cores.simd, q, &data[at..][..d]);
    }
    if let Some(bias) = bias {
        scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
    }
    softmax(cores.simd, scores);
    out.fill(0.0);
    for (p, (data, at)) in scores.iter().zip(places()) {
        add_scaled(cores.simd, out, &data[at + kv_width..][..d], *p);
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
