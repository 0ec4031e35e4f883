//! Plans of a model of series give one result, to the bit: whatever is computed again, dropout included, and on any number of
//! threads.

mod fixture;
mod series;

use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{LstmSpec, SeriesSpec};
use series::{Stream, Windows, job, long, update, v1, v2, weights, with};

/// The losses of three updates, and the weights and running statistics behind them.
fn course(spec: &SeriesSpec, threads: usize, plan: &Choices) -> (Vec<f64>, Vec<Vec<f32>>) {
    let (job, from) = (Job { threads, ..job(spec, 6) }, weights(spec, 3));
    let batch = Windows::draw(spec, 6, &mut Stream(9), true);
    with(&job, plan, None, &from, |engine| {
        let losses = (0..3).map(|nth| update(engine, &batch, nth, 1e-3).0).collect();
        (losses, (0..from.len()).map(|index| engine.param(index).to_vec()).collect())
    })
}

fn dropping(mut spec: SeriesSpec) -> SeriesSpec {
    spec.set_dropout(0.3);
    spec
}

/// With gates so wide that a product of them is cut, as those of the models in use are.
fn wide(spec: SeriesSpec) -> SeriesSpec {
    SeriesSpec { lstm: LstmSpec { hidden: 132, ..spec.lstm }, ..spec }
}

#[test]
fn whatever_is_computed_again_updates_are_the_same_bits() {
    for spec in [long(v1()), long(v2()), long(wide(v1()))].map(dropping) {
        let plain = Choices::plain(6);
        let first = course(&spec, 2, &plain);
        assert!(first.0.iter().all(|loss| loss.is_finite()));
        let blocks = Choices { recompute: spec.conv.len(), ..plain };
        assert!(course(&spec, 2, &blocks) == first, "convolutions");
        assert!(spec.lstm_steps() > 2 * LSTM_BLOCK, "there are stretches of either length");
        for lstm_every in [1, LSTM_BLOCK, 2 * LSTM_BLOCK] {
            let again = course(&spec, 2, &Choices { lstm_every, ..blocks });
            assert!(again == first, "every {lstm_every}");
        }
    }
}

#[test]
fn updates_are_the_same_bits_on_any_number_of_threads() {
    for spec in [v1(), v2(), long(v1())].map(dropping) {
        let plain = Choices::plain(6);
        let first = course(&spec, 1, &plain);
        for threads in [2, 3] {
            assert!(course(&spec, threads, &plain) == first, "{threads} threads");
        }
    }
}
