//! The machine's rates, measured: what the cost model is fed with.
//!
//! Small models are trained for a few updates, op by op. Of each op the best time counts, so that what else the machine
//! does is left out; the rates are those by which the cost model explains these times best. Quick ones are rounded to half
//! octaves, so that noise does not change a plan. Full ones are kept by whoever asked for them; what a call takes is seen from
//! whole tapes then.

use std::collections::HashMap;
use std::time::Instant;

use plimsoll_plan::choices::Choices;
use plimsoll_plan::cost::{Rates, Work, fit, tape_work, with_calls_of};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{DecoderFamily, DecoderSpec, Dropouts, Positions, RopeScaling, RopeSpec};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, TrainSpec};

use crate::engine::{Engine, Updates};
use crate::error::EngineError;
use crate::step::MicroStep;

/// How thoroughly to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Some 50 ms and 12 MiB: when a plan is made and nothing is known.
    Quick,
    /// A second or two and 80 MiB.
    Full,
}

/// A clock: seconds since whenever.
pub type Clock<'a> = &'a dyn Fn() -> f64;

/// Measures on the pool that it runs in, by the time that passes.
pub fn measure_rates(simd: Simd, care: Care) -> Result<Rates, EngineError> {
    let start = Instant::now();
    measure_rates_by(&|| start.elapsed().as_secs_f64(), simd, care)
}

/// Measures by another clock.
pub fn measure_rates_by(clock: Clock, simd: Simd, care: Care) -> Result<Rates, EngineError> {
    let threads = rayon::current_num_threads();
    let (mut measured, mut whole) = (Vec::new(), Vec::new());
    let tries = if care == Care::Quick { (2, 0) } else { (4, 16) };
    for (job, micro_batch) in jobs(care, threads, simd) {
        // What is only read has the same loss whatever its storage.
        let chunks: &[usize] = if job.train == TrainSpec::All { &[256, 64] } else { &[256] };
        for &loss_chunk in chunks {
            let timed = timed_ops(clock, &job, &Choices { loss_chunk, ..choices(micro_batch) }, tries)?;
            measured.extend(timed.ops);
            whole.extend(timed.tapes);
        }
    }
    let rates = fit(&distinct(&measured), Rates::default());
    Ok(match care {
        // A few tapes show a call anywhere between 3 and 15 us: too noisy for plans that should not change.
        Care::Quick => Rates { calls: Rates::default().calls, ..rates.rounded() },
        Care::Full => with_calls_of(rates, &whole),
    })
}

fn choices(micro_batch: usize) -> Choices {
    Choices {
        micro_batch,
        recompute: 0,
        recompute_attention: 0,
        recompute_feed_forward: 0,
        loss_chunk: 256,
        optimizer_in_backward: false,
        loader_threads: 1,
        lean: false,
        keep_norms: false,
        lstm_every: 0,
    }
}

/// The models that are measured: all kinds of ops, in shapes that tell the units apart. None takes longer than a few
/// milliseconds, so that on a busy machine some try of each is left alone.
fn jobs(care: Care, threads: usize, simd: Simd) -> Vec<(Job, usize)> {
    let job = |width: usize, vocab: usize, len: usize, batch: usize, lora: Option<Dtype>| {
        let spec = model(width, vocab, lora.is_none());
        let mut job = Job::new(spec, (len, len), batch, OptimizerSpec::adamw(1e-4), (threads, simd));
        if let Some(dtype) = lora {
            let targets = vec!["q_proj".into(), "down_proj".into()];
            job.train = TrainSpec::Lora(LoraSpec { r: 8, alpha: 16.0, dropout: 0.0, rslora: false, targets });
            match dtype {
                Dtype::Int8 | Dtype::Nf4 => job.storage.quantised = Some(dtype),
                _ => job.storage.frozen = dtype,
            }
        }
        (job, batch)
    };
    match care {
        Care::Quick => vec![
            job(128, 2048, 128, 2, None),
            job(192, 512, 24, 1, None),
            job(128, 256, 32, 1, Some(Dtype::Bf16)),
            job(128, 256, 32, 1, Some(Dtype::Int8)),
            job(128, 256, 32, 1, Some(Dtype::Nf4)),
        ],
        Care::Full => vec![
            job(256, 2048, 128, 2, None),
            job(512, 1024, 48, 1, None),
            job(512, 8192, 20, 1, None),
            job(256, 512, 512, 1, None),
            job(128, 512, 64, 1, None),
            job(256, 512, 64, 1, Some(Dtype::Bf16)),
            job(256, 512, 64, 1, Some(Dtype::Int8)),
            job(256, 512, 64, 1, Some(Dtype::Nf4)),
        ],
    }
}

/// One block of a decoder with heads of 64.
fn model(width: usize, vocab: usize, drops: bool) -> DecoderSpec {
    DecoderSpec {
        family: DecoderFamily::Llama,
        vocab,
        d_model: width,
        layers: 1,
        heads: width / 64,
        kv_heads: width / 64,
        d_head: 64,
        d_ff: 4 * width,
        norm_eps: 1e-6,
        positions: Positions::Rope(RopeSpec { theta: 1e4, scaling: RopeScaling::Default }),
        max_positions: 4096,
        windows: Vec::new(),
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        tied: true,
        dropout: Dropouts { embedding: 0.0, attention: 0.0, residual: if drops { 0.1 } else { 0.0 } },
        init_std: 0.02,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: None,
    }
}

/// Of ops with the same work, the best time.
fn distinct(measured: &[(Work, f64)]) -> Vec<(Work, f64)> {
    let mut best: HashMap<String, (Work, f64)> = HashMap::new();
    for (work, seconds) in measured {
        let entry = best.entry(format!("{work:?}")).or_insert((*work, *seconds));
        entry.1 = entry.1.min(*seconds);
    }
    best.into_values().collect()
}

/// An engine with made-up weights and a full batch; and how it updates.
fn started(job: &Job, choices: &Choices) -> Result<(Engine, Updates), EngineError> {
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: job.clip.then_some(1.0), seed: 1 };
    let mut engine = Engine::start(compile(job, choices), Some(updates.clone()))?;
    fill(&mut engine, job);
    Ok((engine, updates))
}

/// Work and best times.
#[derive(Default)]
struct Timed {
    /// Of each op of a micro-batch and of the update.
    ops: Vec<(Work, f64)>,
    /// Of each tape as a whole; infinite where none was run so.
    tapes: Vec<(Work, f64)>,
}

/// Trains a job, op by op and tape by tape.
fn timed_ops(
    clock: Clock,
    job: &Job,
    choices: &Choices,
    (tries, tape_tries): (usize, usize),
) -> Result<Timed, EngineError> {
    let (mut engine, updates) = started(job, choices)?;
    let samples = job.staged(choices);
    engine.staging.take(samples, 0, &engine.program.spec)?;
    let mut timed = Timed::default();
    for placed in [&engine.program.micro, &engine.program.update].into_iter().flatten() {
        let ops = &placed.tape.ops;
        let (mut best, mut whole) = (vec![f64::INFINITY; ops.len()], f64::INFINITY);
        let begun = |update: usize| {
            let mut frame = engine.frame(placed);
            (frame.seed, frame.update, frame.lr) = (updates.seed, update as u64, Some(1e-4));
            (frame.optimizer, frame.clip_norm) = (Some(&updates.optimizer), updates.clip_norm);
            frame
        };
        for update in 0..tries {
            let mut frame = begun(update);
            for (op, best) in ops.iter().zip(&mut best) {
                *best = best.min(seconds_of(clock, || frame.run(std::slice::from_ref(op))));
            }
        }
        for update in 0..tape_tries {
            let mut frame = begun(update);
            whole = whole.min(seconds_of(clock, || frame.run(ops)));
        }
        let work = tape_work(&engine.program, placed);
        timed.tapes.push((work.iter().fold(Work::default(), |sum, op| sum + *op), whole));
        timed.ops.extend(work.into_iter().zip(best));
    }
    Ok(timed)
}

fn seconds_of(clock: Clock, f: impl FnOnce()) -> f64 {
    let start = clock();
    f();
    clock() - start
}

/// Trains a job with made-up weights and full batches: seconds of a whole update, the best of some.
pub fn timed_update(clock: Clock, job: &Job, choices: &Choices, tries: usize) -> Result<f64, EngineError> {
    let (mut engine, _) = started(job, choices)?;
    let samples = job.staged(choices);
    let mut best = f64::INFINITY;
    for update in 0..tries as u64 {
        let mut step = MicroStep { update, samples, first_sample: 0, lr: Some(1e-4) };
        let start = clock();
        for first in (0..job.effective_batch).step_by(samples) {
            step.first_sample = first as u32;
            engine.micro_step(step)?;
        }
        engine.finish_update(step)?;
        best = best.min(clock() - start);
    }
    Ok(best)
}

/// Weights and tokens that keep every number small and finite.
fn fill(engine: &mut Engine, job: &Job) {
    for index in 0..engine.program.store.params.len() {
        let vector = engine.program.store.params[index].param.shape.len() == 1;
        let filled = engine.fill_param(index, |first, out| {
            let small = |i: usize| ((first + i) % 13) as f32 * 0.004 - 0.024;
            out.iter_mut().enumerate().for_each(|(i, w)| *w = if vector { 1.0 } else { small(i) });
            Ok::<(), std::convert::Infallible>(())
        });
        match filled {
            Ok(()) => {}
        }
    }
    let vocab = job.spec.vocab() as u32;
    let documents = job.documents;
    let slot = engine.slot();
    let tokens = |i: usize| 2 + i as u32 * 7 % (vocab - 2);
    slot.source.iter_mut().enumerate().for_each(|(i, t)| *t = tokens(i));
    slot.target.iter_mut().enumerate().for_each(|(i, t)| *t = tokens(i + 1));
    slot.source_lens.fill(0);
    slot.source_lens.iter_mut().step_by(documents.max(1)).for_each(|len| *len = job.source_len as u32);
    slot.target_lens.fill(job.target_len as u32);
}
