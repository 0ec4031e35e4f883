//! An allocator that counts, for tests of what is held. Each test uses some of it.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

/// Bytes that are held, by all threads.
pub static LIVE: AtomicU64 = AtomicU64::new(0);
/// The most that were, since it was set.
pub static PEAK: AtomicU64 = AtomicU64::new(0);
thread_local! {
    /// Calls of this thread.
    pub static MINE: Cell<u64> = const { Cell::new(0) };
}

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Relaxed);
    let _ = MINE.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // Old and new may exist together while the bytes are moved.
        took(new);
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.realloc(at, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most heap above the present while `work` runs.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let out = work();
    (PEAK.load(Relaxed) - before, out)
}
