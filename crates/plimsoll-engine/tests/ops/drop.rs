//! `out = drop(g)`: the gradient through a dropout is the dropout of the gradient, with the mask of the forward pass.

use plimsoll_engine::cpu::Dropper;
use plimsoll_engine::cpu::drop::drop_rows;
use plimsoll_engine::cpu::residual::residual_forward;

use crate::{Ragged, assert_close, every_shape, numbers, on_all_cores, unwritten, wide};

#[test]
fn the_gradient_is_multiplied_by_the_factors() {
    on_all_cores(|cores| {
        every_shape(|ragged, width, drop| {
            let Some(dropper) = drop else { return };
            let n = ragged.len() * width;
            let (g, mut out) = (numbers(n, 1), unwritten(n));
            drop_rows(cores, ragged.rows(), width, &g, &mut out, dropper);
            let expected: Vec<f64> = wide(&g).iter().zip(ragged.factors(drop, width)).map(|(g, f)| g * f).collect();
            assert_close(&out, &expected, 1e-7, "out");
        });
    });
}

#[test]
fn backward_drops_exactly_what_forward_dropped() {
    on_all_cores(|cores| {
        let (ragged, width) = (Ragged::of(0, &[11, 4]), 150);
        let dropper = Dropper::new(5, 0, 9, 0.1);
        let n = ragged.len() * width;
        // The residual of a zero stream is the dropped layer itself, so its slope is the mask.
        let (zero, mut forward, mut backward) = (vec![0.0; n], vec![1.0; n], unwritten(n));
        residual_forward(cores, ragged.rows(), width, &zero, &mut forward, Some(&dropper));
        drop_rows(cores, ragged.rows(), width, &vec![1.0; n], &mut backward, &dropper);
        assert_eq!(forward, backward);
        assert!(forward.contains(&0.0) && forward.contains(&dropper.scale));
    });
}
