//! Statistics of batch norm: of the rows at hand, and running ones.
//!
//! Sums are taken in doubles, in chunks cut by shapes, so that they are the same on any number of threads and a mean far
//! from zero costs no digits of the variance.

use plimsoll_plan::op::REDUCE_CHUNKS;

use super::Cores;
use crate::pool;
use crate::simd::leveled;

/// Running mean, variance and count: as they are, and where what they will be goes.
#[derive(Debug)]
pub struct RunningStats<'a> {
    /// As they are: or, in a later micro-batch of an update, as the last one left them.
    pub now: [&'a [f32]; 3],
    /// What they will be.
    pub next: [&'a mut [f32]; 3],
    /// Share of this batch.
    pub momentum: f32,
}

/// Doubles in a slice of scratch.
pub(super) fn doubles(words: &mut [f32], count: usize) -> &mut [f64] {
    // SAFETY: any bits are a double, and the middle part is aligned for it.
    let (_, middle, _) = unsafe { words.align_to_mut::<f64>() };
    &mut middle[..count]
}

/// `stats`: the mean of each column, then its inverse deviation; and what running statistics will be.
pub fn batch_stats(
    cores: Cores,
    rows: usize,
    width: usize,
    eps: f32,
    x: &[f32],
    stats: &mut [f32],
    running: RunningStats,
    workspace: &mut [f32],
) {
    assert!(x.len() >= rows * width && stats.len() >= 2 * width, "every row has its place");
    let partial = doubles(workspace, 2 * REDUCE_CHUNKS * width);
    let chunk = rows.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = rows.div_ceil(chunk);
    let at = Doubles(partial.as_mut_ptr());
    pool::tasks(chunks, |task| {
        // SAFETY: each task has its own sums.
        let sums = unsafe { at.slice(task * 2 * width, 2 * width) };
        sums.fill(0.0);
        let range = task * chunk..((task + 1) * chunk).min(rows);
        add_rows(cores.simd, width, &x[range.start * width..range.end * width], sums);
    });
    let count = rows.max(1) as f64;
    let (means, inverses) = stats.split_at_mut(width);
    let [mean_now, variance_now, batches_now] = running.now;
    let [mean_next, variance_next, batches_next] = running.next;
    let share = f64::from(running.momentum);
    let moved = |now: f32, to: f64| ((1.0 - share) * f64::from(now) + share * to) as f32;
    for c in 0..width {
        let total = |nth: usize| (0..chunks).map(|chunk| partial[chunk * 2 * width + nth * width + c]).sum::<f64>();
        let mean = total(0) / count;
        let variance = (total(1) / count - mean * mean).max(0.0);
        means[c] = mean as f32;
        inverses[c] = (1.0 / (variance + f64::from(eps)).sqrt()) as f32;
        mean_next[c] = moved(mean_now[c], mean);
        variance_next[c] = moved(variance_now[c], variance * count / (count - 1.0).max(1.0));
    }
    batches_next[0] = batches_now[0] + 1.0;
}

leveled! {
    fn add_rows(width: usize, x: &[f32], sums: &mut [f64]) {
        let (plain, squares) = sums.split_at_mut(width);
        for row in x.chunks_exact(width) {
            for ((s, q), x) in plain.iter_mut().zip(squares.iter_mut()).zip(row) {
                let x = f64::from(*x);
                *s += x;
                *q += x * x;
            }
        }
    }
}

/// `stats` from running statistics.
pub fn running_stats(mean: &[f32], variance: &[f32], eps: f32, stats: &mut [f32]) {
    let (means, inverses) = stats.split_at_mut(mean.len());
    means.copy_from_slice(mean);
    for (inverse, variance) in inverses.iter_mut().zip(variance) {
        *inverse = (1.0 / (f64::from(*variance) + f64::from(eps)).sqrt()) as f32;
    }
}

/// Doubles that tasks share, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Doubles(pub *mut f64);

// SAFETY: tasks write to disjoint places.
unsafe impl Send for Doubles {}
// SAFETY: as above.
unsafe impl Sync for Doubles {}

impl Doubles {
    /// The slice `start .. start + len`.
    ///
    /// # Safety
    /// As for `Shared::slice`.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [f64] {
        // SAFETY: by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
