//! HybridCNNLSTM v1 and v2 on random windows, with dropout, AdamW and a norm to clip by, as the models' own trainer has them.

use plimsoll_engine::cuda::CudaEngine;
use plimsoll_engine::simd;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::SeriesSpec;
use plimsoll_plan::train::OptimizerSpec;

const BATCH: usize = 32;

pub fn job(name: &str) -> (Job, Choices) {
    let spec = if name == "v1" { SeriesSpec::hybrid_v1(110) } else { SeriesSpec::hybrid_v2(112) };
    let optimizer = OptimizerSpec::AdamW { lr: 5e-5, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };
    let job = Job::of_series(spec, BATCH, optimizer, (1, simd::detect()));
    (Job { clip: true, ..job }, Choices::plain(BATCH))
}

/// `draw` gives numbers that look random.
pub fn stage(engine: &mut CudaEngine, mut draw: impl FnMut() -> u64) {
    let Ok(slot) = engine.series_slot() else { return };
    let mut number = || (draw() % 4096) as f32 / 1024.0 - 2.0;
    slot.inputs.iter_mut().for_each(|x| *x = number());
    slot.values.iter_mut().for_each(|x| *x = number());
    slot.classes.iter_mut().enumerate().for_each(|(nth, class)| *class = nth as u32 % 3);
}
