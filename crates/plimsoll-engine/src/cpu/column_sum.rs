//! `grad (+)= sum over rows` of strided columns: the gradient of a bias.

use plimsoll_plan::op::{REDUCE_CHUNKS, Write};

use super::Cores;
use super::attention::Columns;
use super::norm::add_partials;
use crate::pool::{self, Shared};
use crate::simd::leveled;

/// Sums `grad.len()` columns; `partial` holds `REDUCE_CHUNKS` times as many words.
pub fn column_sum(cores: Cores, count: usize, x: Columns, grad: &mut [f32], write: Write, partial: &mut [f32]) {
    let width = grad.len();
    assert!(partial.len() >= REDUCE_CHUNKS * width, "workspace is what the plan says");
    let partial_at = Shared(partial.as_mut_ptr());
    let chunk = count.div_ceil(REDUCE_CHUNKS).max(1);
    let chunks = count.div_ceil(chunk);
    pool::tasks(chunks, |task| {
        // SAFETY: each task has its own partial sum.
        let sum = unsafe { partial_at.slice(task * width, width) };
        sum.fill(0.0);
        for row in task * chunk..((task + 1) * chunk).min(count) {
            // SAFETY: columns of this row, which nobody writes now.
            add_row(cores.simd, sum, unsafe { x.part(row, 0, width) });
        }
    });
    add_partials(grad, write, &partial[..chunks * width]);
}

leveled! {
    fn add_row(sum: &mut [f32], row: &[f32]) {
        sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
    }
}
