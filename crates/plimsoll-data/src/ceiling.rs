//! One ceiling for everything a loader holds: the window becomes smaller and threads fewer until it is kept.
//!
//! Invariant: the window, on which the order of rows depends, follows from the files and the ceiling alone, so that it is the same on each
//! machine; how many threads fit changes nothing but the waiting. It measures nothing and knows no settings of a job.

use crate::prepared::ENTRY_BYTES;
use crate::sources::WindowRoom;
use crate::window::ROW_ENTRY_BYTES;
use crate::{LOADER_STACK_BYTES, Order, Sources};

/// The ceiling that windows are made for unless told otherwise. Threads are not bound by it: long samples need more, and many.
pub const LOADER_CEILING: u64 = 256 << 20;

/// The smallest ceiling that can be asked for.
pub const LEAST_CEILING: u64 = 16 << 20;

impl Order {
    /// The same, with as many blocks in a window as half of `ceiling` has room for; at least one.
    pub fn within(self, sources: &Sources, ceiling: u64) -> Order {
        let fits = |blocks: usize| {
            let order = self.with_window(blocks);
            // Places of texts in a window have 32 bits.
            let fits = |room: WindowRoom, entry: u64| {
                room.text_bytes <= u64::from(u32::MAX) && room.text_bytes + room.rows * (entry + 4) <= ceiling / 2
            };
            // Windows of prepared data have what those of the original files would have, so that the stream is the same, unless even
            // their tokens take more.
            let texts = || fits(sources.text_room(order), ROW_ENTRY_BYTES);
            match sources.is_prepared() {
                true => texts() && fits(sources.window_room(order), ENTRY_BYTES),
                false => fits(sources.window_room(order), ROW_ENTRY_BYTES),
            }
        };
        let (mut most, mut above) = (1, self.window_blocks());
        if fits(above) {
            return self;
        }
        while above - most > 1 {
            let middle = most.midpoint(above);
            if fits(middle) { most = middle } else { above = middle }
        }
        self.with_window(most)
    }
}

/// Threads, of at most `most`, with which a loader whose heap is `heap_of` them stays below `ceiling`, their stacks included; none
/// where even one takes more.
pub fn threads_within(ceiling: u64, heap_of: &dyn Fn(usize) -> u64, most: usize) -> Option<usize> {
    (1..=most.max(1)).take_while(|threads| heap_of(*threads) + stacks(*threads) <= ceiling).last()
}

/// Stacks of a loader's threads, in bytes.
pub fn stacks(threads: usize) -> u64 {
    (threads * LOADER_STACK_BYTES) as u64
}
