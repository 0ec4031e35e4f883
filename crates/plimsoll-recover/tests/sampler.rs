//! One look at recorded machines and at this one, and what it costs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_machine::{Bytes, Root, headroom, own_memory};
use plimsoll_recover::sampler::Sampler;

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

fn tree(name: &str) -> Root {
    Root::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-machine/tests/trees").join(name))
}

#[test]
fn a_recorded_v2_cgroup_gives_its_own_pressure_and_the_tightest_headroom() {
    let root = tree("laptop");
    let folder = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(&root, folder.path()).unwrap();
    let look = sampler.look(1, Duration::ZERO, None).unwrap();
    assert_eq!(look.sample.headroom, headroom(&root).unwrap());
    assert_eq!(look.host_headroom, Bytes::gib(9));
    // The machine's own figure is another: 0.75 for `full`.
    assert_eq!(look.sample.stall_some, Some(0.5));
    assert!(look.sample.disk_free > Bytes::ZERO);
    let last = look.last();
    assert_eq!((last.headroom, last.host_ram), (look.sample.headroom, Some(look.host_ram)));
}

#[test]
fn where_memory_is_v1s_the_pressure_is_the_machines() {
    let root = tree("hybrid");
    let folder = tempfile::tempdir().unwrap();
    let look = Sampler::new(&root, folder.path()).unwrap().look(1, Duration::ZERO, None).unwrap();
    let machine = plimsoll_machine::machine_pressure(&root).unwrap();
    assert_eq!(look.sample.stall_full, Some(machine.seen().unwrap().full.avg10));
    assert_eq!(look.sample.headroom, headroom(&root).unwrap());
}

#[test]
fn a_look_sees_the_worker_and_takes_little_heap() {
    let root = Root::system();
    let folder = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(&root, folder.path()).unwrap();
    let own = std::process::id();
    let look = sampler.look(own, Duration::ZERO, None).unwrap();
    assert!(look.worker.rss > Bytes::ZERO && look.worker.rss <= own_memory(&root).unwrap().peak);
    assert!(look.sample.headroom > Bytes::ZERO && look.sample.headroom <= look.host_ram);

    let before = TAKEN.with(Cell::get);
    let (rounds, start) = (200, Instant::now());
    for at in 1..=rounds {
        sampler.look(own, Duration::from_secs(at), None).unwrap();
    }
    let each = start.elapsed() / rounds as u32;
    let heap = (TAKEN.with(Cell::get) - before) / rounds as usize;
    println!("a look: {} us, {heap} bytes of heap", each.as_micros());
    assert!(heap < 64 << 10, "{heap}");
}

#[test]
fn a_worker_that_is_gone_holds_nothing_and_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(&Root::system(), folder.path()).unwrap();
    let look = sampler.look(u32::MAX, Duration::ZERO, None).unwrap();
    assert_eq!((look.worker.rss, look.sample.swap_used), (Bytes::ZERO, Bytes::ZERO));
    let gone = folder.path().join("removed");
    let error = Sampler::new(&Root::system(), &gone).unwrap().look(1, Duration::ZERO, None).unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
}
