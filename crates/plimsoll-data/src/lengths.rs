//! Default sequence lengths, from a sample of the data.
//!
//! Invariant: the sample is spread evenly over the rows, is the same each time, and reads at most 100 blocks. A length
//! is a multiple of 8 and at most 512, or what the caller says for documents.

use crate::document::{self, Part, Tokens};
use crate::sources::ReadScratch;
use crate::window::{RowPlace, Texts};
use crate::{DataError, Kind, Order, Recipe, Sources, TextTokenizer};

/// Rows sampled unless told otherwise.
pub const SAMPLE_ROWS: usize = 2000;

const MOST_BLOCKS: usize = 100;
const LONGEST: usize = 512;

/// Suggested lengths, and how well they fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Longest source, in tokens.
    pub source: usize,
    /// Longest target, in tokens.
    pub target: usize,
    /// Rows looked at.
    pub sampled: usize,
    /// Of those, rows of which source or target would be cut off.
    pub truncated: usize,
}

/// Looks at up to `sample_rows` rows of `sources` (`SAMPLE_ROWS` is usual). Prepared data say themselves what they were made for.
pub fn suggest_lengths(sources: &Sources, tokenizer: &TextTokenizer, sample_rows: usize) -> Result<Lengths, DataError> {
    if let Some(prepared) = sources.prepared() {
        return Ok(prepared.lengths());
    }
    let mut tokens = Vec::new();
    // One more than may be kept tells a text that fits exactly from one that does not.
    let mut length = |text: &str| tokenizer.encode(text, LONGEST + 1, &mut tokens).map(|_| tokens.len());
    let (mut source, mut target) = (1, 1);
    let (mut sampled, mut truncated) = (0, 0);
    visit(sources, sample_rows, |_, s, t| {
        let (s, t) = (length(s)?, length(t)?);
        source = source.max(s);
        target = target.max(t);
        sampled += 1;
        truncated += usize::from(s > LONGEST || t > LONGEST);
        Ok(())
    })?;
    let fit = |longest: usize| longest.next_multiple_of(8).min(LONGEST);
    Ok(Lengths { source: fit(source), target: fit(target), sampled, truncated })
}

/// The length of samples for documents of `recipe` (source and target are the same), at most `most`, which is what the
/// model or the user allows. A text that would be split counts as `truncated` too. For pairs, [`suggest_lengths`].
pub fn suggest_length(
    sources: &Sources,
    tokenizer: &TextTokenizer,
    recipe: &Recipe,
    sample_rows: usize,
    most: usize,
) -> Result<Lengths, DataError> {
    if recipe.kind() == Kind::Pairs {
        return suggest_lengths(sources, tokenizer, sample_rows);
    }
    if let Some(prepared) = sources.prepared() {
        let made = prepared.lengths();
        return Ok(Lengths { source: made.source.min(most), target: made.target.min(most), ..made });
    }
    let whole = recipe.cutting();
    let mut tokens = Tokens::default();
    let (mut longest, mut sampled, mut truncated) = (1, 0, 0);
    visit(sources, sample_rows, |place, text, _| {
        document::encode(&whole, tokenizer, most, text, Part::WHOLE, &mut tokens)
            .map_err(|error| sources.named(place, error))?;
        longest = longest.max(tokens.words.len().saturating_sub(1));
        sampled += 1;
        truncated += usize::from(tokens.cut);
        Ok(())
    })?;
    let length = longest.next_multiple_of(8).min(most.max(1));
    Ok(Lengths { source: length, target: length, sampled, truncated })
}

/// Looks at up to `sample_rows` rows, spread evenly.
pub(crate) fn visit(
    sources: &Sources,
    sample_rows: usize,
    mut look: impl FnMut(RowPlace, &str, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let blocks = sources.blocks().len();
    let visited = blocks.min(MOST_BLOCKS).min(sample_rows.max(1));
    let per_block = sample_rows.max(1).div_ceil(visited);
    let room = sources.window_room(Order::new(0, false));
    let mut texts = Texts::with_room(room.text_bytes as usize, room.rows as usize);
    let mut scratch = ReadScratch::for_sources(sources);
    for visit in 0..visited {
        texts.clear();
        let block = visit * blocks / visited;
        sources.read_block(block, &mut scratch, &mut texts)?;
        let take = texts.len().min(per_block);
        for i in 0..take {
            let row = i * texts.len() / take;
            let (source, target) = texts.pair(row);
            look(RowPlace { block: block as u32, row: row as u32 }, source, target)?;
        }
    }
    Ok(())
}
