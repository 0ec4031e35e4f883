//! Lion and 8-bit AdamW in whole trainings: the loss falls, and threads and the place of the update change no bit.

mod fixture;
mod random;

use fixture::choices;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::train::{EIGHT_BIT_LEAST, OptimizerSpec};
use random::{batches, job, train, v11};

#[test]
fn the_loss_falls_and_the_bits_stay_whatever_the_threads() {
    // Some parameters are large enough for 8 bits, others are not.
    let spec = T5Spec { vocab: 300, d_model: 100, d_kv: 24, d_ff: 200, heads: 4, ..v11(0.0) };
    let lens = (20, 15);
    let data = batches(&spec, 1, 4, lens, true, 2);
    for optimizer in [
        OptimizerSpec::lion(3e-4),
        OptimizerSpec::adamw16bit(1e-3),
        OptimizerSpec::adamw8bit(1e-3),
        OptimizerSpec::adamw(1e-3),
    ] {
        let job = job(spec.clone(), lens, 4, optimizer, false);
        let sizes: Vec<usize> = compile(&job, &choices(4)).store.params.iter().map(|p| p.param.elements()).collect();
        assert!(sizes.iter().any(|n| *n >= EIGHT_BIT_LEAST) && sizes.iter().any(|n| *n < EIGHT_BIT_LEAST));
        let on = |threads, how| train(&Job { threads, ..job.clone() }, &how, None, &data, 30);
        let one = on(1, choices(4));
        assert!(one.losses[29] < 0.7 * one.losses[0], "{}: {:?}", job.optimizer, one.losses);
        assert!(on(3, choices(4)) == one, "{}", job.optimizer);
        let fused = on(2, Choices { optimizer_in_backward: true, ..choices(4) });
        assert!(fused.weights == one.weights, "{}", job.optimizer);
    }
}
