//! Engines on a card, for tests beside those of the CPU. Without a card a test says so and passes.

#![allow(clippy::print_stdout)] // why a test was skipped

use plimsoll_engine::cuda::{Card, CudaEngine, CudaOptions};
use plimsoll_engine::{EngineError, MicroStep, Updated, Updates};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::Param;

use super::Samples;

/// Whether there is a card; if not, why. Where one must be there (`PLIMSOLL_CARD=1`), that is a failure.
pub fn card() -> Option<Card> {
    match Card::open(0) {
        Ok(card) => Some(card),
        Err(e) => {
            assert!(std::env::var_os("PLIMSOLL_CARD").is_none(), "{e}");
            println!("skipped: {e}");
            None
        }
    }
}

pub fn on_card(job: &Job, activations: Dtype) -> Job {
    Job { device: Device::Cuda(CudaForm::of(activations)), ..job.clone() }
}

pub fn start(job: &Job, how: &Choices, clip_norm: Option<f64>, from: &[(Param, Vec<f32>)], eager: bool) -> CudaEngine {
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: 11 };
    let cache = std::env::temp_dir().join("plimsoll-test-kernels");
    let options = CudaOptions { cache: Some(cache), eager, ..CudaOptions::default() };
    let mut engine = CudaEngine::start(compile(job, how), Some(updates), &options).unwrap();
    fill(&mut engine, from);
    engine
}

pub fn fill(engine: &mut CudaEngine, from: &[(Param, Vec<f32>)]) {
    for (index, (param, values)) in from.iter().enumerate() {
        assert_eq!(engine.program().store.params[index].param.name, param.name);
        let put = |first: usize, out: &mut [f32]| -> Result<(), EngineError> {
            out.copy_from_slice(&values[first..first + out.len()]);
            Ok(())
        };
        engine.fill_param(index, put).unwrap().unwrap();
    }
}

pub fn read(engine: &CudaEngine, index: usize) -> Vec<f32> {
    let mut out = vec![0.0; engine.program().store.params[index].param.elements()];
    engine.read_param(index, 0, &mut out).unwrap();
    out
}

pub fn update(engine: &mut CudaEngine, samples: &Samples, update: u64, lr: Option<f64>) -> Updated {
    let most = engine.program().shape.samples;
    let mut step = MicroStep { update, samples: most, first_sample: 0, lr };
    for first in (0..samples.len()).step_by(most) {
        let end = (first + most).min(samples.len());
        samples.put(engine.slot(), first..end);
        step = MicroStep { samples: end - first, first_sample: first as u32, ..step };
        engine.micro_step(step).unwrap();
    }
    engine.finish_update(step).unwrap()
}
