//! What self-attention over the steps of series would take if its matrix were built, as PyTorch's plain form does: steps times steps
//! of each head of each sample. Here at most 64 MiB of it are, at a time; the plan says so, because that is where such jobs die elsewhere.

use std::fmt;

use plimsoll_machine::Bytes;

use crate::device::GATHERED;
use crate::spec::{SeriesAttention, SeriesSpec};

/// Bytes of scores that are held at a time, at most: on a card in f32, where attention is products of the matrix library.
const HELD: Bytes = Bytes(4 * GATHERED as u64);

/// The matrix of one micro-batch, which is never built whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMatrix {
    /// Steps that attend to each other.
    pub steps: usize,
    /// Samples of a micro-batch.
    pub samples: usize,
    /// Heads of each.
    pub heads: usize,
}

impl AttentionMatrix {
    /// That of a micro-batch of so many samples; none where the model has no such attention, or it is no larger than what may be held at a
    /// time.
    pub fn of(spec: &SeriesSpec, samples: usize) -> Option<AttentionMatrix> {
        let SeriesAttention::MultiHead { heads, .. } = spec.attention else { return None };
        let matrix = AttentionMatrix { steps: spec.lstm_steps(), samples, heads };
        (matrix.bytes(4) > HELD).then_some(matrix)
    }

    /// What it would take, in numbers of so many bytes.
    pub fn bytes(&self, of_a_number: u64) -> Bytes {
        let AttentionMatrix { steps, samples, heads } = *self;
        let numbers = [steps, steps, samples, heads].into_iter().fold(1u128, |n, side| n.saturating_mul(side as u128));
        Bytes(u64::try_from(numbers.saturating_mul(of_a_number.into())).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for AttentionMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionMatrix { steps, samples, heads } = self;
        let [half, whole] = [2, 4].map(|width| exactly(self.bytes(width)));
        write!(
            f,
            "attention of {steps} steps x {steps} for {samples} samples x {heads} heads would be {half} in fp16, {whole} in fp32: it is never built whole here"
        )
    }
}

/// With as many digits as the messages that people compare it with.
fn exactly(bytes: Bytes) -> String {
    match bytes.0 >> 30 {
        0 => bytes.to_string(),
        _ => format!("{:.4} GiB", bytes.0 as f64 / (1u64 << 30) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_of_the_guides_job_is_told_in_both_forms() {
        let matrix = AttentionMatrix::of(&SeriesSpec::hybrid_v2(112), 256).unwrap();
        assert_eq!(matrix, AttentionMatrix { steps: 840, samples: 256, heads: 4 });
        assert_eq!((matrix.bytes(2), matrix.bytes(4)), (Bytes(1_445_068_800), Bytes(2_890_137_600)));
        assert_eq!(
            matrix.to_string(),
            "attention of 840 steps x 840 for 256 samples x 4 heads would be 1.3458 GiB in fp16, 2.6917 GiB in fp32: it is never built whole here"
        );
    }

    #[test]
    fn there_is_none_without_heads_and_none_overflows() {
        assert_eq!(AttentionMatrix::of(&SeriesSpec::hybrid_v1(110), 256), None);
        let most = AttentionMatrix { steps: usize::MAX, samples: usize::MAX, heads: 2 };
        assert_eq!(most.bytes(4), Bytes(u64::MAX));
        let few = AttentionMatrix { steps: 840, samples: 8, heads: 4 };
        assert!(few.to_string().contains("would be 43.1 MiB in fp16, 86.1 MiB in fp32"), "{few}");
    }

    #[test]
    fn one_that_may_be_held_whole_is_not_told() {
        let mut spec = SeriesSpec::hybrid_v2(112);
        if let SeriesAttention::MultiHead { heads, .. } = &mut spec.attention {
            *heads = 1;
        }
        assert_eq!(AttentionMatrix::of(&spec, 23), None);
        assert!(AttentionMatrix::of(&spec, 24).is_some());
    }
}
