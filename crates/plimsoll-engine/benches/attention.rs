//! Attention of one document, causal, 8 heads of 64, forward and backward; best of a few, on all cores.
//!
//!     cargo bench -p plimsoll-engine --bench attention
#![allow(clippy::print_stdout, missing_docs)]

use std::time::Instant;

use plimsoll_engine::cpu::attention::{Columns, Samples, attention_forward};
use plimsoll_engine::cpu::attention_backward::{Forward, attention_backward};
use plimsoll_engine::cpu::{Cores, Shared};
use plimsoll_engine::{simd, with_cores};
use plimsoll_plan::op::{AttentionShape, Side};
use plimsoll_plan::tiles::Tiles;

const TRIES: usize = 3;

fn best(mut f: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..TRIES).map(timed).fold(f64::INFINITY, f64::min)
}

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = || {
        for (len, window) in [(512, None), (2048, None), (8192, None), (8192, Some(1024))] {
            for kv_heads in [8, 2] {
                measure(Cores { simd: simd::detect(), threads }, len, kv_heads, window);
            }
        }
    };
    with_cores(threads, || {}, run).unwrap();
}

fn measure(cores: Cores, len: usize, kv_heads: usize, window: Option<usize>) {
    let (heads, d) = (8, 64);
    let shape = AttentionShape {
        queries: Side::Target,
        keys: Side::Target,
        heads,
        kv_heads,
        d_kv: d,
        scale: 0.125,
        causal: true,
        window,
        max_queries: len,
        max_keys: len,
    };
    let (inner, kv) = (heads * d, kv_heads * d);
    let stride = inner + 2 * kv;
    let mut qkv: Vec<f32> = (0..len * stride).map(|i| (i * 7 % 13) as f32 * 0.1 - 0.6).collect();
    let mut grads = vec![0.0f32; len * stride];
    let columns = |data: &mut Vec<f32>| {
        let data = Shared(data.as_mut_ptr());
        [0, inner, inner + kv].map(|start| Columns { data, start, stride })
    };
    let ([q, k, v], [dq, dk, dv]) = (columns(&mut qkv), columns(&mut grads));
    let starts = [0, len as u32];
    let samples = Samples { queries: &starts, keys: &starts, sample: &[0], offset: &[0] };
    let tiles = Tiles::of(cores.simd);
    let mut space = vec![0.0f32; cores.threads * shape.backward_words(&tiles).max(shape.forward_words(&tiles))];
    let (mut out, mut lse) = (vec![0.0f32; len * inner], vec![0.0f32; len * heads]);
    let forward = best(|| {
        attention_forward(cores, &shape, samples, q, k, v, None, &mut out, &mut lse, None, &mut space);
    });
    let dout = qkv[..len * inner].to_vec();
    let kept = Forward { q, k, v, bias: None, out: &out, lse: &lse, dout: &dout };
    let backward = best(|| attention_backward(cores, &shape, samples, kept, dq, dk, dv, None, None, &mut space));
    // Pairs of a query and a key that it sees; two products forward, five backward.
    let pairs: f64 = (1..=len).map(|seen| seen.min(window.unwrap_or(len)) as f64).sum();
    let flops = 2.0 * pairs * (heads * d) as f64;
    println!(
        "{len} tokens, {heads} heads on {kv_heads}, window {window:?}: forward {:.2} ms ({:.0} GFLOP/s), backward {:.2} ms ({:.0} GFLOP/s)",
        forward * 1e3,
        2.0 * flops / forward / 1e9,
        backward * 1e3,
        5.0 * flops / backward / 1e9,
    );
}
