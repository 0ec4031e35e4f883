//! What is stored of a row: its tokens, whole where it may be looked at whole, and what of them other lengths are certain to keep.
//!
//! What a loader makes of a row depends on its length: no more of a text is looked at than the length may need (`tokenizer::clip`),
//! and a tokenizer may end a text that is cut there in another way than in the middle of the whole. So a set is made *for* a length:
//! each row is tokenised by the loader's own functions at that length, and at a longer one, and the longer is stored only where the
//! first follows from it. Which other lengths follow too is added up in a [`Reach`]. Invariant: at the length that the set was made
//! for, what is derived is what the loader would have made, row by row compared or true by construction; at any other length that
//! the reach allows, by construction. It knows no files.

use std::mem::swap;

use super::words::{BodyBuilder, Cuts, WordForm};
use crate::document::{self, Part, Tokens, part_end};
use crate::memo::Memo;
use crate::tokenizer::{TEXT_BYTES_PER_TOKEN, clip_bytes, weight};
use crate::{DataError, Kind, Recipe, TextTokenizer};

/// Rows are kept whole, as far as they are looked at for samples of so many tokens: 128 KiB of text.
pub(crate) const LONGEST: usize = 4096;

/// The lengths of one side that a set is made at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeAt {
    pub made: usize,
    pub longest: usize,
}

impl MadeAt {
    pub fn length(made: usize) -> MadeAt {
        MadeAt { made: made.max(1), longest: made.max(LONGEST) }
    }
}

/// What is certain of one side of all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// From this length on the stored tokens are what a loader would make, as far as they go.
    pub from: u64,
    /// Rows of which something is left out at the length that the set is made for.
    pub cut: u64,
    /// Some row is stored as it is at the length that the set is made for, and at no other.
    pub only_made: bool,
    /// Some row has more than is stored.
    pub more: bool,
}

impl Reach {
    pub fn and(self, other: Reach) -> Reach {
        Reach {
            from: self.from.max(other.from),
            cut: self.cut + other.cut,
            only_made: self.only_made | other.only_made,
            more: self.more | other.more,
        }
    }

    /// Whether samples of `length` follow from what is stored.
    pub fn serves(&self, at: MadeAt, length: usize) -> bool {
        let certain = !self.only_made && length as u64 >= self.from && (length <= at.longest || !self.more);
        length == at.made || certain
    }
}

/// Where tokens of a row go.
#[derive(Clone, Copy)]
enum Which {
    Whole,
    Short,
}

/// Makes rows. Its buffers stay as long as the longest row made them.
pub(crate) struct Maker<'a> {
    tokenizer: &'a TextTokenizer,
    recipe: &'a Recipe,
    at: [MadeAt; 2],
    whole: Tokens,
    short: Tokens,
    part: Tokens,
    /// Words that were tokenised before, of pairs and texts.
    memo: Option<Memo>,
    pub reach: [Reach; 2],
}

impl<'a> Maker<'a> {
    pub fn new(tokenizer: &'a TextTokenizer, recipe: &'a Recipe, at: [MadeAt; 2]) -> Maker<'a> {
        let tokens = Tokens::default;
        let whole = Tokens { asks_least: true, ..tokens() };
        let memo = if recipe.kind() == Kind::Chat { None } else { tokenizer.memo() };
        Maker { tokenizer, recipe, at, whole, short: tokens(), part: tokens(), memo, reach: Default::default() }
    }

    /// How tokens of this recipe are written.
    pub fn form(tokenizer: &TextTokenizer, recipe: &Recipe) -> WordForm {
        WordForm::smallest(recipe.kind(), most_id(tokenizer, recipe))
    }

    /// Puts one row into `body`.
    pub fn row(&mut self, source: &str, target: &str, body: &mut BodyBuilder) -> Result<(), DataError> {
        match self.recipe.kind() {
            Kind::Pairs => {
                self.pair_side(0, source, body)?;
                self.pair_side(1, target, body)
            }
            Kind::Chat | Kind::Text => {
                self.document(source, body)?;
                body.side(&[], Cuts::default());
                Ok(())
            }
        }
    }

    /// One side of a pair, without its end-of-sequence token.
    fn pair_side(&mut self, side: usize, text: &str, body: &mut BodyBuilder) -> Result<(), DataError> {
        let MadeAt { made, longest } = self.at[side];
        let (tokenizer, memo) = (self.tokenizer, &mut self.memo);
        let mut encode = |most: usize, out: &mut Tokens| -> Result<(), DataError> {
            out.cut = tokenizer.encode_by(memo, text, most, &mut out.words)?;
            out.words.pop();
            Ok(())
        };
        let weighs = weight(text);
        let seen_whole = weighs <= clip_bytes(longest);
        let least = if seen_whole { weighs.div_ceil(TEXT_BYTES_PER_TOKEN).max(1) } else { longest };
        let whole = encode(longest, &mut self.whole);
        if made == longest || (whole.is_ok() && least <= made) {
            whole?;
            let at_made = self.whole.words.len() > made - 1 || (made == longest && self.whole.cut);
            self.store(side, least, seen_whole, at_made, body);
            return Ok(());
        }
        encode(made, &mut self.short)?;
        let kept = self.whole.words.len().min(made - 1);
        let follows = whole.is_ok() && self.whole.words[..kept] == self.short.words[..];
        self.store_either(side, follows, least, seen_whole, body);
        Ok(())
    }

    fn document(&mut self, text: &str, body: &mut BodyBuilder) -> Result<(), DataError> {
        let MadeAt { made, longest } = self.at[0];
        let whole = self.encode_row(longest, text, Which::Whole);
        let (least, seen_whole) = match self.recipe.kind() {
            Kind::Chat => (self.whole.least, self.whole.seen_whole),
            Kind::Pairs | Kind::Text => {
                let weighs = weight(text);
                let seen_whole = weighs <= clip_bytes(longest + 1);
                let least = weighs.div_ceil(TEXT_BYTES_PER_TOKEN).saturating_sub(1);
                (if seen_whole { least } else { longest }, seen_whole)
            }
        };
        if made == longest || (whole.is_ok() && least <= made) {
            whole?;
            let longer = !self.recipe.splits() && self.whole.words.len() > made + 1;
            let at_made = longer || (made == longest && self.whole.cut);
            self.store(0, least, seen_whole, at_made, body);
            return Ok(());
        }
        self.encode_row(made, text, Which::Short)?;
        let kept = if self.recipe.splits() { usize::MAX } else { made + 1 };
        let kept = self.whole.words.len().min(kept);
        let follows = whole.is_ok() && self.whole.words[..kept] == self.short.words[..];
        self.store_either(0, follows, least, seen_whole, body);
        Ok(())
    }

    /// All tokens of a row, as the loader of documents makes them for samples of `rows` rows: long texts part by part.
    fn encode_row(&mut self, rows: usize, text: &str, which: Which) -> Result<(), DataError> {
        let (recipe, tokenizer) = (self.recipe, self.tokenizer);
        let (out, part) = match which {
            Which::Whole => (&mut self.whole, &mut self.part),
            Which::Short => (&mut self.short, &mut self.part),
        };
        if !recipe.splits() {
            // There is one memo, which goes where texts are tokenised to.
            swap(&mut self.memo, &mut out.memo);
            let encoded = document::encode(recipe, tokenizer, rows, text, Part::WHOLE, out);
            swap(&mut self.memo, &mut out.memo);
            return encoded;
        }
        out.words.clear();
        out.cut = false;
        swap(&mut self.memo, &mut part.memo);
        let encoded = encode_parts(recipe, tokenizer, rows, text, out, part);
        swap(&mut self.memo, &mut part.memo);
        encoded
    }

    /// Stores the longer one where the shorter follows from it, else the shorter.
    fn store_either(&mut self, side: usize, follows: bool, least: usize, seen_whole: bool, body: &mut BodyBuilder) {
        let at_made = self.short.cut;
        if follows {
            return self.store(side, least, seen_whole, at_made, body);
        }
        body.side(&self.short.words, Cuts { at_made, at_longest: at_made });
        let only = Reach { from: least as u64, cut: u64::from(at_made), only_made: true, more: true };
        self.reach[side] = self.reach[side].and(only);
    }

    fn store(&mut self, side: usize, least: usize, seen_whole: bool, at_made: bool, body: &mut BodyBuilder) {
        let at_longest = self.whole.cut;
        body.side(&self.whole.words, Cuts { at_made, at_longest });
        let more = at_longest || !seen_whole;
        let this = Reach { from: least as u64, cut: u64::from(at_made), only_made: false, more };
        self.reach[side] = self.reach[side].and(this);
    }
}

/// The highest id that can come of a recipe.
pub(crate) fn most_id(tokenizer: &TextTokenizer, recipe: &Recipe) -> u32 {
    tokenizer.most_id().max(recipe.bos_id().unwrap_or(0))
}

/// Appends the tokens of all parts of a text to `out`.
fn encode_parts(
    recipe: &Recipe,
    tokenizer: &TextTokenizer,
    rows: usize,
    text: &str,
    out: &mut Tokens,
    part: &mut Tokens,
) -> Result<(), DataError> {
    let mut start = 0;
    loop {
        let rest = &text[start..];
        let end = part_end(rest, rows);
        let last = end == rest.len();
        document::encode(recipe, tokenizer, rows, &rest[..end], Part { first: start == 0, last }, part)?;
        out.words.extend_from_slice(&part.words);
        start += end;
        if last {
            return Ok(());
        }
    }
}
