//! What judging gradients and copying for a save cost beside a step of T5-small; best of a few, on all cores.
//!
//!     cargo bench -p plimsoll-engine --bench update
#![allow(clippy::print_stdout, missing_docs)]

use std::time::Instant;

use plimsoll_engine::cpu::Cores;
use plimsoll_engine::cpu::gradient_norm::sum_of_squares;
use plimsoll_engine::{Engine, MicroStep, Snapshot, Updates, simd, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::train::OptimizerSpec;

const TRIES: usize = 5;

fn best(mut f: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..TRIES).map(timed).fold(f64::INFINITY, f64::min)
}

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (samples, source_len, target_len) in [(4, 64, 64), (8, 128, 64), (8, 512, 256)] {
        for optimizer in [OptimizerSpec::adafactor(1e-3), OptimizerSpec::adamw(1e-4)] {
            for optimizer_in_backward in [true, false] {
                let on = (threads, simd::detect());
                let job = Job::new(T5Spec::small(), (source_len, target_len), samples, optimizer.clone(), on);
                let how = Choices {
                    micro_batch: samples,
                    recompute: 0,
                    recompute_attention: 0,
                    recompute_feed_forward: 0,
                    loss_chunk: 256,
                    optimizer_in_backward,
                    loader_threads: 1,
                    lean: false,
                    keep_norms: false,
                    lstm_every: 0,
                };
                with_cores(threads, || {}, || measure(&job, &how)).unwrap();
            }
        }
    }
}

fn measure(job: &Job, how: &Choices) {
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: None, seed: 1 };
    let mut engine = Engine::start(compile(job, how), Some(updates)).unwrap();
    for index in 0..engine.program().store.params.len() {
        engine.param_mut(index).iter_mut().enumerate().for_each(|(i, w)| *w = (i % 13) as f32 * 0.01 - 0.06);
    }
    let slot = engine.slot();
    slot.source.iter_mut().chain(slot.target.iter_mut()).enumerate().for_each(|(i, t)| *t = 2 + i as u32 * 7 % 30_000);
    slot.source_lens.fill(job.source_len as u32);
    slot.target_lens.fill(job.target_len as u32);
    let step = MicroStep { update: 0, samples: how.micro_batch, first_sample: 0, lr: job.optimizer.lr() };
    let seconds = best(|| {
        engine.micro_step(step).unwrap();
        engine.finish_update(step).unwrap();
    });
    let cores = Cores { simd: job.simd, threads: job.threads };
    let count = engine.program().store.params.len();
    // From memory, as after the last micro-batch; in the backward pass a gradient is still in cache.
    let judged = best(|| {
        std::hint::black_box((0..count).map(|i| sum_of_squares(cores, engine.param(i))).sum::<f64>());
    });
    let mut snapshot = Snapshot::take(engine.program()).unwrap();
    let copied = best(|| snapshot.fill(&engine));
    let place = if how.optimizer_in_backward { "in" } else { "after" };
    println!(
        "{} x ({} + {}), {}, update {place} the backward pass: step {:.1} ms, judging {:.2} ms ({:.2} %), copy {:.1} ms",
        how.micro_batch,
        job.source_len,
        job.target_len,
        job.optimizer,
        seconds * 1e3,
        judged * 1e3,
        judged / seconds * 100.0,
        copied * 1e3,
    );
}
