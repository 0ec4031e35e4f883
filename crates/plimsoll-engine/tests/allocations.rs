//! No heap allocation happens on an engine thread in a step after the first.
//!
//! The allocator of this test binary counts what threads allocate that `with_cores` started; the test's own work
//! around the steps is left out by counting only while a step runs.

mod fixture;
mod random;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fixture::choices;
use plimsoll_engine::{Engine, MicroStep, Snapshot, Updates, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{EvalJob, Job, compile};
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, fill, job, v10, v11, weights};

thread_local! {
    static ENGINE: Cell<bool> = const { Cell::new(false) };
}
static STEPPING: AtomicBool = AtomicBool::new(false);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn count() {
    if STEPPING.load(Ordering::Relaxed) && ENGINE.with(Cell::get) {
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is the system allocator's; counting touches only atomics and a thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What engine threads allocate while `f` runs.
fn allocations<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = ALLOCATED.load(Ordering::SeqCst);
    STEPPING.store(true, Ordering::SeqCst);
    let result = f();
    STEPPING.store(false, Ordering::SeqCst);
    (result, ALLOCATED.load(Ordering::SeqCst) - before)
}

/// Allocations in each of some steps, evaluations and snapshots, the first left out.
fn later_allocations(job: &Job, choices: &Choices, clip_norm: Option<f64>) -> Vec<usize> {
    let program = compile(job, choices);
    let data = batches(&job.spec, 4, choices.micro_batch, (job.source_len, job.target_len), true, 1);
    let run = move || {
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: 1 };
        let mut engine = Engine::start(program, Some(updates)).unwrap();
        fill(&mut engine, &weights(&job.spec, 3));
        let mut snapshot = Snapshot::take(engine.program()).unwrap();
        let mut counts = Vec::new();
        for update in 0..8u64 {
            let batch = &data[update as usize % data.len()];
            batch.stage(&mut engine);
            let step = MicroStep { update, samples: batch.sources.len(), first_sample: 0, lr: job.optimizer.lr() };
            let (_, trained) = allocations(|| (engine.micro_step(step).unwrap(), engine.finish_update(step).unwrap()));
            batch.stage(&mut engine);
            let (_, evaluated) = allocations(|| engine.eval(batch.sources.len()).unwrap());
            let (_, copied) = allocations(|| snapshot.fill(&engine));
            counts.push(trained + evaluated + copied);
        }
        counts.split_off(1)
    };
    with_cores(job.threads, || ENGINE.with(|e| e.set(true)), run).unwrap()
}

/// One test, so that no other test's threads count.
#[test]
fn steps_after_the_first_allocate_nothing_and_the_count_can_see() {
    let (_, seen) =
        with_cores(2, || ENGINE.with(|e| e.set(true)), || allocations(|| std::hint::black_box(vec![1u8; 100])))
            .unwrap();
    assert_eq!(seen, 1, "an allocation is counted");
    let lens = (70, 40);
    for spec in [v10(0.1), v11(0.1)] {
        for optimizer in [OptimizerSpec::adamw(1e-3), OptimizerSpec::adafactor(1e-3), OptimizerSpec::sgd(1e-3)] {
            for (threads, in_backward, clip_norm) in [(1, false, None), (2, true, None), (3, false, Some(1.0))] {
                let mut job = job(spec.clone(), lens, 4, optimizer.clone(), clip_norm.is_some());
                (job.threads, job.eval) = (threads, Some(EvalJob { beams: 1, max_new: 0 }));
                let how = Choices { recompute: 1, optimizer_in_backward: in_backward, ..choices(4) };
                let counts = later_allocations(&job, &how, clip_norm);
                assert!(counts.iter().all(|c| *c == 0), "{threads} threads, {}: {counts:?}", job.optimizer);
            }
        }
    }
}
