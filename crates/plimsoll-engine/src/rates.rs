//! The machine's rates, measured: what the cost model is fed with.
//!
//! Best of a few short runs, rounded to half octaves, so that noise does not change a plan.

use std::time::Instant;

use plimsoll_plan::cost::{Rates, half_octave};
use plimsoll_plan::tiles::{Simd, Tiles, matmul_workspace};
use rayon::prelude::*;

use crate::cpu::matmul::{Matrix, Output, matmul};

const SIZE: usize = 384;
const COPIED: usize = 1 << 20;
const TRIES: usize = 5;

/// Measures on the pool that it runs in; takes some 10 ms and 10 MiB.
pub fn measure_rates(simd: Simd) -> Rates {
    let threads = rayon::current_num_threads();
    let (a, b) = (vec![0.5f32; SIZE * SIZE], vec![0.25f32; SIZE * SIZE]);
    let mut c = vec![0.0f32; SIZE * SIZE];
    let mut workspace = vec![0.0f32; matmul_workspace(&Tiles::of(simd), threads, SIZE, SIZE)];
    let flops = best(|| {
        let out = Output { data: c.as_mut_ptr(), stride: SIZE, add: false, scale: 1.0, bias: None };
        // SAFETY: three matrices of SIZE x SIZE and the workspace that the formula asks for.
        unsafe {
            matmul(
                simd,
                threads,
                SIZE,
                SIZE,
                SIZE,
                Matrix::rows(&a, SIZE),
                Matrix::rows(&b, SIZE).transposed(),
                out,
                &mut workspace,
            )
        };
    });
    let mut to = vec![0.0f32; COPIED];
    let from = vec![1.0f32; COPIED];
    let copied =
        best(|| to.par_chunks_mut(COPIED / 8).zip(from.par_chunks(COPIED / 8)).for_each(|(t, f)| t.copy_from_slice(f)));
    Rates::of(half_octave(2.0 * (SIZE * SIZE * SIZE) as f64 / flops), half_octave(8.0 * COPIED as f64 / copied))
}

fn best(mut f: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        f();
        least = least.min(start.elapsed().as_secs_f64());
    }
    least.max(1e-9)
}
