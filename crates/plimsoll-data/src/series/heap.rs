//! What series take, in bytes, before they take it.
//!
//! Invariant: the loader's heap is never above [`SeriesHeap`], and opening never above [`opening_bytes`] for data whose names of series fit;
//! `tests/series_heap.rs` counts both. It measures nothing.

use super::loader::slot_bytes;
use super::walk::Walk;
use super::windows::Stretch;
use super::{Series, SeriesSettings};

/// Heap of starting a thread, beside its stack: its name, its handle.
const THREAD_BYTES: u64 = 4 << 10;
/// What a loader is beside all that follows its settings.
const LOADER_BYTES: u64 = 4 << 10;

/// Heap of open series with a running loader, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SeriesHeap {
    /// Names, lengths and samples of the series, and what they are normalised by.
    pub index: u64,
    /// The rows, where they are in memory.
    pub rows: u64,
    /// Batches held ready.
    pub ring: u64,
    /// What the threads have, beside their stacks.
    pub threads: u64,
}

impl SeriesHeap {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.index + self.rows + self.ring + self.threads
    }
}

impl Series {
    /// What they take with a loader of these settings.
    pub fn heap(&self, settings: &SeriesSettings) -> SeriesHeap {
        let names: usize = self.stretches.iter().map(|stretch| stretch.name.len()).sum();
        let samples: u64 = self.parts.iter().map(|samples| samples.heap_bytes()).sum();
        let texts = |names: &[String]| names.iter().map(|name| name.capacity() + size_of::<String>()).sum::<usize>();
        let values = self.spec.values.iter().map(|value| value.column.capacity() + 64).sum::<usize>();
        let stretches = (names + size_of::<Stretch>() * self.stretches.len()) as u64;
        let cells = 16 * self.spec.cells().len() as u64;
        SeriesHeap {
            // The normalisation is made from lists that grew.
            index: stretches
                + samples
                + 2 * self.normalisation.heap_bytes()
                + 2 * (texts(&self.spec.features) + values) as u64
                + LOADER_BYTES,
            rows: self.store.heap_bytes(),
            ring: settings.prefetch_batches as u64 * slot_bytes(settings.shape),
            threads: settings.threads as u64 * (THREAD_BYTES + cells),
        }
    }
}

/// The most that opening takes within `memory` (`data.memory`): half of it rows, half of it what is read; and buffers of readers and of a file of rows, which do
/// not depend on it.
pub fn opening_bytes(memory: u64) -> u64 {
    memory + Walk::FIXED_BYTES
}
