//! Beam search over one prompt: from ranked continuations, what is finished, what goes on, and whether it is over.
//!
//! Pure: it sees scores and tokens, no logits. The rules are those of Hugging Face's beam search: of 2 x beams candidates
//! the first `beams` may finish, the first `beams` that do not end go on, and a search ends when no running hypothesis
//! could, at its present length, beat the worst finished one.

use std::cmp::Ordering;

use super::{Answer, GenerateOptions};

/// Score of a hypothesis that is only there because every row of a step must be something.
const NEVER: f32 = -1e9;

/// A hypothesis with one more token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    /// Log-probability of all its tokens.
    pub score: f32,
    /// Row of the hypothesis that it continues.
    pub row: u32,
    /// The token that it adds.
    pub token: u32,
}

impl Candidate {
    /// Best first; of equals, the earlier row and the lower token.
    pub fn order(&self, other: &Candidate) -> Ordering {
        other.score.total_cmp(&self.score).then((self.row, self.token).cmp(&(other.row, other.token)))
    }
}

/// What holds for every prompt of a call.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    beams: usize,
    max_new: usize,
    length_penalty: f32,
    early_stopping: bool,
    /// Tokens that end a hypothesis.
    ends: Vec<u32>,
}

impl Rules {
    pub fn new(options: &GenerateOptions, ends: Vec<u32>) -> Rules {
        let GenerateOptions { beams, max_new, length_penalty, early_stopping, .. } = *options;
        Rules { beams, max_new, length_penalty, early_stopping, ends }
    }

    fn penalised(&self, score: f32, length: usize) -> f32 {
        score / (length as f64).powf(f64::from(self.length_penalty)) as f32
    }
}

/// The search for one prompt's answer.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Best first, at most as many as beams.
    finished: Vec<Answer>,
    /// Nothing can change any more.
    pub done: bool,
}

impl Search {
    /// Takes the ranked candidates of a step, whose hypotheses are now `length` tokens long, and writes those that go on
    /// to `next`, one per beam. `tokens` spells a candidate out.
    pub fn advance(
        &mut self,
        rules: &Rules,
        length: usize,
        candidates: &[Candidate],
        tokens: impl Fn(&Candidate) -> Vec<u32>,
        next: &mut Vec<Candidate>,
    ) {
        let last = length == rules.max_new;
        let ends = |c: &&Candidate| last || rules.ends.contains(&c.token);
        for candidate in candidates.iter().take(rules.beams).filter(|c| ends(c) && c.score > NEVER / 2.0) {
            let score = rules.penalised(candidate.score, length);
            let at = self.finished.partition_point(|f| f.score >= score);
            if at < rules.beams {
                self.finished.truncate(rules.beams - 1);
                self.finished.insert(at, Answer { tokens: tokens(candidate), score });
            }
        }
        next.clear();
        next.extend(candidates.iter().filter(|c| !ends(c)).take(rules.beams));
        // In the last step, or where the vocabulary is smaller than the beam, there are too few.
        next.resize(rules.beams, Candidate { score: NEVER, ..candidates[0] });
        let full = self.finished.len() == rules.beams;
        let hopeless = || {
            let worst = self.finished.last().map_or(NEVER, |f| f.score);
            rules.penalised(next[0].score, length) <= worst
        };
        self.done = last || (full && (rules.early_stopping || hopeless()));
    }

    /// The best finished hypothesis; none only if no score was a number.
    pub fn answer(self) -> Answer {
        self.finished.into_iter().next().unwrap_or(Answer { tokens: Vec::new(), score: f32::NEG_INFINITY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EOS: u32 = 1;

    fn rules(beams: usize, max_new: usize, length_penalty: f32, early_stopping: bool) -> Rules {
        Rules::new(
            &GenerateOptions { length_penalty, early_stopping, ..GenerateOptions::beam(beams, max_new) },
            vec![EOS],
        )
    }

    fn candidates(scored: &[(f32, u32)]) -> Vec<Candidate> {
        scored.iter().map(|(score, token)| Candidate { score: *score, row: 0, token: *token }).collect()
    }

    fn advance(search: &mut Search, rules: &Rules, length: usize, scored: &[(f32, u32)]) -> Vec<(f32, u32)> {
        let mut next = Vec::new();
        search.advance(rules, length, &candidates(scored), |c| vec![c.token], &mut next);
        next.iter().map(|c| (c.score, c.token)).collect()
    }

    #[test]
    fn an_ending_candidate_outside_the_beam_neither_finishes_nor_goes_on() {
        let mut search = Search::default();
        let next = advance(&mut search, &rules(2, 9, 1.0, false), 1, &[(-1.0, 5), (-2.0, 6), (-3.0, EOS), (-4.0, 7)]);
        assert_eq!(next, [(-1.0, 5), (-2.0, 6)]);
        assert!(search.finished.is_empty() && !search.done);
    }

    #[test]
    fn the_search_ends_when_no_running_hypothesis_can_beat_the_worst_finished_one() {
        let rules = rules(2, 9, 1.0, false);
        let mut search = Search::default();
        advance(&mut search, &rules, 1, &[(-1.0, EOS), (-1.1, 5), (-1.2, 6), (-9.0, 7)]);
        assert!(!search.done, "one of two is finished");
        // -2.2 / 2 finishes; the best running one is at -2.0 / 2 and could still win.
        advance(&mut search, &rules, 2, &[(-2.0, 5), (-2.2, EOS), (-2.3, 6), (-9.0, 7)]);
        assert!(!search.done);
        // The best running one is at -4.0 / 3, worse than -1.1.
        advance(&mut search, &rules, 3, &[(-4.0, 5), (-4.1, 6), (-5.0, 7), (-6.0, 8)]);
        assert!(search.done);
        assert_eq!(search.answer(), Answer { tokens: vec![EOS], score: -1.0 });
    }

    #[test]
    fn early_stopping_ends_the_search_once_the_beam_is_full() {
        let steps = [[(-1.0, EOS), (-1.1, 5), (-1.2, 6), (-9.0, 7)], [(-1.3, 5), (-2.2, EOS), (-2.3, 6), (-9.0, 7)]];
        for early in [true, false] {
            let (rules, mut search) = (rules(2, 9, 1.0, early), Search::default());
            for (step, scored) in steps.iter().enumerate() {
                advance(&mut search, &rules, step + 1, scored);
            }
            assert_eq!(search.done, early);
        }
    }

    #[test]
    fn the_length_penalty_decides_between_short_and_long() {
        for (penalty, expected) in [(0.0, vec![EOS]), (2.0, vec![7])] {
            let (rules, mut search) = (rules(2, 2, penalty, false), Search::default());
            advance(&mut search, &rules, 1, &[(-1.0, EOS), (-1.1, 5), (-1.2, 6), (-9.0, 8)]);
            advance(&mut search, &rules, 2, &[(-1.5, 7), (-1.6, 5), (-2.3, 6), (-9.0, 8)]);
            assert!(search.done);
            assert_eq!(search.answer().tokens, expected, "penalty {penalty}");
        }
    }

    /// Log-probabilities of four tokens after a prefix.
    fn model(prefix: &[u32]) -> [f32; 4] {
        let seed = prefix.iter().fold(7u32, |s, t| s.wrapping_mul(31).wrapping_add(t + 1).wrapping_mul(2_654_435_761));
        let weights = [0, 1, 2, 3].map(|i| ((seed >> (8 * i)) & 255) as f32 + 1.0);
        let total: f32 = weights.iter().sum();
        weights.map(|w| (w / total).ln())
    }

    /// Every answer below a prefix, with its score.
    fn all(prefix: &mut Vec<u32>, score: f32, rules: &Rules, out: &mut Vec<Answer>) {
        if prefix.len() == rules.max_new || prefix.last() == Some(&EOS) {
            out.push(Answer { tokens: prefix.clone(), score: rules.penalised(score, prefix.len()) });
            return;
        }
        for (token, log) in model(prefix).into_iter().enumerate() {
            prefix.push(token as u32);
            all(prefix, score + log, rules, out);
            prefix.pop();
        }
    }

    #[test]
    fn a_beam_wider_than_the_tree_finds_the_best_answer_of_all() {
        for penalty in [0.0, 1.0, 2.5] {
            let rules = rules(256, 4, penalty, false);
            let mut every = Vec::new();
            all(&mut Vec::new(), 0.0, &rules, &mut every);
            let best = every.into_iter().max_by(|a, b| a.score.total_cmp(&b.score)).unwrap();
            let mut search = Search::default();
            let mut running = vec![(0.0, Vec::new())];
            for length in 1..=4 {
                let mut ranked: Vec<Candidate> = Vec::new();
                for (row, (score, prefix)) in running.iter().enumerate() {
                    let logs = model(prefix).into_iter().enumerate();
                    ranked.extend(logs.map(|(t, log)| Candidate {
                        score: score + log,
                        row: row as u32,
                        token: t as u32,
                    }));
                }
                ranked.sort_unstable_by(Candidate::order);
                ranked.truncate(512);
                let spell = |c: &Candidate| [&running[c.row as usize].1[..], &[c.token]].concat();
                let mut next = Vec::new();
                search.advance(&rules, length, &ranked, spell, &mut next);
                running = next.iter().filter(|c| c.score > NEVER).map(|c| (c.score, spell(c))).collect();
            }
            let found = search.answer();
            assert_eq!(found.tokens, best.tokens, "penalty {penalty}");
            assert!((found.score - best.score).abs() < 1e-6);
        }
    }
}
