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
pub mod additive_pool;
pub mod attention;
pub mod attention_backward;
pub mod batch_norm;
pub mod bias;
pub mod cache;
pub mod column_sum;
pub mod conv;
pub mod copy;
pub mod drop;
pub mod embed;
pub mod gated_gelu;
pub mod gated_silu;
pub mod gelu;
pub mod gelu_erf;
pub mod gradient_norm;
pub mod head_norm;
pub mod input;
pub mod layer_norm;
pub mod lion;
pub mod loss;
pub mod lstm;
pub mod lstm_backward;
pub mod matmul;
pub mod mixing;
pub mod norm;
pub mod norm_pool;
pub mod positions;
pub mod relu;
pub mod residual;
pub mod rope;
pub mod series_loss;
pub mod sgd;
pub mod summary;
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
pub enum Rows<'a> {
    /// Listed one by one.
    Listed {
        /// Sample of each row, counted in the effective batch.
        sample: &'a [u32],
        /// Position of each row in its sample.
        position: &'a [u32],
    },
    /// So many of each sample.
    Even {
        /// The first sample, counted in the effective batch.
        first: u32,
        /// Samples.
        samples: usize,
        /// Rows of each.
        steps: usize,
    },
}

impl<'a> Rows<'a> {
    /// Sample and position of each row, where they are listed.
    pub fn listed(&self) -> (&'a [u32], &'a [u32]) {
        match self {
            Rows::Listed { sample, position } => (sample, position),
            Rows::Even { .. } => (&[], &[]),
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Rows::Listed { sample, .. } => sample.len(),
            Rows::Even { samples, steps, .. } => samples * steps,
        }
    }

    /// No rows at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sample of a row, counted in the effective batch.
    #[inline(always)]
    pub fn sample(&self, row: usize) -> u32 {
        match self {
            Rows::Listed { sample, .. } => sample[row],
            Rows::Even { first, steps, .. } => first + (row / steps) as u32,
        }
    }

    /// Position of a row in its sample.
    #[inline(always)]
    pub fn position(&self, row: usize) -> u64 {
        match self {
            Rows::Listed { position, .. } => u64::from(position[row]),
            Rows::Even { steps, .. } => (row % steps) as u64,
        }
    }
}

/// Multiplies a row by its dropout factors, where there are any.
#[inline(always)]
fn apply(drop: Option<&Dropper>, rows: &Rows, row: usize, values: &mut [f32]) {
    if let Some(dropper) = drop {
        dropper.apply(rows.sample(row), rows.position(row), values);
    }
}

/// Rows of `width` columns that make a task worth its while.
fn grain(width: usize) -> usize {
    (16 * 1024 / width.max(1)).max(1)
}
