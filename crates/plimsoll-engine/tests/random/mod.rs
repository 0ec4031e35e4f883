//! Small T5 models with random weights, ragged random batches, and a short training run over them.
//!
//! Weights and batches follow from a seed alone, never from a plan, so two plans can be compared.
#![allow(dead_code)] // each test binary uses its own part

use plimsoll_engine::{Engine, Updates, with_cores};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{FeedForward, Init, ModelSpec, Param, T5Spec};
use plimsoll_plan::train::OptimizerSpec;

use crate::fixture::{Batch, train_update};

/// A stream of random numbers (splitmix64).
pub struct Stream(pub u64);

impl Stream {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `low ..= high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.word() % (high - low + 1) as u64) as usize
    }

    /// In 0 .. 1, never 0.
    fn unit(&mut self) -> f64 {
        ((self.word() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        ((-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}

/// T5 v1.0: relu, tied and scaled head. No width is a multiple of a vector register.
pub fn v10(dropout: f32) -> T5Spec {
    T5Spec {
        vocab: 89,
        d_model: 36,
        d_kv: 9,
        d_ff: 70,
        encoder_layers: 2,
        decoder_layers: 2,
        heads: 3,
        buckets: 8,
        max_distance: 20,
        dropout,
        norm_eps: 1e-6,
        feed_forward: FeedForward::Relu,
        tied: true,
        scale_head: true,
        pad_id: 0,
        eos_id: 1,
        start_id: 0,
    }
}

/// T5 v1.1: gated gelu, a head of its own, not scaled.
pub fn v11(dropout: f32) -> T5Spec {
    T5Spec { feed_forward: FeedForward::GatedGelu, tied: false, scale_head: false, ..v10(dropout) }
}

/// Every parameter with its weights, drawn as its family draws them; norms and biases away from where they start, so that
/// they matter, and an unscaled head small enough for a loss near that of guessing.
pub fn weights(spec: &(impl Clone + Into<ModelSpec>), seed: u64) -> Vec<(Param, Vec<f32>)> {
    let spec: ModelSpec = spec.clone().into();
    let mut stream = Stream(seed);
    let draw = |param: Param| {
        let values = (0..param.elements())
            .map(|_| match param.init {
                Init::Ones => 1.0 + 0.2 * stream.normal(),
                Init::Normal(_) if param.name == "lm_head.weight" => stream.normal() / (spec.d_model() as f32).sqrt(),
                Init::Normal(std) => std * stream.normal(),
                Init::Zeros => 0.1 * stream.normal(),
                Init::Uniform(most) => most * (2.0 * stream.unit() as f32 - 1.0),
            })
            .collect();
        (param, values)
    };
    spec.params().into_iter().map(draw).collect()
}

/// Writes the weights into an engine.
pub fn fill(engine: &mut Engine, weights: &[(Param, Vec<f32>)]) {
    for (index, (param, values)) in weights.iter().enumerate() {
        assert_eq!(engine.program().store.params[index].param.name, param.name);
        engine.param_mut(index).copy_from_slice(values);
    }
}

/// Batches of `rows` samples. Ragged ones have lengths from 1 on, one full row, and now and then an ignored label.
pub fn batches(
    spec: &(impl Clone + Into<ModelSpec>),
    count: usize,
    rows: usize,
    lens: (usize, usize),
    ragged: bool,
    seed: u64,
) -> Vec<Batch> {
    let spec: ModelSpec = spec.clone().into();
    let mut stream = Stream(seed ^ 0xBA7C);
    let mut batch = |_| {
        let mut batch = Batch::default();
        for row in 0..rows {
            let mut line = |most: usize| -> Vec<u32> {
                let len = if ragged && row != 1 { stream.between(1, most) } else { most };
                let mut tokens: Vec<u32> = (0..len).map(|_| stream.between(2, spec.vocab() - 1) as u32).collect();
                tokens[len - 1] = spec.eos_id();
                tokens
            };
            batch.sources.push(line(lens.0));
            batch.targets.push(line(lens.1));
        }
        if ragged && batch.targets[1].len() > 2 {
            batch.targets[1][1] = IGNORE;
        }
        batch
    };
    (0..count).map(&mut batch).collect()
}

/// What a run left: its losses, and the weights at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    pub losses: Vec<f64>,
    pub norms: Vec<f64>,
    pub weights: Vec<Vec<f32>>,
}

/// Trains a fresh model for `updates` updates.
pub fn train(job: &Job, choices: &Choices, clip_norm: Option<f64>, batches: &[Batch], updates: usize) -> Trained {
    let program = compile(job, choices);
    let start = weights(&job.spec, 3);
    let run = move || {
        let how = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: 11 };
        let mut engine = Engine::start(program, Some(how)).unwrap();
        fill(&mut engine, &start);
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for update in 0..updates {
            let lr = job.optimizer.lr();
            let (loss, norm) = train_update(&mut engine, &batches[update % batches.len()], update as u64, lr);
            losses.push(loss);
            norms.push(norm);
        }
        let weights = (0..start.len()).map(|index| engine.param(index).to_vec()).collect();
        Trained { losses, norms, weights }
    };
    with_cores(job.threads, || {}, run).unwrap()
}

/// A job over a spec, without evaluation, on two threads.
pub fn job(spec: T5Spec, lens: (usize, usize), effective_batch: usize, optimizer: OptimizerSpec, clip: bool) -> Job {
    let simd = plimsoll_engine::simd::detect();
    Job { clip, ..Job::new(spec, lens, effective_batch, optimizer, (2, simd)) }
}
