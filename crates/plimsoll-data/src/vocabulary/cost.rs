//! What training takes in memory, as a formula over words, and so how many of them may be trained on.
//!
//! Invariant: an upper bound for the trainers' heap; `tests/vocabulary_heap.rs` holds it against a counting allocator and
//! prints what the constants rest on. It knows no words, only their lengths.

use crate::{DataError, VocabularyModel};

/// Heap of a trainer for each word, and for each character of one.
struct Cost {
    word: u64,
    character: u64,
}

/// Heap of Unigram's trainer for each piece that it begins with.
const SEED_BYTES: u64 = 1500;
/// Pieces that Unigram begins with where memory does not matter, as SentencePiece has it.
const MOST_SEEDS: u64 = 1_000_000;
/// Heap of a finished vocabulary for each token, as the trainers, the model and the text of the file hold it.
const TOKEN_BYTES: u64 = 1000;
/// Heap beside all that.
const BESIDE: u64 = 256 << 10;

fn cost(model: VocabularyModel) -> Cost {
    match model {
        VocabularyModel::Bpe | VocabularyModel::WordPiece => Cost { word: 200, character: 150 },
        VocabularyModel::Unigram => Cost { word: 120, character: 60 },
    }
}

/// How the memory for training is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes for words, by [`word_bytes`].
    pub words_bytes: u64,
    /// Pieces that Unigram begins with.
    pub seeds: u64,
}

/// Shares `ceiling` bytes out for a vocabulary of `vocab` tokens.
pub(crate) fn room(model: VocabularyModel, vocab: u64, ceiling: u64) -> Result<Room, DataError> {
    let fixed = BESIDE + TOKEN_BYTES * vocab;
    // Unigram needs more pieces than tokens to choose from.
    let least_seeds = if model == VocabularyModel::Unigram { 4 * vocab } else { 0 };
    let seeds_least = least_seeds * SEED_BYTES;
    // As much again for words: fewer would hardly be a text.
    let expected = fixed + 2 * seeds_least.max(1 << 20);
    if ceiling < expected {
        let expected = format!("at least {expected} bytes for a vocabulary of {vocab}");
        return Err(DataError::BadVocabularySetting { setting: "memory", found: ceiling, expected });
    }
    let left = ceiling - fixed;
    let seeds = if least_seeds > 0 { (left / 2 / SEED_BYTES).min(MOST_SEEDS) } else { 0 };
    Ok(Room { words_bytes: left - seeds * SEED_BYTES, seeds })
}

/// Heap of a trainer for one word.
pub(crate) fn word_bytes(model: VocabularyModel, word: &str) -> u64 {
    let Cost { word: each, character } = cost(model);
    each + character * word.chars().count() as u64
}
