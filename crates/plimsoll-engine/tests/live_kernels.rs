//! Single ops of decoder models, live against PyTorch and transformers (`tests/peer/live_kernels.py`).
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it the test says so and passes.

mod fixture;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::{distance, tensors};
use plimsoll_engine::cpu::attention::{Columns, Samples, attention_forward};
use plimsoll_engine::cpu::attention_backward::{Forward, attention_backward};
use plimsoll_engine::cpu::gated_silu::{gated_silu_backward, gated_silu_forward};
use plimsoll_engine::cpu::head_norm::{head_norm_backward, head_norm_forward};
use plimsoll_engine::cpu::layer_norm::{layer_norm_backward, layer_norm_forward};
use plimsoll_engine::cpu::rope::{rope, rope_table};
use plimsoll_engine::cpu::{Cores, Shared};
use plimsoll_engine::with_cores;
use plimsoll_plan::op::{AttentionShape, REDUCE_CHUNKS, Side, Write};
use plimsoll_plan::spec::{RopeScaling, RopeSpec};
use plimsoll_plan::tiles::Tiles;

/// What Python computed.
struct Peer(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Peer {
    fn get(&self, name: &str) -> Vec<f32> {
        self.0[name].1.clone()
    }

    #[track_caller]
    fn agrees(&self, name: &str, got: &[f32], most: f64) {
        let far = distance(got, &self.0[name].1);
        assert!(far < most, "{name} is {far:e} apart");
    }
}

fn columns(data: &mut [f32], stride: usize) -> Columns {
    Columns { data: Shared(data.as_mut_ptr()), start: 0, stride }
}

#[test]
fn ops_of_decoders_agree_with_torch_and_transformers() {
    let python = std::env::var_os("PLIMSOLL_PYTHON")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"), PathBuf::from);
    if !python.is_file() {
        return println!("skipped: no Python at `{}`; scripts/test makes one", python.display());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/live_kernels.py");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kernels-{}.safetensors", std::process::id()));
    let out = Command::new(python).arg(script).arg(&file).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(out.status.success(), "live_kernels.py: {}", String::from_utf8_lossy(&out.stderr));
    let peer = Peer(tensors(&file));
    fs_err::remove_file(file).unwrap();
    let run = || {
        let cores = Cores { simd: plimsoll_engine::simd::detect(), threads: 2 };
        ropes(cores, &peer);
        attention(cores, &peer, "attention", None);
        attention(cores, &peer, "window", Some(200));
        norms(cores, &peer);
        gate(cores, &peer);
    };
    with_cores(2, || {}, run).unwrap();
}

fn ropes(cores: Cores, peer: &Peer) {
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
    for (name, theta, scaling) in [("default", 1e4, RopeScaling::Default), ("llama3", 5e5, llama3)] {
        let (len, heads, width) = (700, 2, 64);
        let mut table = vec![0.0; len * width];
        rope_table(&RopeSpec { theta, scaling }, width, len, &mut table);
        let mut x = peer.get(&format!("rope.{name}.x"));
        let positions: Vec<u32> = (0..len as u32).collect();
        rope(cores, &positions, heads, width, columns(&mut x, heads * width), &table, false);
        peer.agrees(&format!("rope.{name}.out"), &x, 2e-5);
    }
}

fn attention(cores: Cores, peer: &Peer, name: &str, window: Option<usize>) {
    let (len, heads, kv_heads, d) = (600, 6, 2, 32);
    let shape = AttentionShape {
        queries: Side::Target,
        keys: Side::Target,
        heads,
        kv_heads,
        d_kv: d,
        scale: (d as f32).powf(-0.5),
        causal: true,
        window,
        max_queries: len,
        max_keys: len,
    };
    let part = |part: &str| peer.get(&format!("{name}.{part}"));
    let (mut q, mut k, mut v, dout) = (part("q"), part("k"), part("v"), part("dout"));
    let (mut dq, mut dk, mut dv) = (q.clone(), k.clone(), v.clone());
    let (wide, narrow) = (heads * d, kv_heads * d);
    let (q, k, v) = (columns(&mut q, wide), columns(&mut k, narrow), columns(&mut v, narrow));
    let starts = [0, len as u32];
    let samples = Samples { queries: &starts, keys: &starts, sample: &[0], offset: &[0] };
    let mut space = vec![0.0; cores.threads * shape.backward_words(&Tiles::of(cores.simd))];
    let (mut out, mut lse) = (vec![0.0; len * wide], vec![0.0; len * heads]);
    attention_forward(cores, &shape, samples, q, k, v, None, &mut out, &mut lse, None, &mut space);
    peer.agrees(&format!("{name}.out"), &out, 1e-5);
    let forward = Forward { q, k, v, bias: None, out: &out, lse: &lse, dout: &dout };
    let into = (columns(&mut dq, wide), columns(&mut dk, narrow), columns(&mut dv, narrow));
    attention_backward(cores, &shape, samples, forward, into.0, into.1, into.2, None, None, &mut space);
    for (part, got) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
        peer.agrees(&format!("{name}.{part}"), got, 1e-5);
    }
}

fn norms(cores: Cores, peer: &Peer) {
    let (count, width) = (50, 72);
    let part = |part: &str| peer.get(&format!("layer_norm.{part}"));
    let (x, weight, bias, dy) = (part("x"), part("weight"), part("bias"), part("dout"));
    let (mut stats, mut out, mut dx) = (vec![0.0; 2 * count], x.clone(), x.clone());
    let (mut dw, mut db, mut partial) = (vec![0.0; width], vec![0.0; width], vec![0.0; 2 * REDUCE_CHUNKS * width]);
    layer_norm_forward(cores, count, width, 1e-5, &x, &weight, &bias, &mut stats, &mut out);
    let (for_weight, for_bias) = (Some((&mut dw[..], Write::Set)), Some((&mut db[..], Write::Set)));
    layer_norm_backward(
        cores,
        count,
        width,
        &dy,
        &x,
        &weight,
        &stats,
        &mut dx,
        false,
        for_weight,
        for_bias,
        &mut partial,
    );
    for (part, got) in [("out", &out), ("dx", &dx), ("dweight", &dw), ("dbias", &db)] {
        peer.agrees(&format!("layer_norm.{part}"), got, 1e-5);
    }
    let heads = 3;
    let part = |part: &str| peer.get(&format!("head_norm.{part}"));
    let (mut x, weight, mut dy) = (part("x"), part("weight"), part("dout"));
    let (mut rstd, mut out, mut dw) = (vec![0.0; count * heads], x.clone(), weight.clone());
    let x = columns(&mut x, width);
    head_norm_forward(cores, count, heads, 1e-6, x, &weight, &mut rstd, columns(&mut out, width));
    let (at, grad) = (columns(&mut dy, width), Some((&mut dw[..], Write::Set)));
    head_norm_backward(cores, count, heads, at, x, &weight, &rstd, at, grad, &mut partial);
    for (part, got) in [("out", &out), ("dx", &dy), ("dweight", &dw)] {
        peer.agrees(&format!("head_norm.{part}"), got, 1e-5);
    }
}

fn gate(cores: Cores, peer: &Peer) {
    let (mut ab, mut dh) = (peer.get("gated_silu.ab"), peer.get("gated_silu.dout"));
    let mut out = dh.clone();
    gated_silu_forward(cores, 30, 40, &ab, &mut out);
    peer.agrees("gated_silu.out", &out, 1e-6);
    gated_silu_backward(cores, 30, 40, &mut dh, &mut ab);
    peer.agrees("gated_silu.out", &dh, 1e-6);
    peer.agrees("gated_silu.dab", &ab, 1e-6);
}
