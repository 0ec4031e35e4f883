//! The number of threads changes no bit: not of the losses, not of the gradients' norm, not of the weights.

mod fixture;
mod random;

use fixture::choices;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::Job;
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, job, train, v10, v11};

#[test]
fn one_to_four_threads_repeat_losses_and_weights_to_the_bit() {
    let lens = (70, 41);
    for spec in [v10(0.1), v11(0.1)] {
        let data = batches(&spec, 3, 6, lens, true, 2);
        for optimizer in [OptimizerSpec::adamw(1e-3), OptimizerSpec::adafactor(1e-3), OptimizerSpec::sgd(1e-3)] {
            let job = job(spec.clone(), lens, 6, optimizer, true);
            let how = Choices { recompute: 1, ..choices(3) };
            let on = |threads| train(&Job { threads, ..job.clone() }, &how, Some(1.0), &data, 8);
            let one = on(1);
            for threads in 2..=4 {
                assert!(on(threads) == one, "{:?}, {}, {threads} threads", spec.feed_forward, job.optimizer);
            }
        }
    }
}

#[test]
fn wide_products_repeat_to_the_bit() {
    // Wide and deep enough for several blocks of the product: 2048 columns, 512 deep.
    let mut spec = v10(0.0);
    (spec.vocab, spec.d_model, spec.d_ff, spec.encoder_layers, spec.decoder_layers) = (2200, 96, 1100, 1, 1);
    let (lens, how) = ((60, 50), Choices { loss_chunk: 600, ..choices(4) });
    let data = batches(&spec, 2, 4, lens, true, 5);
    let job = job(spec, lens, 4, OptimizerSpec::adafactor(1e-3), false);
    let on = |threads| train(&Job { threads, ..job.clone() }, &how, None, &data, 3);
    let one = on(1);
    for threads in 2..=4 {
        assert!(on(threads) == one, "{threads} threads");
    }
}

#[test]
fn every_instruction_level_trains_alike() {
    let levels: &[Simd] = match plimsoll_engine::simd::detect() {
        Simd::Avx512 => &[Simd::Avx2, Simd::Baseline],
        Simd::Avx2 => &[Simd::Baseline],
        Simd::Baseline => &[],
    };
    let lens = (30, 20);
    for spec in [v10(0.1), v11(0.1)] {
        let data = batches(&spec, 3, 4, lens, true, 2);
        let job = job(spec, lens, 4, OptimizerSpec::adafactor(1e-3), false);
        let best = train(&job, &choices(4), None, &data, 10);
        for simd in levels {
            let other = train(&Job { simd: *simd, ..job.clone() }, &choices(4), None, &data, 10);
            for (a, b) in other.losses.iter().zip(&best.losses) {
                assert!((a - b).abs() < 1e-5 * b, "{simd:?}: {a} and {b}");
            }
        }
    }
}
