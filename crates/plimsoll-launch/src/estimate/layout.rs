//! The tensors of each transformer family, as Hugging Face's classes make them.
//!
//! Counts are checked against `transformers` 5.22 in the tests of `config`. Tensors of one module stand together, since
//! the largest layer is found by module.

use super::shape::{Dims, Side, Tensor};

/// Which products of an attention have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// None.
    None,
    /// q, k, v: Qwen2.
    Qkv,
    /// q, k, v and o: `attention_bias` of Llama.
    Qkvo,
}

fn tensor(module: &'static str, dims: &[u64], times: u64, side: Side) -> Tensor {
    Tensor { module, dims: dims.to_vec(), times, side }
}

/// GPT-2 with its tied head; `positions` may be zero.
pub fn gpt2(dims: &Dims, positions: u64) -> Vec<Tensor> {
    let Dims { decoder_layers: layers, hidden, ffn, .. } = *dims;
    let of = |module, dims: &[u64]| tensor(module, dims, layers, Side::Decoder);
    let mut tensors = vec![tensor("embedding", &[dims.vocab, hidden], 1, Side::Shared)];
    if positions > 0 {
        tensors.push(tensor("position_embedding", &[positions, hidden], 1, Side::Shared));
    }
    tensors.extend([
        of("norm", &[hidden]),
        of("norm", &[hidden]),
        of("qkv", &[3 * hidden, hidden]),
        of("qkv", &[3 * hidden]),
        of("o", &[hidden, hidden]),
        of("o", &[hidden]),
        of("ffn_norm", &[hidden]),
        of("ffn_norm", &[hidden]),
        of("up", &[ffn, hidden]),
        of("up", &[ffn]),
        of("down", &[hidden, ffn]),
        of("down", &[hidden]),
        tensor("final_norm", &[hidden], 2, Side::Decoder),
    ]);
    if !dims.tied {
        tensors.push(tensor("head", &[dims.vocab, hidden], 1, Side::Shared));
    }
    tensors
}

/// BERT with its masked language head: the decoder is tied and has a bias.
pub fn bert(dims: &Dims, positions: u64, types: u64) -> Vec<Tensor> {
    let Dims { decoder_layers: layers, hidden, ffn, .. } = *dims;
    let mut tensors = vec![
        tensor("embedding", &[dims.vocab, hidden], 1, Side::Shared),
        tensor("position_embedding", &[positions, hidden], 1, Side::Shared),
        tensor("type_embedding", &[types, hidden], 1, Side::Shared),
        tensor("embedding_norm", &[hidden], 2, Side::Shared),
    ];
    for module in ["q", "k", "v", "o"] {
        tensors.push(tensor(module, &[hidden, hidden], layers, Side::Decoder));
        tensors.push(tensor(module, &[hidden], layers, Side::Decoder));
    }
    tensors.extend([
        tensor("norm", &[hidden], 2 * layers, Side::Decoder),
        tensor("up", &[ffn, hidden], layers, Side::Decoder),
        tensor("up", &[ffn], layers, Side::Decoder),
        tensor("down", &[hidden, ffn], layers, Side::Decoder),
        tensor("down", &[hidden], layers, Side::Decoder),
        tensor("ffn_norm", &[hidden], 2 * layers, Side::Decoder),
        tensor("transform", &[hidden, hidden], 1, Side::Shared),
        tensor("transform", &[hidden], 1, Side::Shared),
        tensor("transform_norm", &[hidden], 2, Side::Shared),
        tensor("head", &[dims.vocab], 1, Side::Shared),
    ]);
    if !dims.tied {
        tensors.push(tensor("head", &[dims.vocab, hidden], 1, Side::Shared));
    }
    tensors
}

/// Llama, Mistral, Qwen2 and, with norms on q and k, Qwen3.
pub fn llama(dims: &Dims, biases: Biases, norms: bool) -> Vec<Tensor> {
    let Dims { decoder_layers: layers, hidden, ffn, head_dim, .. } = *dims;
    let (query, key) = (dims.heads * head_dim, dims.kv_heads * head_dim);
    let of = |module, dims: &[u64]| tensor(module, dims, layers, Side::Decoder);
    let mut tensors = vec![tensor("embedding", &[dims.vocab, hidden], 1, Side::Shared)];
    for (module, out, into) in [("q", query, hidden), ("k", key, hidden), ("v", key, hidden), ("o", hidden, query)] {
        tensors.push(of(module, &[out, into]));
        if biases == Biases::Qkvo || (biases == Biases::Qkv && module != "o") {
            tensors.push(of(module, &[out]));
        }
    }
    if norms {
        tensors.extend([of("q_norm", &[head_dim]), of("k_norm", &[head_dim])]);
    }
    tensors.extend([
        of("gate", &[ffn, hidden]),
        of("up", &[ffn, hidden]),
        of("down", &[hidden, ffn]),
        of("norm", &[hidden]),
        of("ffn_norm", &[hidden]),
        tensor("final_norm", &[hidden], 1, Side::Decoder),
    ]);
    if !dims.tied {
        tensors.push(tensor("head", &[dims.vocab, hidden], 1, Side::Shared));
    }
    tensors
}

/// T5: no biases, relative positions in the first layer of each stack.
pub fn t5(dims: &Dims, gated: bool, buckets: u64) -> Vec<Tensor> {
    let inner = dims.heads * dims.head_dim;
    let mut tensors = vec![tensor("embedding", &[dims.vocab, dims.hidden], 1, Side::Shared)];
    for (side, layers) in [(Side::Encoder, dims.encoder_layers), (Side::Decoder, dims.decoder_layers)] {
        let of = |module, dims: &[u64]| tensor(module, dims, layers, side);
        let attention = |modules: [&'static str; 4], tensors: &mut Vec<Tensor>| {
            for (at, module) in modules.into_iter().enumerate() {
                let (out, into) = if at == 3 { (dims.hidden, inner) } else { (inner, dims.hidden) };
                tensors.push(of(module, &[out, into]));
            }
            tensors.push(of("norm", &[dims.hidden]));
        };
        attention(["q", "k", "v", "o"], &mut tensors);
        if side == Side::Decoder {
            attention(["cross_q", "cross_k", "cross_v", "cross_o"], &mut tensors);
        }
        if gated {
            tensors.push(of("gate", &[dims.ffn, dims.hidden]));
        }
        tensors.extend([
            of("up", &[dims.ffn, dims.hidden]),
            of("down", &[dims.hidden, dims.ffn]),
            of("ffn_norm", &[dims.hidden]),
            tensor("relative_embedding", &[buckets, dims.heads], 1, side),
            tensor("final_norm", &[dims.hidden], 1, side),
        ]);
    }
    if !dims.tied {
        tensors.push(tensor("head", &[dims.vocab, dims.hidden], 1, Side::Shared));
    }
    tensors
}
