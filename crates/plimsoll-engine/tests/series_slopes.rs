//! Gradients of whole models of series, with all that is drawn in them, beside finite differences of the loss: what is dropped and mixed on
//! the way there is what is dropped and mixed on the way back.

mod fixture;
mod series;

use plimsoll_engine::{Engine, MicroStep};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::spec::{Activation, Mixup, Param, SeriesSpec, is_running};
use series::{Stream, Windows, job, long, others, v1, v2, weights, with};

const SAMPLES: usize = 6;
/// How far a tensor is moved along its gradient, each way. A loss is known to 1e-7 or so, and a slope to 1e-5.
const STEP: f32 = 5e-3;
/// Below this a slope says nothing.
const STEEP: f64 = 0.003;

/// With everything that a model can drop, and its samples mixed. A bend that is smooth has slopes everywhere.
fn drawn(mut spec: SeriesSpec) -> SeriesSpec {
    spec.set_dropout(0.3);
    spec.activation = Activation::Gelu;
    spec.loss.mixup = Some(Mixup { alpha: 0.4, probability: 1.0 });
    spec
}

fn loss(engine: &mut Engine, batch: &Windows, update: u64) -> f64 {
    batch.stage(engine, 0..SAMPLES);
    let step = MicroStep { update, samples: SAMPLES, first_sample: 0, lr: Some(0.0) };
    engine.micro_step(step).unwrap().mean()
}

/// Loss, and the gradient of each parameter that has one, which is that of the sum over all samples.
fn at(spec: &SeriesSpec, from: &[(Param, Vec<f32>)], batch: &Windows, update: u64) -> (f64, Vec<Option<Vec<f32>>>) {
    with(&job(spec, SAMPLES), &Choices::plain(SAMPLES), None, from, |engine| {
        let loss = loss(engine, batch, update);
        (loss, (0..from.len()).map(|index| engine.gradient(index).map(<[f32]>::to_vec)).collect())
    })
}

#[test]
fn slopes_of_the_loss_are_the_gradients_with_all_that_is_drawn() {
    let specs = [("v1", v1()), ("v2", v2()), ("v1_long", long(v1()))].into_iter().chain(others());
    for (name, spec) in specs.map(|(name, spec)| (name, drawn(spec))) {
        let (from, batch, update) = (weights(&spec, 3), Windows::draw(&spec, SAMPLES, &mut Stream(9), true), 4);
        let (_, gradients) = at(&spec, &from, &batch, update);
        assert!(
            at(&spec, &from, &batch, update + 1).0 != at(&spec, &from, &batch, update).0,
            "{name}: nothing is drawn"
        );
        let mut steep = 0;
        // Statistics keep what they become where weights keep their gradient.
        let weights = from.iter().enumerate().filter(|(_, (param, _))| !is_running(&param.name));
        for (index, (param, values)) in weights {
            let Some(gradient) = &gradients[index] else { continue };
            let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let expected = length / SAMPLES as f64;
            if expected < STEEP {
                continue;
            }
            steep += 1;
            let moved = |step: f32| {
                let mut there = from.clone();
                let along = values.iter().zip(gradient).map(|(v, g)| v + step * (f64::from(*g) / length) as f32);
                there[index].1 = along.collect();
                at(&spec, &there, &batch, update).0
            };
            let slope = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            let off = (slope - expected).abs();
            assert!(off <= 0.03 * expected + 1e-4, "{name}, {}: slope {slope}, gradient {expected}", param.name);
        }
        assert!(steep > from.len() / 4, "{name}: {steep} of {} parameters have a slope", from.len());
    }
}
