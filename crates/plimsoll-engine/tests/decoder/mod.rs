//! Small decoders with random weights, texts for them, short training runs, and the peer that they are compared with.
#![allow(dead_code)] // each test binary uses its own part

pub mod card;
pub mod peer;
pub mod specs;
pub mod texts;

use plimsoll_engine::{Engine, MicroStep, Updated, Updates, with_cores};
use plimsoll_plan::batch::BatchSlot;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{Init, ModelSpec, Param};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, stored};

use crate::fixture::Batch;
use crate::random::{self, Stream};
use texts::{Sample, put};

/// An effective batch of either kind of model.
#[derive(Clone, Debug)]
pub enum Samples {
    Texts(Vec<Sample>),
    Pairs(Batch),
}

impl Samples {
    pub fn len(&self) -> usize {
        match self {
            Samples::Texts(samples) => samples.len(),
            Samples::Pairs(batch) => batch.sources.len(),
        }
    }

    pub fn stage(&self, engine: &mut Engine, range: std::ops::Range<usize>) {
        self.put(engine.slot(), range);
    }

    /// Writes some of them into a slot.
    pub fn put(&self, slot: BatchSlot, range: std::ops::Range<usize>) {
        match self {
            Samples::Texts(samples) => put(slot, &samples[range]),
            Samples::Pairs(batch) => batch.part(range).put(slot),
        }
    }
}

/// A job on two threads whose samples have up to `most` rows.
pub fn job(spec: impl Into<ModelSpec>, most: usize, effective_batch: usize, optimizer: OptimizerSpec) -> Job {
    Job::new(spec, (most, most), effective_batch, optimizer, (2, plimsoll_engine::simd::detect()))
}

pub fn lora(targets: &[&str]) -> LoraSpec {
    let targets = targets.iter().map(|t| t.to_string()).collect();
    LoraSpec { r: 4, alpha: 8.0, dropout: 0.0, rslora: false, targets }
}

/// Weights of everything that a job holds, LoRA's factors last. The model's own depend on the spec alone.
pub fn weights(job: &Job, seed: u64) -> Vec<(Param, Vec<f32>)> {
    let mut list = random::weights(&job.spec, seed);
    let mut stream = Stream(seed ^ 0x10_4A);
    for held in stored(&job.spec, &job.train, &job.storage).into_iter().filter(|held| held.adapter) {
        // Larger ones make a course that PyTorch itself does not repeat to 1e-4 from weights half a last bit apart.
        let size = if held.param.init == Init::Zeros { 0.05 } else { 0.1 };
        let values = (0..held.param.elements()).map(|_| size * stream.normal()).collect();
        list.push((held.param, values));
    }
    list
}

/// Writes weights into an engine, whatever the storage.
pub fn fill(engine: &mut Engine, weights: &[(Param, Vec<f32>)]) {
    assert_eq!(engine.program().store.params.len(), weights.len());
    for (index, (param, values)) in weights.iter().enumerate() {
        assert_eq!(engine.program().store.params[index].param.name, param.name);
        let put = |first: usize, out: &mut [f32]| -> Result<(), ()> {
            out.copy_from_slice(&values[first..first + out.len()]);
            Ok(())
        };
        engine.fill_param(index, put).unwrap();
    }
}

/// A parameter's numbers, whatever the storage.
pub fn read(engine: &Engine, index: usize) -> Vec<f32> {
    let mut out = vec![0.0; engine.program().store.params[index].param.elements()];
    engine.read_param(index, 0, &mut out);
    out
}

/// Starts an engine with these weights.
pub fn with<R: Send>(
    job: &Job,
    choices: &Choices,
    clip_norm: Option<f64>,
    weights: &[(Param, Vec<f32>)],
    f: impl FnOnce(&mut Engine) -> R + Send,
) -> R {
    let program = compile(job, choices);
    let run = move || {
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: 11 };
        let mut engine = Engine::start(program, Some(updates)).unwrap();
        fill(&mut engine, weights);
        f(&mut engine)
    };
    with_cores(job.threads, || {}, run).unwrap()
}

/// Update `update` on an effective batch, in as many micro-batches as the program wants: the mean loss and the norm.
pub fn update(engine: &mut Engine, samples: &Samples, update: u64, lr: Option<f64>) -> (f64, f64) {
    let most = engine.program().shape.samples;
    let mut step = MicroStep { update, samples: most, first_sample: 0, lr };
    for first in (0..samples.len()).step_by(most) {
        let end = (first + most).min(samples.len());
        samples.stage(engine, first..end);
        step = MicroStep { samples: end - first, first_sample: first as u32, ..step };
        engine.micro_step(step).unwrap();
    }
    match engine.finish_update(step).unwrap() {
        Updated::Done { loss, norm } => (loss.mean(), norm),
        other => panic!("update {update} was not made: {other:?}"),
    }
}

/// What a run left.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    pub losses: Vec<f64>,
    pub norms: Vec<f64>,
    pub weights: Vec<Vec<f32>>,
}

/// Trains from `weights` for `updates` updates.
pub fn train(
    job: &Job,
    choices: &Choices,
    clip_norm: Option<f64>,
    weights: &[(Param, Vec<f32>)],
    batches: &[Samples],
    updates: usize,
) -> Course {
    with(job, choices, clip_norm, weights, |engine| {
        let of = |at: usize, engine: &mut Engine| {
            update(engine, &batches[at % batches.len()], at as u64, job.optimizer.lr())
        };
        let (losses, norms) = (0..updates).map(|at| of(at, engine)).unzip();
        let weights = (0..weights.len()).map(|index| read(engine, index)).collect();
        Course { losses, norms, weights }
    })
}

/// The largest relative distance between two courses of losses.
pub fn furthest(a: &Course, b: &Course) -> f64 {
    assert_eq!(a.losses.len(), b.losses.len());
    a.losses.iter().zip(&b.losses).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
}
