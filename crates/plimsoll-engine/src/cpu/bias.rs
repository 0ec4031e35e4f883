//! T5's relative position bias: a table by bucket and head, expanded to a vector by distance, and back.
//!
//! `delta[head, key - query + max_queries - 1]`: the matrix of biases is never built, because it is constant along its
//! diagonals.

use plimsoll_plan::op::{AttentionShape, Write};

/// The bucket of a distance `key - query` (T5's, from Mesh TensorFlow): half of the buckets for exact small distances,
/// the other half in steps that grow by a constant factor up to `max_distance`.
pub fn bucket(distance: i64, bidirectional: bool, buckets: usize, max_distance: usize) -> usize {
    let (mut buckets, mut first, mut far) = (buckets, 0, 0i64);
    if bidirectional {
        buckets /= 2;
        if distance > 0 {
            first = buckets;
        }
        far = far.max(distance.abs());
    } else {
        far = far.max(-distance);
    }
    let exact = buckets / 2;
    if (far as usize) < exact {
        return first + far as usize;
    }
    // In f32, in the order in which PyTorch computes it, so that the border cases fall on the same side.
    let ratio = (far as f32 / exact as f32).ln() / ((max_distance as f64 / exact as f64).ln() as f32);
    let step = (ratio * (buckets - exact) as f32) as usize;
    first + (exact + step).min(buckets - 1)
}

/// Numbers that the bias is made from.
#[derive(Clone, Copy, Debug)]
pub struct BiasSpec {
    /// Rows of the table.
    pub buckets: usize,
    /// From here on all distances share a bucket.
    pub max_distance: usize,
}

fn bucket_at(at: usize, shape: &AttentionShape, spec: BiasSpec) -> usize {
    bucket(at as i64 - (shape.max_queries as i64 - 1), !shape.causal, spec.buckets, spec.max_distance)
}

/// `delta` from the table `[buckets, heads]`.
pub fn bias_expand(shape: &AttentionShape, spec: BiasSpec, table: &[f32], delta: &mut [f32]) {
    let span = shape.span();
    for at in 0..span {
        let row = bucket_at(at, shape, spec) * shape.heads;
        for head in 0..shape.heads {
            delta[head * span + at] = table[row + head];
        }
    }
}

/// The table's gradient from the gradient by distance.
pub fn bias_collect(shape: &AttentionShape, spec: BiasSpec, ddelta: &[f32], table_grad: &mut [f32], write: Write) {
    if write != Write::Add {
        table_grad.fill(0.0);
    }
    let span = shape.span();
    for at in 0..span {
        let row = bucket_at(at, shape, spec) * shape.heads;
        for head in 0..shape.heads {
            table_grad[row + head] += ddelta[head * span + at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_transformers() {
        // T5Attention._relative_position_bucket, transformers 5.22.2, 32 buckets, max distance 128.
        let both: Vec<usize> = [-200, -128, -64, -20, -8, -7, -1, 0, 1, 7, 8, 9, 20, 64, 127, 128, 200]
            .iter()
            .map(|d| bucket(*d, true, 32, 128))
            .collect();
        assert_eq!(both, [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 24, 26, 30, 31, 31, 31]);
        let causal: Vec<usize> =
            [-300, -128, -127, -64, -17, -16, -15, -1, 0, 1, 5].iter().map(|d| bucket(*d, false, 32, 128)).collect();
        assert_eq!(causal, [31, 31, 31, 26, 16, 16, 15, 1, 0, 0, 0]);
    }
}
