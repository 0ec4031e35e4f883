//! The global allocator: the system's, counted by who allocates.
//!
//! Two promises of the plan are held against these counters in every run: engine threads allocate nothing in a step
//! after the first, and the loader stays below its line. A count costs one thread-local read and a relaxed addition; loader
//! threads, which allocate several times for every token, count by themselves first and share what comes to some KiB. (All of
//! them adding to one number halved what two threads tokenise, to about what one does alone.)

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

/// What a loader thread has not shared yet, at most; its part of the loader's peak is known to this much.
const UNSHARED: i64 = 8 << 10;

thread_local! {
    /// Bytes and allocations of this thread as a loader that are not in the counters yet.
    static OWN: Cell<(i64, u64)> = const { Cell::new((0, 0)) };
}

fn changed(bytes: i64, allocations: u64) {
    let role = ROLE.try_with(Cell::get).unwrap_or(0);
    if role != Role::Loader as usize {
        return share(role, bytes, allocations);
    }
    let _ = OWN.try_with(|own| {
        let (held, count) = (own.get().0 + bytes, own.get().1 + allocations);
        if held.abs() < UNSHARED {
            return own.set((held, count));
        }
        own.set((0, 0));
        share(role, held, count);
    });
}

fn share(role: usize, bytes: i64, allocations: u64) {
    let counters = &COUNTERS[role];
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

/// Arenas of the system's allocator: two, and on machines of more than four cores one for every two, for threads that tokenise
/// there. (On 16 cores four such threads made 1.2 million tokens a second with two arenas, 3.6 million with their own.)
fn arenas() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().div_ceil(2).clamp(2, 8))
}

/// Pins what the system's allocator would otherwise adapt: few arenas, large blocks always mapped and given
/// back at once, the heap's end trimmed; and huge pages only where they are asked for, which is in the engine's arena.
pub fn pin_allocator() {
    /// `PR_THP_DISABLE_EXCEPT_ADVISED`, Linux 6.18; older kernels refuse it and keep what the machine is set to.
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    let arenas = arenas() as libc::c_int;
    // SAFETY: plain settings of allocator and kernel, before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
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
