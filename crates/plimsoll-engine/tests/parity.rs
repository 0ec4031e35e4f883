//! Loss, gradients, updates and generation agree with transformers and PyTorch, from committed fixtures.

mod fixture;

use fixture::{CASES, Fixture, choices, distance, sgd, train_update, with_job};
use plimsoll_engine::MicroStep;
use plimsoll_plan::train::OptimizerSpec;

#[test]
fn loss_and_every_gradient_agree_with_pytorch() {
    for name in CASES {
        let fixture = Fixture::load(name);
        let batch = fixture.batch();
        let rows = batch.sources.len();
        for recompute in [0, 3] {
            let mut how = choices(rows);
            how.recompute = recompute;
            with_job(&fixture.job(rows, sgd(0.0), false), &how, None, |engine| {
                fixture.fill(engine);
                batch.stage(engine);
                let loss =
                    engine.micro_step(MicroStep { update: 0, samples: rows, first_sample: 0, lr: Some(0.0) }).unwrap();
                let expected = f64::from(fixture.values("loss")[0]);
                assert!(
                    (loss.mean() - expected).abs() < 1e-5 * expected,
                    "{name}: loss {} and {expected}",
                    loss.mean()
                );
                for (index, place) in engine.program().store.params.iter().enumerate() {
                    let mean = 1.0 / loss.tokens as f32;
                    let got: Vec<f32> = engine.gradient(index).unwrap().iter().map(|g| g * mean).collect();
                    let apart = distance(&got, fixture.values(&format!("grad.{}", place.param.name)));
                    assert!(apart < 1e-4, "{name}, recompute {recompute}: {} is {apart:e} apart", place.param.name);
                }
                batch.stage(engine);
                let eval = engine.eval(rows).unwrap();
                assert!((eval.mean() - expected).abs() < 1e-5 * expected, "{name}: evaluated {}", eval.mean());
            });
        }
    }
}

fn adafactor(lr: Option<f64>) -> OptimizerSpec {
    OptimizerSpec::Adafactor {
        lr,
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1: None,
        weight_decay: 0.0,
        scale_parameter: lr.is_none(),
        relative_step: lr.is_none(),
        warmup_init: false,
    }
}

fn adamw() -> OptimizerSpec {
    OptimizerSpec::AdamW { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 }
}

/// Twenty updates; every weight and every loss agree.
fn twenty_updates(case: &str, run: &str, optimizer: OptimizerSpec, clip_norm: Option<f64>, micro_batches: usize) {
    let fixture = Fixture::load(case);
    let batches = fixture.train_batches();
    let rows = batches[0].sources.len();
    let lr = optimizer.lr();
    let job = fixture.job(rows, optimizer, clip_norm.is_some());
    let mut ways = vec![choices(rows / micro_batches)];
    if job.may_update_in_backward(rows / micro_batches) {
        ways.push(plimsoll_plan::choices::Choices { optimizer_in_backward: true, ..ways[0] });
    }
    for how in ways {
        with_job(&job, &how, clip_norm, |engine| {
            fixture.fill(engine);
            for update in 0..20 {
                let (loss, _) = train_update(engine, &batches[update % batches.len()], update as u64, lr);
                let expected = f64::from(fixture.values(&format!("losses.{run}"))[update]);
                assert!(
                    (loss - expected).abs() < 1e-4 * expected,
                    "{case} {run} {how:?}: loss {update} is {loss}, not {expected}"
                );
            }
            for (index, place) in engine.program().store.params.iter().enumerate() {
                let apart = distance(engine.param(index), fixture.values(&format!("after.{run}.{}", place.param.name)));
                assert!(apart < 1e-4, "{case} {run} {how:?}: {} is {apart:e} apart", place.param.name);
                // Where the weights hardly move, what counts is the move.
                let before = &fixture.weights[&place.param.name].1;
                let moved = |after: &[f32]| after.iter().zip(before).map(|(a, b)| a - b).collect::<Vec<f32>>();
                let after = fixture.values(&format!("after.{run}.{}", place.param.name));
                let apart = distance(&moved(engine.param(index)), &moved(after));
                assert!(apart < 1e-2, "{case} {run} {how:?}: the move of {} is {apart:e} apart", place.param.name);
            }
        });
    }
}

#[test]
fn twenty_updates_of_adamw_agree() {
    twenty_updates("v10_tied_padded", "adamw", adamw(), None, 1);
    twenty_updates("v11_untied_padded", "adamw", adamw(), None, 1);
}

#[test]
fn clipping_and_accumulation_by_target_tokens_agree() {
    twenty_updates("v10_tied_padded", "adamw_clip_accumulate", adamw(), Some(1.0), 2);
}

#[test]
fn twenty_updates_of_adafactor_agree() {
    twenty_updates("v10_tied_padded", "adafactor", adafactor(Some(1e-3)), None, 1);
    twenty_updates("v11_untied_padded", "adafactor", adafactor(Some(1e-3)), None, 1);
}

#[test]
fn adafactors_options_mean_what_they_mean_in_transformers() {
    let with = |change: &dyn Fn(&mut OptimizerSpec)| {
        let mut spec = adafactor(Some(1e-3));
        change(&mut spec);
        spec
    };
    twenty_updates("v10_tied_padded", "adafactor_relative", adafactor(None), None, 1);
    let mut warm = adafactor(None);
    if let OptimizerSpec::Adafactor { warmup_init, .. } = &mut warm {
        *warmup_init = true;
    }
    twenty_updates("v10_tied_padded", "adafactor_relative_warmup", warm, None, 1);
    let decayed = with(&|spec| {
        if let OptimizerSpec::Adafactor { beta1, weight_decay, .. } = spec {
            (*beta1, *weight_decay) = (Some(0.9), 0.01);
        }
    });
    twenty_updates("v10_tied_padded", "adafactor_beta1_decay", decayed, None, 1);
    let clipped = with(&|spec| {
        if let OptimizerSpec::Adafactor { clip_threshold, .. } = spec {
            *clip_threshold = 0.5;
        }
    });
    twenty_updates("v10_tied_padded", "adafactor_clip_half", clipped, None, 1);
}

#[test]
fn twenty_updates_of_sgd_with_nesterov_momentum_agree() {
    let sgd = OptimizerSpec::Sgd { lr: 1e-3, momentum: 0.9, dampening: 0.0, nesterov: true, weight_decay: 0.0 };
    twenty_updates("v10_tied_padded", "sgd_nesterov", sgd, None, 1);
}
