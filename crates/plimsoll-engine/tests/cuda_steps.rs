//! Whole steps on a card beside the same steps on the CPU: losses, gradients, updated weights, for every family, full and
//! with LoRA, packed and ragged, by every optimizer. Without a card each test says so and passes.
#![allow(clippy::print_stdout)] // what the card made of it is worth seeing

mod decoder;
mod fixture;
mod random;

use decoder::card::{card, on_card, read, start, update};
use decoder::texts::{packed, ragged};
use decoder::{Course, Samples, lora, specs, train, weights};
use fixture::choices;
use plimsoll_engine::{MicroStep, Updated};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::spec::{DecoderSpec, Dropouts, ModelSpec, Param};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{Storage, TrainSpec};
use random::Stream;

const MOST: usize = 20;
const ROWS: usize = 4;

fn train_there(
    job: &Job,
    how: &Choices,
    clip_norm: Option<f64>,
    from: &[(Param, Vec<f32>)],
    batches: &[Samples],
    updates: usize,
    eager: bool,
) -> Course {
    let mut engine = start(job, how, clip_norm, from, eager);
    let mut course = Course { losses: vec![], norms: vec![], weights: vec![] };
    for at in 0..updates {
        match update(&mut engine, &batches[at % batches.len()], at as u64, job.optimizer.lr()) {
            Updated::Done { loss, norm } => {
                course.losses.push(loss.mean());
                course.norms.push(norm);
            }
            other => panic!("update {at} was not made: {other:?}"),
        }
    }
    course.weights = (0..from.len()).map(|index| read(&engine, index)).collect();
    course
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// Distance of two vectors, relative to the second.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let of = norm(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    of / norm(b.iter().map(|v| f64::from(*v))).max(1e-12)
}

/// How far the way that weights went on the card is from the way they went on the CPU, relative to that way.
fn ways_apart(there: &Course, here: &Course, from: &[(Param, Vec<f32>)]) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for (index, (param, start)) in from.iter().enumerate() {
        let way = |end: &[f32]| -> Vec<f32> { end.iter().zip(start).map(|(e, s)| e - s).collect() };
        let (a, b) = (way(&there.weights[index]), way(&here.weights[index]));
        if b.iter().all(|v| *v == 0.0) {
            assert!(a.iter().all(|v| *v == 0.0), "{} is frozen", param.name);
            continue;
        }
        let apart = apart(&a, &b);
        if apart > worst.0 || apart.is_nan() {
            worst = (apart, param.name.clone());
        }
    }
    worst
}

#[track_caller]
fn assert_same(name: &str, there: &Course, here: &Course, from: &[(Param, Vec<f32>)], most: (f64, f64)) {
    let losses = there.losses.iter().zip(&here.losses).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    let norms = there.norms.iter().zip(&here.norms).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    let (ways, which) = ways_apart(there, here, from);
    println!("{name}: losses {losses:.2e}, norms {norms:.2e}, ways {ways:.2e} ({which})");
    assert!(losses <= most.0, "{name}: losses {:?} there, {:?} here", there.losses, here.losses);
    assert!(norms <= 10.0 * most.0, "{name}: norms {:?} there, {:?} here", there.norms, here.norms);
    assert!(ways <= most.1, "{name}: {which} went another way by {ways:.2e}");
}

fn all_specs() -> Vec<(&'static str, ModelSpec)> {
    let mut list: Vec<(&str, ModelSpec)> =
        vec![("t5 v1.0", random::v10(0.0).into()), ("t5 v1.1", random::v11(0.0).into())];
    list.extend(specs::all().into_iter().map(|(name, spec)| (name, spec.into())));
    list
}

fn job_of(spec: &ModelSpec, optimizer: OptimizerSpec) -> Job {
    decoder::job(spec.clone(), MOST, ROWS, optimizer)
}

fn samples(spec: &ModelSpec, seed: u64) -> Vec<Samples> {
    match spec {
        ModelSpec::T5(spec) => {
            random::batches(spec, 2, ROWS, (MOST, MOST), true, seed).into_iter().map(Samples::Pairs).collect()
        }
        ModelSpec::Series(_) => unreachable!("series are no texts"),
        ModelSpec::Decoder(_) => {
            (0..2).map(|at| Samples::Texts(ragged(&mut Stream(seed + at), spec.vocab(), ROWS, MOST))).collect()
        }
    }
}

fn targets(spec: &ModelSpec) -> Vec<&'static str> {
    match spec {
        ModelSpec::T5(_) => vec!["q", "v", "wo"],
        ModelSpec::Decoder(d) if d.windows.is_empty() && d.qkv_bias && d.mlp_bias && !d.tied => vec!["c_attn"],
        ModelSpec::Decoder(_) | ModelSpec::Series(_) => vec!["q_proj", "v_proj", "down_proj", "c_attn", "c_proj"],
    }
}

#[test]
fn gradients_of_the_first_micro_batch_are_the_cpus() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in all_specs() {
        let job = job_of(&spec, OptimizerSpec::sgd(1e-2));
        let (from, batch) = (weights(&job, 3), &samples(&spec, 5)[0]);
        let step = MicroStep { update: 0, samples: ROWS, first_sample: 0, lr: Some(1e-2) };
        let count = from.len();
        let (here, loss) = decoder::with(&job, &choices(ROWS), None, &from, |engine| {
            batch.stage(engine, 0..ROWS);
            let loss = engine.micro_step(step).unwrap();
            ((0..count).map(|i| engine.gradient(i).unwrap().to_vec()).collect::<Vec<_>>(), loss)
        });
        let mut engine = start(&on_card(&job, Dtype::F32), &choices(ROWS), None, &from, true);
        batch.put(engine.slot(), 0..ROWS);
        engine.micro_step(step).unwrap();
        let there = engine.loss_so_far().unwrap();
        println!("{name}: loss {} there, {} here", there.mean(), loss.mean());
        for (index, (param, _)) in from.iter().enumerate() {
            let gradient = engine.gradient(index).unwrap().unwrap();
            let apart = apart(&gradient, &here[index]);
            if apart.is_nan() || apart > 1e-4 {
                println!("{name}: gradient of {} is {apart:.2e} apart", param.name);
                failed.push(format!("{name} {}", param.name));
            }
        }
        if (there.mean() - loss.mean()).abs() > 1e-5 * loss.mean() {
            failed.push(format!("{name} loss"));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn fp32_courses_follow_the_cpus_for_every_family_full_and_lora() {
    let Some(_card) = card() else { return };
    for (name, spec) in all_specs() {
        for with_lora in [false, true] {
            let train_spec = if with_lora { TrainSpec::Lora(lora(&targets(&spec))) } else { TrainSpec::All };
            let job = Job { train: train_spec, clip: true, ..job_of(&spec, OptimizerSpec::sgd(5e-2)) };
            let (from, batches) = (weights(&job, 3), samples(&spec, 5));
            for (plan, how) in [
                ("two micro-batches", choices(2)),
                ("recomputed", Choices { recompute: 1, recompute_attention: 1, loss_chunk: 7, ..choices(ROWS) }),
                ("feed-forward parts recomputed", Choices { recompute_feed_forward: 2, ..choices(ROWS) }),
                ("in the backward pass", Choices { optimizer_in_backward: true, ..choices(2) }),
            ] {
                let here = train(&job, &how, Some(0.5), &from, &batches, 4);
                let there = train_there(&on_card(&job, Dtype::F32), &how, Some(0.5), &from, &batches, 4, false);
                let name = format!("{name}{}, {plan}", if with_lora { " LoRA" } else { "" });
                assert_same(&name, &there, &here, &from, (1e-4, 2e-3));
            }
        }
    }
}

#[test]
fn every_optimizer_updates_as_on_the_cpu() {
    let Some(_card) = card() else { return };
    let wide = DecoderSpec { vocab: 190, d_ff: 130, ..specs::qwen3_biased() };
    for optimizer in [
        OptimizerSpec::adamw(1e-3),
        OptimizerSpec::AdamW { lr: 1e-3, betas: [0.8, 0.95], eps: 1e-6, weight_decay: 0.1 },
        OptimizerSpec::adamw16bit(1e-3),
        OptimizerSpec::adamw8bit(1e-3),
        OptimizerSpec::adafactor(1e-3),
        OptimizerSpec::adafactor_relative(),
        OptimizerSpec::lion(1e-4),
        OptimizerSpec::Sgd { lr: 1e-2, momentum: 0.9, dampening: 0.1, nesterov: false, weight_decay: 0.01 },
    ] {
        let job = job_of(&wide.clone().into(), optimizer);
        let (from, batches) = (weights(&job, 3), samples(&job.spec, 5));
        for how in [choices(ROWS), Choices { optimizer_in_backward: true, ..choices(2) }] {
            let here = train(&job, &how, None, &from, &batches, 4);
            let there = train_there(&on_card(&job, Dtype::F32), &how, None, &from, &batches, 4, false);
            let name = format!("{}, in backward {}", job.optimizer, how.optimizer_in_backward);
            // Where a gradient is next to nothing, its sign, and so the step of these optimizers, is anyone's.
            assert_same(&name, &there, &here, &from, (1e-4, 5e-2));
        }
    }
}

#[test]
fn dropout_and_packed_texts_and_rounding_are_the_cpus() {
    let Some(_card) = card() else { return };
    let dropout = Dropouts { embedding: 0.1, attention: 0.2, residual: 0.3 };
    let texts = packed(&mut Stream(9), 89, ROWS, MOST, 5);
    for (name, spec) in [
        ("gpt2", DecoderSpec { dropout, ..specs::gpt2() }),
        ("qwen2", DecoderSpec { dropout: Dropouts { attention: 0.2, ..Dropouts::default() }, ..specs::qwen2() }),
    ] {
        let job = Job { documents: 5, ..job_of(&spec.into(), OptimizerSpec::sgd(5e-2)) };
        let (from, batches) = (weights(&job, 3), vec![Samples::Texts(texts.clone())]);
        let here = train(&job, &choices(2), None, &from, &batches, 3);
        let there = train_there(&on_card(&job, Dtype::F32), &choices(2), None, &from, &batches, 3, false);
        assert_same(name, &there, &here, &from, (1e-4, 2e-3));
    }
    let job = job_of(&random::v11(0.2).into(), OptimizerSpec::sgd(5e-2));
    let (from, batches) = (weights(&job, 3), samples(&job.spec, 5));
    let here = train(&job, &choices(2), None, &from, &batches, 3);
    let there = train_there(&on_card(&job, Dtype::F32), &choices(2), None, &from, &batches, 3, false);
    assert_same("t5 dropout", &there, &here, &from, (1e-4, 2e-3));
    let storage = Storage { trained: Dtype::Bf16, ..Storage::default() };
    let job = Job { storage, ..job_of(&specs::llama().into(), OptimizerSpec::sgd(5e-2)) };
    let (from, batches) = (weights(&job, 3), samples(&job.spec, 5));
    let here = train(&job, &choices(2), None, &from, &batches, 3);
    let there = train_there(&on_card(&job, Dtype::F32), &choices(2), None, &from, &batches, 3, false);
    // Almost every number is rounded by the same bits; one that lay at the border moves by a last bit of bf16.
    assert_same("bf16 weights", &there, &here, &from, (1e-3, 2e-1));
}

#[test]
fn quantised_bases_under_lora_follow_the_cpus() {
    let Some(_card) = card() else { return };
    for quantised in [Dtype::Int8, Dtype::Nf4] {
        let storage = Storage { quantised: Some(quantised), frozen: Dtype::Bf16, ..Storage::default() };
        let train_spec = TrainSpec::Lora(lora(&["q_proj", "v_proj", "down_proj"]));
        let job = Job { storage, train: train_spec, ..job_of(&specs::llama().into(), OptimizerSpec::sgd(5e-2)) };
        let (from, batches) = (weights(&job, 3), samples(&job.spec, 5));
        let here = train(&job, &choices(2), None, &from, &batches, 3);
        let there = train_there(&on_card(&job, Dtype::F32), &choices(2), None, &from, &batches, 3, false);
        assert_same(&format!("{quantised:?}"), &there, &here, &as_read(&here, &from), (1e-4, 2e-3));
    }
}

/// Quantised weights are not what they were filled from: their way starts where it ends.
fn as_read(course: &Course, from: &[(Param, Vec<f32>)]) -> Vec<(Param, Vec<f32>)> {
    let start = |(index, (param, values)): (usize, &(Param, Vec<f32>))| {
        let adapter = param.name.contains("lora_");
        (param.clone(), if adapter { values.clone() } else { course.weights[index].clone() })
    };
    from.iter().enumerate().map(start).collect()
}

#[test]
fn sixteen_bit_courses_stay_near_the_fp32_ones() {
    let Some(_card) = card() else { return };
    for (name, spec) in [
        ("t5", ModelSpec::from(random::v11(0.0))),
        ("t5 v1.0", random::v10(0.0).into()),
        ("gpt2", specs::gpt2().into()),
        ("qwen2", specs::qwen2().into()),
        ("qwen3", specs::qwen3_biased().into()),
        ("heads of 64", DecoderSpec { d_head: 64, ..specs::llama() }.into()),
        ("heads of 128", DecoderSpec { d_head: 128, ..specs::qwen2() }.into()),
    ] {
        for form in [Dtype::Bf16, Dtype::F16] {
            for trained in [Dtype::F32, Dtype::Bf16] {
                if form == Dtype::F16 && trained == Dtype::Bf16 {
                    continue;
                }
                let job = job_of(&spec, OptimizerSpec::sgd(2e-2));
                let (from, batches) = (weights(&job, 3), samples(&spec, 5));
                let here = train(&job, &choices(2), None, &from, &batches, 6);
                let half = Job { storage: Storage { trained, ..Storage::default() }, ..on_card(&job, form) };
                let there = train_there(&half, &choices(2), None, &from, &batches, 6, false);
                // Rounded weights go their ways by chance: a step is smaller than a last bit.
                let ways = if trained == Dtype::Bf16 { f64::INFINITY } else { 0.3 };
                assert_same(&format!("{name} {form:?} {trained:?}"), &there, &here, &from, (2e-2, ways));
            }
        }
    }
}

#[test]
fn graphs_change_no_bit_and_a_run_repeats_itself() {
    let Some(_card) = card() else { return };
    for (spec, form) in [
        (ModelSpec::from(random::v10(0.1)), Dtype::F32),
        (specs::qwen2().into(), Dtype::Bf16),
        (DecoderSpec { d_head: 64, ..specs::llama() }.into(), Dtype::Bf16),
    ] {
        let job = on_card(&job_of(&spec, OptimizerSpec::adamw(1e-3)), form);
        let (from, batches) = (weights(&job, 3), samples(&spec, 5));
        let run = |eager| train_there(&job, &choices(2), Some(1.0), &from, &batches, 5, eager);
        let (eager, captured, again) = (run(true), run(false), run(false));
        assert!(captured == again, "a captured run repeats itself");
        assert!(eager == captured, "a graph does what its launches do");
    }
}

#[test]
fn evaluation_gives_the_cpus_loss() {
    let Some(_card) = card() else { return };
    for (name, spec) in [("t5", ModelSpec::from(random::v11(0.1))), ("qwen2", specs::qwen2().into())] {
        let job = Job { eval: Some(EvalJob { beams: 1, max_new: 0 }), ..job_of(&spec, OptimizerSpec::sgd(1e-2)) };
        let (from, batch) = (weights(&job, 3), &samples(&spec, 5)[0]);
        let here = decoder::with(&job, &choices(ROWS), None, &from, |engine| {
            batch.stage(engine, 0..ROWS);
            engine.eval(ROWS).unwrap()
        });
        let mut engine = start(&on_card(&job, Dtype::F32), &choices(ROWS), None, &from, false);
        batch.put(engine.slot(), 0..ROWS);
        let there = engine.eval(ROWS).unwrap();
        println!("{name}: {} there, {} here", there.mean(), here.mean());
        assert_eq!(there.tokens, here.tokens);
        assert!((there.mean() - here.mean()).abs() < 1e-5 * here.mean());
    }
}

#[test]
fn a_loss_that_is_not_finite_leaves_the_weights_alone() {
    let Some(_card) = card() else { return };
    let job = on_card(&job_of(&specs::llama().into(), OptimizerSpec::adamw(1e-3)), Dtype::F32);
    let (mut from, batches) = (weights(&job, 3), samples(&job.spec, 5));
    from[0].1.fill(f32::NAN);
    let mut engine = start(&job, &choices(2), None, &from, false);
    let before: Vec<Vec<f32>> = (1..from.len()).map(|index| read(&engine, index)).collect();
    assert!(matches!(update(&mut engine, &batches[0], 0, Some(1e-3)), Updated::Skipped { .. }));
    let after: Vec<Vec<f32>> = (1..from.len()).map(|index| read(&engine, index)).collect();
    assert!(before == after);
}
