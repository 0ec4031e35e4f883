//! Which characters get a token of their own, where tokens are made of characters.
//!
//! Invariant: all of them where they take at most half of the vocabulary, else the commonest; those that are left out are
//! counted. Ties go by code point, so nothing depends on a hash. It knows no trainer.

use std::collections::{BTreeSet, HashMap};

use super::words::WordCounts;
use crate::DataError;

/// Characters that stay must be at least this share of all.
const LEAST_COVERED: f64 = 0.99;

/// The characters of a vocabulary.
pub(crate) struct Alphabet {
    pub kept: BTreeSet<char>,
    pub told: Characters,
}

/// What is told of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Characters {
    /// With a token of their own.
    pub kept: u64,
    /// Without one: they are read as the unknown token.
    pub left_out: u64,
    /// The share of all characters that those are.
    pub left_out_share: f64,
}

/// Chooses characters for a vocabulary of `vocab` tokens, `specials` of them special, in which a character may take
/// `forms` tokens.
pub(crate) fn choose(counts: &WordCounts, vocab: u64, specials: u64, forms: u64) -> Result<Alphabet, DataError> {
    let mut found: HashMap<char, u64> = HashMap::new();
    for (word, count) in counts.iter() {
        word.chars().for_each(|c| *found.entry(c).or_default() += count);
    }
    let all: u64 = found.values().sum();
    let mut found: Vec<(char, u64)> = found.into_iter().collect();
    found.sort_unstable_by_key(|&(c, count)| (std::cmp::Reverse(count), c));
    let most = vocab.saturating_sub(specials) / 2 / forms;
    let kept = found.len().min(most as usize);
    let left: u64 = found[kept..].iter().map(|(_, count)| count).sum();
    let share = left as f64 / all.max(1) as f64;
    if kept == 0 || 1.0 - share < LEAST_COVERED {
        let mut covered = 0;
        let needed = found.iter().position(|(_, count)| {
            covered += count;
            covered as f64 >= LEAST_COVERED * all as f64
        });
        let characters = needed.map_or(found.len(), |at| at + 1) as u64;
        let expected = specials + 2 * forms * characters;
        return Err(DataError::VocabularyTooSmall {
            vocab,
            expected,
            needs: format!(
                "{specials} special tokens, and characters in half of the rest: {characters} of them are {:.0} % of the text",
                100.0 * LEAST_COVERED
            ),
        });
    }
    let told = Characters { kept: kept as u64, left_out: (found.len() - kept) as u64, left_out_share: share };
    Ok(Alphabet { kept: found[..kept].iter().map(|(c, _)| *c).collect(), told })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(words: &[(&str, u64)]) -> WordCounts {
        let mut counts = WordCounts::within(1 << 20);
        words.iter().for_each(|(word, n)| (0..*n).for_each(|_| counts.add(word)));
        counts
    }

    #[test]
    fn rare_characters_go_first_and_are_told() {
        let counts = counts(&[("ab", 500), ("c", 300), ("é", 2), ("x", 2)]);
        let chosen = choose(&counts, 11, 3, 1).unwrap();
        assert_eq!(chosen.kept, BTreeSet::from(['a', 'b', 'c', 'x']));
        assert_eq!((chosen.told.kept, chosen.told.left_out), (4, 1));
        assert!((chosen.told.left_out_share - 2.0 / 1304.0).abs() < 1e-12);
        assert_eq!(choose(&counts, 30, 3, 1).unwrap().told.left_out, 0);
    }

    #[test]
    fn a_vocabulary_without_room_for_the_characters_is_refused_with_the_least_that_has() {
        let counts = counts(&[("ab", 500), ("c", 300), ("é", 2)]);
        let error = choose(&counts, 7, 3, 1).err().unwrap();
        assert!(matches!(error, DataError::VocabularyTooSmall { vocab: 7, expected: 9, .. }), "{error}");
        assert!(choose(&counts, 9, 3, 1).is_ok());
        assert!(matches!(choose(&counts, 1, 3, 2), Err(DataError::VocabularyTooSmall { expected: 15, .. })));
    }
}
