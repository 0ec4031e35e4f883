//! From documents, in the order of the stream, to samples: rows and labels, split where too long, packed where asked.
//!
//! Invariant: documents are taken in groups (of one, where nothing is packed or sorted), which end with their pass, so that each pass is whole;
//! what is in a group follows from where it begins. So a cursor is the beginning of a group and how many of its samples are gone. It
//! knows no threads and no text.

use plimsoll_plan::batch::{BatchShape, BatchSlot, IGNORE};

use crate::dealer::Assemble;
use crate::document::TRAINED;
use crate::pack::{PackRoom, Packer};
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
    /// Behind the pieces that were made.
    made: Cursor,
    /// Pieces to pass over at the start.
    passed_over: u64,
    group: Group,
    packer: Packer,
    /// Documents and samples of the group that were handed out.
    taken: usize,
    samples: u64,
    /// Behind the samples that were handed out.
    handed: Cursor,
}

/// Documents that are packed together.
struct Group {
    first: Cursor,
    source: Vec<u32>,
    target: Vec<u32>,
    pieces: Vec<Piece>,
    /// Rows of the data that were left out.
    dropped: u64,
}

/// A document, or a piece of one, that is no longer than a sample.
#[derive(Clone, Copy)]
struct Piece {
    first: usize,
    rows: usize,
    cut: bool,
}

/// What came next.
enum Made {
    Piece { ends_epoch: bool },
    Dropped { ends_epoch: bool },
    Nothing,
}

impl Assembler {
    /// Begins at `cursor`; the first frame must be the first of its row.
    pub fn new(shape: BatchShape, cursor: Cursor, by_length: bool) -> Assembler {
        let room = pack_room(shape, by_length);
        let (rows, documents) = room.group();
        let words = || Vec::with_capacity(rows + shape.source_len);
        Assembler {
            shape,
            frame: Vec::with_capacity(shape.source_len + 1),
            ending: Ending::default(),
            used: 0,
            before: None,
            made: Cursor { piece: 0, sample: 0, ..cursor },
            passed_over: cursor.piece,
            group: Group {
                first: cursor,
                source: words(),
                target: words(),
                pieces: Vec::with_capacity(documents),
                dropped: 0,
            },
            packer: Packer::new(room),
            taken: 0,
            samples: 0,
            handed: cursor,
        }
    }

    /// Heap of an assembler, in bytes.
    pub fn heap_bytes(shape: BatchShape, by_length: bool) -> u64 {
        let room = pack_room(shape, by_length);
        let (rows, documents) = room.group();
        let words = 2 * (rows + shape.source_len) + shape.source_len + 1;
        (words * size_of::<u32>() + documents * size_of::<Piece>()) as u64 + room.heap_bytes()
    }

    /// Makes one sample: `put` gets its pieces. How many rows were dropped before it; none at the end.
    fn sample(&mut self, tube: &Tube, put: &mut dyn FnMut(&Group, Piece)) -> Result<Option<u64>, DataError> {
        while self.taken == self.packer.members().len() {
            if !self.next_group(tube)? {
                return Ok(None);
            }
        }
        let members = &self.packer.members()[self.taken..];
        let here = members.iter().take_while(|m| m.sample == members[0].sample);
        for member in here {
            put(&self.group, self.group.pieces[member.document as usize]);
            self.taken += 1;
        }
        self.samples += 1;
        self.handed = match self.taken == self.packer.members().len() {
            true => self.made,
            false => Cursor { sample: self.samples, ..self.group.first },
        };
        // Counted with the first sample of the group, so that a run which goes on inside it does not count them again.
        Ok(Some(if self.samples == 1 { self.group.dropped } else { 0 }))
    }

    /// Takes in the next group, and passes over those of its samples that were handed out before. False: there is none.
    fn next_group(&mut self, tube: &Tube) -> Result<bool, DataError> {
        let Group { first, source, target, pieces, dropped } = &mut self.group;
        let gone = if pieces.is_empty() { first.sample } else { 0 };
        // What was dropped in a group of which nothing is left counts with the next.
        if !pieces.is_empty() {
            (*first, *dropped) = (self.made, 0);
        }
        source.clear();
        target.clear();
        pieces.clear();
        let (rows, documents) = self.packer.room().group();
        let mut over = false;
        loop {
            let ends_epoch = match self.make_piece(tube)? {
                Made::Piece { ends_epoch } => ends_epoch,
                Made::Dropped { ends_epoch } => {
                    self.group.dropped += 1;
                    let Group { first, pieces, .. } = &self.group;
                    if ends_epoch && pieces.is_empty() && (first.position, first.piece) == (0, 0) {
                        return Err(DataError::AllDropped { rows: self.group.dropped, tokens: self.shape.source_len });
                    }
                    ends_epoch
                }
                Made::Nothing => {
                    over = true;
                    break;
                }
            };
            let Group { source, pieces, .. } = &self.group;
            if ends_epoch || source.len() >= rows || pieces.len() >= documents {
                break;
            }
        }
        let Group { first, pieces, .. } = &self.group;
        self.packer.pack(pieces.iter().map(|piece| piece.rows), [first.epoch, first.position, first.piece]);
        let members = self.packer.members();
        self.taken = members.iter().take_while(|m| u64::from(m.sample) < gone).count();
        self.samples = gone;
        let nothing = pieces.is_empty();
        if nothing {
            // All of it was dropped: the next begins behind it.
            self.group.first = self.made;
        }
        Ok(!(over && nothing))
    }

    /// Makes the next piece, of those that were not consumed before.
    fn make_piece(&mut self, tube: &Tube) -> Result<Made, DataError> {
        loop {
            let made = self.make_any_piece(tube)?;
            if self.passed_over == 0 || !matches!(made, Made::Piece { .. }) {
                return Ok(made);
            }
            self.passed_over = if self.made.piece == 0 { 0 } else { self.passed_over - 1 };
            let gone = self.group.pieces.pop().map_or(0, |piece| piece.first);
            self.group.source.truncate(gone);
            self.group.target.truncate(gone);
        }
    }

    fn make_any_piece(&mut self, tube: &Tube) -> Result<Made, DataError> {
        let first = self.group.source.len();
        loop {
            while self.used < self.frame.len() {
                let word = self.frame[self.used];
                let (token, trained) = (word & !TRAINED, word & TRAINED != 0);
                if let Some(before) = self.before {
                    if self.group.source.len() - first == self.shape.source_len {
                        self.made.piece += 1;
                        self.group.end_piece(first, false);
                        return Ok(Made::Piece { ends_epoch: false });
                    }
                    self.group.source.push(before);
                    self.group.target.push(if trained { token } else { IGNORE });
                }
                self.before = Some(token);
                self.used += 1;
            }
            if std::mem::take(&mut self.ending.row) {
                let (last, Ending { epoch: ends_epoch, cut, .. }) = (self.before.take(), self.ending);
                // A document of one token has nothing to be learnt from, but is still a document.
                if let Some(last) = last.filter(|_| self.group.source.len() == first && self.made.piece == 0) {
                    self.group.source.push(last);
                    self.group.target.push(IGNORE);
                }
                self.made.piece = 0;
                self.made.position += 1;
                if ends_epoch {
                    self.made.position = 0;
                    self.made.epoch += 1;
                }
                if last.is_none() {
                    return Ok(Made::Dropped { ends_epoch });
                }
                self.group.end_piece(first, cut);
                return Ok(Made::Piece { ends_epoch });
            }
            let Some(ending) = tube.receive(&mut self.frame)? else { return Ok(Made::Nothing) };
            self.ending = ending;
            self.used = 0;
        }
    }
}

impl Assemble for Assembler {
    fn fill(&mut self, tube: &Tube, most: usize, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        let BatchSlot { source, target, source_lens, target_lens } = slot;
        source_lens.fill(0);
        target_lens.fill(0);
        let mut facts = BatchFacts::default();
        let (before, mut at) = (self.handed, 0);
        while facts.samples < most {
            let (first, mut labels, mut cut) = (at, 0, false);
            let sample = self.sample(tube, &mut |group, piece| {
                let rows = piece.first..piece.first + piece.rows;
                source[at..at + piece.rows].copy_from_slice(&group.source[rows.clone()]);
                target[at..at + piece.rows].copy_from_slice(&group.target[rows.clone()]);
                source_lens[facts.documents] = piece.rows as u32;
                labels += group.target[rows].iter().filter(|label| **label != IGNORE).count() as u64;
                at += piece.rows;
                facts.documents += 1;
                cut |= piece.cut;
            });
            let dropped = match sample {
                Ok(Some(dropped)) => dropped,
                Ok(None) => break,
                Err(error) => {
                    self.handed = before;
                    return Err(error);
                }
            };
            target_lens[facts.samples] = (at - first) as u32;
            facts.samples += 1;
            facts.labels += labels;
            facts.dropped += dropped;
            facts.truncated += usize::from(cut);
            facts.unlabelled += usize::from(labels == 0);
        }
        facts.source_tokens = at as u64;
        facts.target_tokens = at as u64;
        facts.cursor_after = self.handed;
        Ok(facts)
    }

    fn pass_over(&mut self, tube: &Tube, most: usize) -> Result<usize, DataError> {
        let mut samples = 0;
        while samples < most && self.sample(tube, &mut |_, _| ())?.is_some() {
            samples += 1;
        }
        Ok(samples)
    }

    fn cursor(&self) -> Cursor {
        self.handed
    }
}

impl Group {
    /// The piece that began at `first` is whole.
    fn end_piece(&mut self, first: usize, cut: bool) {
        self.pieces.push(Piece { first, rows: self.source.len() - first, cut });
    }
}

fn pack_room(shape: BatchShape, by_length: bool) -> PackRoom {
    let batch = by_length.then_some(shape.samples);
    PackRoom { rows: shape.source_len, documents: shape.documents, batch }
}
