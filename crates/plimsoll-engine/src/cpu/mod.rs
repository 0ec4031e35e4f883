//! The CPU kernels: one op, one file, the op's name.
//!
//! A kernel gets slices, never allocates, and cuts its work by shapes alone wherever it takes a sum.

use plimsoll_plan::tiles::Simd;

pub use crate::philox::Dropper;
pub use crate::pool::Shared;

pub mod adafactor;
pub mod adamw;
pub mod adamw16bit;
pub mod adamw8bit;
pub mod attention;
pub mod attention_backward;
pub mod bias;
pub mod cache;
pub mod column_sum;
pub mod copy;
pub mod drop;
pub mod embed;
pub mod gated_gelu;
pub mod gated_silu;
pub mod gelu;
pub mod gradient_norm;
pub mod head_norm;
pub mod layer_norm;
pub mod lion;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod relu;
pub mod residual;
pub mod rope;
pub mod sgd;
pub mod weight;
pub mod weights;

/// What the kernels run on.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Instruction set level.
    pub simd: Simd,
    /// Workers of the pool.
    pub threads: usize,
}

/// The rows of one side of a batch, and whose they are.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Sample of each row, counted in the effective batch.
    pub sample: &'a [u32],
    /// Position of each row in its sample.
    pub position: &'a [u32],
}

impl Rows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.sample.len()
    }

    /// No rows at all.
    pub fn is_empty(&self) -> bool {
        self.sample.is_empty()
    }
}

/// Multiplies a row by its dropout factors, where there are any.
#[inline(always)]
fn apply(drop: Option<&Dropper>, rows: &Rows, row: usize, values: &mut [f32]) {
    if let Some(dropper) = drop {
        dropper.apply(rows.sample[row], u64::from(rows.position[row]), values);
    }
}

/// Rows of `width` columns that make a task worth its while.
fn grain(width: usize) -> usize {
    (16 * 1024 / width.max(1)).max(1)
}
