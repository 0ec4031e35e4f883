//! A step of HybridCNNLSTM v1 and v2: seconds, the ops that they go into, and memory. PyTorch's half is `bench/series_torch.py`.
//!
//!     cargo bench -p plimsoll-engine --bench series -- [v1|v2]... [batch=16] [threads=N] [steps=5] [recompute=0] [every=0] [json]
//!
//! With dropout, AdamW and a norm to clip by, as the models' own trainer has them. `recompute` is how many blocks of
//! convolutions are computed again, `every` how many steps apart the LSTM keeps its cells.
#![allow(clippy::print_stdout, missing_docs)]

use std::collections::BTreeMap;
use std::time::Instant;

use plimsoll_engine::{Engine, MicroStep, Updates, simd, with_cores};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::Op;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::SeriesSpec;
use plimsoll_plan::train::OptimizerSpec;

struct Asked {
    batch: usize,
    threads: usize,
    steps: usize,
    recompute: usize,
    every: usize,
    json: bool,
}

fn main() {
    let said: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let number = |key: &str| said.iter().find_map(|word| word.strip_prefix(key)?.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = Asked {
        batch: number("batch=").unwrap_or(16),
        threads: number("threads=").unwrap_or(cores),
        steps: number("steps=").unwrap_or(5),
        recompute: number("recompute=").unwrap_or(0),
        every: number("every=").unwrap_or(0),
        json: said.iter().any(|word| word == "json"),
    };
    for (name, spec) in [("v1", SeriesSpec::hybrid_v1(110)), ("v2", SeriesSpec::hybrid_v2(112))] {
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
    for update in 0..asked.steps as u64 + 1 {
        let step = MicroStep { update, samples: asked.batch, first_sample: 0, lr: Some(5e-5) };
        let (begun, mut last) = (Instant::now(), Instant::now());
        let mut now: BTreeMap<String, f64> = BTreeMap::new();
        engine
            .micro_step_seen(step, |op| {
                *now.entry(label(op)).or_default() += last.elapsed().as_secs_f64();
                last = Instant::now();
            })
            .expect("steps");
        engine.finish_update(step).expect("updates");
        if update > 0 {
            times.push(begun.elapsed().as_secs_f64());
            for (op, seconds) in now {
                let best = ops.entry(op).or_insert(f64::MAX);
                *best = best.min(seconds);
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
    let mut ops: Vec<_> = ops.into_iter().collect();
    ops.sort_by(|a, b| b.1.total_cmp(&a.1));
    ops.iter().take(14).for_each(|(op, seconds)| println!("    {seconds:8.4} s  {op}"));
}

fn label(op: &Op) -> String {
    let text = format!("{op:?}");
    let text = text.strip_prefix("Series(").unwrap_or(&text);
    let name = text.split([' ', '{', '(']).next().unwrap_or("").to_string();
    match op {
        Op::Series(plimsoll_plan::op::SeriesOp::Conv { shape, .. })
        | Op::Series(plimsoll_plan::op::SeriesOp::ConvInput { shape, .. })
        | Op::Series(plimsoll_plan::op::SeriesOp::ConvWeight { shape, .. }) => {
            format!("{name} {} x {}", shape.inputs, shape.outputs)
        }
        _ => name,
    }
}
