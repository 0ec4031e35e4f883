//! What is read every second costs the heap next to nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use plimsoll_machine::{Headroom, Root, own_memory};

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator; the count is a plain cell of this thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.with(|taken| taken.set(taken.get() + layout.size()));
        // SAFETY: the caller's promise about `layout` is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `at` and `layout` is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn taken_by(deed: impl FnOnce()) -> usize {
    let before = TAKEN.with(Cell::get);
    deed();
    TAKEN.with(Cell::get) - before
}

#[test]
fn reading_the_own_memory_takes_less_than_a_kibibyte_and_the_headroom_less_than_64() {
    let root = Root::system();
    assert!(taken_by(|| drop(std::hint::black_box(vec![0u8; 100]))) >= 100, "the counter counts");
    let status = taken_by(|| _ = std::hint::black_box(own_memory(&root).unwrap()));
    assert!(status < 1 << 10, "{status}");
    let watch = Headroom::find(&root).unwrap();
    let headroom = taken_by(|| _ = std::hint::black_box(watch.read().unwrap()));
    assert!(headroom < 64 << 10, "{headroom}");
    println!("own memory {status} bytes of heap, headroom {headroom} bytes");
}
