//! From counts of words to a vocabulary, by the trainers of the `tokenizers` library.
//!
//! Invariant: the same words and counts give the same vocabulary on any machine. The library's maps are walked in an
//! order that changes from process to process, so whatever could depend on it is decided here: characters get their ids
//! before the trainer meets them, and pieces of equal score are sorted. It trains in one thread, since sums of floating
//! numbers depend on how they are split (and its memory on how many threads there are). Counts are made small enough
//! for the trainers' own 32 bits.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ahash::AHashMap;
use compact_str::CompactString;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper};

use super::cost::Room;
use super::pipeline::{CONTINUING, not_trained};
use super::specials::{Role, SpecialTokens};
use super::words::WordCounts;
use crate::error::panic_message;
use crate::{DataError, VocabularyModel};

/// What a trainer is told beside the words.
pub(crate) struct Task<'a> {
    pub model: VocabularyModel,
    pub specials: &'a SpecialTokens,
    pub vocab: u64,
    /// Least occurrences of a pair that becomes a token.
    pub min_frequency: u64,
    /// Characters that get a token; nothing for bytes.
    pub alphabet: &'a BTreeSet<char>,
    pub room: Room,
}

/// By how much counts must be divided for sums over all characters to stay within the trainer's numbers.
pub(crate) fn divisor(counts: &WordCounts, model: VocabularyModel) -> u64 {
    let most = match model {
        VocabularyModel::Bpe | VocabularyModel::WordPiece => i32::MAX as u64,
        VocabularyModel::Unigram => u64::from(u32::MAX),
    };
    divisor_of(counts.iter().map(|(word, count)| (word.chars().count() as u64, count)), most)
}

/// The least divisor by which counts of words of so many characters each come to at most `most` characters.
fn divisor_of(words: impl Iterator<Item = (u64, u64)>, most: u64) -> u64 {
    let all: u128 = words.map(|(characters, count)| u128::from(characters) * u128::from(count)).sum();
    all.div_ceil(u128::from(most)).max(1) as u64
}

/// Trains; `counts` are given up as soon as the trainer has its own copy. Words whose count is below `divisor` must be
/// out of them.
pub(crate) fn train(task: &Task<'_>, counts: WordCounts, divisor: u64) -> Result<ModelWrapper, DataError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let pool = pool.map_err(|e| DataError::NotTrained { reason: e.to_string() })?;
    let work = || match task.model {
        VocabularyModel::Bpe => {
            let alphabet = ByteLevel::alphabet().into_iter().collect();
            let special = task.specials.tokens().map(str::to_string).collect();
            merges(task, counts, divisor, &alphabet, special, None).map(ModelWrapper::BPE)
        }
        VocabularyModel::WordPiece => wordpiece(task, counts, divisor).map(ModelWrapper::WordPiece),
        VocabularyModel::Unigram => unigram(task, counts, divisor).map(ModelWrapper::Unigram),
    };
    // The library panics where it did not expect something; that is an error of this verb, not the end of the process.
    let caught = catch_unwind(AssertUnwindSafe(|| pool.install(work)));
    caught.map_err(|panic| DataError::NotTrained { reason: panic_message(panic) })?
}

/// Merges of pairs. `first` are the tokens that come before all others.
fn merges(
    task: &Task<'_>,
    counts: WordCounts,
    divisor: u64,
    alphabet: &BTreeSet<char>,
    first: Vec<String>,
    prefix: Option<&str>,
) -> Result<BPE, DataError> {
    let mut words: AHashMap<CompactString, u64> = AHashMap::with_capacity(counts.words() as usize);
    words.extend(counts.iter().map(|(word, count)| (CompactString::from(word), count / divisor)));
    drop(counts);
    let mut trainer = BpeTrainer::builder()
        .vocab_size(task.vocab as usize)
        .min_frequency(task.min_frequency.div_ceil(divisor))
        .initial_alphabet(alphabet.iter().copied().collect())
        .limit_alphabet(alphabet.len())
        .special_tokens(first.into_iter().map(|token| AddedToken::from(token, true)).collect())
        .show_progress(false);
    if let Some(prefix) = prefix {
        trainer = trainer.continuing_subword_prefix(prefix.into());
    }
    let mut model = BPE::default();
    trainer.build().do_train(&words, &mut model).map_err(not_trained)?;
    Ok(model)
}

fn wordpiece(task: &Task<'_>, counts: WordCounts, divisor: u64) -> Result<WordPiece, DataError> {
    // Left to itself the trainer gives characters inside words their ids in the order of a hash map.
    let inside: BTreeSet<char> =
        counts.iter().flat_map(|(word, _)| word.chars().skip(1)).filter(|c| task.alphabet.contains(c)).collect();
    let first = task.specials.tokens().map(str::to_string);
    let first = first.chain(task.alphabet.iter().map(char::to_string));
    let first = first.chain(inside.iter().map(|c| format!("{CONTINUING}{c}"))).collect();
    let merged = merges(task, counts, divisor, task.alphabet, first, Some(CONTINUING))?;
    let mut model = WordPiece::from_bpe(&merged);
    model.unk_token = task.specials.get(Role::Unk).expect("WordPiece has an unknown token").0.into();
    Ok(model)
}

fn unigram(task: &Task<'_>, counts: WordCounts, divisor: u64) -> Result<Unigram, DataError> {
    let (unk, unk_id) = task.specials.get(Role::Unk).expect("Unigram has an unknown token");
    let mut words: Vec<(String, u32)> = Vec::with_capacity(counts.words() as usize);
    for (word, count) in counts.iter() {
        let count = (count / divisor) as u32;
        // What has no token cannot be part of one.
        let parts = word.split(|c| !task.alphabet.contains(&c)).filter(|part| !part.is_empty());
        words.extend(parts.map(|part| (part.to_string(), count)));
    }
    drop(counts);
    words.sort_unstable();
    let special: Vec<AddedToken> = task.specials.tokens().map(|token| AddedToken::from(token, true)).collect();
    let trainer = UnigramTrainer::builder()
        .vocab_size(task.vocab as u32)
        .seed_size(task.room.seeds as usize)
        .unk_token(Some(unk.into()))
        .special_tokens(special)
        .show_progress(false)
        .build()
        .map_err(|e| DataError::NotTrained { reason: e.to_string() })?;
    let mut model = Unigram::default();
    trainer.do_train(words, &mut model).map_err(not_trained)?;
    let pieces = model.iter().cloned().collect();
    Unigram::from(settled(pieces, task.specials.tokens().len()), Some(unk_id as usize), false).map_err(not_trained)
}

/// The step between the scores that the trainer gives to characters it had lost.
const PENALTY: f64 = 0.0001;

/// The pieces in an order, and with scores, that do not depend on that of a hash set.
///
/// Characters that the trainer lost on its way come back with the least score and steps above it, in the order of a set;
/// here they get the same scores in the order of their code points. Equal scores are sorted by the piece.
fn settled(mut pieces: Vec<(String, f64)>, specials: usize) -> Vec<(String, f64)> {
    let trained = &mut pieces[specials..];
    let least = trained.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let is_character = |piece: &str| piece.chars().nth(1).is_none();
    let (mut lost, mut penalty) = (Vec::new(), 0.0);
    loop {
        let before = lost.len();
        let here = |(_, (piece, score)): &(usize, &(String, f64))| *score == least + penalty && is_character(piece);
        lost.extend(trained.iter().enumerate().filter(here).map(|(at, _)| at));
        if lost.len() == before {
            break;
        }
        penalty += PENALTY;
    }
    let mut scores: Vec<f64> = lost.iter().map(|at| trained[*at].1).collect();
    scores.sort_unstable_by(f64::total_cmp);
    lost.sort_unstable_by(|a, b| trained[*a].0.cmp(&trained[*b].0));
    for (at, score) in lost.into_iter().zip(scores) {
        trained[at].1 = score;
    }
    trained.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_characters_get_their_scores_by_code_point_and_ties_are_sorted() {
        let piece = |text: &str, score: f64| (text.to_string(), score);
        let with = |lost: [&str; 3], tied: [&str; 2]| {
            let scores = [-9.0, -9.0 + PENALTY, -9.0 + (PENALTY + PENALTY)];
            let special = [piece("<unk>", 0.0)];
            let real =
                [piece("the", -1.0), piece(tied[0], -2.0), piece(tied[1], -2.0), piece("e", -3.0), piece("zz", -9.0)];
            let lost = lost.iter().zip(scores).map(|(c, score)| piece(c, score));
            settled(special.into_iter().chain(real).chain(lost).collect(), 1)
        };
        let first = with(["x", "é", "b"], ["in", "on"]);
        assert_eq!(first, with(["b", "x", "é"], ["on", "in"]));
        let texts: Vec<&str> = first.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["<unk>", "the", "in", "on", "e", "é", "x", "b", "zz"]);
    }

    #[test]
    fn counts_too_large_for_the_trainers_are_divided() {
        let words = [(4, u64::MAX / 8), (7, 1000), (1, 3)];
        for (words, most, wanted) in [(&words[2..], 3, 1), (&words[2..], 2, 2), (&words[1..], 7002, 2)] {
            assert_eq!(divisor_of(words.iter().copied(), most), wanted);
        }
        let most = i32::MAX as u64;
        let by = divisor_of(words.into_iter(), most);
        assert!(words.iter().map(|(characters, count)| characters * (count / by)).sum::<u64>() <= most);
    }
}
