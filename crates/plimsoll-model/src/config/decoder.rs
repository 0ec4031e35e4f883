//! GPT-2, Llama, Mistral, Qwen2 and Qwen3, read into a `DecoderSpec` and written back.
//!
//! Each family has its own names and defaults; what they compute differs in a handful of facts, and those are read
//! here. Keys that a family's class does not read (`attention_bias` of a Mistral) are not read here either.

use plimsoll_plan::spec::{DecoderFamily, DecoderSpec, Dropouts, Positions};
use serde_json::{Value, json};

use super::keys::{MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, PROBABILITY};
use super::{Config, Keys, rope};
use crate::ModelError;

use DecoderFamily::{Gpt2, Llama, Mistral, Qwen2, Qwen3};

pub(super) fn read(keys: &Keys<'_>, family: DecoderFamily) -> Result<DecoderSpec, ModelError> {
    refuse_what_we_cannot_do(keys)?;
    let spec = if family == Gpt2 { read_gpt2(keys)? } else { read_llama_like(keys, family)? };
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        let expected = format!("a divisor of the {} heads", spec.heads);
        return Err(keys.wrong("num_key_value_heads", &expected, &spec.kv_heads.to_string()));
    }
    if spec.positions != Positions::Learned && !spec.d_head.is_multiple_of(2) {
        return Err(keys.wrong("head_dim", "even, for rotary positions", &spec.d_head.to_string()));
    }
    Ok(spec)
}

/// What no family here computes, whatever its class would make of the key.
fn refuse_what_we_cannot_do(keys: &Keys<'_>) -> Result<(), ModelError> {
    for key in ["is_encoder_decoder", "add_cross_attention"] {
        if keys.flag(key)? == Some(true) {
            return Err(keys.wrong(key, "`false`", "true"));
        }
    }
    for key in ["quantization_config", "num_experts", "num_local_experts", "n_routed_experts"] {
        match keys.map.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Number(n)) if n.as_u64() == Some(0) => {}
            Some(found) => return Err(keys.wrong(key, "absent", &found.to_string())),
        }
    }
    Ok(())
}

fn read_gpt2(keys: &Keys<'_>) -> Result<DecoderSpec, ModelError> {
    match keys.text("activation_function")?.unwrap_or("gelu_new") {
        // Two names of the same formula.
        "gelu_new" | "gelu_pytorch_tanh" => {}
        other => return Err(keys.wrong("activation_function", "`gelu_new` or `gelu_pytorch_tanh`", other)),
    }
    for (key, must) in [("scale_attn_weights", true), ("scale_attn_by_inverse_layer_idx", false)] {
        if let Some(found) = keys.flag(key)?.filter(|found| *found != must) {
            return Err(keys.wrong(key, &format!("`{must}`"), &found.to_string()));
        }
    }
    let vocab = keys.size("vocab_size", None, 50257, MAX_VOCAB)?;
    let d_model = keys.size("n_embd", Some("hidden_size"), 768, MAX_WIDTH)?;
    let heads = keys.size("n_head", Some("num_attention_heads"), 12, MAX_HEADS)?;
    if !d_model.is_multiple_of(heads) {
        return Err(keys.wrong("n_head", &format!("a divisor of the width {d_model}"), &heads.to_string()));
    }
    Ok(DecoderSpec {
        family: Gpt2,
        vocab,
        d_model,
        layers: keys.size("n_layer", Some("num_hidden_layers"), 12, MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        d_head: d_model / heads,
        d_ff: keys.size_or_null("n_inner", None, MAX_WIDTH)?.unwrap_or(4 * d_model),
        norm_eps: small(keys, "layer_norm_epsilon", 1e-5)?,
        positions: Positions::Learned,
        max_positions: keys.size("n_positions", Some("max_position_embeddings"), 1024, MAX_VOCAB)?,
        windows: vec![],
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        tied: keys.flag("tie_word_embeddings")?.unwrap_or(true),
        dropout: Dropouts {
            embedding: probability(keys, "embd_pdrop", 0.1)?,
            attention: probability(keys, "attn_pdrop", 0.1)?,
            residual: probability(keys, "resid_pdrop", 0.1)?,
        },
        init_std: deviation(keys)?,
        bos_id: keys.token_or_null("bos_token_id", Some(50256), vocab)?,
        eos_ids: keys.tokens("eos_token_id", Some(50256), vocab)?,
        pad_id: pad(keys, vocab)?,
    })
}

/// What absent keys mean to one of the four.
struct Defaults {
    vocab: usize,
    d_ff: usize,
    kv_heads: Option<usize>,
    max_positions: usize,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
}

fn defaults(family: DecoderFamily) -> Defaults {
    let llama =
        Defaults { vocab: 32000, d_ff: 11008, kv_heads: None, max_positions: 2048, bos_id: Some(1), eos_id: Some(2) };
    match family {
        Gpt2 | Llama => llama,
        Mistral => Defaults { d_ff: 14336, kv_heads: Some(8), max_positions: 131_072, ..llama },
        Qwen2 | Qwen3 => Defaults {
            vocab: 151_936,
            d_ff: 22016,
            kv_heads: Some(32),
            max_positions: 32768,
            bos_id: None,
            eos_id: None,
        },
    }
}

fn read_llama_like(keys: &Keys<'_>, family: DecoderFamily) -> Result<DecoderSpec, ModelError> {
    match keys.text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => {}
        other => return Err(keys.wrong("hidden_act", "`silu`", other)),
    }
    let absent = defaults(family);
    let vocab = keys.size("vocab_size", None, absent.vocab, MAX_VOCAB)?;
    let d_model = keys.size("hidden_size", None, 4096, MAX_WIDTH)?;
    let layers = keys.size("num_hidden_layers", None, 32, MAX_LAYERS)?;
    let heads = keys.size("num_attention_heads", None, 32, MAX_HEADS)?;
    let max_positions = keys.size("max_position_embeddings", None, absent.max_positions, MAX_VOCAB)?;
    let kv_heads = keys.size_or_null("num_key_value_heads", absent.kv_heads, MAX_HEADS)?.unwrap_or(heads);
    let d_head = match family {
        Qwen3 => keys.size("head_dim", None, 128, MAX_HEADS)?,
        _ => {
            let said = keys.size_or_null("head_dim", None, MAX_HEADS)?;
            // Llama's class wants it even where the width of a head is given.
            if (said.is_none() || family == Llama) && !d_model.is_multiple_of(heads) {
                let expected = format!("a divisor of the width {d_model}");
                return Err(keys.wrong("num_attention_heads", &expected, &heads.to_string()));
            }
            said.unwrap_or(d_model / heads)
        }
    };
    let attention_bias = matches!(family, Llama | Qwen3) && keys.flag("attention_bias")?.unwrap_or(false);
    let attention_dropout = match keys.map.get("attention_dropout") {
        Some(Value::Null) if family == Llama => 0.0,
        _ => probability(keys, "attention_dropout", 0.0)?,
    };
    Ok(DecoderSpec {
        family,
        vocab,
        d_model,
        layers,
        heads,
        kv_heads,
        d_head,
        d_ff: keys.size("intermediate_size", None, absent.d_ff, MAX_WIDTH)?,
        norm_eps: small(keys, "rms_norm_eps", 1e-6)?,
        positions: Positions::Rope(rope::read(keys, max_positions)?),
        max_positions,
        windows: windows(keys, family, layers)?,
        qkv_bias: family == Qwen2 || attention_bias,
        out_bias: attention_bias,
        mlp_bias: family == Llama && keys.flag("mlp_bias")?.unwrap_or(false),
        tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        dropout: Dropouts { attention: attention_dropout, ..Dropouts::default() },
        init_std: deviation(keys)?,
        bos_id: keys.token_or_null("bos_token_id", absent.bos_id, vocab)?,
        eos_ids: keys.tokens("eos_token_id", absent.eos_id, vocab)?,
        pad_id: pad(keys, vocab)?,
    })
}

/// The window of each block; none where every block sees everything.
///
/// Mistral has one for all, in use unless it is null. Qwen has one for the blocks that `layer_types` names, or for those
/// from `max_window_layers` on, in use only with `use_sliding_window`.
fn windows(keys: &Keys<'_>, family: DecoderFamily, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = match family {
        Gpt2 | Llama => return Ok(vec![]),
        Mistral => keys.size_or_null("sliding_window", Some(4096), MAX_VOCAB)?,
        Qwen2 | Qwen3 => {
            let said = keys.size_or_null("sliding_window", Some(4096), MAX_VOCAB)?;
            said.filter(|_| keys.flag("use_sliding_window").is_ok_and(|on| on == Some(true)))
        }
    };
    keys.flag("use_sliding_window")?;
    let slides: Vec<bool> = match keys.map.get("layer_types") {
        None | Some(Value::Null) => {
            let first = match (family, keys.map.get("max_window_layers")) {
                (Mistral, _) => 0,
                (_, None) => 28,
                (_, Some(said)) => {
                    said.as_u64().ok_or_else(|| keys.wrong("max_window_layers", "a whole number", &said.to_string()))?
                }
            };
            (0..layers as u64).map(|block| window.is_some() && block >= first).collect()
        }
        Some(said) => layer_types(keys, said, layers)?,
    };
    let sliding = slides.iter().filter(|slides| **slides).count();
    let possible = if family == Mistral {
        sliding == if window.is_some() { layers } else { 0 }
    } else {
        sliding == 0 || window.is_some()
    };
    if !possible {
        let expected = match (family, window) {
            (Mistral, Some(_)) => "`sliding_attention` for every block, as `sliding_window` has it",
            _ => "`full_attention` for every block, as there is no sliding window",
        };
        return Err(keys.wrong("layer_types", expected, &keys.map["layer_types"].to_string()));
    }
    Ok(if sliding == 0 { vec![] } else { slides.iter().map(|slides| window.filter(|_| *slides)).collect() })
}

fn layer_types(keys: &Keys<'_>, said: &Value, layers: usize) -> Result<Vec<bool>, ModelError> {
    let list: Option<Vec<bool>> = said.as_array().and_then(|list| {
        let one = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Some(true),
            // The second is the name of older configs.
            Some("full_attention" | "attention") => Some(false),
            _ => None,
        };
        list.iter().map(one).collect()
    });
    list.filter(|list| list.len() == layers).ok_or_else(|| {
        let expected = format!("`full_attention` or `sliding_attention` for each of {layers} blocks");
        keys.wrong("layer_types", &expected, &said.to_string())
    })
}

fn small(keys: &Keys<'_>, key: &'static str, default: f32) -> Result<f32, ModelError> {
    keys.number(key, default, "a number between 0 and 1", |e| 0.0 < e && e < 1.0)
}

fn probability(keys: &Keys<'_>, key: &'static str, default: f32) -> Result<f32, ModelError> {
    keys.number(key, default, PROBABILITY, |p| (0.0..1.0).contains(&p))
}

fn deviation(keys: &Keys<'_>) -> Result<f32, ModelError> {
    let said = keys.number("initializer_range", 0.02, "a number from 0 to 1", |s| (0.0..=1.0).contains(&s))?;
    // As transformers takes it.
    Ok(if said == 0.0 { 0.02 } else { said })
}

/// Older configs write -1 for none.
fn pad(keys: &Keys<'_>, vocab: usize) -> Result<Option<u32>, ModelError> {
    match keys.map.get("pad_token_id").and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        _ => keys.token_or_null("pad_token_id", None, vocab),
    }
}

/// Writes what the spec makes true. Positions and windows stay as they were said: `to_save` reads the result again.
pub(super) fn write(config: &mut Config, spec: &DecoderSpec) {
    let class = match spec.family {
        Gpt2 => "GPT2LMHeadModel",
        Llama => "LlamaForCausalLM",
        Mistral => "MistralForCausalLM",
        Qwen2 => "Qwen2ForCausalLM",
        Qwen3 => "Qwen3ForCausalLM",
    };
    config.class(class);
    config.put("vocab_size", json!(spec.vocab));
    config.put("tie_word_embeddings", json!(spec.tied));
    if spec.family == Gpt2 {
        config.put("n_embd", json!(spec.d_model));
        config.put("n_layer", json!(spec.layers));
        config.put("n_head", json!(spec.heads));
        if spec.d_ff != 4 * spec.d_model {
            config.put("n_inner", json!(spec.d_ff));
        }
        config.put("n_positions", json!(spec.max_positions));
        config.put_number("layer_norm_epsilon", spec.norm_eps);
        config.put_number("embd_pdrop", spec.dropout.embedding);
        config.put_number("attn_pdrop", spec.dropout.attention);
        config.put_number("resid_pdrop", spec.dropout.residual);
    } else {
        config.put("hidden_size", json!(spec.d_model));
        config.put("num_hidden_layers", json!(spec.layers));
        config.put("num_attention_heads", json!(spec.heads));
        config.put("num_key_value_heads", json!(spec.kv_heads));
        config.put("intermediate_size", json!(spec.d_ff));
        config.put("max_position_embeddings", json!(spec.max_positions));
        config.put_number("rms_norm_eps", spec.norm_eps);
        config.put_number("attention_dropout", spec.dropout.attention);
        // Qwen2's class has no such key of its own, but reads it.
        if spec.family != Qwen2 || spec.q_width() != spec.d_model {
            config.put("head_dim", json!(spec.d_head));
        }
        if matches!(spec.family, Llama | Qwen3) {
            config.put("attention_bias", json!(spec.qkv_bias));
        }
        if spec.family == Llama {
            config.put("mlp_bias", json!(spec.mlp_bias));
        }
    }
    for (key, value) in tokens(spec) {
        config.put(key, value);
    }
}

/// The special tokens that there are.
fn tokens(spec: &DecoderSpec) -> Vec<(&'static str, Value)> {
    let ends = match &spec.eos_ids[..] {
        [] => None,
        [one] => Some(json!(one)),
        several => Some(json!(several)),
    };
    let all = [
        ("bos_token_id", spec.bos_id.map(|id| json!(id))),
        ("eos_token_id", ends),
        ("pad_token_id", spec.pad_id.map(|id| json!(id))),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

pub(super) fn generation(spec: &DecoderSpec) -> Value {
    let mut all = json!({ "_from_model_config": true });
    for (key, value) in tokens(spec) {
        all[key] = value;
    }
    all
}
