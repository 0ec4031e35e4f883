//! Random texts, as a decoder learns them: one to a sample or packed, with labels ignored here and there.

use plimsoll_engine::Engine;
use plimsoll_plan::batch::{BatchSlot, IGNORE};

use crate::random::Stream;

/// A text with the label of each token; the first is nobody's label.
#[derive(Clone, Debug)]
pub struct Text {
    pub tokens: Vec<u32>,
    pub labels: Vec<u32>,
}

/// A sample: one text, or several that do not see each other.
pub type Sample = Vec<Text>;

impl Text {
    /// `length` tokens, the last of which ends it; labels of the first `prompt` are ignored.
    pub fn random(stream: &mut Stream, vocab: usize, length: usize, prompt: usize) -> Text {
        let mut tokens: Vec<u32> = (0..length).map(|_| stream.between(2, vocab - 1) as u32).collect();
        tokens[length - 1] = 1;
        let labels = tokens.iter().enumerate().map(|(at, token)| if at < prompt { IGNORE } else { *token }).collect();
        Text { tokens, labels }
    }

    /// Rows that it takes: its last token is no input.
    pub fn rows(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// `rows` samples of one text each, of 2 to `most` rows and one full; the first labels of some are ignored.
pub fn ragged(stream: &mut Stream, vocab: usize, rows: usize, most: usize) -> Vec<Sample> {
    let text = |row: usize| {
        let length = if row == 1 { most + 1 } else { stream.between(2, most + 1) };
        let prompt = if row.is_multiple_of(2) { stream.between(0, length - 1) } else { 0 };
        vec![Text::random(stream, vocab, length, prompt)]
    };
    (0..rows).map(text).collect()
}

/// Samples that are filled with texts, up to `most` rows and `texts` texts each.
pub fn packed(stream: &mut Stream, vocab: usize, rows: usize, most: usize, texts: usize) -> Vec<Sample> {
    let sample = |_| {
        let mut sample: Sample = Vec::new();
        let mut left = most;
        while left > 0 && sample.len() < texts {
            let rows = stream.between(1, left);
            let prompt = stream.between(0, rows);
            sample.push(Text::random(stream, vocab, rows + 1, prompt));
            left -= rows;
        }
        sample
    };
    (0..rows).map(sample).collect()
}

/// Writes samples into the engine's slot.
pub fn stage(engine: &mut Engine, samples: &[Sample]) {
    put(engine.slot(), samples);
}

/// Writes samples into a slot.
pub fn put(slot: BatchSlot, samples: &[Sample]) {
    slot.source_lens.fill(0);
    slot.target_lens.fill(0);
    let (mut row, mut document) = (0, 0);
    for (nth, sample) in samples.iter().enumerate() {
        for text in sample {
            let rows = text.rows();
            slot.source[row..row + rows].copy_from_slice(&text.tokens[..rows]);
            slot.target[row..row + rows].copy_from_slice(&text.labels[1..]);
            slot.source_lens[document] = rows as u32;
            slot.target_lens[nth] += rows as u32;
            row += rows;
            document += 1;
        }
    }
}
