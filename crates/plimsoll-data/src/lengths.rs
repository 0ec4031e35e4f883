//! Default sequence lengths, from a sample of the data.
//!
//! Invariant: the sample is spread evenly over the rows, is the same each time, and reads at most 100 blocks. A length
//! is a multiple of 8 and at most 512.

use crate::sources::ReadScratch;
use crate::window::Texts;
use crate::{DataError, Order, Sources, TextTokenizer};

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

/// Looks at up to `sample_rows` rows of `sources` (`SAMPLE_ROWS` is usual).
pub fn suggest_lengths(sources: &Sources, tokenizer: &TextTokenizer, sample_rows: usize) -> Result<Lengths, DataError> {
    let blocks = sources.blocks().len();
    let visited = blocks.min(MOST_BLOCKS).min(sample_rows.max(1));
    let per_block = sample_rows.max(1).div_ceil(visited);
    let room = sources.window_room(Order::new(0, false));
    let mut texts = Texts::with_room(room.text_bytes as usize, room.rows as usize);
    let mut scratch = ReadScratch::for_sources(sources);
    let mut tokens = Vec::new();
    // One more than may be kept tells a text that fits exactly from one that does not.
    let mut length = |text: &str| tokenizer.encode(text, LONGEST + 1, &mut tokens).map(|_| tokens.len());
    let (mut source, mut target) = (1, 1);
    let (mut sampled, mut truncated) = (0, 0);
    for visit in 0..visited {
        texts.clear();
        sources.read_block(visit * blocks / visited, &mut scratch, &mut texts)?;
        let take = texts.len().min(per_block);
        for i in 0..take {
            let (s, t) = texts.pair(i * texts.len() / take);
            let (s, t) = (length(s)?, length(t)?);
            source = source.max(s);
            target = target.max(t);
            sampled += 1;
            truncated += usize::from(s > LONGEST || t > LONGEST);
        }
    }
    let fit = |longest: usize| longest.next_multiple_of(8).min(LONGEST);
    Ok(Lengths { source: fit(source), target: fit(target), sampled, truncated })
}
