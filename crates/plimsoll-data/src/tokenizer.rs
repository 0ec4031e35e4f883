//! Text to tokens and back, by the model's own `tokenizer.json`.
//!
//! Invariant: each sequence ends in the end-of-sequence token and has at most `max_len` tokens; no id is outside the
//! model's vocabulary. Nothing is remembered between texts but in a [`Memo`] of fixed size (the library's word caches are off), so
//! a thread's memory is bounded by one text, and a text is cut to [`TEXT_BYTES_PER_TOKEN`] bytes for each token that may be kept.
//! Texts are encoded one by one: the library starts no threads.

use std::fmt;
use std::path::Path;

use tokenizers::models::ModelWrapper;
use tokenizers::{Encoding, Model, Tokenizer};

use crate::DataError;
use crate::memo::Memo;
use crate::prepared::digest;
use crate::seams::Seams;

/// Bytes of text looked at for each token that may be kept. English has about 4 bytes a token; a text cut by this rule
/// has been truncated anyway, unless it is mostly blanks.
pub const TEXT_BYTES_PER_TOKEN: usize = 32;

/// A tokenizer that fits the model.
pub struct TextTokenizer {
    inner: Tokenizer,
    eos_id: u32,
    pad_id: u32,
    appends_eos: bool,
    /// Where texts may be cut, and what the tokenizer puts before and behind them.
    parts: Option<Parts>,
    fingerprint: u64,
    most_id: u32,
}

struct Parts {
    seams: Seams,
    before: Box<[u32]>,
    behind: Box<[u32]>,
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("eos_id", &self.eos_id)
            .field("pad_id", &self.pad_id)
            .field("appends_eos", &self.appends_eos)
            .finish_non_exhaustive()
    }
}

impl TextTokenizer {
    /// Reads a `tokenizer.json` and checks it against the model's vocabulary.
    pub fn load(path: &Path, spec_vocab: usize, eos_id: u32, pad_id: u32) -> Result<TextTokenizer, DataError> {
        let bytes = fs_err::read(path)?;
        let unreadable = |e: tokenizers::Error| DataError::BadTokenizer { path: path.into(), reason: e.to_string() };
        let fingerprint = digest(&bytes);
        let mut inner = Tokenizer::from_bytes(&bytes).map_err(unreadable)?;
        drop(bytes);
        inner.with_truncation(None).map_err(unreadable)?;
        inner.with_padding(None);
        without_cache(&mut inner);

        let outside = |id: u32| id as usize >= spec_vocab;
        let vocabulary = inner.get_vocab(true);
        let most_id = vocabulary.values().copied().chain([eos_id, pad_id]).max().unwrap_or(0);
        if let Some((token, id)) = vocabulary.into_iter().filter(|(_, id)| outside(*id)).min_by_key(|(_, id)| *id) {
            return Err(DataError::TokenOutsideVocabulary { path: path.into(), token, id, vocab: spec_vocab });
        }
        for (name, id) in [("(end of sequence)", eos_id), ("(padding)", pad_id)] {
            if outside(id) {
                let token = name.to_string();
                return Err(DataError::TokenOutsideVocabulary { path: path.into(), token, id, vocab: spec_vocab });
            }
        }
        if inner.id_to_token(eos_id).is_none() {
            return Err(DataError::NoSuchToken { path: path.into(), id: eos_id });
        }
        // Its post-processor shows itself on the empty text, which has no tokens of its own; unless what it adds comes before.
        let ends = |text: &str| -> Result<bool, DataError> {
            let encoding = inner.encode_fast(text, true).map_err(unreadable)?;
            Ok(encoding.get_ids().last() == Some(&eos_id))
        };
        let appends_eos = ends("")? && ends("a").unwrap_or(true);
        let parts = Seams::of(&inner).and_then(|seams| Parts::probe(&inner, seams));
        Ok(TextTokenizer { inner, eos_id, pad_id, appends_eos, parts, fingerprint, most_id })
    }

    /// A memo for a thread that tokenises texts; none where texts are tokenised whole.
    pub fn memo(&self) -> Option<Memo> {
        self.parts.as_ref().map(|_| Memo::new())
    }

    /// Heap of the memo of a thread, in bytes.
    pub fn memo_bytes(&self) -> u64 {
        self.parts.as_ref().map_or(0, |_| Memo::HEAP_BYTES)
    }

    /// Tells its file from others.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The highest id of its tokens.
    pub(crate) fn most_id(&self) -> u32 {
        self.most_id
    }

    /// The tokenizer's own post-processor ends sequences with the end-of-sequence token.
    pub fn appends_eos(&self) -> bool {
        self.appends_eos
    }

    /// The end-of-sequence id.
    pub fn eos_id(&self) -> u32 {
        self.eos_id
    }

    /// The padding id.
    pub fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// Replaces `tokens` by those of `text`, at most `max_len` (at least 1) with the end of sequence last. Returns
    /// whether something was cut off.
    pub fn encode(&self, text: &str, max_len: usize, tokens: &mut Vec<u32>) -> Result<bool, DataError> {
        self.encode_by(&mut None, text, max_len, tokens)
    }

    /// As [`TextTokenizer::encode`], the same tokens sooner: with a memo.
    pub fn encode_by(
        &self,
        memo: &mut Option<Memo>,
        text: &str,
        max_len: usize,
        tokens: &mut Vec<u32>,
    ) -> Result<bool, DataError> {
        tokens.clear();
        let max_len = max_len.max(1);
        let seen = clip(text, max_len);
        let more = self.append(memo, seen, true, max_len - 1, tokens)?;
        tokens.push(self.eos_id);
        Ok(more || seen.len() < text.len())
    }

    /// Appends the first tokens of `text` to `tokens`, at most `most`; where `special`, with those that the tokenizer adds to a
    /// text, but for its end-of-sequence token. Returns whether there are more.
    pub(crate) fn append(
        &self,
        memo: &mut Option<Memo>,
        text: &str,
        special: bool,
        most: usize,
        tokens: &mut Vec<u32>,
    ) -> Result<bool, DataError> {
        let (end, mut more) = (tokens.len().saturating_add(most), false);
        let without_eos = |ids: &mut &[u32]| {
            if special && self.appends_eos {
                *ids = ids.split_last().map_or(*ids, |(_, before)| before);
            }
        };
        let mut push = |ids: &[u32]| {
            let kept = ids.len().min(end - tokens.len());
            tokens.extend_from_slice(&ids[..kept]);
            more |= kept < ids.len();
            more
        };
        let parts = self.parts.as_ref().filter(|parts| parts.seams.hold_in(text));
        let (Some(memo), Some(Parts { seams, before, behind })) = (memo, parts) else {
            let encoding = self.encode_ids(text, special)?;
            let mut ids = encoding.get_ids();
            without_eos(&mut ids);
            return Ok(push(ids));
        };
        if special && push(before) {
            return Ok(true);
        }
        let mut start = 0;
        while start < text.len() {
            let part = &text[start..seams.part_end(text, start)];
            let full = match memo.find(part) {
                Some(ids) => push(ids),
                None => {
                    let encoding = self.encode_ids(part, false)?;
                    memo.keep(part, encoding.get_ids());
                    push(encoding.get_ids())
                }
            };
            if full {
                return Ok(true);
            }
            start += part.len();
        }
        let mut ids = if special { &behind[..] } else { &[] };
        without_eos(&mut ids);
        Ok(push(ids))
    }

    /// Replaces `tokens` by those of `text`, which a chat template wrote: nothing is added. Of a text with more than
    /// `max_len` (at least 1) the last ones are kept, since there the answer begins. Returns whether something was cut off.
    pub fn encode_prompt(&self, text: &str, max_len: usize, tokens: &mut Vec<u32>) -> Result<bool, DataError> {
        tokens.clear();
        // The end is what counts, so the beginning is what may be left unseen.
        let most = clip_bytes(max_len.max(1));
        let seen = &text[text.floor_char_boundary(text.len().saturating_sub(most))..];
        let encoding = self.encode_ids(seen, false)?;
        let ids = encoding.get_ids();
        let left = ids.len().saturating_sub(max_len.max(1));
        tokens.extend_from_slice(&ids[left..]);
        Ok(left > 0 || seen.len() < text.len())
    }

    /// The tokens of `text`, with those that the tokenizer adds to a text where `special`.
    pub(crate) fn encode_ids(&self, text: &str, special: bool) -> Result<Encoding, DataError> {
        self.inner.encode_fast(text, special).map_err(|e| not_tokenised(text, &e))
    }

    /// The tokens of `text`, nothing added, each with its place in bytes.
    pub(crate) fn encode_with_offsets(&self, text: &str) -> Result<Encoding, DataError> {
        self.inner.encode(text, false).map_err(|e| not_tokenised(text, &e))
    }

    /// How a token is written in a text.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The text of `tokens`, without special tokens, end of sequence and padding.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        let plain: Vec<u32> = tokens.iter().copied().filter(|id| *id != self.eos_id && *id != self.pad_id).collect();
        self.inner.decode(&plain, true).map_err(|e| DataError::NotTokenised {
            start: format!("{:?}", &plain[..plain.len().min(8)]),
            reason: e.to_string(),
        })
    }

    /// Tokens that the tokenizer knows, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

impl Parts {
    /// What is put around a text shows itself on two of them; nothing is known of a tokenizer that treats them differently.
    fn probe(tokenizer: &Tokenizer, seams: Seams) -> Option<Parts> {
        let around = |text: &str| -> Option<[Box<[u32]>; 2]> {
            let bare = tokenizer.encode_fast(text, false).ok()?;
            let whole = tokenizer.encode_fast(text, true).ok()?;
            let (bare, whole) = (bare.get_ids(), whole.get_ids());
            let first = whole.windows(bare.len().max(1)).position(|ids| ids == bare)?;
            Some([whole[..first].into(), whole[first + bare.len()..].into()])
        };
        let [before, behind] = around("a")?;
        (around("Two words")? == [before.clone(), behind.clone()]).then_some(Parts { seams, before, behind })
    }
}

fn not_tokenised(text: &str, error: &tokenizers::Error) -> DataError {
    DataError::NotTokenised { start: text.chars().take(40).collect(), reason: error.to_string() }
}

/// The part of `text` that is tokenised: all of it, or as much as weighs [`TEXT_BYTES_PER_TOKEN`] bytes for each token
/// that may be kept, cut at a blank where one is near.
pub(crate) fn clip(text: &str, max_len: usize) -> &str {
    let limit = clip_bytes(max_len);
    if text.len() * MOST_WEIGHT <= limit {
        return text;
    }
    let mut sum = 0;
    let over = text.char_indices().find(|(_, c)| {
        sum += weight_of(*c);
        sum > limit
    });
    let Some((cut, _)) = over else { return text };
    let near = text.floor_char_boundary(cut.saturating_sub(256));
    let blank = text[near..cut].rfind(char::is_whitespace).map_or(cut, |at| near + at);
    &text[..blank]
}

/// The most weight, and so the most bytes, that [`clip`] leaves.
pub(crate) fn clip_bytes(max_len: usize) -> usize {
    max_len * TEXT_BYTES_PER_TOKEN
}

/// What a text weighs: [`clip`] leaves it whole where that is at most [`clip_bytes`].
pub(crate) fn weight(text: &str) -> usize {
    text.chars().map(weight_of).sum()
}

fn weight_of(c: char) -> usize {
    c.len_utf8() * if grows(c) { MOST_WEIGHT } else { 1 }
}

/// Bytes that a byte counts for at most.
pub(crate) const MOST_WEIGHT: usize = 3;

/// Characters that NFKC writes out at five to eleven times their length (Arabic ligatures of whole phrases, squared
/// words), and the tokenizer's memory with them.
pub(crate) fn grows(c: char) -> bool {
    matches!(c, '\u{fdf0}'..='\u{fdff}' | '\u{3300}'..='\u{33ff}')
}

/// BPE keeps up to 10,000 words in each thread and Unigram as many for all: memory that no plan can know, for a speed
/// that training does not need.
fn without_cache(tokenizer: &mut Tokenizer) {
    let model = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) if bpe.get_vocab_size() > 0 => {
            let mut bpe = bpe.clone();
            bpe.resize_cache(0);
            ModelWrapper::BPE(bpe)
        }
        ModelWrapper::Unigram(unigram) => {
            let mut unigram = unigram.clone();
            unigram.clear_cache();
            unigram.resize_cache(0);
            ModelWrapper::Unigram(unigram)
        }
        _ => return,
    };
    tokenizer.with_model(model);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_grow_weigh_more() {
        assert_eq!(clip(&"\u{fdfa}".repeat(100), 9).chars().count(), 9 * 32 / 9);
    }

    #[test]
    fn a_long_text_is_cut_at_a_blank_or_at_a_character() {
        let words = "wörd ".repeat(100);
        let seen = clip(&words, 4);
        assert!(seen.len() <= 128 && seen.len() > 120 && seen.ends_with("wörd"), "{seen:?}");
        let solid = "ö".repeat(200);
        assert_eq!(clip(&solid, 1).len(), 32);
        assert_eq!(clip("short", 1), "short");
        assert_eq!(clip(&solid, 13), solid);
    }
}
