//! A model's shape from its Hugging Face `config.json`.
//!
//! Defaults are those of the Python classes. What a class cannot do without is asked for by name, all missing keys at
//! once; numbers beyond any real model are refused, so that no product of them overflows.

use serde_json::Value;

use super::EstimateError;
use super::layout::{self, Biases};
use super::shape::{Dims, Family, Shape};

const KNOWN: &str = "`t5`, `mt5`, `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3`, `bert`, `roberta`";
const BY_HAND: &str = "params, layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied";

/// The shape that a `config.json` describes.
pub fn from_config(config: &Value) -> Result<Shape, EstimateError> {
    let found = config.get("model_type").and_then(Value::as_str);
    let found = found.ok_or_else(|| EstimateError::MissingKeys {
        model_type: "Hugging Face".to_string(),
        keys: vec!["model_type".to_string()],
    })?;
    let mut keys = Keys { config, model_type: found, missing: Vec::new(), bad: None };
    let (family, dims, tensors) = match found {
        "t5" | "mt5" => t5(&mut keys)?,
        "gpt2" => gpt2(&mut keys)?,
        "llama" | "mistral" | "qwen2" | "qwen3" => llama(&mut keys)?,
        "bert" | "roberta" => bert(&mut keys)?,
        _ => {
            return Err(EstimateError::UnknownModelType {
                found: found.to_string(),
                known: KNOWN.to_string(),
                needed: BY_HAND.to_string(),
            });
        }
    };
    Ok(Shape { family, dims, tensors })
}

type Described = (Family, Dims, Vec<super::shape::Tensor>);

fn t5(keys: &mut Keys) -> Result<Described, EstimateError> {
    let encoder_layers = keys.number("num_layers");
    let heads = keys.number("num_heads");
    let dims = Dims {
        encoder_layers,
        decoder_layers: keys.number_or("num_decoder_layers", encoder_layers),
        hidden: keys.number("d_model"),
        heads,
        kv_heads: heads,
        head_dim: keys.number("d_kv"),
        ffn: keys.number("d_ff"),
        vocab: keys.number("vocab_size"),
        tied: keys.flag_or("tie_word_embeddings", true),
    };
    let buckets = keys.number_or("relative_attention_num_buckets", 32);
    let plain = if keys.model_type == "mt5" { "gated-gelu" } else { "relu" };
    let gated = keys.word_or("feed_forward_proj", plain).starts_with("gated");
    keys.done()?;
    Ok((if gated { Family::GatedT5 } else { Family::T5 }, dims, layout::t5(&dims, gated, buckets)))
}

fn gpt2(keys: &mut Keys) -> Result<Described, EstimateError> {
    let (hidden, heads) = (keys.number("n_embd"), keys.number("n_head"));
    let dims = Dims {
        encoder_layers: 0,
        decoder_layers: keys.number("n_layer"),
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads.max(1),
        ffn: keys.number_or("n_inner", 4 * hidden),
        vocab: keys.number("vocab_size"),
        tied: keys.flag_or("tie_word_embeddings", true),
    };
    let positions = keys.number("n_positions");
    keys.done()?;
    Ok((Family::Gpt2, dims, layout::gpt2(&dims, positions)))
}

fn llama(keys: &mut Keys) -> Result<Described, EstimateError> {
    let (hidden, heads) = (keys.number("hidden_size"), keys.number("num_attention_heads"));
    let qwen3 = keys.model_type == "qwen3";
    let head_dim = if qwen3 { 128 } else { hidden / heads.max(1) };
    let dims = Dims {
        encoder_layers: 0,
        decoder_layers: keys.number("num_hidden_layers"),
        hidden,
        heads,
        kv_heads: keys.number_or("num_key_value_heads", heads),
        head_dim: keys.number_or("head_dim", head_dim),
        ffn: keys.number("intermediate_size"),
        vocab: keys.number("vocab_size"),
        tied: keys.flag_or("tie_word_embeddings", false),
    };
    let biases = match (keys.model_type, keys.flag_or("attention_bias", false)) {
        ("qwen2", _) => Biases::Qkv,
        (_, true) => Biases::Qkvo,
        (_, false) => Biases::None,
    };
    keys.done()?;
    Ok((if qwen3 { Family::Qwen3 } else { Family::Llama }, dims, layout::llama(&dims, biases, qwen3)))
}

fn bert(keys: &mut Keys) -> Result<Described, EstimateError> {
    let (hidden, heads) = (keys.number("hidden_size"), keys.number("num_attention_heads"));
    let dims = Dims {
        encoder_layers: 0,
        decoder_layers: keys.number("num_hidden_layers"),
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads.max(1),
        ffn: keys.number("intermediate_size"),
        vocab: keys.number("vocab_size"),
        tied: keys.flag_or("tie_word_embeddings", true),
    };
    let positions = keys.number("max_position_embeddings");
    let types = keys.number_or("type_vocab_size", 2);
    keys.done()?;
    Ok((Family::Bert, dims, layout::bert(&dims, positions, types)))
}

/// A config being read; what is wrong is collected and told by `done`.
struct Keys<'a> {
    config: &'a Value,
    model_type: &'a str,
    missing: Vec<String>,
    bad: Option<EstimateError>,
}

impl Keys<'_> {
    fn number(&mut self, key: &str) -> u64 {
        match self.config.get(key) {
            None | Some(Value::Null) => {
                self.missing.push(key.to_string());
                1
            }
            Some(value) => self.read(key, value),
        }
    }

    fn number_or(&mut self, key: &str, default: u64) -> u64 {
        match self.config.get(key) {
            None | Some(Value::Null) => default,
            Some(value) => self.read(key, value),
        }
    }

    fn read(&mut self, key: &str, value: &Value) -> u64 {
        let most = match key {
            "vocab_size" => 1 << 24,
            key if key.contains("layer") => 1 << 12,
            key if key.contains("head") || key == "d_kv" => 1 << 14,
            _ => 1 << 20,
        };
        match value.as_u64() {
            Some(number) if number >= 1 && number <= most => number,
            _ => {
                let expected = "a whole number of at least 1 that a real model can have";
                let found = value.to_string();
                self.bad.get_or_insert(EstimateError::BadKey { key: key.to_string(), expected, found });
                1
            }
        }
    }

    fn flag_or(&self, key: &str, default: bool) -> bool {
        self.config.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn word_or<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.config.get(key).and_then(Value::as_str).unwrap_or(default)
    }

    fn done(&mut self) -> Result<(), EstimateError> {
        if !self.missing.is_empty() {
            let keys = std::mem::take(&mut self.missing);
            return Err(EstimateError::MissingKeys { model_type: self.model_type.to_string(), keys });
        }
        self.bad.take().map_or(Ok(()), Err)
    }
}
