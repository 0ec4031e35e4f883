//! No heap allocation happens on an engine thread in a step after the first.
//!
//! The allocator of this test binary counts what threads allocate that the present `with_cores` started: those of the one
//! before may still be ending. The test's own work around the steps is left out by counting only while a step runs.

mod decoder;
mod fixture;
mod random;
mod series;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use decoder::Samples;
use decoder::texts::packed;
use fixture::choices;
use plimsoll_engine::{Engine, MicroStep, Snapshot, Updates, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::{EvalJob, Job, compile};
use plimsoll_plan::spec::{Dropouts, Mixup};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec};
use random::{Stream, batches, job, v10, v11};

thread_local! {
    /// The run that this thread was started for; 0: none.
    static ENGINE: Cell<usize> = const { Cell::new(0) };
}
static RUN: AtomicUsize = AtomicUsize::new(0);
static STEPPING: AtomicBool = AtomicBool::new(false);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn count() {
    if STEPPING.load(Ordering::Relaxed) && ENGINE.with(Cell::get) == RUN.load(Ordering::Relaxed) {
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

/// Runs `f` on engine threads of its own.
fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    let run = RUN.fetch_add(1, Ordering::SeqCst) + 1;
    with_cores(threads, move || ENGINE.with(|e| e.set(run)), f).unwrap()
}

/// What engine threads allocate while `f` runs.
fn allocations<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = ALLOCATED.load(Ordering::SeqCst);
    STEPPING.store(true, Ordering::SeqCst);
    let result = f();
    STEPPING.store(false, Ordering::SeqCst);
    (result, ALLOCATED.load(Ordering::SeqCst) - before)
}

/// Batches of either kind of model, as many samples as an update has.
fn samples(job: &Job) -> Vec<Samples> {
    if job.spec.decoder().is_none() {
        let lens = (job.source_len, job.target_len);
        return batches(&job.spec, 4, job.effective_batch, lens, true, 1).into_iter().map(Samples::Pairs).collect();
    }
    let mut stream = Stream(1);
    let batch = |_| packed(&mut stream, job.spec.vocab(), job.effective_batch, job.source_len, job.documents);
    (0..4).map(batch).map(Samples::Texts).collect()
}

/// Allocations in each of some steps, evaluations and snapshots, the first left out.
fn later_allocations(job: &Job, choices: &Choices, clip_norm: Option<f64>) -> Vec<usize> {
    let program = compile(job, choices);
    let data = samples(job);
    let run = move || {
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: 1 };
        let mut engine = Engine::start(program, Some(updates)).unwrap();
        decoder::fill(&mut engine, &decoder::weights(job, 3));
        let mut snapshot = Snapshot::take(engine.program()).unwrap();
        let mut counts = Vec::new();
        for update in 0..8u64 {
            let batch = &data[update as usize % data.len()];
            batch.stage(&mut engine, 0..batch.len());
            let step = MicroStep { update, samples: batch.len(), first_sample: 0, lr: job.optimizer.lr() };
            let (_, trained) = allocations(|| (engine.micro_step(step).unwrap(), engine.finish_update(step).unwrap()));
            batch.stage(&mut engine, 0..batch.len());
            let (_, evaluated) = allocations(|| engine.eval(batch.len()).unwrap());
            let (_, copied) = allocations(|| snapshot.fill(&engine));
            counts.push(trained + evaluated + copied);
        }
        counts.split_off(1)
    };
    on_threads(job.threads, run)
}

/// One test, so that no other test's threads count.
#[test]
fn steps_after_the_first_allocate_nothing_and_the_count_can_see() {
    let (_, seen) = on_threads(2, || allocations(|| std::hint::black_box(vec![1u8; 100])));
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
    decoders_allocate_nothing();
    series_allocate_nothing();
}

fn decoders_allocate_nothing() {
    let adapters = TrainSpec::Lora(LoraSpec { dropout: 0.1, ..decoder::lora(&["q_proj", "down_proj", "c_attn"]) });
    let nf4 = Storage { quantised: Some(Dtype::Nf4), frozen: Dtype::Bf16, ..Storage::default() };
    let bf16 = Storage { trained: Dtype::Bf16, ..Storage::default() };
    for (name, mut spec) in decoder::specs::families() {
        spec.dropout = Dropouts { embedding: 0.1, attention: 0.1, residual: 0.1 };
        let ways = [
            (TrainSpec::All, Storage::default(), OptimizerSpec::adamw8bit(1e-3)),
            (TrainSpec::All, bf16, OptimizerSpec::lion(1e-3)),
            (adapters.clone(), nf4, OptimizerSpec::adamw(1e-3)),
        ];
        for (train, storage, optimizer) in ways {
            for (threads, micro_batch, clip_norm) in [(1, 4, None), (3, 2, Some(1.0))] {
                let mut job = decoder::job(spec.clone(), 60, 4, optimizer.clone());
                (job.train, job.storage, job.documents, job.threads) = (train.clone(), storage, 3, threads);
                (job.clip, job.eval) = (clip_norm.is_some(), Some(EvalJob { beams: 1, max_new: 0 }));
                let in_backward = micro_batch < 4;
                let how = Choices { recompute: 1, optimizer_in_backward: in_backward, ..choices(micro_batch) };
                let counts = later_allocations(&job, &how, clip_norm);
                assert!(counts.iter().all(|c| *c == 0), "{name}, {threads} threads, {optimizer}: {counts:?}");
            }
        }
    }
}

fn series_allocate_nothing() {
    for (spec, micro_batch, threads) in [(series::v1(), 6, 1), (series::v2(), 6, 3), (series::long(series::v2()), 3, 2)]
    {
        let mut spec = spec;
        spec.set_dropout(0.3);
        spec.loss.mixup = Some(Mixup { alpha: 0.4, probability: 0.5 });
        let job = Job { threads, clip: true, ..series::job(&spec, 6) };
        let batch = series::Windows::draw(&spec, 6, &mut series::Stream(4), true);
        let plan = Choices { recompute: 1, lstm_every: LSTM_BLOCK, ..Choices::plain(micro_batch) };
        let program = compile(&job, &plan);
        let run = || {
            let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: Some(1.0), seed: 1 };
            let mut engine = Engine::start(program, Some(updates)).unwrap();
            for (index, (_, values)) in series::weights(&spec, 3).iter().enumerate() {
                engine.param_mut(index).copy_from_slice(values);
            }
            let mut counts = Vec::new();
            for nth in 0..8 {
                let (_, trained) = allocations(|| series::update(&mut engine, &batch, nth, 1e-3));
                batch.stage(&mut engine, 0..micro_batch);
                let (_, evaluated) = allocations(|| engine.eval(micro_batch).unwrap());
                counts.push(trained + evaluated);
            }
            counts.split_off(1)
        };
        let counts = on_threads(threads, run);
        assert!(counts.iter().all(|c| *c == 0), "series, {threads} threads: {counts:?}");
    }
}
