//! One row, or a part of one, as the tokens of a document, each marked whether it is trained.
//!
//! Invariant: a conversation is tokenised once and whole, so that its tokens are those that a model would be given; of it,
//! and of a text that is cut, one token more than a sample has rows is kept, since the last is only a label. It knows no
//! order, threads and batches.

use std::fmt;

use crate::memo::Memo;
use crate::tokenizer::{TEXT_BYTES_PER_TOKEN, clip, clip_bytes, weight};
use crate::{ChatTemplate, DataError, Kind, Message, Recipe, TextTokenizer};

/// Marks a token that is trained. Token ids are far below.
pub(crate) const TRAINED: u32 = 1 << 31;

/// Tokens of one document, or of a part of a long text.
#[derive(Default)]
pub(crate) struct Tokens {
    /// Ids, with [`TRAINED`] where they are.
    pub words: Vec<u32>,
    /// Something was left out.
    pub cut: bool,
    /// Of a conversation, the next two are wanted.
    pub asks_least: bool,
    /// From so many rows of a sample on, these tokens, as far as they go, are those of the conversation.
    pub least: usize,
    /// All of the conversation was looked at.
    pub seen_whole: bool,
    /// Words that were tokenised before, where there is a thread that has them.
    pub memo: Option<Memo>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("words", &self.words).field("cut", &self.cut).finish_non_exhaustive()
    }
}

/// Which part of its row a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub first: bool,
    pub last: bool,
}

impl Part {
    pub const WHOLE: Part = Part { first: true, last: true };
}

/// Tokenises `text` of a row for samples of `rows` rows.
pub(crate) fn encode(
    recipe: &Recipe,
    tokenizer: &TextTokenizer,
    rows: usize,
    text: &str,
    part: Part,
    out: &mut Tokens,
) -> Result<(), DataError> {
    out.words.clear();
    out.cut = false;
    match (recipe.kind(), recipe.template()) {
        (Kind::Chat, Some(template)) => {
            // Our own JSON, checked when the row was read.
            let messages: Vec<Message> =
                serde_json::from_str(text).map_err(|e| DataError::NotRendered { reason: e.to_string() })?;
            chat(template, tokenizer, rows, &messages, out)
        }
        _ => plain(recipe, tokenizer, rows, text, part, out),
    }
}

fn chat(
    template: &ChatTemplate,
    tokenizer: &TextTokenizer,
    rows: usize,
    messages: &[Message],
    out: &mut Tokens,
) -> Result<(), DataError> {
    let rendered = template.render_beginning(messages, clip_bytes(rows + 1) + 4)?;
    let seen = clip(&rendered.text, rows + 1);
    let encoding = tokenizer.encode_with_offsets(seen)?;
    let (ids, offsets) = (encoding.get_ids(), encoding.get_offsets());
    let kept = ids.len().min(rows + 1);
    out.cut = !rendered.whole || seen.len() < rendered.text.len() || kept < ids.len();
    out.words.extend_from_slice(&ids[..kept]);
    // Nothing behind the last token that is kept can be trained.
    let end = if kept < ids.len() { offsets[..kept].iter().map(|o| o.1).max().unwrap_or(0) } else { seen.len() };
    let mut from = 0;
    for (start, end) in template.spans(messages, &rendered, rendered.text.ceil_char_boundary(end))? {
        // From the first token that has a byte of the span to the last one; what has no bytes between them belongs to it.
        let touches = |at: usize| offsets[at].0 < end && offsets[at].1 > start;
        let Some(first) = (from..kept).find(|&at| touches(at)) else { continue };
        let last = (first..kept).take_while(|&at| offsets[at].0 < end).filter(|&at| touches(at)).last();
        let last = last.unwrap_or(first);
        out.words[first..=last].iter_mut().for_each(|word| *word |= TRAINED);
        from = first;
    }
    if out.asks_least {
        out.seen_whole = rendered.whole && seen.len() == rendered.text.len();
        let light = weight(seen).div_ceil(TEXT_BYTES_PER_TOKEN).saturating_sub(1);
        out.least = if out.seen_whole { light.max(last_uncertain_cut(&out.words, offsets)) } else { rows };
    }
    if out.words.is_empty() {
        out.words.push(tokenizer.eos_id());
    }
    Ok(())
}

/// The most tokens after which a cut would train one less than the whole does; 0 where there is no such place. A token that has no
/// bytes belongs to the assistant by what follows it, so as the last one that is kept it does not.
fn last_uncertain_cut(words: &[u32], offsets: &[(usize, usize)]) -> usize {
    let (mut end, mut open, mut last) = (0, None, 0);
    for (at, (word, offset)) in words.iter().zip(offsets).enumerate() {
        end = end.max(offset.1);
        if word & TRAINED != 0 && offset.0 >= end {
            open = Some(offset.0);
        }
        // While nothing behind it has bytes, it is at the end. Where all are kept, nothing is cut.
        if at + 1 < words.len() && open.is_some_and(|place| place >= end) {
            last = at + 1;
        }
    }
    last
}

fn plain(
    recipe: &Recipe,
    tokenizer: &TextTokenizer,
    rows: usize,
    text: &str,
    part: Part,
    out: &mut Tokens,
) -> Result<(), DataError> {
    let (seen, most) = if recipe.splits() { (text, usize::MAX) } else { (clip(text, rows + 1), rows + 1) };
    let more = tokenizer.append(&mut out.memo, seen, part.first, most, &mut out.words)?;
    if let Some(bos) = recipe.bos_id().filter(|bos| part.first && out.words.first() != Some(bos)) {
        out.words.insert(0, bos);
    }
    if part.last {
        out.words.push(tokenizer.eos_id());
    }
    out.words.iter_mut().for_each(|word| *word |= TRAINED);
    if !recipe.splits() {
        out.cut = more || seen.len() < text.len() || out.words.len() > rows + 1;
        out.words.truncate(rows + 1);
    }
    Ok(())
}

/// Where the next part of a long text ends: as much as may be tokenised at a time, and before a blank where one is near.
pub(crate) fn part_end(text: &str, rows: usize) -> usize {
    let part = clip(text, rows + 1).len();
    if part > 0 || text.is_empty() {
        return part;
    }
    // It begins with its only blank.
    text.ceil_char_boundary(clip_bytes(rows + 1).min(text.len()).div_ceil(3).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_text_are_the_text_and_never_empty() {
        for text in ["a b c ".repeat(300), " ".repeat(500), "ö".repeat(400), " x".into(), String::new()] {
            for rows in [1, 2, 7] {
                let (mut at, mut joined) = (0, String::new());
                while at < text.len() {
                    let end = part_end(&text[at..], rows);
                    assert!(end > 0 && end <= clip_bytes(rows + 1));
                    joined += &text[at..at + end];
                    at += end;
                }
                assert_eq!(joined, text);
            }
        }
    }
}
