//! How the samples of a micro-batch are mixed (Zhang et al. 2018, "mixup"): by one share, each with the one that is so many behind it.

use std::ops::Range;

use plimsoll_plan::spec::Mixup;

use super::series_loss::Mix;
use crate::philox::word;

/// Keeps the words of mixing apart from those of other uses.
const MIXES: u32 = 0x5A5A_0000;
/// Draws before a half is taken: never reached with an alpha that is believed.
const MOST_DRAWS: usize = 10_000;

/// How these samples of an effective batch are mixed in an update; none where they are not.
pub fn mixing(mixup: Mixup, seed: u64, update: u64, samples: Range<u32>) -> Option<Mix> {
    // A stream of words of its own for each micro-batch.
    let stream = (update as u32).wrapping_mul(0x9E37_79B9) ^ samples.start ^ MIXES;
    let samples = samples.len();
    let mut position = 0;
    let mut uniform = || {
        position += 1;
        (f64::from(word(seed, stream, position)) + 0.5) / 4_294_967_296.0
    };
    if samples < 2 || uniform() >= f64::from(mixup.probability) {
        return None;
    }
    let shift = 1 + (uniform() * (samples - 1) as f64) as usize;
    let shift = shift.min(samples - 1);
    // Beta(a, a) by Johnk's method: two powers whose sum is at most one.
    let power = 1.0 / f64::from(mixup.alpha);
    for _ in 0..MOST_DRAWS {
        let (x, y) = (uniform().ln() * power, uniform().ln() * power);
        let most = x.max(y);
        let sum = most + ((x - most).exp() + (y - most).exp()).ln();
        if sum <= 0.0 {
            return Some(Mix { share: (x - sum).exp() as f32, shift });
        }
    }
    Some(Mix { share: 0.5, shift })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mixes of many updates of a batch of so many samples.
    fn mixes(samples: u32, mixup: Mixup) -> Vec<Option<Mix>> {
        (0..20_000).map(|update| mixing(mixup, 5, update, 0..samples)).collect()
    }

    #[test]
    fn shares_are_drawn_from_the_beta_distribution_and_partners_are_others() {
        for alpha in [0.2f32, 0.4, 1.0, 2.5] {
            let drawn = mixes(5, Mixup { alpha, probability: 0.7 });
            let mixed: Vec<Mix> = drawn.iter().copied().flatten().collect();
            let (count, all) = (mixed.len() as f64, drawn.len() as f64);
            // Each within five deviations of what is expected.
            assert!((count / all - 0.7).abs() < 5.0 * (0.21 / all).sqrt(), "{count} of {all}");
            let mean = mixed.iter().map(|m| f64::from(m.share)).sum::<f64>() / count;
            let variance = mixed.iter().map(|m| (f64::from(m.share) - 0.5).powi(2)).sum::<f64>() / count;
            let exact = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
            assert!((mean - 0.5).abs() < 5.0 * (exact / count).sqrt(), "alpha {alpha}: mean {mean}");
            // No square is farther than a quarter from their mean.
            assert!((variance - exact).abs() < 5.0 * 0.25 / count.sqrt(), "alpha {alpha}: {variance}, not {exact}");
            for shift in 1..5 {
                let share = mixed.iter().filter(|m| m.shift == shift).count() as f64 / count;
                assert!((share - 0.25).abs() < 5.0 * (0.1875 / count).sqrt(), "shift {shift}: {share}");
            }
            assert!(mixed.iter().all(|m| (1..5).contains(&m.shift) && (0.0..=1.0).contains(&m.share)));
        }
    }

    #[test]
    fn a_sample_alone_is_not_mixed_and_an_update_draws_the_same_again() {
        let mixup = Mixup { alpha: 0.4, probability: 1.0 };
        assert!(mixes(1, mixup).iter().all(Option::is_none));
        assert_eq!(mixes(3, mixup), mixes(3, mixup));
    }
}
