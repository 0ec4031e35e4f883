//! Drawing a token: temperature, then the likeliest `top_k`, then the likeliest that come to `top_p`, as Hugging Face
//! orders them. The draw is a pure function of (seed, prompt, position).

use plimsoll_plan::tiles::Simd;

use super::Sampling;
use super::rank;
use crate::philox::word;

/// A token, drawn.
pub(super) fn draw(simd: Simd, logits: &[f32], how: &Sampling, prompt: u32, position: u32) -> u32 {
    let share = f64::from(word(how.seed, prompt, position)) / 4_294_967_296.0;
    let most = logits[rank::first_of_largest(simd, logits) as usize];
    let weight = |logit: f32| (f64::from(logit - most) / f64::from(how.temperature)).exp();
    let mut ranked: Vec<(u32, f64)> = (0u32..).zip(logits).map(|(token, l)| (token, weight(*l))).collect();
    ranked.retain(|(_, w)| w.is_finite() && *w > 0.0);
    // Heaviest first, of equal ones the lower token.
    let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if how.top_k > 0 && how.top_k < ranked.len() {
        ranked.select_nth_unstable_by(how.top_k - 1, order);
        ranked.truncate(how.top_k);
    }
    ranked.sort_unstable_by(order);
    let total: f64 = ranked.iter().map(|(_, w)| w).sum();
    let mut kept = 0.0;
    // A token stays as long as those before it have not come to the share.
    let stays = |(_, w): &&(u32, f64)| {
        let before = kept;
        kept += w;
        before < f64::from(how.top_p) * total
    };
    let count = ranked.iter().take_while(stays).count().max(1).min(ranked.len());
    let mut left = share * ranked[..count].iter().map(|(_, w)| w).sum::<f64>();
    for (token, w) in &ranked[..count] {
        left -= w;
        if left < 0.0 {
            return *token;
        }
    }
    ranked[..count].last().map_or(0, |(token, _)| *token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::detect;

    fn counts(how: Sampling, logits: &[f32]) -> Vec<usize> {
        let mut seen = vec![0; logits.len()];
        (0..20_000).for_each(|at| seen[draw(detect(), logits, &how, 0, at) as usize] += 1);
        seen
    }

    #[test]
    fn draws_follow_the_softmax_and_its_cuts() {
        let logits = [1.0f32.ln(), 2.0f32.ln(), 4.0f32.ln(), 1.0f32.ln()];
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 7 };
        let seen = counts(all, &logits);
        for (seen, share) in seen.iter().zip([0.125, 0.25, 0.5, 0.125]) {
            // Five standard errors.
            assert!((*seen as f64 / 20_000.0 - share).abs() < 0.018, "{seen} instead of {share}");
        }
        assert_eq!(counts(Sampling { top_k: 1, ..all }, &logits)[2], 20_000);
        let two = counts(Sampling { top_k: 2, ..all }, &logits);
        assert_eq!((two[0], two[3]), (0, 0));
        let nucleus = counts(Sampling { top_p: 0.6, ..all }, &logits);
        assert_eq!((nucleus[0], nucleus[3]), (0, 0), "half is not enough, three quarters are");
        assert!(nucleus[1] > 0);
        assert_eq!(counts(Sampling { top_p: 0.4, ..all }, &logits)[2], 20_000);
        let cold = counts(Sampling { temperature: 0.05, ..all }, &logits);
        assert_eq!(cold[2], 20_000);
    }

    #[test]
    fn a_draw_is_repeated_exactly() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
        let how = Sampling { temperature: 0.8, top_k: 50, top_p: 0.95, seed: 3 };
        let one: Vec<u32> = (0..50).map(|at| draw(detect(), &logits, &how, 1, at)).collect();
        let two: Vec<u32> = (0..50).map(|at| draw(detect(), &logits, &how, 1, at)).collect();
        assert_eq!(one, two);
        let other: Vec<u32> = (0..50).map(|at| draw(detect(), &logits, &how, 2, at)).collect();
        assert_ne!(one, other);
    }
}
