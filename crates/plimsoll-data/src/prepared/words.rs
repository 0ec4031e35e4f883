//! Rows of tokens as a block of a shard holds them, and as a window holds the rows of its blocks.
//!
//! A block is a directory (two numbers a row: how many tokens its source and its target have, and what was left out of them), then
//! the tokens themselves, in 2 or 4 bytes each. Invariant: what is taken in was checked whole: the directory accounts for every
//! byte, and no token is outside the vocabulary, so that no later reading can fail. It knows no file.

use crate::Kind;
use crate::document::TRAINED;

/// Bytes of the directory for each row.
pub(crate) const DIRECTORY_BYTES: usize = 8;

/// Bytes of [`TokenRows`] a row beside its tokens.
pub(crate) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// In a directory's number: something of the text is left out at the length that the set was made for.
const CUT_AT_MADE: u32 = 1 << 31;
/// The same at the longest length.
const CUT_AT_LONGEST: u32 = 1 << 30;
const COUNT: u32 = CUT_AT_LONGEST - 1;

/// How tokens are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordForm {
    /// Bytes of a token: 2 or 4.
    pub bytes: u32,
    /// What a row is. Of a conversation the highest bit of a token says that it is trained; texts are trained whole.
    pub kind: Kind,
}

impl WordForm {
    /// The smallest that has room for all ids up to `most_id`.
    pub fn smallest(kind: Kind, most_id: u32) -> WordForm {
        let room = if kind == Kind::Chat { 1 << 15 } else { 1 << 16 };
        WordForm { bytes: if most_id < room { 2 } else { 4 }, kind }
    }

    fn mark(self) -> u32 {
        match (self.kind, self.bytes) {
            (Kind::Pairs | Kind::Text, _) => 0,
            (Kind::Chat, 2) => 1 << 15,
            (Kind::Chat, _) => TRAINED,
        }
    }

    /// A token as it is stored.
    fn stored(self, word: u32) -> u32 {
        (word & !TRAINED) | if word & TRAINED != 0 { self.mark() } else { 0 }
    }

    /// A stored token as a loader has it.
    fn word(self, stored: u32) -> u32 {
        match self.kind {
            Kind::Pairs => stored,
            Kind::Text => stored | TRAINED,
            Kind::Chat if stored & self.mark() != 0 => (stored & !self.mark()) | TRAINED,
            Kind::Chat => stored,
        }
    }
}

/// What was left out of one side of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cuts {
    pub at_made: bool,
    pub at_longest: bool,
}

/// One block while it is made.
#[derive(Debug)]
pub(crate) struct BodyBuilder {
    form: WordForm,
    directory: Vec<u8>,
    words: Vec<u8>,
    /// Tokens so far.
    pub tokens: u64,
}

impl BodyBuilder {
    pub fn new(form: WordForm) -> BodyBuilder {
        BodyBuilder { form, directory: Vec::new(), words: Vec::new(), tokens: 0 }
    }

    /// One more side of a row: first its source, then its target.
    pub fn side(&mut self, words: &[u32], cuts: Cuts) {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        // A row has at most 64 MiB of text, and each byte of it at most a few tokens.
        let count = words.len() as u32 & COUNT;
        let number = count | flag(cuts.at_made, CUT_AT_MADE) | flag(cuts.at_longest, CUT_AT_LONGEST);
        self.directory.extend_from_slice(&number.to_le_bytes());
        for &word in words {
            let stored = self.form.stored(word).to_le_bytes();
            self.words.extend_from_slice(&stored[..self.form.bytes as usize]);
        }
        self.tokens += words.len() as u64;
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.directory.len() + self.words.len()
    }

    /// The whole block.
    pub fn finish(mut self) -> Vec<u8> {
        self.directory.extend_from_slice(&self.words);
        self.directory
    }
}

/// Why a block cannot be taken in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BodyFault {
    pub expected: String,
    pub found: String,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where its tokens begin, in bytes.
    at: usize,
    source: u32,
    target: u32,
}

/// The rows of some blocks.
#[derive(Debug)]
pub(crate) struct TokenRows {
    form: WordForm,
    bytes: Vec<u8>,
    rows: Vec<Entry>,
}

impl Default for TokenRows {
    fn default() -> TokenRows {
        TokenRows::with_room(WordForm { bytes: 4, kind: Kind::Pairs }, 0, 0)
    }
}

impl TokenRows {
    pub fn with_room(form: WordForm, bytes: usize, rows: usize) -> TokenRows {
        TokenRows { form, bytes: Vec::with_capacity(bytes), rows: Vec::with_capacity(rows) }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Room for `bytes` more, to be filled and then given to [`TokenRows::take_in`].
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        let first = self.bytes.len();
        self.bytes.resize(first + bytes, 0);
        &mut self.bytes[first..]
    }

    /// Checks the last `bytes` bytes, a block of `rows` rows whose ids are at most `most_id`, and takes them in.
    pub fn take_in(&mut self, bytes: usize, rows: u32, most_id: u32) -> Result<(), BodyFault> {
        let fault = |expected: String, found: String| Err(BodyFault { expected, found });
        let first = self.bytes.len() - bytes;
        let directory = rows as usize * DIRECTORY_BYTES;
        if directory > bytes {
            return fault(format!("at least {directory} bytes"), format!("{bytes}"));
        }
        let (form, width) = (self.form, self.form.bytes as usize);
        let mut at = first + directory;
        for row in 0..rows as usize {
            let number = |side: usize| {
                let from = first + row * DIRECTORY_BYTES + 4 * side;
                u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.bytes[from + byte]))
            };
            let (source, target) = (number(0), number(1));
            self.rows.push(Entry { at, source, target });
            // Two counts below 2^30 of 4 bytes each: no overflow.
            at += ((source & COUNT) as usize + (target & COUNT) as usize) * width;
        }
        if at != first + bytes {
            let told = at as u64 - first as u64;
            return fault(format!("{bytes} bytes"), format!("a directory of rows of {told} bytes"));
        }
        let id = |stored: u32| stored & !form.mark();
        let words = &self.bytes[first + directory..];
        let highest = match width {
            2 => words.chunks_exact(2).map(|w| id(u32::from(u16::from_le_bytes([w[0], w[1]])))).max(),
            _ => words.chunks_exact(4).map(|w| id(u32::from_le_bytes([w[0], w[1], w[2], w[3]]))).max(),
        };
        match highest {
            Some(highest) if highest > most_id => fault(format!("token ids up to {most_id}"), format!("{highest}")),
            _ => Ok(()),
        }
    }

    /// Source and target of a row.
    pub fn row(&self, row: usize) -> [Side<'_>; 2] {
        let Entry { at, source, target } = self.rows[row];
        let bytes = |number: u32| (number & COUNT) as usize * self.form.bytes as usize;
        let middle = at + bytes(source);
        let side = |number: u32, from: usize, to: usize| Side { form: self.form, number, bytes: &self.bytes[from..to] };
        [side(source, at, middle), side(target, middle, middle + bytes(target))]
    }
}

/// The tokens of one side of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    form: WordForm,
    number: u32,
    bytes: &'a [u8],
}

impl Side<'_> {
    pub fn len(&self) -> usize {
        (self.number & COUNT) as usize
    }

    pub fn cuts(&self) -> Cuts {
        Cuts { at_made: self.number & CUT_AT_MADE != 0, at_longest: self.number & CUT_AT_LONGEST != 0 }
    }

    /// Appends the tokens from `from` to `to`, marked as a loader has them.
    pub fn copy(&self, from: usize, to: usize, out: &mut Vec<u32>) {
        let (form, width) = (self.form, self.form.bytes as usize);
        let bytes = &self.bytes[from * width..to * width];
        match width {
            2 => out.extend(bytes.chunks_exact(2).map(|w| form.word(u32::from(u16::from_le_bytes([w[0], w[1]]))))),
            _ => out.extend(bytes.chunks_exact(4).map(|w| form.word(u32::from_le_bytes([w[0], w[1], w[2], w[3]])))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(form: WordForm, rows: &[(&[u32], &[u32])]) -> TokenRows {
        let mut body = BodyBuilder::new(form);
        for (source, target) in rows {
            body.side(source, Cuts { at_made: true, at_longest: false });
            body.side(target, Cuts::default());
        }
        let bytes = body.finish();
        let mut all = TokenRows::with_room(form, bytes.len(), rows.len());
        all.room(bytes.len()).copy_from_slice(&bytes);
        all.take_in(bytes.len(), rows.len() as u32, 70_000).unwrap();
        all
    }

    fn words(side: Side<'_>) -> Vec<u32> {
        let mut out = Vec::new();
        side.copy(0, side.len(), &mut out);
        out
    }

    #[test]
    fn tokens_and_marks_come_back_in_either_width() {
        for (kind, most, bytes) in [
            (Kind::Pairs, 65_535, 2),
            (Kind::Pairs, 65_536, 4),
            (Kind::Text, 65_535, 2),
            (Kind::Chat, 32_767, 2),
            (Kind::Chat, 32_768, 4),
        ] {
            let form = WordForm::smallest(kind, most);
            assert_eq!(form.bytes, bytes, "{kind:?} {most}");
            let marked = |id: u32, on: bool| if on && kind != Kind::Pairs { id | TRAINED } else { id };
            let source = [marked(0, true), marked(most, kind == Kind::Text), marked(most, true)];
            let rows = taken(form, &[(&source, &[]), (&[], &source[1..]), (&[], &[])]);
            assert_eq!(rows.len(), 3);
            assert_eq!(words(rows.row(0)[0]), source);
            assert_eq!(words(rows.row(1)[1]), source[1..]);
            assert_eq!(rows.row(2).map(|side| side.len()), [0, 0]);
            assert_eq!(rows.row(0)[0].cuts(), Cuts { at_made: true, at_longest: false });
            assert_eq!(rows.row(0)[1].cuts(), Cuts::default());
        }
    }

    #[test]
    fn a_directory_that_lies_and_ids_outside_the_vocabulary_are_refused() {
        let form = WordForm { bytes: 2, kind: Kind::Pairs };
        let mut body = BodyBuilder::new(form);
        body.side(&[5, 6], Cuts::default());
        body.side(&[7], Cuts::default());
        let bytes = body.finish();
        let take = |bytes: &[u8], rows: u32, most: u32| {
            let mut all = TokenRows::with_room(form, 0, 0);
            all.room(bytes.len()).copy_from_slice(bytes);
            all.take_in(bytes.len(), rows, most)
        };
        assert_eq!(take(&bytes, 1, 7), Ok(()));
        assert_eq!(take(&bytes, 1, 6).unwrap_err().found, "7");
        assert!(take(&bytes, 2, 7).is_err() && take(&bytes, 9, 7).is_err());
        for at in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x21;
            let flags = at % 4 == 3 && bytes[at] & 0x3f == 0;
            assert!(take(&bytes, 1, 7).is_err() || flags, "byte {at}");
        }
    }
}
