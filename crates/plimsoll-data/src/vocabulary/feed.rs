//! From rows to counted words: which rows, which of their texts, and the words as the tokenizer itself will cut them.
//!
//! Invariant: a long text is taken in parts, so memory depends on a block and the number of threads, not on rows; words
//! are counted in the order of the rows, whatever the threads did. It knows no vocabulary.

use std::borrow::Cow;

use rayon::prelude::*;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper,
};

use super::specials::SpecialTokens;
use super::words::WordCounts;
use crate::document::part_end;
use crate::order::Draws;
use crate::sources::ReadScratch;
use crate::window::{RowPlace, Texts};
use crate::{DataError, Kind, Message, Order, Sources};

/// Characters of a word that are counted as one; a longer one is counted in parts. It has at most four bytes for each.
const WORD_CHARS: usize = super::words::MOST_WORD_BYTES / 4;
/// Parts of texts have as many bytes as this many tokens may have: 8 KiB.
const PART_TOKENS: usize = 255;
/// Parts that a thread takes at a time.
const PARTS: usize = 64;

/// How a text falls into words.
pub(crate) struct Cutter {
    pub specials: SpecialTokens,
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: PreTokenizerWrapper,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Fed {
    /// Rows that were read.
    pub rows: u64,
    /// Rows that there are.
    pub of_rows: u64,
    /// Bytes of their texts.
    pub text_bytes: u64,
    /// Words that were so long that they were counted in parts.
    pub long_words: u64,
}

/// Counts the words of `rows` rows of `sources`, drawn by `seed`, or of all; `seen` is called now and then with how many
/// rows were passed.
pub(crate) fn feed(
    sources: &Sources,
    rows: Option<u64>,
    seed: u64,
    cutter: &Cutter,
    counts: &mut WordCounts,
    seen: &mut dyn FnMut(u64),
) -> Result<Fed, DataError> {
    let room = sources.window_room(Order::new(0, false));
    let mut texts = Texts::with_room(room.text_bytes as usize, room.rows as usize);
    let mut scratch = ReadScratch::for_sources(sources);
    let mut lot = Lot::new(rows.unwrap_or(u64::MAX), sources.facts().rows, seed);
    let mut fed = Fed { of_rows: sources.facts().rows, ..Fed::default() };
    let mut passed = 0;
    for (number, block) in sources.blocks().iter().enumerate() {
        let drawn: Vec<u32> = (0..block.rows).filter(|_| lot.next()).collect();
        passed += u64::from(block.rows);
        if !drawn.is_empty() {
            texts.clear();
            sources.read_block(number, &mut scratch, &mut texts)?;
            let parts = parts(sources, &texts, number as u32, &drawn, &cutter.specials)?;
            fed.rows += drawn.len() as u64;
            fed.text_bytes += parts.iter().map(|(_, part)| part.len() as u64).sum::<u64>();
            let cut = |parts: &[(u32, Cow<'_, str>)]| {
                let mut words = Words::default();
                for (row, part) in parts {
                    let place = RowPlace { block: number as u32, row: *row };
                    cutter.words(part, &mut words).map_err(|e| sources.named(place, e))?;
                }
                Ok(words)
            };
            let cut: Result<Vec<Words>, DataError> = parts.par_chunks(PARTS).map(cut).collect();
            for words in cut? {
                words.iter().for_each(|word| counts.add(word));
                fed.long_words += words.long;
            }
        }
        seen(passed);
    }
    Ok(fed)
}

/// Draws so many of all rows, each row as likely as any other, one by one.
struct Lot {
    wanted: u64,
    left: u64,
    draws: Draws,
}

impl Lot {
    fn new(wanted: u64, all: u64, seed: u64) -> Lot {
        Lot { wanted: wanted.min(all), left: all, draws: Draws::new([seed, all, 0x766f_6361]) }
    }

    /// Whether the next row is drawn.
    fn next(&mut self) -> bool {
        // With all rows wanted this is always true, and without draws that mean anything.
        let drawn = self.draws.below(self.left) < self.wanted;
        self.left -= 1;
        self.wanted -= u64::from(drawn);
        drawn
    }
}

/// The texts of drawn rows, in parts, each with the number of its row.
fn parts<'t>(
    sources: &Sources,
    texts: &'t Texts,
    block: u32,
    drawn: &[u32],
    specials: &SpecialTokens,
) -> Result<Vec<(u32, Cow<'t, str>)>, DataError> {
    let mut parts = Vec::with_capacity(2 * drawn.len());
    for &row in drawn {
        let (source, target) = texts.pair(row as usize);
        if sources.kind() == Kind::Chat {
            // Our own JSON, checked when the row was read.
            let messages: Vec<Message> = serde_json::from_str(source).map_err(|e| {
                let error = DataError::NotRendered { reason: e.to_string() };
                sources.named(RowPlace { block, row }, error)
            })?;
            for message in &messages {
                split(&message.content, specials, |part| parts.push((row, Cow::Owned(part.to_string()))));
            }
        } else {
            for text in [source, target] {
                split(text, specials, |part| parts.push((row, Cow::Borrowed(part))));
            }
        }
    }
    Ok(parts)
}

/// Parts of a text that are small enough, and without special tokens: those are never cut into words.
fn split<'t>(text: &'t str, specials: &SpecialTokens, mut part: impl FnMut(&'t str)) {
    for mut rest in specials.without(text) {
        while !rest.is_empty() {
            let (first, behind) = rest.split_at(part_end(rest, PART_TOKENS));
            part(first);
            rest = behind;
        }
    }
}

/// Words, end to end.
#[derive(Default)]
struct Words {
    text: String,
    ends: Vec<u32>,
    long: u64,
}

impl Words {
    fn push(&mut self, word: &str) {
        // Most words are short, and their characters need not be counted.
        if word.len() <= WORD_CHARS {
            return self.push_whole(word);
        }
        let (mut rest, mut parts) = (word, 0);
        while !rest.is_empty() {
            let end = rest.char_indices().nth(WORD_CHARS).map_or(rest.len(), |(at, _)| at);
            self.push_whole(&rest[..end]);
            (rest, parts) = (&rest[end..], parts + 1);
        }
        self.long += u64::from(parts > 1);
    }

    fn push_whole(&mut self, word: &str) {
        if !word.is_empty() {
            self.text.push_str(word);
            self.ends.push(self.text.len() as u32);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let word = &self.text[start..end as usize];
            start = end as usize;
            word
        })
    }
}

impl Cutter {
    /// Appends the words of `text`.
    fn words(&self, text: &str, words: &mut Words) -> Result<(), DataError> {
        let failed = |e: tokenizers::Error| DataError::NotTokenised {
            start: text.chars().take(40).collect(),
            reason: e.to_string(),
        };
        let mut normal = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut normal).map_err(failed)?;
        }
        let mut cut = PreTokenizedString::from(normal);
        self.pre_tokenizer.pre_tokenize(&mut cut).map_err(failed)?;
        for (word, _, _) in cut.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            words.push(word);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lot_draws_exactly_as_many_as_wanted_and_each_row_as_often() {
        let mut hits = [0u32; 20];
        for seed in 0..4000 {
            let mut lot = Lot::new(5, 20, seed);
            let drawn: Vec<usize> = (0..20).filter(|_| lot.next()).collect();
            assert_eq!(drawn.len(), 5);
            drawn.iter().for_each(|row| hits[*row] += 1);
        }
        // Expected 1000 each, standard deviation 27.
        assert!(hits.iter().all(|n| (880..1120).contains(n)), "{hits:?}");
        let mut all = Lot::new(u64::MAX, 20, 1);
        assert!((0..20).all(|_| all.next()));
    }

    #[test]
    fn long_words_are_counted_in_parts_and_nothing_is_lost() {
        for word in ["ö".repeat(WORD_CHARS), "日".repeat(3 * WORD_CHARS + 1), "x".repeat(WORD_CHARS + 1)] {
            let mut words = Words::default();
            words.push(&word);
            assert_eq!(words.iter().collect::<String>(), word);
            assert!(words.iter().all(|w| w.chars().count() <= WORD_CHARS));
            assert_eq!(words.long, u64::from(word.chars().count() > WORD_CHARS));
        }
    }
}
