//! The global allocator: the system's, counted by who allocates.
//!
//! Two promises of the plan are held against these counters in every run: engine threads allocate nothing in a step
//! after the first, and the loader stays below its line. A count costs one thread-local read and a relaxed addition.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Whose heap an allocation is; that of untagged threads (start-up, journal, screen) is counted at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Role {
    /// Threads that run the tape.
    Engine = 1,
    /// Threads that read and tokenise, and what is allocated on their behalf.
    Loader = 2,
    /// What is tried to see how much heap it takes.
    Trial = 3,
}

thread_local! {
    static ROLE: Cell<usize> = const { Cell::new(0) };
}

struct Counters {
    allocations: AtomicU64,
    held: AtomicI64,
    peak: AtomicI64,
}

impl Counters {
    const fn new() -> Counters {
        Counters { allocations: AtomicU64::new(0), held: AtomicI64::new(0), peak: AtomicI64::new(0) }
    }
}

static COUNTERS: [Counters; 4] = [const { Counters::new() }; 4];

/// Counts and passes on to the system's allocator.
pub struct Counted;

fn changed(bytes: i64, allocations: u64) {
    let counters = &COUNTERS[ROLE.try_with(Cell::get).unwrap_or(0)];
    let held = counters.held.fetch_add(bytes, Relaxed) + bytes;
    if allocations > 0 {
        counters.allocations.fetch_add(allocations, Relaxed);
        counters.peak.fetch_max(held, Relaxed);
    }
}

/// Where a refusal is told; -1 is nowhere.
static TOLD_TO: AtomicI32 = AtomicI32::new(-1);

/// From here on a refused allocation is told to the supervisor's descriptor: a program that gets no memory is ended by
/// the language without another word of ours.
pub fn on_refusal(news: Option<i32>) {
    TOLD_TO.store(news.unwrap_or(-1), Relaxed);
}

/// Passes `at` on; where there is none, tells how much was refused, without allocating.
fn given(at: *mut u8, size: usize) -> *mut u8 {
    let fd = TOLD_TO.load(Relaxed);
    if at.is_null() && fd >= 0 {
        let mut line = [0u8; 64];
        let mut left = &mut line[..];
        let _ = writeln!(left, "{{\"refused\":{{\"bytes\":{size}}}}}");
        let length = 64 - left.len();
        // SAFETY: `length` bytes of the buffer are there; a descriptor that is gone is an error of the call.
        unsafe { libc::write(fd, line.as_ptr().cast(), length) };
    }
    at
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        changed(layout.size() as i64, 1);
        // SAFETY: the caller's layout.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        changed(layout.size() as i64, 1);
        // SAFETY: the caller's layout.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        changed(-(layout.size() as i64), 0);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        changed(size as i64 - layout.size() as i64, 1);
        // SAFETY: the caller's pointer and layout.
        given(unsafe { System.realloc(at, layout, size) }, size)
    }
}

/// Tags the calling thread for good.
pub fn tag(role: Role) {
    ROLE.with(|cell| cell.set(role as usize));
}

/// Runs `f` on behalf of a role.
pub fn on_behalf<R>(role: Role, f: impl FnOnce() -> R) -> R {
    let before = ROLE.with(|cell| cell.replace(role as usize));
    let result = f();
    ROLE.with(|cell| cell.set(before));
    result
}

/// Runs `f` on this thread: the most bytes that it held above those of before. One trial at a time.
pub fn peak_of(f: &mut dyn FnMut()) -> u64 {
    let counters = &COUNTERS[Role::Trial as usize];
    let before = counters.held.load(Relaxed);
    counters.peak.store(before, Relaxed);
    on_behalf(Role::Trial, f);
    (counters.peak.load(Relaxed) - before).max(0) as u64
}

/// Allocations of a role so far.
pub fn allocations(role: Role) -> u64 {
    COUNTERS[role as usize].allocations.load(Relaxed)
}

/// The bytes that a role holds now.
pub fn held(role: Role) -> u64 {
    COUNTERS[role as usize].held.load(Relaxed).max(0) as u64
}

/// The most bytes that a role held.
pub fn peak(role: Role) -> u64 {
    COUNTERS[role as usize].peak.load(Relaxed).max(0) as u64
}

/// Pins what the system's allocator would otherwise adapt: at most two arenas, large blocks always mapped and given
/// back at once, the heap's end trimmed; and huge pages only where they are asked for, which is in the engine's arena.
pub fn pin_allocator() {
    /// `PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18; older kernels refuse it and keep what the machine is set to.
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    // SAFETY: plain settings of allocator and kernel, before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        libc::prctl(
            libc::PR_SET_THP_DISABLE,
            1 as libc::c_ulong,
            EXCEPT_ADVISED,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        );
    }
}

/// Gives free heap back to the kernel.
pub fn trim() {
    // SAFETY: always allowed.
    unsafe { libc::malloc_trim(0) };
}
