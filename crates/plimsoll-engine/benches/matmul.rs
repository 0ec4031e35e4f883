//! Our loop around gemm's micro-kernels beside gemm's own, on the products of a T5-small step, and products with stored
//! weights beside the same with plain ones; interleaved, medians.
//!
//!     cargo bench -p plimsoll-engine --bench matmul
#![allow(clippy::print_stdout, missing_docs)]

use std::time::Instant;

use gemm_common::Parallelism;
use plimsoll_engine::cpu::matmul::{Matrix, Output, Right, matmul};
use plimsoll_engine::cpu::weights::{Weights, encode};
use plimsoll_engine::{simd, with_cores};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::tiles::{Simd, Tiles, matmul_workspace};

/// (name, m, n, k, A transposed, B transposed, adds)
const PRODUCTS: [(&str, usize, usize, usize, bool, bool, bool); 11] = [
    ("o forward", 1024, 512, 512, false, true, false),
    ("qkv forward", 1024, 1536, 512, false, true, false),
    ("wi forward", 1024, 2048, 512, false, true, false),
    ("wo forward", 1024, 512, 2048, false, true, false),
    ("wi input", 1024, 512, 2048, false, false, false),
    ("qkv input", 1024, 512, 1536, false, false, false),
    ("qkv weight", 1536, 512, 1024, true, false, false),
    ("wi weight", 2048, 512, 1024, true, false, false),
    ("head", 256, 32128, 512, false, true, false),
    ("head input", 256, 512, 32128, false, false, false),
    ("head weight", 32128, 512, 256, true, false, true),
];

/// (name, m, n, k, B is W^T): W is `[n, k]`, or `[k, n]`.
const STORED: [(&str, usize, usize, usize, bool); 9] = [
    ("256 up", 256, 3072, 1024, true),
    ("256 down", 256, 1024, 3072, true),
    ("256 up input", 256, 1024, 3072, false),
    ("256 in,out", 256, 3072, 1024, false),
    ("1024 up", 1024, 3072, 1024, true),
    ("1 up", 1, 3072, 1024, true),
    ("4 up", 4, 3072, 1024, true),
    ("1 head", 1, 50257, 768, true),
    ("1 in,out", 1, 3072, 1024, false),
];
const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::Int8, Dtype::Nf4];

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let level = simd::detect();
    println!("{threads} threads, {level:?}; GFLOP/s, medians of 9");
    println!("{:<14} {:>8} {:>8} {:>7}", "product", "ours", "gemm", "ratio");
    with_cores(
        threads,
        || {},
        || {
            let (mut flops, mut our_time, mut their_time) = (0.0, 0.0, 0.0);
            for (name, m, n, k, ta, tb, add) in PRODUCTS {
                let (a, b) = (vec![0.5f32; m * k], vec![0.25f32; k * n]);
                let mut c = vec![0.0f32; m * n];
                let mut space = vec![0.0f32; matmul_workspace(&Tiles::of(level), threads, n, k)];
                let ma = if ta { Matrix::rows(&a, m).transposed() } else { Matrix::rows(&a, k) };
                let mb = if tb { Matrix::rows(&b, k).transposed() } else { Matrix::rows(&b, n) };
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                for _ in 0..9 {
                    let start = Instant::now();
                    let out = Output { data: c.as_mut_ptr(), stride: n, add, scale: 1.0, bias: None };
                    // SAFETY: the matrices have these sizes.
                    unsafe { matmul(level, threads, m, n, k, ma, mb, out, &mut space) };
                    ours.push(start.elapsed().as_secs_f64());
                    let start = Instant::now();
                    let stride = |x: usize| x as isize;
                    // Row-major output: the transposed problem, as gemm's own front does it.
                    // SAFETY: as above.
                    unsafe {
                        gemm_f32::gemm::f32::get_gemm_fn()(
                            n,
                            m,
                            k,
                            c.as_mut_ptr(),
                            stride(n),
                            1,
                            add,
                            mb.data,
                            stride(mb.row_stride),
                            stride(mb.col_stride),
                            ma.data,
                            stride(ma.row_stride),
                            stride(ma.col_stride),
                            1.0,
                            1.0,
                            false,
                            false,
                            false,
                            Parallelism::Rayon(threads),
                        );
                    }
                    theirs.push(start.elapsed().as_secs_f64());
                }
                let (ours, theirs) = (median(ours), median(theirs));
                let work = 2.0 * m as f64 * n as f64 * k as f64;
                flops += work;
                our_time += ours;
                their_time += theirs;
                println!("{name:<14} {:>8.1} {:>8.1} {:>7.3}", work / ours / 1e9, work / theirs / 1e9, theirs / ours);
            }
            println!(
                "{:<14} {:>8.1} {:>8.1} {:>7.3}",
                "all",
                flops / our_time / 1e9,
                flops / their_time / 1e9,
                their_time / our_time
            );
            stored(level, threads);
        },
    )
    .expect("threads start");
}

fn stored(level: Simd, threads: usize) {
    println!("\nstored weights; GFLOP/s, medians of 15, and the time beside plain ones");
    for (name, m, n, k, transposed) in STORED {
        let (a, w) = (vec![0.5f32; m * k], vec![0.25f32; n * k]);
        let words = DTYPES.map(|dtype| {
            let mut words = vec![0.0f32; dtype.words(n * k)];
            encode(level, dtype, n * k, 0, &w, &mut words);
            words
        });
        let mut c = vec![0.0f32; m * n];
        let mut space = vec![0.0f32; matmul_workspace(&Tiles::of(level), threads, n, k)];
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..15 {
            for ((dtype, words), times) in DTYPES.iter().zip(&words).zip(&mut times) {
                let b = Right::weights(Weights::new(words, *dtype, n * k), 0, if transposed { k } else { n });
                let b = if transposed { b.transposed() } else { b };
                let out = Output::rows(c.as_mut_ptr(), n);
                let start = Instant::now();
                // SAFETY: the matrices have these sizes.
                unsafe { matmul(level, threads, m, n, k, Matrix::rows(&a, k), b, out, &mut space) };
                times.push(start.elapsed().as_secs_f64());
            }
        }
        let times = times.map(median);
        print!("{name:<14}");
        for (dtype, time) in DTYPES.iter().zip(times) {
            let work = 2.0 * m as f64 * n as f64 * k as f64;
            print!("  {dtype:?} {:.1} ({:.3})", work / time / 1e9, time / times[0]);
        }
        println!();
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
