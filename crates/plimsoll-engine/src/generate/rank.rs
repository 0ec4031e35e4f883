//! Ranking one row of logits: the likeliest token, the likeliest few, and what turns a logit into a log-probability.
//!
//! A row is read where the step left it and never copied. Of equal logits the lower token comes first, as in torch's
//! `argmax`; what is no number ranks last.

use super::beam::Candidate;
use crate::math::exp;
use crate::simd::{LANES, fold, leveled};

/// Logits looked at together while searching for the largest.
const BLOCK: usize = 4 * LANES;

/// What is taken off a logit to make it a log-probability, in the order that fp32 log-softmax takes it off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normaliser {
    most: f32,
    log_sum: f32,
}

impl Normaliser {
    pub fn log_probability(self, logit: f32) -> f32 {
        (logit - self.most) - self.log_sum
    }
}

#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |most, v| if *v > most { *v } else { most })
}

leveled! {
    /// The normaliser of a row.
    pub(super) fn normaliser(logits: &[f32]) -> Normaliser {
        let most = largest(logits);
        let mut lanes = [0.0f32; LANES];
        let chunks = logits.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += exp(chunk[i] - most);
            }
        }
        for (lane, logit) in lanes.iter_mut().zip(rest) {
            *lane += exp(*logit - most);
        }
        Normaliser { most, log_sum: fold(lanes).ln() }
    }
}

leveled! {
    /// The likeliest token.
    pub(super) fn first_of_largest(logits: &[f32]) -> u32 {
        let most = largest(logits);
        logits.iter().position(|logit| *logit == most).unwrap_or(0) as u32
    }
}

leveled! {
    /// Fills `top` with the largest logits and their tokens, largest first; returns how many there are.
    fn largest_few(logits: &[f32], top: &mut [Candidate]) -> usize {
        let (mut kept, mut floor) = (0, f32::NEG_INFINITY);
        for (block, values) in logits.chunks(BLOCK).enumerate() {
            if kept == top.len() && largest(values) <= floor {
                continue;
            }
            for (i, value) in values.iter().enumerate() {
                let score = number(*value);
                if kept == top.len() && score <= floor {
                    continue;
                }
                let at = top[..kept].partition_point(|c| c.score >= score);
                kept = (kept + 1).min(top.len());
                top[at..kept].rotate_right(1);
                top[at] = Candidate { score, row: 0, token: (block * BLOCK + i) as u32 };
                floor = top[kept - 1].score;
            }
        }
        kept
    }
}

/// What is no number is worth nothing.
#[inline(always)]
fn number(score: f32) -> f32 {
    if score.is_nan() { f32::NEG_INFINITY } else { score }
}

/// Fills `top` with the best continuations of one hypothesis, best first; places for which there is no token are worth
/// nothing.
pub(super) fn continuations(
    simd: plimsoll_plan::tiles::Simd,
    row: usize,
    logits: &[f32],
    running: f32,
    top: &mut [Candidate],
) {
    let kept = largest_few(simd, logits, top);
    let normaliser = normaliser(simd, logits);
    for candidate in &mut top[..kept] {
        candidate.row = row as u32;
        candidate.score = number(normaliser.log_probability(candidate.score) + running);
    }
    top[kept..].fill(Candidate { score: f32::NEG_INFINITY, row: row as u32, token: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with many repeats, none in order.
    fn row(len: usize) -> Vec<f32> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 22) as f32 / 100.0 - 5.0).collect()
    }

    #[test]
    fn the_largest_few_are_those_of_a_full_sort() {
        let simd = crate::simd::detect();
        for len in [1, 5, 8, 15, 16, 63, 64, 65, 97, 1000, 4099] {
            let logits = row(len);
            let mut sorted: Vec<usize> = (0..len).collect();
            sorted.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            for count in [1, 2, 8] {
                let mut top = vec![Candidate::default(); count];
                let kept = largest_few(simd, &logits, &mut top);
                let got: Vec<usize> = top[..kept].iter().map(|c| c.token as usize).collect();
                assert_eq!(got, sorted[..count.min(len)], "{count} of {len}");
            }
            assert_eq!(first_of_largest(simd, &logits) as usize, sorted[0]);
        }
    }

    #[test]
    fn probabilities_of_a_row_add_up_to_one() {
        let simd = crate::simd::detect();
        for len in [1, 17, 97, 4099] {
            let logits = row(len);
            let normaliser = normaliser(simd, &logits);
            let sum: f64 = logits.iter().map(|l| f64::from(normaliser.log_probability(*l)).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{len}: {sum}");
        }
    }

    #[test]
    fn what_is_no_number_ranks_last() {
        let simd = crate::simd::detect();
        let mut top = [Candidate::default(); 3];
        assert_eq!(largest_few(simd, &[f32::NAN, 1.0, f32::NAN, 2.0], &mut top), 3);
        assert_eq!((top[0].token, top[1].token), (3, 1));
        assert_eq!(first_of_largest(simd, &[f32::NAN, 1.0, 2.0]), 2);
        assert_eq!(first_of_largest(simd, &[f32::NAN; 20]), 0);
    }
}
