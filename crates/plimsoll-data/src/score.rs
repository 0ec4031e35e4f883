//! Scores of generated texts: corpus BLEU-4 and exact match.
//!
//! BLEU is sacrebleu's with `tokenize=none`, `smooth_method=exp`, one reference, no effective order: words are what
//! whitespace separates, n-gram matches are clipped and summed over the corpus, each order without a match halves a
//! smoothing factor (1/2, 1/4, ... over the order's count), and a corpus without any 4-gram scores 0. Memory is that of
//! one pair.

use std::collections::HashMap;

/// Corpus BLEU-4 in percent (0 to 100) of `(hypothesis, reference)` pairs; 0 for no pairs.
pub fn bleu4<H: AsRef<str>, R: AsRef<str>>(pairs: impl IntoIterator<Item = (H, R)>) -> f64 {
    let mut corpus = Bleu::default();
    for (hypothesis, reference) in pairs {
        corpus.add(hypothesis.as_ref(), reference.as_ref());
    }
    corpus.score()
}

/// Share (0 to 1) of pairs that are equal after trimming outer whitespace; 0 for no pairs.
pub fn exact_match<H: AsRef<str>, R: AsRef<str>>(pairs: impl IntoIterator<Item = (H, R)>) -> f64 {
    let (mut same, mut all) = (0u64, 0u64);
    for (hypothesis, reference) in pairs {
        same += u64::from(hypothesis.as_ref().trim() == reference.as_ref().trim());
        all += 1;
    }
    if all == 0 { 0.0 } else { same as f64 / all as f64 }
}

/// The running counts of a corpus.
#[derive(Clone, Debug, Default)]
pub struct Bleu {
    matches: [u64; 4],
    totals: [u64; 4],
    hypothesis_words: u64,
    reference_words: u64,
}

impl Bleu {
    /// Counts one pair.
    pub fn add(&mut self, hypothesis: &str, reference: &str) {
        let hypothesis: Vec<&str> = hypothesis.split_whitespace().collect();
        let reference: Vec<&str> = reference.split_whitespace().collect();
        self.hypothesis_words += hypothesis.len() as u64;
        self.reference_words += reference.len() as u64;
        for n in 1..=4 {
            let mut there: HashMap<&[&str], u64> = HashMap::new();
            for gram in reference.windows(n) {
                *there.entry(gram).or_default() += 1;
            }
            for gram in hypothesis.windows(n) {
                self.totals[n - 1] += 1;
                if let Some(left) = there.get_mut(gram).filter(|left| **left > 0) {
                    *left -= 1;
                    self.matches[n - 1] += 1;
                }
            }
        }
    }

    /// BLEU-4 in percent.
    pub fn score(&self) -> f64 {
        if self.matches[0] == 0 || self.totals.contains(&0) {
            return 0.0;
        }
        let mut smooth = 1.0;
        let mut log_sum = 0.0;
        for (&matches, &total) in self.matches.iter().zip(&self.totals) {
            let precision = if matches == 0 {
                smooth *= 2.0;
                1.0 / (smooth * total as f64)
            } else {
                matches as f64 / total as f64
            };
            log_sum += precision.ln();
        }
        let (hypothesis, reference) = (self.hypothesis_words as f64, self.reference_words as f64);
        let brevity = if hypothesis < reference { (1.0 - reference / hypothesis).exp() } else { 1.0 };
        100.0 * brevity * (log_sum / 4.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-9, "got {got}, expected {expected}");
    }

    #[test]
    fn equal_texts_score_100_and_unrelated_texts_0() {
        near(bleu4([("a b c d e", "a b c d e")]), 100.0);
        near(bleu4([("v w x y z", "a b c d e")]), 0.0);
        near(bleu4::<&str, &str>([]), 0.0);
    }

    /// "the cat sat on the mat" against "the cat is on the mat": 5/6, 3/5, 1/4, 0/3 smoothed to 1/(2*3).
    #[test]
    fn a_hand_computed_pair_agrees() {
        let expected = 100.0 * (5.0 / 6.0 * 3.0 / 5.0 * 1.0 / 4.0 * 1.0 / 6.0f64).powf(0.25);
        near(bleu4([("the cat sat on the mat", "the cat is on the mat")]), expected);
    }

    /// Two orders without a match are smoothed by 1/2 and then 1/4: 3/4, 1/3, 0/2 -> 1/4, 0/1 -> 1/4.
    #[test]
    fn each_order_without_a_match_halves_the_smoothing() {
        let expected = 100.0 * (3.0 / 4.0 * 1.0 / 3.0 * 1.0 / 4.0 * 1.0 / 4.0f64).powf(0.25);
        near(bleu4([("a b x d", "a b c d")]), expected);
    }

    /// Clipping: "the the the the" has one "the" in the reference; brevity does not help longer texts.
    #[test]
    fn matches_are_clipped() {
        let expected = 100.0 * (1.0 / 4.0 * 1.0 / (2.0 * 3.0) * 1.0 / (4.0 * 2.0) * 1.0 / 8.0f64).powf(0.25);
        near(bleu4([("the the the the", "the cat")]), expected);
    }

    /// Counts are summed over the corpus before the ratio: 9/9, 7/7, 5/5, 3/3 with 9 of 10 words, exp(1 - 10/9).
    #[test]
    fn brevity_is_taken_over_the_corpus() {
        let pairs = [("a b c d e", "a b c d e"), ("f g h i", "f g h i j")];
        near(bleu4(pairs), 100.0 * (1.0 - 10.0 / 9.0f64).exp());
    }

    #[test]
    fn a_corpus_of_short_texts_has_no_4_gram_and_scores_0() {
        near(bleu4([("a b c", "a b c")]), 0.0);
    }

    #[test]
    fn exact_match_trims_only_the_ends() {
        near(exact_match([("a b ", "a b"), ("a  b", "a b")]), 0.5);
        near(exact_match::<&str, &str>([]), 0.0);
    }
}
