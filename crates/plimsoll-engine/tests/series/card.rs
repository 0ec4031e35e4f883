//! Engines of series on a card, for tests beside those of the CPU. Without a card a test says so and passes.
#![allow(clippy::print_stdout)] // why a test was skipped

use plimsoll_engine::cuda::{Card, CudaEngine, CudaOptions};
use plimsoll_engine::{EngineError, MicroStep, Updated, Updates};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::series_batch::SeriesSlot;
use plimsoll_plan::spec::Param;

use super::Windows;

/// How an engine runs on the card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Captured as a graph.
    Captured,
    /// Op by op.
    Eager,
    /// Op by op, the LSTM a step at a time.
    Stepwise,
}

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

pub fn options(way: Way) -> CudaOptions {
    let cache = Some(std::env::temp_dir().join("plimsoll-test-kernels"));
    CudaOptions { cache, eager: way != Way::Captured, stepwise: way == Way::Stepwise, ..CudaOptions::default() }
}

pub fn on_card(job: &Job, activations: Dtype) -> Job {
    Job { device: Device::Cuda(CudaForm::of(activations)), ..job.clone() }
}

pub fn start(job: &Job, how: &Choices, clip: Option<f64>, from: &[(Param, Vec<f32>)], way: Way) -> CudaEngine {
    let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: clip, seed: 11 };
    let mut engine = CudaEngine::start(compile(job, how), Some(updates), &options(way)).unwrap();
    for (index, (param, values)) in from.iter().enumerate() {
        assert_eq!(engine.program().store.params[index].param.name, param.name);
        let put = |first: usize, out: &mut [f32]| -> Result<(), EngineError> {
            out.copy_from_slice(&values[first..first + out.len()]);
            Ok(())
        };
        engine.fill_param(index, put).unwrap().unwrap();
    }
    engine
}

pub fn read(engine: &CudaEngine, index: usize) -> Vec<f32> {
    let mut out = vec![0.0; engine.program().store.params[index].param.elements()];
    engine.read_param(index, 0, &mut out).unwrap();
    out
}

pub fn put(batch: &Windows, slot: SeriesSlot, range: std::ops::Range<usize>) {
    let samples = batch.samples();
    let (width, values, many) = (batch.inputs.len() / samples, batch.values.len() / samples, range.len());
    slot.inputs[..many * width].copy_from_slice(&batch.inputs[range.start * width..range.end * width]);
    slot.classes[..many].copy_from_slice(&batch.classes[range.clone()]);
    slot.values[..many * values].copy_from_slice(&batch.values[range.start * values..range.end * values]);
}

/// One update, in as many micro-batches as the program wants.
pub fn update(engine: &mut CudaEngine, batch: &Windows, update: u64, lr: f64) -> Updated {
    let most = engine.program().shape.samples;
    let mut step = MicroStep { update, samples: most, first_sample: 0, lr: Some(lr) };
    for first in (0..batch.samples()).step_by(most) {
        let end = (first + most).min(batch.samples());
        put(batch, engine.series_slot().unwrap(), first..end);
        step = MicroStep { samples: end - first, first_sample: first as u32, ..step };
        engine.micro_step(step).unwrap();
    }
    engine.finish_update(step).unwrap()
}
