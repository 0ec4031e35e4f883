//! From documents, in the order of the stream, to samples: rows and labels, split where too long, packed where asked.
//!
//! Invariant: a sample is one piece, or as many as fit behind each other, greedily; a pass over the data ends with its own
//! sample, so that each pass is whole. Between two samples nothing is open, so a cursor there is all there is to know.
//! It knows no threads and no text.

use plimsoll_plan::batch::{BatchShape, BatchSlot, IGNORE};

use crate::document::TRAINED;
use crate::tube::{Ending, Tube};
use crate::{BatchFacts, Cursor, DataError};

/// Puts samples together.
pub(crate) struct Assembler {
    shape: BatchShape,
    /// The frame in work, how it ends, and how much of it is used.
    frame: Vec<u32>,
    ending: Ending,
    used: usize,
    /// The token before the next one of the same document.
    before: Option<u32>,
    piece: Piece,
    /// The piece is ready and not yet in a sample.
    held: bool,
    /// Behind the pieces that were made.
    made: Cursor,
    /// Behind the samples that were handed out.
    handed: Cursor,
    /// Pieces to pass over at the start.
    passed_over: u64,
}

/// A document, or a piece of one, that is no longer than a sample.
struct Piece {
    source: Vec<u32>,
    target: Vec<u32>,
    cut: bool,
    ends_epoch: bool,
    cursor_after: Cursor,
}

impl Assembler {
    /// Begins at `cursor`; the first frame must be the first of its row.
    pub fn new(shape: BatchShape, cursor: Cursor) -> Assembler {
        Assembler {
            shape,
            frame: Vec::with_capacity(shape.source_len + 1),
            ending: Ending { row: true, ..Ending::default() },
            used: 0,
            before: None,
            piece: Piece {
                source: Vec::with_capacity(shape.source_len),
                target: Vec::with_capacity(shape.source_len),
                cut: false,
                ends_epoch: false,
                cursor_after: cursor,
            },
            held: false,
            made: Cursor { piece: 0, ..cursor },
            handed: cursor,
            passed_over: cursor.piece,
        }
    }

    /// Heap of an assembler, in bytes.
    pub fn heap_bytes(shape: BatchShape) -> u64 {
        ((3 * shape.source_len + 1) * size_of::<u32>()) as u64
    }

    /// Behind what was handed out.
    pub fn cursor(&self) -> Cursor {
        self.handed
    }

    /// Fills `slot` with up to `most` samples from `tube`.
    pub fn fill(&mut self, tube: &Tube, most: usize, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        let BatchSlot { source, target, source_lens, target_lens } = slot;
        source_lens.fill(0);
        target_lens.fill(0);
        let mut facts = BatchFacts::default();
        let mut at = 0;
        let mut cursor = self.handed;
        while facts.samples < most {
            let (first, before) = (at, facts.documents);
            let (mut labels, mut cut) = (0, false);
            let ended = self.sample(tube, |piece| {
                let length = piece.source.len();
                source[at..at + length].copy_from_slice(&piece.source);
                target[at..at + length].copy_from_slice(&piece.target);
                source_lens[facts.documents] = length as u32;
                labels += piece.target.iter().filter(|label| **label != IGNORE).count() as u64;
                at += length;
                facts.documents += 1;
                cut |= piece.cut;
                cursor = piece.cursor_after;
            });
            ended?;
            if facts.documents == before {
                break;
            }
            target_lens[facts.samples] = (at - first) as u32;
            facts.samples += 1;
            facts.labels += labels;
            facts.truncated += usize::from(cut);
            facts.unlabelled += usize::from(labels == 0);
        }
        facts.source_tokens = at as u64;
        facts.target_tokens = at as u64;
        facts.cursor_after = cursor;
        self.handed = cursor;
        Ok(facts)
    }

    /// Makes up to `most` samples, for nobody; how many there were.
    pub fn pass_over(&mut self, tube: &Tube, most: usize) -> Result<usize, DataError> {
        let (mut samples, mut cursor) = (0, None);
        while samples < most {
            let before = cursor;
            self.sample(tube, |piece| cursor = Some(piece.cursor_after))?;
            if cursor == before {
                break;
            }
            samples += 1;
        }
        self.handed = cursor.unwrap_or(self.handed);
        Ok(samples)
    }

    /// Makes one sample: `put` gets its pieces, none at the end.
    fn sample(&mut self, tube: &Tube, mut put: impl FnMut(&Piece)) -> Result<(), DataError> {
        let (mut rows, mut documents) = (0, 0);
        while self.held || self.make_piece(tube)? {
            let length = self.piece.source.len();
            if rows + length > self.shape.source_len {
                break;
            }
            put(&self.piece);
            rows += length;
            documents += 1;
            self.held = false;
            if self.piece.ends_epoch || rows == self.shape.source_len || documents == self.shape.documents {
                break;
            }
        }
        Ok(())
    }

    /// Makes the next piece. False: there is none.
    fn make_piece(&mut self, tube: &Tube) -> Result<bool, DataError> {
        loop {
            if !self.make_any_piece(tube)? {
                return Ok(false);
            }
            self.held = self.passed_over == 0;
            if self.held {
                return Ok(true);
            }
            self.passed_over = if self.made.piece == 0 { 0 } else { self.passed_over - 1 };
        }
    }

    fn make_any_piece(&mut self, tube: &Tube) -> Result<bool, DataError> {
        self.piece.source.clear();
        self.piece.target.clear();
        self.piece.cut = false;
        self.piece.ends_epoch = false;
        loop {
            while self.used < self.frame.len() {
                let word = self.frame[self.used];
                let (token, trained) = (word & !TRAINED, word & TRAINED != 0);
                if let Some(before) = self.before {
                    if self.piece.source.len() == self.shape.source_len {
                        self.made.piece += 1;
                        self.piece.cursor_after = self.made;
                        return Ok(true);
                    }
                    self.piece.source.push(before);
                    self.piece.target.push(if trained { token } else { IGNORE });
                }
                self.before = Some(token);
                self.used += 1;
            }
            if self.ending.row
                && let Some(last) = self.before.take()
            {
                // A document of one token has nothing to be learnt from, but is still a document.
                if self.piece.source.is_empty() && self.made.piece == 0 {
                    self.piece.source.push(last);
                    self.piece.target.push(IGNORE);
                }
                self.made.piece = 0;
                self.made.position += 1;
                if self.ending.epoch {
                    self.made.position = 0;
                    self.made.epoch += 1;
                }
                self.piece.cut = self.ending.cut;
                self.piece.ends_epoch = self.ending.epoch;
                self.piece.cursor_after = self.made;
                return Ok(true);
            }
            let Some(ending) = tube.receive(&mut self.frame)? else { return Ok(false) };
            self.ending = ending;
            self.used = 0;
        }
    }
}
