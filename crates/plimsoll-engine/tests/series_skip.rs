//! A loss of a series that is not finite changes nothing: neither weights nor optimizer state, nor the running statistics of
//! batch norms, which the forward pass has moved on by then.

mod fixture;
mod series;

use plimsoll_engine::{Engine, NotFinite, Updated};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::store::optimizer_state;
use series::{Stream, Windows, adamw, job, try_update, update, v1, v2, weights, with};

const SAMPLES: usize = 6;

/// Every bit of weights, running statistics and state.
fn bits(engine: &Engine) -> Vec<Vec<u32>> {
    let of = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let mut all = Vec::new();
    for (at, place) in engine.program().store.params.iter().enumerate() {
        all.push(of(engine.param(at)));
        let states = if place.trained { optimizer_state(&adamw(), &place.param).len() } else { 0 };
        all.extend((0..states).map(|nth| of(engine.state(at, nth))));
    }
    all
}

fn running(engine: &Engine) -> Vec<Vec<f32>> {
    let params = engine.program().store.params.iter().enumerate();
    let of = params.filter(|(_, place)| place.param.name.contains("running_"));
    of.map(|(at, _)| engine.param(at).to_vec()).collect()
}

#[test]
fn a_loss_that_is_not_finite_leaves_weights_and_running_statistics_and_the_next_updates_as_they_were() {
    for mut spec in [v1(), v2()] {
        spec.set_dropout(0.2);
        let mut stream = Stream(31);
        let good: Vec<Windows> = (0..4).map(|_| Windows::draw(&spec, SAMPLES, &mut stream, true)).collect();
        for (micro, value) in [(SAMPLES, f32::NAN), (SAMPLES, f32::INFINITY), (SAMPLES / 2, f32::NAN)] {
            let course = |spoil: Option<f32>| {
                let (job, from) = (job(&spec, SAMPLES), weights(&spec, 3));
                with(&job, &Choices::plain(micro), Some(0.5), &from, |engine| {
                    let before = running(engine);
                    let mut losses = vec![update(engine, &good[0], 0, 1e-3), update(engine, &good[1], 1, 1e-3)];
                    assert!(running(engine) != before, "updates move running statistics");
                    if let Some(value) = spoil {
                        // Of the last sample, so that a micro-batch before it has been good.
                        let mut bad = good[2].clone();
                        *bad.inputs.last_mut().unwrap() = value;
                        let before = bits(engine);
                        let updated = try_update(engine, &bad, 2, 1e-3);
                        assert!(matches!(updated, Updated::Skipped { what: NotFinite::Loss, .. }), "{updated:?}");
                        assert!(bits(engine) == before, "micro-batches of {micro}: something was changed");
                    }
                    losses.extend([update(engine, &good[2], 3, 1e-3), update(engine, &good[3], 4, 1e-3)]);
                    (losses, bits(engine))
                })
            };
            assert!(course(Some(value)) == course(None), "micro-batches of {micro}: a later step differs");
        }
    }
}
