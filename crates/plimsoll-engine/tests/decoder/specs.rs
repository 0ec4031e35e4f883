//! One or two small models of each family, odd in every width, and their configs as transformers reads them.

use plimsoll_plan::spec::{
    DecoderFamily, DecoderSpec, Dropouts, FeedForward, ModelSpec, Positions, RopeScaling, RopeSpec, T5Spec,
};
use serde_json::{Value, json};

fn rope(scaling: RopeScaling) -> Positions {
    Positions::Rope(RopeSpec { theta: 1000.0, scaling })
}

pub fn gpt2() -> DecoderSpec {
    DecoderSpec {
        family: DecoderFamily::Gpt2,
        vocab: 89,
        d_model: 36,
        layers: 2,
        heads: 3,
        kv_heads: 3,
        d_head: 12,
        d_ff: 70,
        norm_eps: 1e-5,
        positions: Positions::Learned,
        max_positions: 80,
        windows: vec![],
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        tied: true,
        dropout: Dropouts::default(),
        init_std: 0.15,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: None,
    }
}

/// A head of its own.
pub fn gpt2_untied() -> DecoderSpec {
    DecoderSpec { tied: false, layers: 3, ..gpt2() }
}

/// Three queries a key, heads that do not add up to the model's width, Llama 3's stretching.
pub fn llama() -> DecoderSpec {
    let scaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 32 };
    DecoderSpec {
        family: DecoderFamily::Llama,
        heads: 6,
        kv_heads: 2,
        d_head: 10,
        d_ff: 50,
        norm_eps: 1e-6,
        positions: rope(scaling),
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        tied: false,
        ..gpt2()
    }
}

/// Biases everywhere, one head of keys, linear stretching, a tied head.
pub fn llama_biased() -> DecoderSpec {
    DecoderSpec {
        heads: 4,
        kv_heads: 1,
        d_head: 14,
        positions: rope(RopeScaling::Linear { factor: 2.5 }),
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        tied: true,
        layers: 3,
        ..llama()
    }
}

/// A window shorter than the texts in every block.
pub fn mistral() -> DecoderSpec {
    DecoderSpec {
        family: DecoderFamily::Mistral,
        d_model: 40,
        heads: 4,
        kv_heads: 2,
        d_head: 14,
        windows: vec![Some(7); 2],
        positions: rope(RopeScaling::Default),
        ..llama()
    }
}

/// Biases of q, k and v; a window in all blocks but the first.
pub fn qwen2() -> DecoderSpec {
    DecoderSpec {
        family: DecoderFamily::Qwen2,
        d_model: 40,
        heads: 4,
        kv_heads: 2,
        d_head: 10,
        layers: 3,
        windows: vec![None, Some(6), Some(6)],
        qkv_bias: true,
        tied: true,
        positions: rope(RopeScaling::Default),
        ..llama()
    }
}

/// Norms of q and k, wide heads.
pub fn qwen3() -> DecoderSpec {
    DecoderSpec { family: DecoderFamily::Qwen3, heads: 4, d_head: 16, positions: rope(RopeScaling::Default), ..llama() }
}

/// With `attention_bias`, a window in the last block, and a tied head.
pub fn qwen3_biased() -> DecoderSpec {
    DecoderSpec { qkv_bias: true, out_bias: true, tied: true, windows: vec![None, Some(5)], ..qwen3() }
}

pub fn all() -> Vec<(&'static str, DecoderSpec)> {
    vec![
        ("gpt2", gpt2()),
        ("gpt2_untied", gpt2_untied()),
        ("llama", llama()),
        ("llama_biased", llama_biased()),
        ("mistral", mistral()),
        ("qwen2", qwen2()),
        ("qwen3", qwen3()),
        ("qwen3_biased", qwen3_biased()),
    ]
}

/// One of each family.
pub fn families() -> Vec<(&'static str, DecoderSpec)> {
    vec![("gpt2", gpt2()), ("llama", llama()), ("mistral", mistral()), ("qwen2", qwen2()), ("qwen3", qwen3_biased())]
}

pub fn config(spec: &ModelSpec) -> Value {
    match spec {
        ModelSpec::T5(spec) => t5_config(spec),
        ModelSpec::Decoder(spec) => decoder_config(spec),
        ModelSpec::Series(_) => unreachable!("series are no texts"),
    }
}

fn decoder_config(spec: &DecoderSpec) -> Value {
    let common = json!({
        "vocab_size": spec.vocab, "tie_word_embeddings": spec.tied, "bos_token_id": null, "pad_token_id": null,
        "eos_token_id": spec.eos_ids,
    });
    let Positions::Rope(rope) = spec.positions else {
        let own = json!({
            "model_type": "gpt2", "n_embd": spec.d_model, "n_layer": spec.layers, "n_head": spec.heads,
            "n_inner": spec.d_ff, "n_positions": spec.max_positions, "layer_norm_epsilon": spec.norm_eps,
        });
        return merged(own, common);
    };
    let mut rope_parameters = match rope.scaling {
        RopeScaling::Default => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context,
        }),
    };
    rope_parameters["rope_theta"] = rope.theta.into();
    let name = format!("{:?}", spec.family).to_lowercase();
    let mut own = json!({
        "model_type": name, "hidden_size": spec.d_model, "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads, "head_dim": spec.d_head,
        "intermediate_size": spec.d_ff, "rms_norm_eps": spec.norm_eps, "max_position_embeddings": spec.max_positions,
        "rope_parameters": rope_parameters,
    });
    let window = spec.windows.iter().flatten().next();
    match spec.family {
        DecoderFamily::Llama => {
            own["attention_bias"] = spec.qkv_bias.into();
            own["mlp_bias"] = spec.mlp_bias.into();
        }
        DecoderFamily::Mistral => own["sliding_window"] = window.copied().into(),
        _ => {
            if spec.family == DecoderFamily::Qwen3 {
                own["attention_bias"] = spec.qkv_bias.into();
            }
            if let Some(window) = window {
                own["use_sliding_window"] = true.into();
                own["sliding_window"] = (*window).into();
                own["max_window_layers"] = spec.windows.iter().take_while(|w| w.is_none()).count().into();
            }
        }
    }
    merged(own, common)
}

fn merged(mut own: Value, more: Value) -> Value {
    let (Value::Object(own_map), Value::Object(more)) = (&mut own, more) else { unreachable!("both are objects") };
    own_map.extend(more);
    own
}

/// As transformers reads a tied and scaled T5.
fn t5_config(spec: &T5Spec) -> Value {
    assert!(spec.tied && spec.scale_head, "other heads need a file to be read as they are");
    json!({
        "model_type": "t5", "vocab_size": spec.vocab, "d_model": spec.d_model, "d_kv": spec.d_kv, "d_ff": spec.d_ff,
        "num_layers": spec.encoder_layers, "num_decoder_layers": spec.decoder_layers, "num_heads": spec.heads,
        "relative_attention_num_buckets": spec.buckets, "relative_attention_max_distance": spec.max_distance,
        "dropout_rate": 0.0, "layer_norm_epsilon": spec.norm_eps,
        "feed_forward_proj": if spec.feed_forward == FeedForward::Relu { "relu" } else { "gated-gelu" },
        "pad_token_id": spec.pad_id, "eos_token_id": spec.eos_id, "decoder_start_token_id": spec.start_id,
        "tie_word_embeddings": true,
    })
}
