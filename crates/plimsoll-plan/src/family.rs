//! From a model to its tapes: which family writes them.

use crate::choices::Choices;
use crate::decoder;
use crate::generation::{GenerateShape, Generation};
use crate::op::{Op, SeriesOp};
use crate::program::TapeJob;
use crate::series;
use crate::spec::ModelSpec;
use crate::t5;
use crate::tape::{Id, Role, Store, Tape};

/// Forward and backward of one micro-batch, or of a whole update.
pub(crate) fn micro_tape(spec: &ModelSpec, job: &TapeJob, choices: &Choices) -> Tape {
    match spec {
        ModelSpec::T5(spec) => t5::micro_tape(spec, job, choices),
        ModelSpec::Decoder(spec) => decoder::micro_tape(spec, job, choices),
        ModelSpec::Series(spec) => series::micro_tape(spec, job, choices),
    }
}

/// Forward pass and loss.
pub(crate) fn eval_tape(spec: &ModelSpec, job: &TapeJob, chunk: usize) -> Tape {
    match spec {
        ModelSpec::T5(spec) => t5::eval_tape(spec, job, chunk),
        ModelSpec::Decoder(spec) => decoder::eval_tape(spec, job, chunk),
        ModelSpec::Series(spec) => series::eval_tape(spec, job),
    }
}

/// Prompts and decoding step.
pub(crate) fn generation(spec: &ModelSpec, job: &TapeJob, shape: GenerateShape) -> Generation {
    match spec {
        ModelSpec::T5(spec) => t5::generation(spec, job, shape),
        ModelSpec::Decoder(spec) => decoder::generation(spec, job, shape),
        ModelSpec::Series(_) => unreachable!("series are not generated"),
    }
}

/// The update of every parameter from persistent gradients. Their norm comes first: it says whether they are finite.
pub(crate) fn update_tape(store: &Store) -> Tape {
    let mut tape = Tape::over(store);
    let gradient =
        |weight: Id| store.gradients[weight.0 as usize].expect("the update tape is for persistent gradients");
    let trained = |weight: &usize| store.tensors[*weight].role == Role::Weight;
    let gradients = (0..store.gradients.len()).filter(trained).filter_map(|weight| store.gradients[weight]).collect();
    tape.push(Op::GradientNorm { gradients });
    tape.push(Op::Clip);
    for (at, place) in store.params.iter().enumerate().filter(|(_, place)| place.trained) {
        let (grad, state) = (gradient(place.weight), place.state.clone());
        tape.push(Op::Update { param: at, weight: place.weight, grad, state });
    }
    for place in store.params.iter().filter(|place| place.running) {
        tape.push(Op::Series(SeriesOp::Commit { from: gradient(place.weight), to: place.weight }));
    }
    tape
}
