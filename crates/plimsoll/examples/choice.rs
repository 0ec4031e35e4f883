//! How well plans are chosen and predicted on this machine: for some jobs and budgets, a grid of plans is run and held
//! against the prediction and the choice. A benchmark, not a test.
//!
//! On a machine shared with others, memory is twice as fast in one second as in the next. So the chosen plan and the fastest
//! of the grid are run again in turn, and a ratio is the median of those of neighbours in time.
//!
//!     cargo run --release -p plimsoll --example choice [FILTER]
//!
//! On a machine that is busy with other things, set `CHOICE_THREADS=1`: one thread is timed by its own processor time.
#![allow(clippy::print_stdout, missing_docs)]

use plimsoll_engine::{Care, measure_rates_by, simd, timed_update, with_cores};
use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, Plan, Terms, Verdict, decide};
use plimsoll_plan::cost::Rates;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::{DiskFacts, Overheads};
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{
    DecoderFamily, DecoderSpec, Dropouts, FeedForward, ModelSpec, Positions, RopeScaling, RopeSpec, T5Spec,
};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, TrainSpec, default_targets};

const TRIES: usize = 3;
/// Plans of the grid that the chosen one is held against: those that were fastest.
const RIVALS: usize = 3;
/// How often they and the chosen one are measured, in turn: so often, and more where it is not clear who is faster.
const TURNS: (usize, usize) = (3, 9);
/// A choice this near to the fastest is clear.
const CLEAR: f64 = 1.05;

fn decoder(family: DecoderFamily, width: usize, layers: usize, vocab: usize, d_head: usize) -> DecoderSpec {
    let gpt2 = family == DecoderFamily::Gpt2;
    let heads = width / d_head;
    let rope = RopeSpec { theta: 1e4, scaling: RopeScaling::Default };
    DecoderSpec {
        family,
        vocab,
        d_model: width,
        layers,
        heads,
        kv_heads: if gpt2 { heads } else { heads.div_ceil(4) },
        d_head,
        d_ff: width * if gpt2 { 4 } else { 3 },
        norm_eps: 1e-6,
        positions: if gpt2 { Positions::Learned } else { Positions::Rope(rope) },
        max_positions: 2048,
        windows: vec![],
        qkv_bias: gpt2,
        out_bias: gpt2,
        mlp_bias: gpt2,
        tied: true,
        dropout: Dropouts { embedding: 0.0, attention: 0.0, residual: if gpt2 { 0.1 } else { 0.0 } },
        init_std: 0.02,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: None,
    }
}

/// The jobs: 1 M to 500 M parameters, full and LoRA, short and long samples.
fn jobs(threads: usize) -> Vec<(&'static str, Job)> {
    let on = (threads, simd::detect());
    let job = |spec: ModelSpec, lens, batch, optimizer| Job::new(spec, lens, batch, optimizer, on);
    let lora = |mut job: Job, dtype: Option<Dtype>| {
        let targets = default_targets(&job.spec);
        job.train = TrainSpec::Lora(LoraSpec { r: 8, alpha: 16.0, dropout: 0.05, rslora: false, targets });
        match dtype {
            Some(Dtype::Bf16) => job.storage.frozen = Dtype::Bf16,
            other => job.storage.quantised = other,
        }
        job
    };
    let llama = |width, layers, vocab| ModelSpec::from(decoder(DecoderFamily::Llama, width, layers, vocab, 64));
    let gpt2 = |width, layers, vocab| ModelSpec::from(decoder(DecoderFamily::Gpt2, width, layers, vocab, 64));
    let qwen3 = |width, layers, vocab| ModelSpec::from(decoder(DecoderFamily::Qwen3, width, layers, vocab, 128));
    let small = T5Spec::small();
    let gated = T5Spec { feed_forward: FeedForward::GatedGelu, tied: false, d_ff: 1024, ..T5Spec::small() };
    let tiny = T5Spec {
        vocab: 4000,
        d_model: 128,
        d_ff: 512,
        heads: 2,
        encoder_layers: 2,
        decoder_layers: 2,
        ..T5Spec::small()
    };
    let (adamw, adafactor) = (OptimizerSpec::adamw(1e-4), OptimizerSpec::adafactor(1e-3));
    vec![
        ("llama 1M full", job(llama(128, 4, 2000), (128, 128), 8, adamw.clone())),
        ("t5 2M full", job(tiny.into(), (64, 32), 8, adamw.clone())),
        ("gpt2 10M full", job(gpt2(256, 6, 16000), (256, 256), 4, adamw.clone())),
        ("llama 30M clipped", Job { clip: true, ..job(llama(512, 6, 16000), (256, 256), 4, adamw.clone()) }),
        ("t5 small full", job(small.clone().into(), (128, 64), 4, adafactor)),
        ("t5 v1.1 lora", lora(job(gated.into(), (128, 64), 4, adamw.clone()), None)),
        ("qwen3 60M full", job(qwen3(640, 6, 32000), (128, 128), 4, adamw.clone())),
        ("gpt2 124M full", job(gpt2(768, 12, 50257), (128, 128), 2, adamw.clone())),
        ("gpt2 124M lora bf16", lora(job(gpt2(768, 12, 50257), (128, 128), 4, adamw.clone()), Some(Dtype::Bf16))),
        ("llama 30M lora nf4", lora(job(llama(512, 6, 16000), (256, 256), 4, adamw.clone()), Some(Dtype::Nf4))),
        ("llama 30M long", job(llama(512, 6, 16000), (1024, 1024), 2, adamw.clone())),
        ("qwen 490M lora int8", lora(job(qwen3(1024, 24, 150_000), (64, 64), 2, adamw), Some(Dtype::Int8))),
    ]
}

fn terms(ram: Bytes, rates: Rates, pins: Pins) -> Terms<'static> {
    let none = Bytes::ZERO;
    Terms {
        ram,
        ram_there: ram,
        disk: Bytes::gib(1000),
        disk_there: Bytes::gib(1000),
        disk_facts: DiskFacts {
            keep: 1,
            best: false,
            side_files: none,
            unpacked: none,
            fetched: none,
            steps: 1,
            evaluations: none,
            evaluation_lines: none,
        },
        overheads: Overheads {
            program: Bytes::mib(12),
            tokenizer: none,
            rows: none,
            startup_peak: none,
            supervisor: none,
            checkpoint_writer: none,
            evaluation: none,
            stack: Bytes::kib(96),
            mirror: none,
        },
        rates,
        loader_rate: 1e9,
        most_loader_threads: usize::MAX,
        pins,
        held: None,
        saves: false,
        loader: &|_, _| Bytes::mib(1),
        card: None,
    }
}

/// Processor time of the calling thread, in seconds.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn clock(threads: usize) -> fn() -> f64 {
    if threads == 1 {
        return thread_seconds;
    }
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    || START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

/// Seconds of a whole update, the best of some.
fn measured(job: &Job, plan: &Plan) -> f64 {
    let job = Job { threads: plan.threads, ..job.clone() };
    let run = || timed_update(&clock(job.threads), &job, &plan.choices, TRIES).expect("it fits here");
    with_cores(job.threads, || {}, run).expect("threads")
}

/// Plans worth comparing within a budget: each way to go through the batch, with the recompute and the loss chunk that the
/// search takes then, and with others.
fn grid(job: &Job, ram: Bytes, rates: Rates) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    let blocks = job.spec.blocks();
    let recomputes = [None, Some(0), Some(blocks / 2), Some(blocks)];
    let chunks = [None, Some(64), Some(512)];
    let beside = recomputes.map(|recompute| (recompute, None)).into_iter().chain(chunks.map(|chunk| (None, chunk)));
    let beside: Vec<(Option<usize>, Option<usize>)> = beside.collect();
    for micro in (1..=job.effective_batch).filter(|n| job.effective_batch.is_multiple_of(*n)) {
        for in_backward in [true, false] {
            for &(recompute, loss_chunk) in &beside {
                let pins = Pins {
                    micro_batch: Some(micro),
                    optimizer_in_backward: Some(in_backward),
                    recompute,
                    loss_chunk,
                    ..Pins::default()
                };
                let plan = decide(job, &terms(ram, rates, pins)).plan;
                if plan.verdict == Verdict::Fits && plans.iter().all(|p| !same(p, &plan)) {
                    plans.push(plan);
                }
            }
        }
    }
    plans
}

/// How many times as long the chosen plan takes as the fastest of its rivals, in runs that take turns; and its own seconds,
/// at best.
fn beside_rivals(job: &Job, chosen: &Plan, rivals: &[Plan]) -> (f64, f64) {
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); rivals.len()];
    let (mut worst, mut best) = (1.0, f64::INFINITY);
    for turn in 0..TURNS.1 {
        if turn >= TURNS.0 && worst <= CLEAR {
            break;
        }
        for (rival, ratios) in rivals.iter().zip(&mut ratios) {
            let (mine, theirs) = (measured(job, chosen), measured(job, rival));
            ratios.push(mine / theirs);
            best = mine.min(best);
        }
        worst = ratios.iter().cloned().map(median).fold(1.0, f64::max);
    }
    (worst, best)
}

/// Seconds of a plan, measured once; with how far off its prediction was.
fn time(job: &Job, plan: &Plan, known: &mut Vec<(Plan, f64)>, errors: &mut Vec<f64>) -> f64 {
    if let Some((_, seconds)) = known.iter().find(|(p, _)| same(p, plan)) {
        return *seconds;
    }
    let seconds = measured(job, plan);
    errors.push((plan.seconds_per_update / seconds - 1.0).abs());
    known.push((plan.clone(), seconds));
    seconds
}

/// Whether two plans do the same.
fn same(a: &Plan, b: &Plan) -> bool {
    (a.choices, a.threads) == (b.choices, b.threads)
}

fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = std::env::var("CHOICE_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(all);
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let rates = with_cores(threads, || {}, || measure_rates_by(&clock(threads), simd::detect(), Care::Full))
        .expect("threads")
        .expect("rates");
    println!("{rates:#?}");
    let (mut errors, mut ratios, mut chosen_errors) = (Vec::new(), Vec::new(), Vec::new());
    for (name, job) in jobs(threads).into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let free = decide(&job, &terms(Bytes::gib(64), rates, Pins::default())).plan;
        let (least, most) = (free.smallest.0 as f64, free.ram.peak.0 as f64);
        let mut known: Vec<(Plan, f64)> = Vec::new();
        for nth in 0..4 {
            let ram = Bytes((least * (most / least).powf(nth as f64 / 3.0)) as u64 + 4096);
            let chosen = decide(&job, &terms(ram, rates, Pins::default())).plan;
            let mut plans = grid(&job, ram, rates);
            if plans.iter().all(|p| !same(p, &chosen)) {
                plans.push(chosen.clone());
            }
            let mut order: Vec<(f64, Plan)> =
                plans.into_iter().map(|plan| (time(&job, &plan, &mut known, &mut errors), plan)).collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            let first = order.iter().find(|(_, plan)| same(plan, &chosen)).map_or(f64::NAN, |(seconds, _)| *seconds);
            let rivals = order.iter().map(|(_, plan)| plan).filter(|plan| !same(plan, &chosen)).take(RIVALS);
            let (ratio, again) = beside_rivals(&job, &chosen, &rivals.cloned().collect::<Vec<_>>());
            let mine = first.min(again);
            ratios.push(ratio);
            chosen_errors.push((chosen.seconds_per_update / mine - 1.0).abs());
            println!(
                "{name:<22} {:>9}: predicted {:>8.1} ms, measured {:>8.1} ms ({:+5.1} %), {} plans, ratio {ratio:.3}",
                ram.to_string(),
                chosen.seconds_per_update * 1e3,
                mine * 1e3,
                (chosen.seconds_per_update / mine - 1.0) * 100.0,
                order.len(),
            );
        }
    }
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    let within = ratios.iter().filter(|ratio| **ratio <= 1.10).count();
    println!(
        "{} plans: median error {:.1} %; {} choices: median error {:.1} %, median ratio {:.3}, worst {worst:.3}, {within} within 1.10",
        errors.len(),
        median(errors.clone()) * 100.0,
        ratios.len(),
        median(chosen_errors) * 100.0,
        median(ratios.clone()),
    );
}
