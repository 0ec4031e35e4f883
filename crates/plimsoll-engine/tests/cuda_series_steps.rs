//! Whole steps of `cnn-lstm` models on a card beside the same steps on the CPU: losses, gradients, weights and running
//! statistics behind some updates, whatever is computed again. Without a card each test says so and passes.
#![allow(clippy::print_stdout)] // what the card made of it is worth seeing

mod fixture;
mod series;

use plimsoll_engine::{MicroStep, Updated};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{ConvNorm, Mixup, Param, SeriesSpec};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::TrainSpec;
use series::card::{Way, card, on_card, put, read, start, update};
use series::{Stream, Windows, job, long, others, v1, v2, weights, with};

const SAMPLES: usize = 6;

/// What came of some updates.
#[derive(PartialEq)]
struct Course {
    losses: Vec<f64>,
    norms: Vec<f64>,
    weights: Vec<Vec<f32>>,
}

fn is_idle(spec: &SeriesSpec, name: &str) -> bool {
    let normed = spec.norm == ConvNorm::Batch && name.ends_with(".conv.bias");
    normed || name == "attention.attention.2.bias" || name == "attention.k_proj.bias"
}

/// Without the parameters whose true gradient is nothing.
fn job_of(spec: &SeriesSpec, optimizer: OptimizerSpec) -> Job {
    let names = weights(spec, 5).into_iter().map(|(param, _)| param.name);
    let idle = names.filter(|name| is_idle(spec, name)).collect();
    Job { optimizer, train: TrainSpec::Freeze(idle), ..job(spec, SAMPLES) }
}

fn batches(spec: &SeriesSpec) -> Vec<Windows> {
    let mut stream = Stream(77);
    (0..2).map(|nth| Windows::draw(spec, SAMPLES, &mut stream, nth == 1)).collect()
}

fn lr(job: &Job) -> f64 {
    job.optimizer.lr().unwrap()
}

fn here(job: &Job, how: &Choices, clip: Option<f64>, from: &[(Param, Vec<f32>)], data: &[Windows], n: usize) -> Course {
    with(job, how, clip, from, |engine| {
        let (mut losses, mut norms) = (vec![], vec![]);
        for nth in 0..n {
            let (loss, norm) = series::update(engine, &data[nth % data.len()], nth as u64, lr(job));
            losses.push(loss);
            norms.push(norm);
        }
        Course { losses, norms, weights: (0..from.len()).map(|index| engine.param(index).to_vec()).collect() }
    })
}

fn there(
    job: &Job,
    how: &Choices,
    clip: Option<f64>,
    from: &[(Param, Vec<f32>)],
    data: &[Windows],
    n: usize,
    way: Way,
) -> Course {
    let mut engine = start(job, how, clip, from, way);
    let (mut losses, mut norms) = (vec![], vec![]);
    for nth in 0..n {
        match update(&mut engine, &data[nth % data.len()], nth as u64, lr(job)) {
            Updated::Done { loss, norm } => {
                losses.push(loss.mean());
                norms.push(norm);
            }
            other => panic!("update {nth} was not made: {other:?}"),
        }
    }
    Course { losses, norms, weights: (0..from.len()).map(|index| read(&engine, index)).collect() }
}

fn apart(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let of = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    of / norm(&mut b.iter().map(|v| f64::from(*v))).max(1e-12)
}

/// How much farther apart a gradient may be than others: that of what every score of a softmax has is a small difference of
/// large sums.
fn slack(name: &str) -> f64 {
    if name == "attention.attention.0.bias" { 0.1 } else { 1.0 }
}

/// Prints how far two courses are apart; what is too far is added to `failed`.
fn same(
    name: &str,
    there: &Course,
    here: &Course,
    from: &[(Param, Vec<f32>)],
    most: (f64, f64),
    failed: &mut Vec<String>,
) {
    let of = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
    let (losses, norms) = (of(&there.losses, &here.losses), of(&there.norms, &here.norms));
    let (mut ways, mut which) = (0.0, "");
    for (index, (param, begun)) in from.iter().enumerate() {
        let way = |end: &[f32]| -> Vec<f32> { end.iter().zip(begun).map(|(e, s)| e - s).collect() };
        let far = slack(&param.name) * apart(&way(&there.weights[index]), &way(&here.weights[index]));
        if far > ways || far.is_nan() {
            (ways, which) = (far, &param.name);
        }
    }
    println!("{name}: losses {losses:.1e}, norms {norms:.1e}, ways {ways:.1e} ({which})");
    println!("    {:?} there, {:?} here", there.losses, here.losses);
    if !(losses <= most.0 && norms <= 10.0 * most.0 && ways <= most.1) {
        failed.push(format!("{name}: losses {losses:.1e}, norms {norms:.1e}, ways {ways:.1e} ({which})"));
    }
}

fn all_specs() -> Vec<(&'static str, SeriesSpec)> {
    let (far_v1, far_v2) = (long(v1()), long(v2()));
    assert!(
        far_v1.lstm_steps() > 2 * LSTM_BLOCK && far_v2.lstm_steps() > 2 * LSTM_BLOCK,
        "stretches, and a part of one"
    );
    [("v1", v1()), ("v2", v2()), ("v1_long", far_v1), ("v2_long", far_v2)].into_iter().chain(others()).collect()
}

fn gradients_agree(name: &str, spec: &SeriesSpec, samples: usize, most: f64, failed: &mut Vec<String>) {
    let job = job(spec, samples);
    let (from, batch) = (weights(spec, 3), Windows::draw(spec, samples, &mut Stream(9), true));
    let (step, how) = (MicroStep { update: 0, samples, first_sample: 0, lr: Some(0.0) }, Choices::plain(samples));
    let (here, loss) = with(&job, &how, None, &from, |engine| {
        batch.stage(engine, 0..samples);
        let loss = engine.micro_step(step).unwrap();
        let of = |index: usize| engine.gradient(index).map(<[f32]>::to_vec);
        ((0..from.len()).map(of).collect::<Vec<_>>(), loss)
    });
    for way in [Way::Stepwise, Way::Eager] {
        let mut engine = start(&on_card(&job, Dtype::F32), &how, None, &from, way);
        put(&batch, engine.series_slot().unwrap(), 0..samples);
        engine.micro_step(step).unwrap();
        let there = engine.loss_so_far().unwrap();
        let (mut worst, mut which) = (0.0, "");
        for (index, (param, _)) in from.iter().enumerate().filter(|(_, (param, _))| !is_idle(spec, &param.name)) {
            let (Some(a), Some(b)) = (engine.gradient(index).unwrap(), &here[index]) else { continue };
            let far = slack(&param.name) * apart(&a, b);
            if far > worst || far.is_nan() {
                (worst, which) = (far, &param.name);
            }
        }
        let off = ((there.mean() - loss.mean()) / loss.mean()).abs();
        println!(
            "{name} {way:?}: loss {} there, {} here, gradients {worst:.1e} apart ({which})",
            there.mean(),
            loss.mean()
        );
        if !(worst <= most && off <= 1e-5) {
            failed.push(format!("{name} {way:?}: loss {off:.1e}, gradients {worst:.1e} apart ({which})"));
        }
    }
}

#[test]
fn gradients_of_a_batch_are_the_cpus() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in all_specs() {
        gradients_agree(name, &spec, SAMPLES, 1e-4, &mut failed);
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn gradients_of_whole_models_are_the_cpus() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in [("whole v1", SeriesSpec::hybrid_v1(110)), ("whole v2", SeriesSpec::hybrid_v2(112))] {
        // With the dropout that they have.
        gradients_agree(name, &spec, 3, 2e-3, &mut failed);
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn courses_follow_the_cpus_whatever_is_computed_again() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in all_specs() {
        let job = job_of(&spec, OptimizerSpec::sgd(2e-2));
        let (from, data, plain) = (weights(&spec, 3), batches(&spec), Choices::plain(SAMPLES));
        for (plan, how, clip) in [
            ("plain", plain, None),
            ("computed again", Choices { recompute: spec.conv.len(), lstm_every: LSTM_BLOCK, ..plain }, Some(0.5)),
            ("two micro-batches", Choices::plain(SAMPLES / 2), Some(0.5)),
        ] {
            let job = Job { clip: clip.is_some(), ..job.clone() };
            let here = here(&job, &how, clip, &from, &data, 4);
            let there = there(&on_card(&job, Dtype::F32), &how, clip, &from, &data, 4, Way::Captured);
            same(&format!("{name}, {plan}"), &there, &here, &from, (1e-4, 2e-3), &mut failed);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// With dropout of every kind, and mixed.
fn dropped(mut spec: SeriesSpec) -> SeriesSpec {
    spec.set_dropout(0.3);
    spec.loss.mixup = Some(Mixup { alpha: 0.4, probability: 0.7 });
    spec
}

#[test]
fn dropout_and_mixing_are_the_cpus() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in [("v1", dropped(v1())), ("v2", dropped(v2()))] {
        gradients_agree(&format!("{name}, dropped and mixed"), &spec, SAMPLES, 1e-4, &mut failed);
        let job = job_of(&spec, OptimizerSpec::sgd(2e-2));
        let (from, data) = (weights(&spec, 3), batches(&spec));
        for how in [Choices::plain(SAMPLES), Choices::plain(SAMPLES / 2)] {
            let here = here(&job, &how, None, &from, &data, 5);
            let there = there(&on_card(&job, Dtype::F32), &how, None, &from, &data, 5, Way::Captured);
            let name = format!("{name}, dropped and mixed, {} samples", how.micro_batch);
            // Where two steps of a pool are all but as large, a last bit decides which of them gets the gradient.
            same(&name, &there, &here, &from, (1e-3, 5e-2), &mut failed);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn sixteen_bit_courses_stay_near_the_fp32_ones() {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    for (name, spec) in [("v1", v1()), ("v2", v2())] {
        for form in [Dtype::Bf16, Dtype::F16] {
            let job = job_of(&spec, OptimizerSpec::sgd(2e-2));
            let (from, data, how) = (weights(&spec, 3), batches(&spec), Choices::plain(SAMPLES));
            let here = here(&job, &how, None, &from, &data, 6);
            let there = there(&on_card(&job, form), &how, None, &from, &data, 6, Way::Captured);
            // bf16 keeps three bits less of a number than f16: more pools choose another step, and single weights of so small a
            // model go other ways.
            let most = if form == Dtype::Bf16 { (5e-2, 2.0) } else { (5e-3, 0.3) };
            same(&format!("{name} {form:?}"), &there, &here, &from, most, &mut failed);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn graphs_change_no_bit_and_a_run_repeats_itself() {
    let Some(_card) = card() else { return };
    for (mut spec, form) in [(v1(), Dtype::F32), (v2(), Dtype::Bf16)] {
        spec.set_dropout(0.2);
        let job = on_card(&job_of(&spec, OptimizerSpec::adamw(1e-3)), form);
        let (from, data, how) = (weights(&spec, 3), batches(&spec), Choices::plain(SAMPLES));
        let run = |way| there(&job, &how, Some(1.0), &from, &data, 5, way);
        let (eager, captured, again) = (run(Way::Eager), run(Way::Captured), run(Way::Captured));
        assert!(captured == again, "a captured run repeats itself");
        assert!(eager == captured, "a graph does what its launches do");
    }
}

#[test]
fn evaluation_gives_the_cpus_loss_of_whole_and_of_smaller_batches() {
    let Some(_card) = card() else { return };
    for (name, mut spec) in all_specs() {
        spec.set_dropout(0.3);
        let (job, how) = (job(&spec, SAMPLES), Choices::plain(SAMPLES));
        let (from, batch) = (weights(&spec, 3), &batches(&spec)[0]);
        let mut engine = start(&on_card(&job, Dtype::F32), &how, None, &from, Way::Captured);
        for samples in [SAMPLES, 2] {
            let here = with(&job, &how, None, &from, |engine| {
                batch.stage(engine, 0..samples);
                engine.eval(samples).unwrap()
            });
            put(batch, engine.series_slot().unwrap(), 0..samples);
            let there = engine.eval(samples).unwrap();
            println!("{name}, {samples} samples: {} there, {} here", there.mean(), here.mean());
            assert_eq!(there.tokens, here.tokens);
            assert!((there.mean() - here.mean()).abs() < 1e-5 * here.mean().abs());
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_leaves_weights_and_running_statistics_alone() {
    let Some(_card) = card() else { return };
    let (spec, how) = (v1(), Choices::plain(SAMPLES));
    let job = on_card(&job_of(&spec, OptimizerSpec::adamw(1e-3)), Dtype::F32);
    let (from, mut data) = (weights(&spec, 3), batches(&spec));
    data[0].inputs[3] = f32::NAN;
    let mut engine = start(&job, &how, None, &from, Way::Captured);
    assert!(matches!(update(&mut engine, &data[0], 0, 1e-3), Updated::Skipped { .. }));
    for (index, (param, values)) in from.iter().enumerate() {
        assert!(read(&engine, index) == *values, "{}", param.name);
    }
    assert!(matches!(update(&mut engine, &data[1], 1, 1e-3), Updated::Done { .. }), "the next update is made");
}
