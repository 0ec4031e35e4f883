//! The tokens of one or several ranks' batches of a round, as the loader packs them, and whose part of them is whose.
//!
//! Invariant: what comes from elsewhere is believed only after [`Slot::holds`] has found that its lengths agree with each other and
//! with the planned shape, and that its ids are of the vocabulary. It knows no layout of tensors and no shared memory.

use std::ops::Range;

use plimsoll_data::Kind;
use plimsoll_plan::batch::{BatchShape, BatchSlot, IGNORE};

use crate::batch::Rows;

/// Room for a batch of the largest shape.
pub struct Slot {
    pub shape: BatchShape,
    pub source: Vec<u32>,
    pub target: Vec<u32>,
    pub source_lens: Vec<u32>,
    pub target_lens: Vec<u32>,
}

/// What can be in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub kind: Kind,
    /// The highest id that there is.
    pub most_id: u32,
}

/// How many samples and documents there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub samples: usize,
    pub documents: usize,
}

/// One rank's part of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub source: Range<usize>,
    pub target: Range<usize>,
    pub source_lens: Range<usize>,
    pub target_lens: Range<usize>,
}

/// Words of a slot: sources, targets, and the lengths of each.
fn words(shape: BatchShape) -> [usize; 4] {
    let BatchShape { samples, source_len, target_len, .. } = shape;
    [samples * source_len, samples * target_len, shape.most_documents(), samples]
}

impl Slot {
    pub fn new(shape: BatchShape) -> Slot {
        let [source, target, source_lens, target_lens] = words(shape).map(|words| vec![0; words]);
        Slot { shape, source, target, source_lens, target_lens }
    }

    /// Heap of a slot, in bytes.
    pub fn heap_bytes(shape: BatchShape) -> u64 {
        words(shape).into_iter().map(|words| (words * size_of::<u32>()) as u64).sum()
    }

    pub fn lend(&mut self) -> BatchSlot<'_> {
        BatchSlot {
            source: &mut self.source,
            target: &mut self.target,
            source_lens: &mut self.source_lens,
            target_lens: &mut self.target_lens,
        }
    }

    /// The parts of ranks that have `samples` each, in their order; the last ones may have fewer, or none.
    pub fn shares(&self, kind: Kind, found: Counts, samples: usize) -> impl Iterator<Item = Share> + '_ {
        let mut next = Share { source: 0..0, target: 0..0, source_lens: 0..0, target_lens: 0..0 };
        (0..self.shape.samples.div_ceil(samples)).map(move |number| {
            let first = next.target_lens.end;
            let lens = first..((number + 1) * samples).min(found.samples);
            let rows = total(&self.target_lens[lens.clone()]);
            let (documents, source_rows) = match kind {
                Kind::Pairs => (lens.len(), total(&self.source_lens[lens.clone()])),
                Kind::Chat | Kind::Text => (self.documents_of(next.source_lens.end..found.documents, rows), rows),
            };
            let after = |range: &Range<usize>, len: usize| range.end..range.end + len;
            next = Share {
                source: after(&next.source, source_rows),
                target: after(&next.target, rows),
                source_lens: after(&next.source_lens, documents),
                target_lens: lens,
            };
            next.clone()
        })
    }

    /// How many of the documents in `range` fill just so many rows.
    fn documents_of(&self, range: Range<usize>, rows: usize) -> usize {
        let mut left = rows;
        self.source_lens[range]
            .iter()
            .take_while(|len| {
                let fits = left > 0;
                left = left.saturating_sub(**len as usize);
                fits
            })
            .count()
    }

    /// What is in the slot.
    pub fn rows(&self, found: Counts) -> Rows<'_> {
        Rows {
            source: &self.source,
            target: &self.target,
            source_lens: &self.source_lens[..found.documents],
            target_lens: &self.target_lens[..found.samples],
        }
    }

    /// Whether so many tokens, with the lengths that are here, can be a batch of the shape.
    pub fn holds(&self, tokens: Tokens, found: Counts, source_rows: usize, target_rows: usize) -> bool {
        let Tokens { kind, most_id } = tokens;
        let BatchShape { samples, source_len, target_len, .. } = self.shape;
        if found.samples > samples || found.documents > self.shape.most_documents() {
            return false;
        }
        let (sources, targets) = (&self.source_lens[..found.documents], &self.target_lens[..found.samples]);
        let within = |lens: &[u32], most: usize| lens.iter().all(|len| (1..=most).contains(&(*len as usize)));
        if !within(sources, source_len)
            || !within(targets, target_len)
            || total(sources) != source_rows
            || total(targets) != target_rows
        {
            return false;
        }
        let (sources, targets) = (&self.source[..source_rows], &self.target[..target_rows]);
        let left_out = |id: u32| id == IGNORE && kind != Kind::Pairs;
        if sources.iter().any(|id| *id > most_id) || targets.iter().any(|id| *id > most_id && !left_out(*id)) {
            return false;
        }
        match kind {
            Kind::Pairs => found.samples == found.documents,
            Kind::Chat | Kind::Text => source_rows == target_rows && self.documents_end_with_samples(found),
        }
    }

    fn documents_end_with_samples(&self, found: Counts) -> bool {
        let mut documents = self.source_lens[..found.documents].iter().map(|len| *len as usize);
        self.target_lens[..found.samples].iter().all(|rows| {
            let mut left = *rows as usize;
            while left > 0 {
                match documents.next() {
                    Some(document) if document <= left => left -= document,
                    _ => return false,
                }
            }
            true
        })
    }
}

fn total(lens: &[u32]) -> usize {
    lens.iter().map(|len| *len as usize).sum()
}
