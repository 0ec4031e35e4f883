//! From pairs, in the order of the stream, to batches of them: what is too long left out, samples of like length together where asked.
//!
//! Invariant: pairs are taken in groups (of one, unless they are sorted by length), which end with their pass; what is in a group follows
//! from where it begins. So a cursor is the beginning of a group and how many of its samples are gone. It knows no threads and no text.

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::buckets::{Buckets, GROUP_BATCHES};
use crate::dealer::Assemble;
use crate::tube::Tube;
use crate::{BatchFacts, Cursor, DataError};

/// Puts batches of pairs together.
pub(crate) struct PairAssembler {
    shape: BatchShape,
    /// The pair in work: how long its source is, its source, its target. Nothing, where it was left out.
    frame: Vec<u32>,
    /// Behind the rows that were taken in.
    made: Cursor,
    group: Group,
    buckets: Option<Buckets>,
    /// The samples of the group, in the order in which they are handed out, and how many were.
    order: Vec<u32>,
    taken: usize,
    /// Behind the samples that were handed out.
    handed: Cursor,
}

struct Group {
    first: Cursor,
    words: Vec<u32>,
    pairs: Vec<Pair>,
    /// Rows of the data that were left out.
    dropped: u64,
}

#[derive(Clone, Copy)]
struct Pair {
    first: usize,
    source: usize,
    target: usize,
    cut: bool,
}

/// Words of a pair at most.
fn most_words(shape: BatchShape) -> usize {
    shape.source_len + shape.target_len
}

/// Samples of a group.
pub(crate) fn group_samples(shape: BatchShape, by_length: bool) -> usize {
    if by_length { shape.samples * GROUP_BATCHES } else { 1 }
}

impl PairAssembler {
    /// Begins at `cursor`.
    pub fn new(shape: BatchShape, cursor: Cursor, by_length: bool) -> PairAssembler {
        let most = group_samples(shape, by_length);
        PairAssembler {
            shape,
            frame: Vec::with_capacity(most_words(shape) + 1),
            made: Cursor { piece: 0, sample: 0, ..cursor },
            group: Group {
                first: cursor,
                words: Vec::with_capacity(most * most_words(shape)),
                pairs: Vec::with_capacity(most),
                dropped: 0,
            },
            buckets: by_length.then(|| Buckets::new(shape.samples)),
            order: Vec::with_capacity(most),
            taken: 0,
            handed: cursor,
        }
    }

    /// Heap of an assembler, in bytes.
    pub fn heap_bytes(shape: BatchShape, by_length: bool) -> u64 {
        let most = group_samples(shape, by_length);
        let words = most_words(shape) + 1 + most * (most_words(shape) + 1);
        let sorting = if by_length { Buckets::heap_bytes(shape.samples) } else { 0 };
        (words * size_of::<u32>() + most * size_of::<Pair>()) as u64 + sorting
    }

    /// The next sample, and how many rows were left out before it; none at the end.
    fn sample(&mut self, tube: &Tube) -> Result<Option<(Pair, u64)>, DataError> {
        while self.taken == self.group.pairs.len() {
            if !self.next_group(tube)? {
                return Ok(None);
            }
        }
        let pair = self.group.pairs[self.order[self.taken] as usize];
        self.taken += 1;
        self.handed = match self.taken == self.group.pairs.len() {
            true => self.made,
            false => Cursor { sample: self.taken as u64, ..self.group.first },
        };
        // Counted with the first sample of the group, so that a run which goes on inside it does not count them again.
        Ok(Some((pair, if self.taken == 1 { self.group.dropped } else { 0 })))
    }

    /// Takes in the next group, and passes over those of its samples that were handed out before. False: there is none.
    fn next_group(&mut self, tube: &Tube) -> Result<bool, DataError> {
        let group = &mut self.group;
        let gone = if group.pairs.is_empty() { group.first.sample } else { 0 };
        // What was left out in a group of which nothing is left counts with the next.
        if !group.pairs.is_empty() {
            (group.first, group.dropped) = (self.made, 0);
        }
        group.words.clear();
        group.pairs.clear();
        let most = self.buckets.as_ref().map_or(1, Buckets::group);
        let mut over = false;
        while group.pairs.len() < most {
            let Some(ending) = tube.receive(&mut self.frame)? else {
                over = true;
                break;
            };
            self.made.position += 1;
            if ending.epoch {
                self.made = Cursor { epoch: self.made.epoch + 1, ..Cursor::default() };
            }
            match self.frame.split_first() {
                Some((source, tokens)) => {
                    let source = *source as usize;
                    let (first, target) = (group.words.len(), tokens.len() - source);
                    group.words.extend_from_slice(tokens);
                    group.pairs.push(Pair { first, source, target, cut: ending.cut });
                }
                None => group.dropped += 1,
            }
            if ending.epoch && group.pairs.is_empty() && group.first.position == 0 {
                let BatchShape { source_len, target_len, .. } = self.shape;
                return Err(DataError::AllPairsDropped { rows: group.dropped, source_len, target_len });
            }
            if ending.epoch {
                break;
            }
        }
        let Group { first, pairs, .. } = &*group;
        self.order.clear();
        match &mut self.buckets {
            Some(buckets) => {
                let tokens = |nth: usize| [pairs[nth].source, pairs[nth].target];
                self.order.extend(buckets.order(pairs.len(), tokens, [first.epoch, first.position, 0]));
            }
            None => self.order.extend(0..pairs.len() as u32),
        }
        self.taken = (gone as usize).min(pairs.len());
        let nothing = pairs.is_empty();
        if nothing {
            // All of it was left out: the next begins behind it.
            group.first = self.made;
        }
        Ok(!(over && nothing))
    }
}

impl Assemble for PairAssembler {
    fn fill(&mut self, tube: &Tube, most: usize, slot: BatchSlot<'_>) -> Result<BatchFacts, DataError> {
        let BatchSlot { source, target, source_lens, target_lens } = slot;
        source_lens.fill(0);
        target_lens.fill(0);
        let mut facts = BatchFacts::default();
        let before = self.handed;
        let (mut source_at, mut target_at) = (0, 0);
        while facts.samples < most {
            let (pair, dropped) = match self.sample(tube) {
                Ok(Some(sample)) => sample,
                Ok(None) => break,
                Err(error) => {
                    self.handed = before;
                    return Err(error);
                }
            };
            let words = &self.group.words[pair.first..][..pair.source + pair.target];
            source[source_at..source_at + pair.source].copy_from_slice(&words[..pair.source]);
            target[target_at..target_at + pair.target].copy_from_slice(&words[pair.source..]);
            source_lens[facts.samples] = pair.source as u32;
            target_lens[facts.samples] = pair.target as u32;
            (source_at, target_at) = (source_at + pair.source, target_at + pair.target);
            facts.samples += 1;
            facts.dropped += dropped;
            facts.truncated += usize::from(pair.cut);
        }
        facts.source_tokens = source_at as u64;
        facts.target_tokens = target_at as u64;
        facts.documents = facts.samples;
        facts.labels = facts.target_tokens;
        facts.cursor_after = self.handed;
        Ok(facts)
    }

    fn pass_over(&mut self, tube: &Tube, most: usize) -> Result<usize, DataError> {
        let mut samples = 0;
        while samples < most && self.sample(tube)?.is_some() {
            samples += 1;
        }
        Ok(samples)
    }

    fn cursor(&self) -> Cursor {
        self.handed
    }
}
