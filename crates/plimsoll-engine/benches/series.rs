//! A step of HybridCNNLSTM v1 and v2: seconds, the ops that they go into, and memory. PyTorch's half is `bench/series_torch.py`.
//!
//!     cargo bench -p plimsoll-engine --bench series -- [v1|v2]... [batch=16] [features=N] [threads=N] [steps=5] [recompute=0] [every=0] [clock=cpu] [json]
//!
//! With dropout, AdamW and a norm to clip by, as the models' own trainer has them. `recompute` is how many blocks of
//! convolutions are computed again, `every` how many steps apart the LSTM keeps its cells. Behind each op that is made of
//! matrix products stands how fast they went; above them how fast a large product went alone, and what the step would take
//! if it were those products at that rate and nothing else. On a machine that is busy all the time, `threads=1 clock=cpu`
//! counts the process's own time.
#![allow(clippy::print_stdout, missing_docs)]

use std::collections::BTreeMap;
use std::sync::OnceLock;

use plimsoll_engine::cpu::matmul::{Matrix, Output, matmul};
use plimsoll_engine::{Engine, MicroStep, Updates, simd, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::{LstmShape, Op, SeriesOp, Side};
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::SeriesSpec;
use plimsoll_plan::tiles::{Tiles, matmul_workspace};
use plimsoll_plan::train::OptimizerSpec;

struct Asked {
    batch: usize,
    features: Option<usize>,
    threads: usize,
    steps: usize,
    recompute: usize,
    every: usize,
    json: bool,
}

/// Whether time is the process's own.
static CPU_CLOCK: OnceLock<bool> = OnceLock::new();

/// Seconds from some moment on, by the clock that was asked for.
fn seconds() -> f64 {
    let clock = if *CPU_CLOCK.get_or_init(|| false) { libc::CLOCK_PROCESS_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it is given.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() {
    let said: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let number = |key: &str| said.iter().find_map(|word| word.strip_prefix(key)?.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = Asked {
        batch: number("batch=").unwrap_or(16),
        features: number("features="),
        threads: number("threads=").unwrap_or(cores),
        steps: number("steps=").unwrap_or(5),
        recompute: number("recompute=").unwrap_or(0),
        every: number("every=").unwrap_or(0),
        json: said.iter().any(|word| word == "json"),
    };
    CPU_CLOCK.get_or_init(|| said.iter().any(|word| word == "clock=cpu"));
    let models = [
        ("v1", SeriesSpec::hybrid_v1(asked.features.unwrap_or(110))),
        ("v2", SeriesSpec::hybrid_v2(asked.features.unwrap_or(112))),
    ];
    for (name, spec) in models {
        let all = !said.iter().any(|word| word == "v1" || word == "v2");
        if all || said.iter().any(|word| word == name) {
            with_cores(asked.threads, || {}, || measure(name, &spec, &asked)).expect("threads start");
        }
    }
}

/// Highest resident memory so far.
fn peak() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn measure(name: &str, spec: &SeriesSpec, asked: &Asked) {
    let optimizer = OptimizerSpec::AdamW { lr: 5e-5, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };
    let cores = (asked.threads, simd::detect());
    let job = Job { clip: true, ..Job::of_series(spec.clone(), asked.batch, optimizer.clone(), cores) };
    let choices = Choices { recompute: asked.recompute, lstm_every: asked.every, ..Choices::plain(asked.batch) };
    let program = compile(&job, &choices);
    let planned = program.parts.words() * 4;
    let mut engine =
        Engine::start(program, Some(Updates { optimizer, clip_norm: Some(1.0), seed: 1 })).expect("starts");
    let mut state = 7u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for index in 0..engine.program().store.params.len() {
        let param = engine.program().store.params[index].param.clone();
        let scale = (param.shape.iter().skip(1).product::<usize>().max(1) as f32).powf(-0.5);
        let one = param.name.ends_with("running_var") || param.name.contains("norm.weight");
        let fill = |x: &mut f32| *x = if one { 1.0 } else { scale * draw() };
        engine.param_mut(index).iter_mut().for_each(fill);
    }
    let slot = engine.series_slot().expect("series");
    slot.inputs.iter_mut().for_each(|x| *x = draw());
    slot.classes.iter_mut().enumerate().for_each(|(nth, class)| *class = nth as u32 % 3);
    slot.values.iter_mut().for_each(|x| *x = draw());
    let mut times = Vec::new();
    let mut ops: BTreeMap<String, f64> = BTreeMap::new();
    let mut work: BTreeMap<String, f64> = BTreeMap::new();
    for update in 0..asked.steps as u64 + 1 {
        let step = MicroStep { update, samples: asked.batch, first_sample: 0, lr: Some(5e-5) };
        let begun = seconds();
        let mut last = begun;
        let mut now: BTreeMap<String, f64> = BTreeMap::new();
        work.clear();
        engine
            .micro_step_seen(step, |op| {
                *work.entry(label(op)).or_default() += flops(op, asked.batch);
                *now.entry(label(op)).or_default() += seconds() - last;
                last = seconds();
            })
            .expect("steps");
        engine.finish_update(step).expect("updates");
        if update > 0 {
            times.push(seconds() - begun);
            for (op, took) in now {
                let best = ops.entry(op).or_insert(f64::MAX);
                *best = best.min(took);
            }
        }
    }
    times.sort_by(f64::total_cmp);
    let (median, best) = (times[times.len() / 2], times[0]);
    if asked.json {
        println!(
            "{{\"name\": \"{name}\", \"seconds\": {median}, \"best\": {best}, \"peak_rss_bytes\": {}, \"arena_bytes\": {planned}}}",
            peak()
        );
        return;
    }
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    println!(
        "{name}, batch {}, {} threads: {median:.3} s an update (best {best:.3}), arena {:.1} MiB, peak RSS {:.1} MiB",
        asked.batch,
        asked.threads,
        mib(planned as u64),
        mib(peak())
    );
    let (all, rate) = (work.values().sum::<f64>(), product_rate(asked.threads));
    println!("    {:.1} GFLOP in products; at {:.0} GFLOP/s of a large one {:.3} s", all / 1e9, rate / 1e9, all / rate);
    let mut ops: Vec<_> = ops.into_iter().collect();
    ops.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (op, took) in ops.iter().take(14) {
        let rate = Some(work[op]).filter(|flops| *flops > 0.0).map(|flops| flops / took / 1e9);
        println!("    {took:8.4} s  {op:<22} {}", rate.map(|r| format!("{r:.0} GFLOP/s")).unwrap_or_default());
    }
}

/// Operations a second of a large product, the best of some.
fn product_rate(threads: usize) -> f64 {
    const N: usize = 1536;
    let (level, a) = (simd::detect(), vec![0.5f32; N * N]);
    let (b, mut c) = (a.clone(), a.clone());
    let mut space = vec![0.0f32; matmul_workspace(&Tiles::of(level), threads, N, N)];
    let mut best = f64::MAX;
    for _ in 0..8 {
        let (begun, out) = (seconds(), Output::rows(c.as_mut_ptr(), N));
        // SAFETY: the matrices have these sizes.
        unsafe { matmul(level, threads, N, N, N, Matrix::rows(&a, N), Matrix::rows(&b, N), out, &mut space) };
        best = best.min(seconds() - begun);
    }
    2.0 * (N * N * N) as f64 / best
}

/// Operations of the matrix products that an op is made of.
fn flops(op: &Op, samples: usize) -> f64 {
    let rows = |side: &Side| if let Side::Steps(steps) = side { samples * steps } else { samples };
    let gates = |shape: &LstmShape, width: usize| samples * shape.count() * 4 * shape.hidden * width;
    let fused = match op {
        Op::Series(SeriesOp::Conv { shape, .. })
        | Op::Series(SeriesOp::ConvInput { shape, .. })
        | Op::Series(SeriesOp::ConvWeight { shape, .. }) => samples * shape.steps * shape.weights(),
        Op::Series(SeriesOp::Lstm { shape, .. }) | Op::Series(SeriesOp::LstmWeight { shape, .. }) => {
            gates(shape, shape.inputs + shape.hidden)
        }
        Op::Series(SeriesOp::LstmBackward { shape, .. }) => gates(shape, shape.hidden),
        Op::Series(SeriesOp::LstmInput { shape, .. }) => gates(shape, shape.inputs),
        Op::Linear { side, inputs, outputs, .. }
        | Op::LinearInput { side, inputs, outputs, .. }
        | Op::LinearWeight { side, inputs, outputs, .. } => rows(side) * inputs * outputs,
        // Scores and what is read by them; behind them five products of the same size.
        Op::Attention { shape, .. } => 2 * rows(&shape.queries) * shape.max_keys * shape.heads * shape.d_kv,
        Op::AttentionBackward { shape, .. } => 5 * rows(&shape.queries) * shape.max_keys * shape.heads * shape.d_kv,
        _ => 0,
    };
    2.0 * fused as f64
}

fn label(op: &Op) -> String {
    let text = format!("{op:?}");
    let text = text.strip_prefix("Series(").unwrap_or(&text);
    let name = text.split([' ', '{', '(']).next().unwrap_or("").to_string();
    match op {
        Op::Series(SeriesOp::Conv { shape, .. })
        | Op::Series(SeriesOp::ConvInput { shape, .. })
        | Op::Series(SeriesOp::ConvWeight { shape, .. }) => {
            format!("{name} {} x {}", shape.inputs, shape.outputs)
        }
        _ => name,
    }
}
