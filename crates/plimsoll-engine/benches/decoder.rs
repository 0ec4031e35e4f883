//! Where the time of a decoder's step goes: each op of the micro-batch's tape, and its products alone.
//!
//!     cargo bench -p plimsoll-engine --bench decoder -- [full|lora|int8|nf4]... [threads=N] [steps=N] [clock=cpu]
//!
//! The jobs are those of `bench/decoder`: all weights of a 52 M Llama (batch 4 x 256, Adafactor), LoRA r 16 on all linears
//! of a 0.5 B Qwen2 (batch 1 x 256, AdamW; base in bf16, int8 or NF4). Each op counts with its shortest time over all steps,
//! so that a busy machine disturbs the table little. On one that is busy all the time, `threads=1 clock=cpu` counts the
//! process's own time.
#![allow(clippy::print_stdout, missing_docs)]

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Instant;

use plimsoll_engine::cpu::matmul::{Matrix, Output, matmul};
use plimsoll_engine::{Engine, MicroStep, Updates, simd, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::Op;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{DecoderFamily, DecoderSpec, Dropouts, Positions, RopeScaling, RopeSpec};
use plimsoll_plan::tiles::{Simd, Tiles, matmul_workspace};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec};

const LENGTH: usize = 256;

/// The process's CPU time is counted, not the wall's.
static CPU_CLOCK: OnceLock<bool> = OnceLock::new();

/// Seconds, from some beginning.
fn now() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    if CPU_CLOCK.get() != Some(&true) {
        return START.get_or_init(Instant::now).elapsed().as_secs_f64();
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() {
    let said: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let number = |key: &str| said.iter().find_map(|word| word.strip_prefix(key)?.parse().ok());
    let threads = number("threads=").unwrap_or(std::thread::available_parallelism().map_or(1, usize::from));
    let steps = number("steps=").unwrap_or(5);
    let level = simd::detect();
    let cpu = said.iter().any(|word| word == "clock=cpu");
    CPU_CLOCK.get_or_init(|| cpu);
    println!("{threads} threads, {level:?}, {} time, shortest of {steps} steps", if cpu { "CPU" } else { "wall" });
    for name in ["full", "lora", "int8", "nf4"] {
        if said.iter().all(|word| word.contains('=')) || said.iter().any(|word| word == name) {
            with_cores(threads, || {}, || measure(name, steps, (threads, level))).expect("threads start");
        }
    }
}

fn job(name: &str, on: (usize, Simd)) -> Job {
    let shared = DecoderSpec {
        family: DecoderFamily::Llama,
        vocab: 32128,
        d_model: 512,
        layers: 6,
        heads: 8,
        kv_heads: 8,
        d_head: 64,
        d_ff: 1376,
        norm_eps: 1e-6,
        positions: Positions::Rope(RopeSpec { theta: 1e4, scaling: RopeScaling::Default }),
        max_positions: 8192,
        windows: Vec::new(),
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        tied: false,
        dropout: Dropouts::default(),
        init_std: 0.02,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: Some(0),
    };
    if name == "full" {
        return Job::new(shared, (LENGTH, LENGTH), 4, OptimizerSpec::adafactor(1e-3), on);
    }
    let spec = DecoderSpec {
        family: DecoderFamily::Qwen2,
        vocab: 151936,
        d_model: 896,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        d_ff: 4864,
        qkv_bias: true,
        tied: true,
        ..shared
    };
    let targets = ["q", "k", "v", "o", "gate", "up", "down"].map(|part| format!("{part}_proj")).to_vec();
    let quantised = match name {
        "int8" => Some(Dtype::Int8),
        "nf4" => Some(Dtype::Nf4),
        _ => None,
    };
    Job {
        train: TrainSpec::Lora(LoraSpec { r: 16, alpha: 32.0, dropout: 0.0, rslora: false, targets }),
        storage: Storage { frozen: Dtype::Bf16, quantised, trained: Dtype::F32 },
        ..Job::new(spec, (LENGTH, LENGTH), 1, OptimizerSpec::adamw(1e-4), on)
    }
}

/// Calls, seconds, floating-point operations.
#[derive(Clone, Copy, Default)]
struct Line {
    calls: usize,
    seconds: f64,
    flops: f64,
}

fn measure(name: &str, steps: usize, on: (usize, Simd)) {
    let job = job(name, on);
    let how = Choices {
        micro_batch: job.effective_batch,
        recompute: 0,
        recompute_attention: 0,
        recompute_feed_forward: 0,
        loss_chunk: LENGTH,
        optimizer_in_backward: true,
        loader_threads: 1,
        lean: false,
        keep_norms: false,
        lstm_every: 0,
    };
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: None, seed: 1 };
    let mut engine = Engine::start(compile(&job, &how), Some(updates)).unwrap();
    for index in 0..engine.program().store.params.len() {
        let fill = |first: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(i, w)| *w = ((first + i) * 37 % 101) as f32 * 4e-4 - 0.02);
            Ok::<(), ()>(())
        };
        engine.fill_param(index, fill).expect("there is nothing to fail");
    }
    let slot = engine.slot();
    let tokens = slot.source.iter_mut().chain(slot.target.iter_mut());
    tokens.enumerate().for_each(|(i, t)| *t = 2 + i as u32 * 7919 % 30_000);
    slot.source_lens.fill(LENGTH as u32);
    slot.target_lens.fill(LENGTH as u32);
    let rows = how.micro_batch * LENGTH;
    let count = engine.program().micro.as_ref().unwrap().tape.ops.len();
    let mut best = vec![f64::INFINITY; count];
    let mut whole = f64::INFINITY;
    for update in 0..steps as u64 {
        let step = MicroStep { update, samples: how.micro_batch, first_sample: 0, lr: job.optimizer.lr() };
        let start = now();
        let (mut last, mut nth) = (start, 0);
        let mut seen = |_: &Op| {
            let now = now();
            best[nth] = best[nth].min(now - last);
            (last, nth) = (now, nth + 1);
        };
        engine.micro_step_seen(step, &mut seen).unwrap();
        whole = whole.min(now() - start);
        engine.finish_update(step).unwrap();
    }
    let ops = &engine.program().micro.as_ref().unwrap().tape.ops;
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    let mut shapes: BTreeMap<Product, usize> = BTreeMap::new();
    for (op, seconds) in ops.iter().zip(&best) {
        let products = products(op, rows);
        products.iter().for_each(|product| *shapes.entry(*product).or_default() += 1);
        let line = lines.entry(label(op)).or_default();
        line.calls += 1;
        line.seconds += seconds;
        line.flops += products.iter().map(Product::flops).sum::<f64>();
    }
    let sum: f64 = best.iter().sum();
    println!("\n{name}: {:.1} ms (ops one by one), {:.1} ms (best whole step)", sum * 1e3, whole * 1e3);
    println!("{:<28} {:>6} {:>9} {:>6} {:>8}", "op", "calls", "ms", "share", "GFLOP/s");
    let mut lines: Vec<(String, Line)> = lines.into_iter().collect();
    lines.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    for (label, Line { calls, seconds, flops }) in lines {
        let rate = if flops > 0.0 { format!("{:.1}", flops / seconds / 1e9) } else { String::new() };
        println!("{label:<28} {calls:>6} {:>9.2} {:>5.1}% {rate:>8}", seconds * 1e3, seconds / sum * 100.0);
    }
    drop(engine);
    let (mut floor, mut flops) = (0.0, 0.0);
    for (product, calls) in shapes {
        floor += calls as f64 * product.seconds(on, steps);
        flops += calls as f64 * product.flops();
    }
    let tokens = rows as f64;
    println!(
        "products alone: {:.1} ms, {:.1} GFLOP/s; {:.0} tokens/s, the step {:.0} tokens/s ({:.1} %)",
        floor * 1e3,
        flops / floor / 1e9,
        tokens / floor,
        tokens / sum,
        floor / sum * 100.0
    );
}

/// The op's name; of products their shape.
fn label(op: &Op) -> String {
    let debug = format!("{op:?}");
    let name = debug.split([' ', '{', '(']).next().unwrap_or_default();
    match op {
        Op::Linear { inputs, outputs, .. }
        | Op::LinearInput { inputs, outputs, .. }
        | Op::LinearWeight { inputs, outputs, .. } => format!("{name} {inputs}>{outputs}"),
        _ => name.to_string(),
    }
}

/// `C[m, n] = A[m, k] B[k, n]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Product {
    m: usize,
    n: usize,
    k: usize,
    a_transposed: bool,
    b_transposed: bool,
    add: bool,
}

impl Product {
    fn new(m: usize, n: usize, k: usize, (a_transposed, b_transposed): (bool, bool), add: bool) -> Product {
        Product { m, n, k, a_transposed, b_transposed, add }
    }

    fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// The shortest time with plain numbers.
    fn seconds(&self, (threads, level): (usize, Simd), tries: usize) -> f64 {
        let Product { m, n, k, add, .. } = *self;
        let (a, b, mut c) = (vec![0.5f32; m * k], vec![0.25f32; k * n], vec![0.0f32; m * n]);
        let a = if self.a_transposed { Matrix::rows(&a, m).transposed() } else { Matrix::rows(&a, k) };
        let b = if self.b_transposed { Matrix::rows(&b, k).transposed() } else { Matrix::rows(&b, n) };
        let mut space = vec![0.0f32; matmul_workspace(&Tiles::of(level), threads, n, k)];
        let timed = |_| {
            let start = now();
            let out = Output { add, ..Output::rows(c.as_mut_ptr(), n) };
            // SAFETY: the matrices have these sizes.
            unsafe { matmul(level, threads, m, n, k, a, b, out, &mut space) };
            now() - start
        };
        (0..tries.max(3)).map(timed).fold(f64::INFINITY, f64::min)
    }
}

/// The products of an op, attention's left out.
fn products(op: &Op, rows: usize) -> Vec<Product> {
    match op {
        Op::Linear { inputs, outputs, add, .. } => {
            vec![Product::new(rows, *outputs, *inputs, (false, true), *add)]
        }
        Op::LinearInput { inputs, outputs, add, .. } => {
            vec![Product::new(rows, *inputs, *outputs, (false, false), *add)]
        }
        Op::LinearWeight { inputs, outputs, .. } => {
            vec![Product::new(*outputs, *inputs, rows, (true, false), false)]
        }
        Op::Loss { chunk, width, vocab, grad, .. } => {
            let mut list = Vec::new();
            for nth in 0..rows.div_ceil(*chunk) {
                list.push(Product::new(*chunk, *vocab, *width, (false, true), false));
                list.push(Product::new(*chunk, *width, *vocab, (false, false), false));
                if grad.is_some() {
                    list.push(Product::new(*vocab, *width, *chunk, (true, false), nth > 0));
                }
            }
            list
        }
        _ => Vec::new(),
    }
}
