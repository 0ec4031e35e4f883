//! A tokenizer of one's own: words of the data, counted within a ceiling, and a vocabulary trained on them.
//!
//! Rows become words ([`feed`]), words are counted in memory that was decided before ([`words`]), the commonest that the
//! trainer has room for ([`cost`]) are trained on ([`train`]), and the result is a `tokenizer.json` with its
//! `tokenizer_config.json` ([`write`]). Invariant: the files are a function of data and settings, the same on any machine;
//! whatever was left out is told. It writes nothing: the caller has the files' text.

mod alphabet;
mod cost;
mod feed;
mod pipeline;
mod specials;
mod train;
mod words;
mod write;

pub use alphabet::Characters;
pub use feed::Fed;
pub use words::{Dropped, Pruned};
pub use write::TokenizerFiles;

use std::collections::BTreeSet;

use feed::Cutter;
use specials::SpecialTokens;
use words::WordCounts;

use crate::{DataError, Sources};

/// What the vocabulary is made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VocabularyModel {
    /// Merges of bytes, as in GPT-2.
    #[default]
    Bpe,
    /// Pieces with probabilities, as in T5.
    Unigram,
    /// Merges of characters, the longest first, as in BERT.
    WordPiece,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct VocabularySettings {
    /// What the vocabulary is made by.
    pub model: VocabularyModel,
    /// Tokens at most, special ones included.
    pub vocab: u64,
    /// Special tokens beside the model's own (`TOKEN`), or in place of one of those (`eos=TOKEN`).
    pub special: Vec<String>,
    /// Least occurrences of a pair that is merged, or of a word that Unigram looks at.
    pub min_frequency: u64,
    /// Bytes that counting and training may hold, each at its time.
    pub memory: u64,
    /// Rows to read, drawn by the seed; all where there is nothing.
    pub rows: Option<u64>,
    /// Seed of the draws.
    pub seed: u64,
}

impl VocabularySettings {
    /// Most bytes for counting and training.
    pub const MOST_MEMORY: u64 = 64 << 30;
    /// Most tokens.
    pub const MOST_VOCAB: u64 = 1 << 24;
}

/// Most bytes that words are counted in: offsets into them, and Unigram's into all words end to end, have 32 bits.
const MOST_COUNTING: u64 = 2 << 30;

/// What was found and what was left out.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Vocabulary {
    /// Tokens, special ones included.
    pub tokens: u64,
    /// What was read.
    #[serde(flatten)]
    pub fed: Fed,
    /// Words that came, each as often as it did.
    pub occurrences: u64,
    /// Different words that were trained on.
    pub words: u64,
    /// What was lost while counting.
    pub pruned: Pruned,
    /// What was counted and not trained on: rarer than was asked for, for want of memory, or with a character that has no
    /// token.
    pub left_out: Dropped,
    /// By how much counts were divided so that the trainer could add them up.
    pub divided_by: u64,
    /// Characters with a token of their own; nothing where tokens are made of bytes.
    pub characters: Option<Characters>,
}

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// So many rows were passed.
    Counting(u64),
    /// Words are counted, and a vocabulary is trained on so many.
    Training(u64),
}

/// Trains a tokenizer on the rows of `sources`: source and target of pairs, contents of messages, texts.
pub fn train_tokenizer(
    sources: &Sources,
    settings: &VocabularySettings,
    now: &mut dyn FnMut(Phase),
) -> Result<(TokenizerFiles, Vocabulary), DataError> {
    let VocabularySettings { model, vocab, memory, .. } = *settings;
    let specials = SpecialTokens::of(model, &settings.special)?;
    check(settings, &specials)?;
    let room = cost::room(model, vocab, memory)?;
    let cutter = Cutter::of(model, specials.clone())?;

    // Half, since the trainer's copy of the words is made while they are still here.
    let mut counts = WordCounts::within((memory / 2).min(MOST_COUNTING));
    let fed = feed::feed(sources, settings.rows, settings.seed, &cutter, &mut counts, &mut |rows| {
        now(Phase::Counting(rows));
    })?;
    let (occurrences, pruned) = (counts.occurrences(), counts.pruned());

    let divided_by = train::divisor(&counts, model);
    let least = match model {
        VocabularyModel::Unigram => settings.min_frequency.max(divided_by),
        VocabularyModel::Bpe | VocabularyModel::WordPiece => divided_by,
    };
    let rare = if least > 1 { counts.retain(|_, count| count >= least) } else { Dropped::default() };
    let heavy = counts.keep_commonest(room.words_bytes, |word| cost::word_bytes(model, word));
    if counts.words() == 0 {
        return Err(DataError::NoWords { rows: fed.rows, rarer_than: least });
    }
    let alphabet = match model {
        VocabularyModel::Bpe => None,
        VocabularyModel::Unigram => Some(alphabet::choose(&counts, vocab, specials.tokens().len() as u64, 1)?),
        VocabularyModel::WordPiece => Some(alphabet::choose(&counts, vocab, specials.tokens().len() as u64, 2)?),
    };
    let (kept, characters): (BTreeSet<char>, _) =
        alphabet.map_or((Default::default(), None), |found| (found.kept, Some(found.told)));
    // WordPiece reads a word with an unknown character as unknown whole; Unigram takes what is around it.
    let strange = match characters {
        Some(told) if told.left_out > 0 && model == VocabularyModel::WordPiece => {
            counts.retain(|word, _| word.chars().all(|c| kept.contains(&c)))
        }
        _ => Dropped::default(),
    };
    let left_out = rare.and(heavy).and(strange);

    let words = counts.words();
    now(Phase::Training(words));
    let task =
        train::Task { model, specials: &specials, vocab, min_frequency: settings.min_frequency, alphabet: &kept, room };
    let trained = train::train(&task, counts, divided_by)?;
    let tokenizer = pipeline::assemble(model, trained, cutter)?;
    let files = TokenizerFiles::of(model, &tokenizer, &specials)?;
    let tokens = tokenizer.get_vocab_size(true) as u64;
    Ok((files, Vocabulary { tokens, fed, occurrences, words, pruned, left_out, divided_by, characters }))
}

fn check(settings: &VocabularySettings, specials: &SpecialTokens) -> Result<(), DataError> {
    let VocabularySettings { model, vocab, memory, rows, .. } = *settings;
    let bad = |setting, found, expected: String| Err(DataError::BadVocabularySetting { setting, found, expected });
    if vocab > VocabularySettings::MOST_VOCAB {
        return bad("vocab", vocab, format!("at most {}", VocabularySettings::MOST_VOCAB));
    }
    if memory > VocabularySettings::MOST_MEMORY {
        return bad("memory", memory, format!("at most {} bytes", VocabularySettings::MOST_MEMORY));
    }
    if rows == Some(0) {
        return bad("rows", 0, "at least 1".into());
    }
    let special = specials.tokens().len() as u64;
    let (expected, needs) = match model {
        VocabularyModel::Bpe => (special + 256, format!("{special} special tokens and the 256 bytes")),
        // More is needed for characters; how many is seen when they are counted.
        VocabularyModel::Unigram => (special + 2, format!("{special} special tokens and characters")),
        VocabularyModel::WordPiece => (special + 4, format!("{special} special tokens and characters")),
    };
    match vocab < expected {
        true => Err(DataError::VocabularyTooSmall { vocab, expected, needs }),
        false => Ok(()),
    }
}
