//! Sum of squares of a gradient, in f64, in chunks that do not depend on the threads.

use plimsoll_plan::op::NORM_CHUNK;

use super::Cores;
use crate::simd::{dot, leveled};

/// Sum of squares.
pub fn sum_of_squares(cores: Cores, values: &[f32]) -> f64 {
    // Pairs are reduced by position, so the order of additions is fixed by the length alone.
    fn reduce(cores: Cores, values: &[f32]) -> f64 {
        if values.len() <= NORM_CHUNK {
            return squares(cores.simd, values);
        }
        let half = values.len() / NORM_CHUNK / 2 * NORM_CHUNK;
        let half = if half == 0 { NORM_CHUNK } else { half };
        let (a, b) = values.split_at(half.min(values.len()));
        let (a, b) = rayon::join(|| reduce(cores, a), || reduce(cores, b));
        a + b
    }
    reduce(cores, values)
}

leveled! {
    fn squares(values: &[f32]) -> f64 {
        // A loop: in a closure of an iterator the instruction set level is lost, and with it a factor of ten.
        let mut sum = 0.0f64;
        for chunk in values.chunks(1024) {
            sum += f64::from(dot(chunk, chunk));
        }
        sum
    }
}
