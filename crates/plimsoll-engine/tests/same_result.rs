//! Plans of one job that differ only in same-result rungs give the same losses: to rounding where sums are split
//! differently, to the bit where they are not. Dropout is on throughout.

mod fixture;
mod random;

use fixture::choices;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::train::OptimizerSpec;
use random::{Trained, batches, job, train, v10, v11};

const LENS: (usize, usize) = (24, 17);
const EFFECTIVE: usize = 8;
const UPDATES: usize = 30;
/// A bit that differs shows at once; some more updates let every state take part.
const BIT_UPDATES: usize = 8;

fn optimizers() -> [OptimizerSpec; 2] {
    [OptimizerSpec::adamw(1e-3), OptimizerSpec::adafactor(1e-3)]
}

/// Both families under both optimizers.
fn each_job(f: impl Fn(&T5Spec, Job)) {
    for spec in [v10(0.1), v11(0.1)] {
        for optimizer in optimizers() {
            f(&spec, job(spec.clone(), LENS, EFFECTIVE, optimizer, false));
        }
    }
}

fn run(job: &Job, choices: &Choices, clip_norm: Option<f64>, updates: usize) -> Trained {
    train(job, choices, clip_norm, &batches(&job.spec, 5, EFFECTIVE, LENS, true, 1), updates)
}

/// The largest relative distance between two courses of losses.
fn furthest(a: &Trained, b: &Trained) -> f64 {
    assert_eq!(a.losses.len(), b.losses.len());
    a.losses.iter().zip(&b.losses).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
}

#[test]
fn six_plans_of_one_job_give_the_same_losses() {
    each_job(|spec, job| {
        let blocks = spec.encoder_layers + spec.decoder_layers;
        let plan = |micro_batch, recompute, loss_chunk, optimizer_in_backward, threads| {
            let how = Choices { micro_batch, recompute, loss_chunk, optimizer_in_backward, ..choices(micro_batch) };
            run(&Job { threads, ..job.clone() }, &how, None, UPDATES)
        };
        let plans = [
            plan(8, 0, 64, false, 2),
            plan(4, 1, 7, false, 1),
            plan(2, blocks, 16, false, 3),
            plan(1, 2, 1, false, 2),
            plan(8, 0, 5, true, 1),
            plan(8, blocks, 1000, true, 3),
        ];
        let first = plans[0].losses[0];
        assert!(
            plans[0].losses.iter().all(|l| l.is_finite()) && plans[0].losses[UPDATES - 1] < first,
            "it learns: {:?}",
            plans[0].losses
        );
        for (nth, other) in plans.iter().enumerate().skip(1) {
            let apart = furthest(other, &plans[0]);
            println!("{:?}, {}: plan {nth} is {apart:e} from plan 0", spec.feed_forward, job.optimizer);
            assert!(apart < 1e-5, "{:?}, {}: plan {nth} is {apart:e} from plan 0", spec.feed_forward, job.optimizer);
        }
    });
}

#[test]
fn clipped_gradients_are_the_same_in_any_split() {
    let job = job(v10(0.1), LENS, EFFECTIVE, OptimizerSpec::adamw(1e-3), true);
    let whole = run(&job, &choices(8), Some(0.5), UPDATES);
    assert!(whole.norms.iter().any(|n| *n > 0.5), "something is clipped: {:?}", whole.norms);
    for micro_batch in [4, 3, 1] {
        let split = run(&job, &choices(micro_batch), Some(0.5), UPDATES);
        let apart = furthest(&split, &whole);
        assert!(apart < 1e-5, "micro-batch {micro_batch}: {apart:e}");
        for (a, b) in split.norms.iter().zip(&whole.norms) {
            assert!((a - b).abs() < 1e-4 * b, "micro-batch {micro_batch}: {a:?} and {b:?}");
        }
    }
}

#[test]
fn recomputed_blocks_repeat_losses_and_weights_to_the_bit() {
    each_job(|spec, job| {
        for micro_batch in [8, 3] {
            let kept = run(&job, &choices(micro_batch), None, BIT_UPDATES);
            for recompute in 1..=spec.encoder_layers + spec.decoder_layers {
                let again = run(&job, &Choices { recompute, ..choices(micro_batch) }, None, BIT_UPDATES);
                assert!(
                    again == kept,
                    "{:?}, {}, micro-batch {micro_batch}, recompute {recompute}",
                    spec.feed_forward,
                    job.optimizer
                );
            }
        }
    });
}

#[test]
fn updates_in_the_backward_pass_repeat_losses_and_weights_to_the_bit() {
    each_job(|spec, job| {
        assert!(job.may_update_in_backward(8));
        let after = run(&job, &choices(8), None, BIT_UPDATES);
        for recompute in [0, 1, spec.encoder_layers + spec.decoder_layers] {
            let within =
                run(&job, &Choices { recompute, optimizer_in_backward: true, ..choices(8) }, None, BIT_UPDATES);
            let same = (&within.losses, &within.weights) == (&after.losses, &after.weights);
            assert!(same, "{:?}, {}, recompute {recompute}", spec.feed_forward, job.optimizer);
            // The squares are added up in the order in which gradients are complete.
            for (a, b) in within.norms.iter().zip(&after.norms) {
                assert!((a - b).abs() < 1e-12 * b, "{a} and {b}");
            }
        }
    });
}

#[test]
fn blocks_swept_over_the_parts_of_a_batch_agree_with_gradients_that_are_kept() {
    for spec in [v10(0.1), v11(0.1)] {
        for clip_norm in [None, Some(0.5)] {
            let job = job(spec.clone(), LENS, EFFECTIVE, OptimizerSpec::adamw(1e-3), clip_norm.is_some());
            let kept = run(&job, &choices(EFFECTIVE), clip_norm, UPDATES);
            for (micro_batch, recompute, recompute_attention, recompute_feed_forward) in
                [(8, 0, 0, 0), (4, 4, 0, 0), (2, 1, 2, 1), (1, 0, 4, 0), (4, 0, 0, 4)]
            {
                let optimizer_in_backward = true;
                let again = Choices { recompute, recompute_attention, recompute_feed_forward, ..choices(micro_batch) };
                let how = Choices { optimizer_in_backward, ..again };
                let swept = run(&job, &how, clip_norm, UPDATES);
                for (at, (a, b)) in swept.losses.iter().zip(&kept.losses).enumerate() {
                    assert!((a - b).abs() < 2e-6 * b, "{clip_norm:?}, {micro_batch}, update {at}: {a} and {b}");
                }
                for (a, b) in swept.norms.iter().zip(&kept.norms) {
                    assert!((a - b).abs() < 1e-5 * b, "{clip_norm:?}, {micro_batch}: {a} and {b}");
                }
            }
        }
    }
}
