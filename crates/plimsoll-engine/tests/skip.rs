//! A loss or a gradient that is not finite changes neither weights nor optimizer state, wherever the update stands; and
//! where it cannot be avoided, it is said.

mod fixture;
mod random;

use fixture::{Batch, choices, try_update, with_job};
use plimsoll_engine::{Engine, NotFinite, Updated};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::Job;
use plimsoll_plan::store::optimizer_state;
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, fill, job, v11, weights};

const LENS: (usize, usize) = (20, 14);
const SAMPLES: usize = 8;
/// A token that one source of `odd_batch` has, and nothing else.
const ODD: u32 = 77;
/// Which sample has it: neither in the first nor in the last micro-batch of a split.
const ODD_SAMPLE: usize = 3;

/// A way to run a job: with a name, its choices, and a norm to clip to.
type Way = (&'static str, Choices, Option<f64>);

fn ways() -> [Way; 4] {
    let within = Choices { optimizer_in_backward: true, recompute: 1, ..choices(SAMPLES) };
    [
        ("update in the backward pass", within, None),
        ("update after it", choices(SAMPLES), None),
        ("accumulated", choices(2), None),
        ("accumulated and clipped", choices(2), Some(0.7)),
    ]
}

fn optimizers() -> [OptimizerSpec; 3] {
    let momentum = OptimizerSpec::Sgd { lr: 1e-2, momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.01 };
    [OptimizerSpec::adamw(1e-3), OptimizerSpec::adafactor(1e-3), momentum]
}

fn each(f: impl Fn(&str, &mut Engine, &OptimizerSpec) + Send + Sync) {
    for optimizer in optimizers() {
        for (name, how, clip_norm) in ways() {
            let job = Job { threads: 2, ..job(v11(0.1), LENS, SAMPLES, optimizer.clone(), clip_norm.is_some()) };
            with_job(&job, &how, clip_norm, |engine| {
                fill(engine, &weights(&job.spec, 3));
                f(&format!("{optimizer}, {name}"), engine, &optimizer);
            });
        }
    }
}

/// Batches without the odd token.
fn good_batches() -> Vec<Batch> {
    let mut list = batches(&v11(0.1), 4, SAMPLES, LENS, true, 9);
    for row in list.iter_mut().flat_map(|batch| batch.sources.iter_mut().chain(&mut batch.targets)) {
        row.iter_mut().filter(|token| **token == ODD).for_each(|token| *token = ODD - 1);
    }
    list
}

fn odd_batch() -> Batch {
    let mut batch = good_batches().remove(0);
    batch.sources[ODD_SAMPLE][0] = ODD;
    batch
}

fn index(engine: &Engine, name: &str) -> usize {
    let named = |p: &plimsoll_plan::tape::ParamPlace| p.param.name == name;
    engine.program().store.params.iter().position(named).unwrap_or_else(|| panic!("{name}"))
}

/// The odd token's row of the embedding.
fn odd_row(engine: &mut Engine) -> &mut [f32] {
    let (table, width) = (index(engine, "shared.weight"), engine.program().spec.d_model());
    &mut engine.param_mut(table)[ODD as usize * width..][..width]
}

/// Every bit of weights and state.
fn bits(engine: &Engine, optimizer: &OptimizerSpec) -> Vec<Vec<u32>> {
    let of = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let mut all = Vec::new();
    for (at, place) in engine.program().store.params.iter().enumerate() {
        all.push(of(engine.param(at)));
        all.extend((0..optimizer_state(optimizer, &place.param).len()).map(|nth| of(engine.state(at, nth))));
    }
    all
}

fn done(engine: &mut Engine, batch: &Batch, update: u64, lr: Option<f64>) -> f64 {
    match try_update(engine, batch, update, lr) {
        Updated::Done { loss, norm } => {
            assert!(norm.is_finite() && norm > 0.0);
            loss.mean()
        }
        other => panic!("update {update}: {other:?}"),
    }
}

#[test]
fn a_loss_that_is_not_finite_changes_nothing_and_the_next_updates_are_as_if_it_had_not_been() {
    let good = good_batches();
    each(|what, engine, optimizer| {
        let lr = optimizer.lr();
        let losses = |engine: &mut Engine, spoil: Option<f32>| {
            fill(engine, &weights(&engine.program().spec.clone(), 3));
            zero_state(engine, optimizer);
            let mut losses = vec![done(engine, &good[0], 0, lr), done(engine, &good[1], 1, lr)];
            if let Some(value) = spoil {
                let kept = odd_row(engine).to_vec();
                odd_row(engine)[5] = value;
                let before = bits(engine, optimizer);
                let updated = try_update(engine, &odd_batch(), 2, lr);
                assert!(matches!(updated, Updated::Skipped { what: NotFinite::Loss, .. }), "{what}: {updated:?}");
                assert!(!updated.loss().mean().is_finite() && updated.loss().tokens > 0);
                assert!(bits(engine, optimizer) == before, "{what}: something was changed");
                odd_row(engine).copy_from_slice(&kept);
            }
            losses.extend([done(engine, &good[2], 3, lr), done(engine, &good[3], 4, lr)]);
            (losses, bits(engine, optimizer))
        };
        let never = losses(engine, None);
        for value in [f32::NAN, f32::INFINITY] {
            assert!(losses(engine, Some(value)) == never, "{what}: a step after the skipped one differs");
        }
    });
}

fn zero_state(engine: &mut Engine, optimizer: &OptimizerSpec) {
    for at in 0..engine.program().store.params.len() {
        let states = optimizer_state(optimizer, &engine.program().store.params[at].param).len();
        (0..states).for_each(|nth| engine.state_mut(at, nth).fill(0.0));
    }
}

#[test]
fn a_gradient_that_is_not_finite_under_a_finite_loss_changes_nothing_where_updates_wait_for_it() {
    let good = good_batches();
    // No loss is taken of the odd sample and the head never sees it, but its states are not numbers, and nothing times
    // them is not a number either.
    let mut silent = odd_batch();
    silent.targets[ODD_SAMPLE].fill(IGNORE);
    each(|what, engine, optimizer| {
        done(engine, &good[0], 0, optimizer.lr());
        odd_row(engine)[5] = f32::NAN;
        let before = bits(engine, optimizer);
        let updated = try_update(engine, &silent, 1, optimizer.lr());
        assert!(updated.loss().mean().is_finite());
        if engine.program().update.is_some() {
            assert!(matches!(updated, Updated::Skipped { what: NotFinite::Gradient, .. }), "{what}: {updated:?}");
            assert!(bits(engine, optimizer) == before, "{what}: something was changed");
        } else {
            assert!(matches!(updated, Updated::Torn { .. }), "{what}: {updated:?}");
            fill(engine, &weights(&engine.program().spec.clone(), 3));
            zero_state(engine, optimizer);
        }
        odd_row(engine).fill(0.0);
        done(engine, &good[1], 2, optimizer.lr());
    });
}

/// Weights under which logits and loss are ordinary, the head's gradient is tiny, and every gradient behind it overflows.
fn overflow_behind_the_head(engine: &mut Engine) {
    let norm = index(engine, "decoder.final_layer_norm.weight");
    engine.param_mut(norm).fill(1e-38);
    let head = index(engine, "lm_head.weight");
    engine.param_mut(head).iter_mut().for_each(|w| *w = 1.5e38f32.copysign(*w));
}

#[test]
fn an_update_that_cannot_be_taken_back_is_said_to_be_torn() {
    let batch = &good_batches()[0];
    each(|what, engine, optimizer| {
        overflow_behind_the_head(engine);
        let before = bits(engine, optimizer);
        let updated = try_update(engine, batch, 0, optimizer.lr());
        assert!(updated.loss().mean().is_finite(), "{what}: {updated:?}");
        if engine.program().update.is_some() {
            assert!(matches!(updated, Updated::Skipped { what: NotFinite::Gradient, .. }), "{what}: {updated:?}");
            assert!(bits(engine, optimizer) == before, "{what}: something was changed");
        } else {
            assert!(matches!(updated, Updated::Torn { .. }), "{what}: {updated:?}");
            let behind = index(engine, "decoder.final_layer_norm.weight");
            assert!(engine.param(behind).iter().all(|w| *w == 1e-38), "{what}: updated from what is not finite");
            assert!(bits(engine, optimizer) != before, "{what}: the head was updated first");
        }
        // The engine goes on from other weights as if nothing had been.
        fill(engine, &weights(&engine.program().spec.clone(), 3));
        zero_state(engine, optimizer);
        done(engine, batch, 0, optimizer.lr());
    });
}
