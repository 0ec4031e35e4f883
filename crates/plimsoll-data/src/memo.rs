//! Words that were tokenised before, with their tokens: a table of fixed size, of one thread.
//!
//! Invariant: nothing grows; what it knows never changes what comes out. Two words share a place at most; the one that was used last
//! stays. It knows no tokenizer.

use ahash::RandomState;

/// Places of the table, in pairs.
const PLACES: usize = 1 << 14;
const MOST_BYTES: usize = 30;
const MOST_TOKENS: usize = 8;

/// A word and its tokens; a cache line.
#[derive(Clone, Copy)]
struct Word {
    length: u8,
    count: u8,
    bytes: [u8; MOST_BYTES],
    tokens: [u32; MOST_TOKENS],
}

impl Word {
    /// No word is empty.
    const NONE: Word = Word { length: 0, count: 0, bytes: [0; MOST_BYTES], tokens: [0; MOST_TOKENS] };

    fn is(&self, word: &[u8]) -> bool {
        usize::from(self.length) == word.len() && &self.bytes[..word.len()] == word
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens[..usize::from(self.count)]
    }
}

/// Words that a thread tokenised lately, each with its tokens.
pub struct Memo {
    words: Box<[Word]>,
    hasher: RandomState,
}

impl Memo {
    /// Heap of a memo, in bytes.
    pub(crate) const HEAP_BYTES: u64 = (PLACES * size_of::<Word>()) as u64;

    pub(crate) fn new() -> Memo {
        Memo { words: vec![Word::NONE; PLACES].into(), hasher: RandomState::with_seeds(1, 2, 3, 4) }
    }

    /// The tokens of `word`, if it was here lately.
    pub(crate) fn find(&mut self, word: &str) -> Option<&[u32]> {
        let word = word.as_bytes();
        if word.len() > MOST_BYTES {
            return None;
        }
        let first = self.place(word);
        if self.words[first].is(word) {
            return Some(self.words[first].tokens());
        }
        if !self.words[first + 1].is(word) {
            return None;
        }
        self.words.swap(first, first + 1);
        Some(self.words[first].tokens())
    }

    /// Remembers `word`, which [`Memo::find`] did not find, unless it is too long.
    pub(crate) fn keep(&mut self, word: &str, tokens: &[u32]) {
        let word = word.as_bytes();
        if word.is_empty() || word.len() > MOST_BYTES || tokens.len() > MOST_TOKENS {
            return;
        }
        let first = self.place(word);
        self.words[first + 1] = self.words[first];
        let place = &mut self.words[first];
        (place.length, place.count) = (word.len() as u8, tokens.len() as u8);
        place.bytes[..word.len()].copy_from_slice(word);
        place.tokens[..tokens.len()].copy_from_slice(tokens);
    }

    /// The first of the two places of a word.
    fn place(&self, word: &[u8]) -> usize {
        (self.hasher.hash_one(word) as usize & (PLACES / 2 - 1)) * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_with_its_own_tokens_or_not_at_all() {
        let mut memo = Memo::new();
        // More than it has places for, so that many are given up.
        for round in 0..2 {
            for n in 0..3 * PLACES as u32 {
                let word = format!("w{n}");
                match memo.find(&word) {
                    Some(tokens) => assert_eq!(tokens, [n, 7]),
                    None => memo.keep(&word, &[n, 7]),
                }
                assert_eq!(memo.find(&word).unwrap(), [n, 7], "round {round}");
            }
        }
        let long = "x".repeat(MOST_BYTES + 1);
        memo.keep(&long, &[1]);
        assert!(memo.find(&long).is_none());
        memo.keep("many", &[0; MOST_TOKENS + 1]);
        assert!(memo.find("many").is_none() && memo.find("").is_none());
        memo.keep("nothing", &[]);
        assert!(memo.find("nothing").unwrap().is_empty());
        assert_eq!(size_of::<Word>(), 64);
    }
}
