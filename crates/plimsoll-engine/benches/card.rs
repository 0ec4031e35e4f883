//! Steps on a card: tokens a second, memory of the card, and where the time goes.
//!
//!     cargo bench -p plimsoll-engine --bench card -- [full|lora|nf4|pure|t5|v1|v2][:CHOICE]... [steps=N] [ops] [rates]
//!
//! A choice is `micro=N`, `recompute=N`, `ffn=N` (blocks whose feed-forward part is computed again), `chunk=N` (rows of the
//! loss), `inside` (updates in the backward pass), `norms` (their outputs are kept) or `lean`; without any, the fastest plan with room to spare.
//! Of series, also `batch=N`, `every=N` (how far apart an LSTM keeps its cells), `f32`, `tf32` (bf16 without) and `stepwise`.
//!
//! Shapes: Qwen2.5-0.5B, batch 8 x 1024, AdamW (full: bf16 with f32 masters; pure: bf16 alone, weights and moments; LoRA r 16
//! on all linears over bf16 or NF4), T5-small, batch 32 x (256 + 256), Adafactor; HybridCNNLSTM v1 and v2, batch 32, AdamW. Weights
//! and tokens or windows are random.
#![allow(clippy::print_stdout, missing_docs)]

#[path = "card/windows.rs"]
mod windows;

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_engine::cuda::{Card, CudaEngine, CudaError, CudaOptions, card_rates};
use plimsoll_engine::{EngineError, MicroStep, Updates, simd};
use plimsoll_plan::card::CardRates;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::{self, Bytes, CardOverheads};
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{DecoderSpec, Init, ModelSpec, T5Spec};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec};

fn job(name: &str) -> (Job, Choices) {
    let on = (1, simd::detect());
    let device = Device::Cuda(CudaForm::of(Dtype::Bf16));
    let how = Choices {
        micro_batch: 8,
        recompute: 0,
        recompute_attention: 0,
        recompute_feed_forward: 0,
        loss_chunk: 2048,
        optimizer_in_backward: false,
        loader_threads: 1,
        lean: false,
        keep_norms: false,
        lstm_every: 0,
    };
    if name == "v1" || name == "v2" {
        let (job, how) = windows::job(name);
        return (Job { device, ..job }, how);
    }
    if name == "t5" {
        let job = Job::new(T5Spec::small(), (256, 256), 32, OptimizerSpec::adafactor(1e-3), on);
        return (Job { device, ..job }, Choices { micro_batch: 32, ..how });
    }
    let job =
        Job { device, ..Job::new(DecoderSpec::qwen25_half_billion(), (1024, 1024), 8, OptimizerSpec::adamw(1e-4), on) };
    let targets = ["q", "k", "v", "o", "gate", "up", "down"].map(|part| format!("{part}_proj")).to_vec();
    let train = TrainSpec::Lora(LoraSpec { r: 16, alpha: 32.0, dropout: 0.0, rslora: false, targets });
    let frozen = Storage { frozen: Dtype::Bf16, ..Storage::default() };
    match name {
        "lora" => (Job { train, storage: frozen, ..job }, how),
        "nf4" => (Job { train, storage: Storage { quantised: Some(Dtype::Nf4), ..frozen }, ..job }, how),
        "pure" => {
            let storage = Storage { trained: Dtype::Bf16, ..Storage::default() };
            (Job { storage, optimizer: OptimizerSpec::adamw16bit(1e-4), ..job }, how)
        }
        _ => (job, how),
    }
}

/// The job of a word of the command line, and how it is to run.
fn chosen(word: &str) -> Option<(Job, Choices, CudaOptions)> {
    let mut parts = word.split(':');
    let (mut job, mut how) = job(parts.next()?);
    let cache = Some(std::env::temp_dir().join("plimsoll-bench-kernels"));
    let mut options = CudaOptions { cache, ..CudaOptions::default() };
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, "1"));
        let value = value.parse().ok()?;
        match name {
            "micro" => how.micro_batch = value,
            "recompute" => how.recompute = value,
            "ffn" => how.recompute_feed_forward = value,
            "chunk" => how.loss_chunk = value,
            "inside" => how.optimizer_in_backward = value > 0,
            "lean" => how.lean = value > 0,
            "norms" => how.keep_norms = value > 0,
            "batch" => (job.effective_batch, how.micro_batch) = (value, value),
            "every" => how.lstm_every = value,
            "f32" | "tf32" => {
                (job.device, options.tf32) = (Device::Cuda(CudaForm::of(Dtype::F32)), name == "tf32");
            }
            "stepwise" => options.stepwise = true,
            _ => return None,
        }
    }
    Some((job, how, options))
}

/// Numbers that look random and cost little.
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        self.0 >> 33
    }
}

fn fill(engine: &mut CudaEngine) -> Result<(), EngineError> {
    let mut mix = Mix(7);
    for index in 0..engine.program().store.params.len() {
        let init = engine.program().store.params[index].param.init;
        let put = |_: usize, out: &mut [f32]| -> Result<(), EngineError> {
            match init {
                Init::Ones => out.fill(1.0),
                Init::Zeros => out.fill(0.0),
                Init::Normal(size) | Init::Uniform(size) => {
                    out.iter_mut().for_each(|v| *v = size * ((mix.next() % 4096) as f32 / 1024.0 - 2.0) * 0.87);
                }
            }
            Ok(())
        };
        engine.fill_param(index, put)??;
    }
    Ok(())
}

fn stage(engine: &mut CudaEngine, spec: &ModelSpec, mix: &mut Mix) {
    if spec.series().is_some() {
        return windows::stage(engine, || mix.next());
    }
    let slot = engine.slot();
    let vocab = spec.vocab() as u64;
    let (source, target) = (slot.source.len() / slot.source_lens.len(), slot.target.len() / slot.target_lens.len());
    slot.source.iter_mut().for_each(|t| *t = (2 + mix.next() % (vocab - 2)) as u32);
    slot.target.iter_mut().for_each(|t| *t = (2 + mix.next() % (vocab - 2)) as u32);
    slot.source_lens.fill(source as u32);
    slot.target_lens.fill(target as u32);
}

fn measure(name: &str, steps: usize, by_op: bool) -> Result<(), EngineError> {
    let Some((job, how, options)) = chosen(name) else {
        println!("{name}: no such choice");
        return Ok(());
    };
    let begun = Instant::now();
    let program = compile(&job, &how);
    let planned = begun.elapsed();
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: job.clip.then_some(1.0), seed: 1 };
    let begun = Instant::now();
    let mut engine = CudaEngine::start(program, Some(updates), &options)?;
    let started = begun.elapsed();
    fill(&mut engine)?;
    let mut mix = Mix(3);
    let samples = engine.program().shape.samples;
    let batches = job.effective_batch / samples;
    let tokens = match &job.spec {
        ModelSpec::T5(_) => job.effective_batch * (job.source_len + job.target_len),
        ModelSpec::Decoder(_) | ModelSpec::Series(_) => job.effective_batch * job.source_len,
    };
    let mut seconds = Vec::new();
    let (mut losses, mut busy) = (Vec::new(), 0.0);
    for update in 0..steps as u64 {
        let begun = Instant::now();
        if update == 10.min(steps as u64 - 1) {
            busy = engine.busy_seconds();
        }
        let step = MicroStep { update, samples, first_sample: 0, lr: job.optimizer.lr() };
        for nth in 0..batches {
            stage(&mut engine, &job.spec, &mut mix);
            engine.micro_step(MicroStep { first_sample: (nth * samples) as u32, ..step })?;
        }
        losses.push(engine.finish_update(step)?.loss().mean());
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let used = engine.used();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    // As the peer's are counted.
    let mut sorted = seconds[10.min(steps - 1)..].to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    println!(
        "{name}: {:.1} k tok/s ({:.2} ms a step, median of {}; first {:.0} ms); loss {:.3} to {:.3}",
        tokens as f64 / median / 1e3,
        median * 1e3,
        sorted.len(),
        seconds[0] * 1e3,
        losses[0],
        losses[losses.len() - 1]
    );
    let overheads = CardOverheads { context: Bytes(used.context), modules: Bytes(used.modules) };
    let planned_bytes = footprint::vram(engine.program(), &overheads, Bytes(engine.card().total())).peak;
    println!(
        "  card: {:.2} ms of {:.2} ms a step; MiB planned {:.0}, in use now {:.0}",
        (engine.busy_seconds() - busy) / sorted.len() as f64 * 1e3,
        sorted.iter().sum::<f64>() / sorted.len() as f64 * 1e3,
        mib(planned_bytes.0),
        mib(engine.used_now()?)
    );
    let parts = engine.program().parts;
    let words = |n: usize| n as f64 * 4.0 / f64::from(1 << 20);
    println!(
        "  MiB: context {:.0}, modules {:.0}, arena {:.0} (store {:.0}, activations {:.0}, workspace {:.0}), all {:.0}, now {:.0}; planned in {:.2} s, started in {:.2} s",
        mib(used.context),
        mib(used.modules),
        mib(used.arena),
        words(parts.store),
        words(parts.transient),
        words(parts.workspace),
        mib(used.all),
        mib(engine.card().total() - engine.card().free()?),
        planned.as_secs_f64(),
        started.as_secs_f64()
    );
    if by_op {
        stage(&mut engine, &job.spec, &mut mix);
        let mut table: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        let step = MicroStep { update: steps as u64, samples, first_sample: 0, lr: job.optimizer.lr() };
        engine.step_by_op(step, |op, seconds| {
            let text = format!("{op:?}");
            let text = text.strip_prefix("Series(").unwrap_or(&text);
            let name = text.split([' ', '{']).next().unwrap_or_default().to_string();
            let line = table.entry(name).or_default();
            line.0 += 1;
            line.1 += seconds;
        })?;
        let mut lines: Vec<_> = table.into_iter().collect();
        lines.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
        for (name, (calls, seconds)) in lines.into_iter().take(16) {
            println!("  {name:<20} {calls:>5} calls {:>9.3} ms", seconds * 1e3);
        }
    }
    Ok(())
}

/// How fast the card is, as plans are made with.
fn rates() -> Result<CardRates, CudaError> {
    let cache = Some(std::env::temp_dir().join("plimsoll-bench-kernels"));
    card_rates(&Card::open(0)?, Dtype::Bf16, cache)
}

fn main() {
    let said: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let steps = said.iter().find_map(|word| word.strip_prefix("steps=")?.parse().ok()).unwrap_or(12);
    let by_op = said.iter().any(|word| word == "ops");
    if said.iter().any(|word| word == "rates") {
        match rates() {
            Ok(rates) => println!("{rates:?}"),
            Err(e) => println!("rates: {e}"),
        }
    }
    let names = ["full", "lora", "nf4", "pure", "t5", "v1", "v2"];
    let is_shape = |word: &&str| names.contains(&word.split(':').next().unwrap_or_default());
    let chosen: Vec<&str> = said.iter().map(String::as_str).filter(is_shape).collect();
    for name in if chosen.is_empty() { names.to_vec() } else { chosen } {
        if let Err(e) = measure(name, steps, by_op) {
            println!("{name}: {e}");
        }
    }
}
