//! The heap of each thread, counted, for tests that hold what damaged files make a reader take against a bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::LazyLock;

struct Counting;

thread_local! {
    /// Bytes that this thread holds.
    pub static LIVE: Cell<i64> = const { Cell::new(0) };
    /// The most that it held since this was set.
    pub static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn took(bytes: i64) {
    // Nothing is counted while a thread ends.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size() as i64);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        took(-(layout.size() as i64));
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A panic of a library, which is caught, says what it is and nothing more: the names of a backtrace take 94 MB of heap.
pub static SHORT_PANICS: LazyLock<()> = LazyLock::new(|| {
    std::panic::set_hook(Box::new(|info| {
        let _ = writeln!(std::io::stderr(), "{info}");
    }));
});
