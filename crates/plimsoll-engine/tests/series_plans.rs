//! Plans of a model of series give one result. What is computed again, dropout included, is to the bit what was kept; weight
//! gradients of an LSTM are summed stretch by stretch, so behind an update they differ in their last digits.

mod fixture;
mod series;

use plimsoll_plan::choices::Choices;
use plimsoll_plan::spec::SeriesSpec;
use series::{Stream, Windows, job, update, v1, v2, weights, with};

fn course(spec: &SeriesSpec, plan: &Choices) -> (Vec<f64>, Vec<Vec<f32>>) {
    let (job, from) = (job(spec, 6), weights(spec, 3));
    let batch = Windows::draw(spec, 6, &mut Stream(9), true);
    with(&job, plan, None, &from, |engine| {
        let losses = (0..3).map(|nth| update(engine, &batch, nth, 1e-3).0).collect();
        (losses, (0..from.len()).map(|index| engine.param(index).to_vec()).collect())
    })
}

#[test]
fn convolutions_computed_again_are_the_same_bits_and_so_are_the_lstms_outputs() {
    for mut spec in [v1(), v2()] {
        spec.set_dropout(0.3);
        let plain = Choices::plain(6);
        let first = course(&spec, &plain);
        assert!(first.0.iter().all(|loss| loss.is_finite()));
        let blocks = Choices { recompute: spec.conv.len(), ..plain };
        assert!(course(&spec, &blocks) == first, "convolutions");
        for lstm_every in [2, 4] {
            // Weight gradients are summed stretch by stretch, so only the first loss is the same to the bit.
            let again = course(&spec, &Choices { lstm_every, ..plain });
            assert_eq!(again.0[0], first.0[0], "every {lstm_every}");
            assert!(again.0.iter().zip(&first.0).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs()), "every {lstm_every}");
        }
    }
}
