//! A snapshot holds what the engine held when it was filled, to the bit, whatever the engine does then.

mod fixture;
mod random;

use fixture::{Batch, choices, train_update, with_job};
use plimsoll_engine::{Engine, Snapshot};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, fill, job, v10, v11, weights};

const LENS: (usize, usize) = (20, 14);

/// Every parameter and state, from the engine.
fn held(engine: &Engine) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (at, place) in engine.program().store.params.iter().enumerate() {
        all.push(engine.param(at).to_vec());
        all.extend((0..place.state.len()).map(|nth| engine.state(at, nth).to_vec()));
    }
    all
}

/// The same, from the copy, where parameter `i` has `states[i]` states.
fn copied(snapshot: &Snapshot, states: &[usize]) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (at, count) in states.iter().enumerate() {
        let words = snapshot.param_bytes(at).chunks_exact(4);
        all.push(words.map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect());
        all.extend((0..*count).map(|nth| snapshot.state(at, nth).to_vec()));
    }
    all
}

fn check(engine: &mut Engine, batches: &[Batch], optimizer: &OptimizerSpec) {
    let states: Vec<usize> = engine.program().store.params.iter().map(|p| p.state.len()).collect();
    let mut snapshot = Snapshot::take(engine.program()).unwrap();
    for (update, batch) in batches.iter().enumerate() {
        train_update(engine, batch, update as u64, optimizer.lr());
        snapshot.fill(engine);
        let then = held(engine);
        // A writer in the background reads while the engine steps on.
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| copied(&snapshot, &states));
            train_update(engine, batch, update as u64 + 1, optimizer.lr());
            reader.join().unwrap()
        });
        assert!(read == then, "{optimizer}, update {update}");
        assert!(copied(&snapshot, &states) == then, "{optimizer}, update {update}, afterwards");
        assert!(held(engine) != then, "{optimizer}: the engine went on");
    }
}

#[test]
fn a_snapshot_is_what_the_engine_held_and_stays_so_while_it_steps_on() {
    for spec in [v10(0.1), v11(0.1)] {
        let data = batches(&spec, 3, 4, LENS, true, 2);
        for optimizer in [OptimizerSpec::adamw(1e-3), OptimizerSpec::adafactor(1e-3), OptimizerSpec::sgd(1e-3)] {
            for optimizer_in_backward in [true, false] {
                let job = job(spec.clone(), LENS, 4, optimizer.clone(), false);
                let how = Choices { optimizer_in_backward, ..choices(4) };
                with_job(&job, &how, None, |engine| {
                    fill(engine, &weights(&job.spec, 3));
                    check(engine, &data, &optimizer);
                });
            }
        }
    }
}
