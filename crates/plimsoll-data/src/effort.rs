//! What a tokenizer takes for the text in work: measured on texts that make it work hardest for their length.
//!
//! Tokenizers differ by a factor of four, and the loader's heap is mostly this. The caller measures, since only it can see
//! the heap; the bound over all tokenizers ([`TOKENIZER_BYTES_PER_TEXT_BYTE`]) holds where a measurement says more.

use crate::TextTokenizer;
use crate::heap::TOKENIZER_BYTES_PER_TEXT_BYTE;
use crate::tokenizer::{MOST_WEIGHT, grows};

/// Bytes of each text; enough that what does not grow with a text counts little.
const BYTES: usize = 4 << 10;

/// Texts that make a tokenizer work hardest for their length, each about `bytes` long.
pub fn hard_texts(bytes: usize) -> Vec<(&'static str, String)> {
    let fill = |part: &str| part.repeat(bytes / part.len());
    vec![
        ("plain words", (0..bytes / 8).map(|k| format!("word{} ", k * 17 % 997)).collect()),
        ("one character, one word", fill("a ")),
        ("alternating kinds", fill("a!1.b?")),
        ("one long word", fill("x")),
        ("unknown script", fill("日本")),
        ("ligatures that normalise to more", fill("ﷺ")),
        ("blanks", fill(" ")),
    ]
}

/// Heap that `tokenizer` takes for each byte (by weight) of a text, at most; a quarter more than was seen. `peak_of` runs
/// what it is given and says how much heap that took at its highest.
pub fn tokenizer_effort(tokenizer: &TextTokenizer, peak_of: &dyn Fn(&mut dyn FnMut()) -> u64) -> u64 {
    let effort = |text: &str| {
        let weight: usize = text.chars().map(|c| c.len_utf8() * if grows(c) { MOST_WEIGHT } else { 1 }).sum();
        let peak = peak_of(&mut || drop(tokenizer.encode_ids(text, true)));
        peak.div_ceil(weight as u64)
    };
    let most = hard_texts(BYTES).iter().map(|(_, text)| effort(text)).max().unwrap_or(0);
    (most + most / 4).min(TOKENIZER_BYTES_PER_TEXT_BYTE)
}
