//! One place of the loader's ring: tokens of one batch, each sample at its own stride, packed when taken.
//!
//! Invariant: its size is fixed by the batch shape; nothing grows. It knows nothing of threads.

use plimsoll_plan::batch::{BatchShape, BatchSlot};

use crate::{BatchFacts, DataError};

/// Tokens of one batch.
pub(crate) struct Slot {
    source: Box<[u32]>,
    target: Box<[u32]>,
    source_lens: Box<[u32]>,
    target_lens: Box<[u32]>,
    done: usize,
    truncated: usize,
}

impl Slot {
    pub fn new(shape: BatchShape) -> Slot {
        let words = |n: usize| vec![0u32; n].into_boxed_slice();
        Slot {
            source: words(shape.samples * shape.source_len),
            target: words(shape.samples * shape.target_len),
            source_lens: words(shape.samples),
            target_lens: words(shape.samples),
            done: 0,
            truncated: 0,
        }
    }

    /// Heap of one slot, in bytes.
    pub fn heap_bytes(shape: BatchShape) -> u64 {
        (shape.samples * (shape.source_len + shape.target_len + 2) * size_of::<u32>()) as u64
    }

    /// Stores sample `row`; returns how many samples are there now.
    pub fn put(&mut self, row: usize, shape: BatchShape, source: &[u32], target: &[u32], cut: bool) -> usize {
        self.source[row * shape.source_len..][..source.len()].copy_from_slice(source);
        self.target[row * shape.target_len..][..target.len()].copy_from_slice(target);
        self.source_lens[row] = source.len() as u32;
        self.target_lens[row] = target.len() as u32;
        self.truncated += usize::from(cut);
        self.done += 1;
        self.done
    }

    /// Packs the first `samples` samples into `out` and empties this slot. Lengths of absent samples become 0.
    pub fn take(&mut self, samples: usize, shape: BatchShape, out: BatchSlot<'_>) -> BatchFacts {
        let source_tokens = pack(&self.source, &self.source_lens[..samples], shape.source_len, out.source);
        let target_tokens = pack(&self.target, &self.target_lens[..samples], shape.target_len, out.target);
        for (lens, own) in [(out.source_lens, &self.source_lens), (out.target_lens, &self.target_lens)] {
            lens[..samples].copy_from_slice(&own[..samples]);
            lens[samples..].fill(0);
        }
        let facts = BatchFacts {
            samples,
            source_tokens,
            target_tokens,
            truncated: self.truncated,
            documents: samples,
            labels: target_tokens,
            ..BatchFacts::default()
        };
        self.done = 0;
        self.truncated = 0;
        facts
    }
}

fn pack(tokens: &[u32], lens: &[u32], stride: usize, out: &mut [u32]) -> u64 {
    let mut at = 0;
    for (row, &len) in lens.iter().enumerate() {
        let len = len as usize;
        out[at..at + len].copy_from_slice(&tokens[row * stride..][..len]);
        at += len;
    }
    at as u64
}

/// Says whether `slot` can take any batch of `shape`.
pub(crate) fn check_slot(slot: &BatchSlot<'_>, shape: BatchShape) -> Result<(), DataError> {
    let parts = [
        ("source", slot.source.len(), shape.samples * shape.source_len),
        ("target", slot.target.len(), shape.samples * shape.target_len),
        ("source_lens", slot.source_lens.len(), shape.most_documents()),
        ("target_lens", slot.target_lens.len(), shape.samples),
    ];
    match parts.into_iter().find(|(_, found, expected)| found < expected) {
        Some((part, found, expected)) => Err(DataError::SlotTooSmall { part, expected, found }),
        None => Ok(()),
    }
}
