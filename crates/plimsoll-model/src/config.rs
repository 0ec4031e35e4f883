//! config.json of the T5 family, read into a `T5Spec` and written back.
//!
//! Follows `T5Config` and `MT5Config` of transformers 5.22, defaults included. Keys that are not ours are left alone, so
//! that they reach the saved model. Invariant: a spec that comes out of here can be trained: no size is zero, no
//! product of sizes overflows, every special token is in the vocabulary.

use std::path::Path;

use plimsoll_plan::spec::{FeedForward, Param, T5Spec, t5_params};
use serde_json::{Map, Value, json};

use crate::ModelError;

/// Which of the two classes of transformers the folder is for; they differ in defaults and in the head's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    T5,
    Mt5,
}

/// What a config says.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub family: Family,
    /// As for random weights: `tied` is what the config says, not what a file of weights shows.
    pub spec: T5Spec,
    /// Factor on everything that is drawn at random.
    pub init_factor: f32,
}

/// A width, a number of heads or of buckets.
const MAX_WIDTH: usize = 1 << 24;
const MAX_HEADS: usize = 1 << 16;
const MAX_LAYERS: usize = 4096;
/// Token ids are signed 32-bit numbers in most of what reads them.
const MAX_VOCAB: usize = i32::MAX as usize;
/// 1 PiB: so that sums over weights, gradients, states and activations stay far from 64 bits.
const MAX_MODEL_BYTES: u128 = 1 << 50;

/// Reads a parsed config.json; `path` is for messages.
pub(crate) fn read(path: &Path, raw: &Value) -> Result<Said, ModelError> {
    let Value::Object(map) = raw else {
        return Err(ModelError::NotAnObject { path: path.into(), found: kind_of(raw).into() });
    };
    let keys = Keys { path, map };
    let family = match keys.text("model_type")? {
        Some("t5") => Family::T5,
        Some("mt5") => Family::Mt5,
        found => return Err(keys.wrong("model_type", "`t5` or `mt5`", found.unwrap_or("nothing"))),
    };
    if keys.flag("is_encoder_decoder")? == Some(false) {
        return Err(keys.wrong("is_encoder_decoder", "`true`", "false"));
    }
    let mt5 = family == Family::Mt5;
    let by_family = |t5: usize, other: usize| if mt5 { other } else { t5 };

    let vocab = keys.size("vocab_size", None, by_family(32128, 250_112), MAX_VOCAB)?;
    let encoder_layers = keys.size("num_layers", Some("num_hidden_layers"), by_family(6, 8), MAX_LAYERS)?;
    let pad_id = keys.token("pad_token_id", 0, vocab)?;
    let tie = keys.flag("tie_word_embeddings")?;
    // MT5 never scales in transformers 5. T5 does unless told otherwise: by its own key, which transformers 5 writes,
    // or, in older configs, by `tie_word_embeddings = false`.
    let scale_head = !mt5 && keys.flag("scale_decoder_outputs")?.unwrap_or(tie != Some(false));
    let spec = T5Spec {
        vocab,
        d_model: keys.size("d_model", Some("hidden_size"), 512, MAX_WIDTH)?,
        d_kv: keys.size("d_kv", Some("head_dim"), 64, MAX_HEADS)?,
        d_ff: keys.size("d_ff", None, by_family(2048, 1024), MAX_WIDTH)?,
        encoder_layers,
        decoder_layers: keys.size("num_decoder_layers", None, encoder_layers, MAX_LAYERS)?,
        heads: keys.size("num_heads", Some("num_attention_heads"), by_family(8, 6), MAX_HEADS)?,
        buckets: keys.size("relative_attention_num_buckets", None, 32, MAX_HEADS)?,
        max_distance: keys.size("relative_attention_max_distance", None, 128, MAX_VOCAB)?,
        dropout: keys
            .number("dropout_rate", 0.1, "a number from 0 up to, not including, 1", |p| (0.0..1.0).contains(&p))?,
        norm_eps: keys.number("layer_norm_epsilon", 1e-6, "a number between 0 and 1", |e| 0.0 < e && e < 1.0)?,
        feed_forward: feed_forward(&keys, mt5)?,
        tied: tie != Some(false),
        scale_head,
        pad_id,
        eos_id: keys.token("eos_token_id", 1, vocab)?,
        start_id: match map.get("decoder_start_token_id") {
            Some(Value::Null) | None => pad_id,
            Some(_) => keys.token("decoder_start_token_id", pad_id, vocab)?,
        },
    };
    buckets_make_sense(&keys, &spec)?;
    let init_factor = keys.number("initializer_factor", 1.0, "a number above 0", |f| f > 0.0)?;
    // Every side is bounded above, so that no single product overflows 64 bits; their sum may.
    let got_bytes = t5_params(&spec).iter().map(|p: &Param| 4 * p.elements() as u128).sum();
    if got_bytes > MAX_MODEL_BYTES {
        return Err(ModelError::ModelTooLarge { path: path.into(), got_bytes, limit_bytes: MAX_MODEL_BYTES });
    }
    Ok(Said { family, spec, init_factor })
}

fn feed_forward(keys: &Keys<'_>, mt5: bool) -> Result<FeedForward, ModelError> {
    let default = if mt5 { "gated-gelu" } else { "relu" };
    let (kind, act, gated) = match keys.text("feed_forward_proj")?.unwrap_or(default) {
        "relu" => (FeedForward::Relu, "relu", false),
        "gated-gelu" => (FeedForward::GatedGelu, "gelu_new", true),
        other => return Err(keys.wrong("feed_forward_proj", "`relu` or `gated-gelu`", other)),
    };
    // transformers lets these two overrule `feed_forward_proj`.
    if let Some(found) = keys.text("dense_act_fn")?.filter(|found| *found != act) {
        return Err(keys.wrong("dense_act_fn", &format!("`{act}`, as `feed_forward_proj` has it"), found));
    }
    if let Some(found) = keys.flag("is_gated_act")?.filter(|found| *found != gated) {
        return Err(keys.wrong(
            "is_gated_act",
            &format!("`{gated}`, as `feed_forward_proj` has it"),
            &found.to_string(),
        ));
    }
    Ok(kind)
}

/// The encoder halves the buckets for the two directions, and half of what is left counts single positions; the rest
/// grows as the logarithm of distance over that count, which must be above one.
fn buckets_make_sense(keys: &Keys<'_>, spec: &T5Spec) -> Result<(), ModelError> {
    if spec.buckets < 4 {
        let key = "relative_attention_num_buckets";
        return Err(keys.wrong(key, "at least 4", &spec.buckets.to_string()));
    }
    if spec.max_distance <= spec.buckets / 2 {
        let expected = format!("above half of the {} buckets", spec.buckets);
        return Err(keys.wrong("relative_attention_max_distance", &expected, &spec.max_distance.to_string()));
    }
    Ok(())
}

/// The config of a model to be saved: the given one, with what the spec and our files make true.
///
/// transformers 4 scales the head if and only if the embeddings are tied, transformers 5 has a key of its own for it;
/// `tie_word_embeddings = scale_head` makes both compute the same, as long as an unscaled model brings its head.
pub(crate) fn to_save(raw: &Value, family: Family, spec: &T5Spec) -> Value {
    let mut map = raw.as_object().cloned().unwrap_or_default();
    let mut put = |key: &str, value: Value| {
        let same = match (map.get(key), &value) {
            // 0.1 as f32 is not 0.1 as f64: a number that we would read the same stays as it was written.
            (Some(Value::Number(old)), Value::Number(new)) => {
                old.as_f64().map(|n| n as f32) == new.as_f64().map(|n| n as f32) && old.is_f64() == new.is_f64()
            }
            // Several end tokens: the spec knows the first.
            (Some(Value::Array(old)), new) => old.first() == Some(new),
            (old, new) => old == Some(new),
        };
        if !same {
            map.insert(key.into(), value);
        }
    };
    let (class, name) = match family {
        Family::T5 => ("T5ForConditionalGeneration", "t5"),
        Family::Mt5 => ("MT5ForConditionalGeneration", "mt5"),
    };
    let (feed_forward, act, gated) = match spec.feed_forward {
        FeedForward::Relu => ("relu", "relu", false),
        FeedForward::GatedGelu => ("gated-gelu", "gelu_new", true),
    };
    for (key, value) in [
        ("model_type", json!(name)),
        ("torch_dtype", json!("float32")),
        ("is_encoder_decoder", json!(true)),
        ("vocab_size", json!(spec.vocab)),
        ("d_model", json!(spec.d_model)),
        ("d_kv", json!(spec.d_kv)),
        ("d_ff", json!(spec.d_ff)),
        ("num_layers", json!(spec.encoder_layers)),
        ("num_decoder_layers", json!(spec.decoder_layers)),
        ("num_heads", json!(spec.heads)),
        ("relative_attention_num_buckets", json!(spec.buckets)),
        ("relative_attention_max_distance", json!(spec.max_distance)),
        ("dropout_rate", shortest(spec.dropout)),
        ("layer_norm_epsilon", shortest(spec.norm_eps)),
        ("feed_forward_proj", json!(feed_forward)),
        ("dense_act_fn", json!(act)),
        ("is_gated_act", json!(gated)),
        ("tie_word_embeddings", json!(spec.scale_head)),
        ("scale_decoder_outputs", json!(spec.scale_head)),
        ("pad_token_id", json!(spec.pad_id)),
        ("eos_token_id", json!(spec.eos_id)),
        ("decoder_start_token_id", json!(spec.start_id)),
    ] {
        put(key, value);
    }
    map.insert("architectures".into(), json!([class]));
    if map.contains_key("dtype") {
        map.insert("dtype".into(), json!("float32"));
    }
    Value::Object(map)
}

/// The generation_config.json of a model whose source had none.
pub(crate) fn generation(spec: &T5Spec) -> Value {
    json!({
        "_from_model_config": true,
        "decoder_start_token_id": spec.start_id,
        "eos_token_id": spec.eos_id,
        "pad_token_id": spec.pad_id,
    })
}

/// The shortest decimal that is read back as the same f32.
fn shortest(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or(f64::from(value)))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The keys of one config, read with the expectation in the message.
struct Keys<'a> {
    path: &'a Path,
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    fn wrong(&self, key: &'static str, expected: &str, found: &str) -> ModelError {
        ModelError::ConfigKey { path: self.path.into(), key, expected: expected.into(), found: found.into() }
    }

    fn text(&self, key: &'static str) -> Result<Option<&'a str>, ModelError> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a text", &other.to_string())),
        }
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>, ModelError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, "`true` or `false`", &other.to_string())),
        }
    }

    /// A whole number from 1 to `limit`, under its name or under transformers' general name for it.
    fn size(
        &self,
        key: &'static str,
        alias: Option<&'static str>,
        default: usize,
        limit: usize,
    ) -> Result<usize, ModelError> {
        let expected = format!("a whole number from 1 to {limit}");
        let one = |key: &'static str| match self.map.get(key) {
            None => Ok(None),
            // The only size that transformers lets be null: "as many as the encoder has".
            Some(Value::Null) if key == "num_decoder_layers" => Ok(None),
            Some(value) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) if (1..=limit).contains(&n) => Ok(Some(n)),
                _ => Err(self.wrong(key, &expected, &value.to_string())),
            },
        };
        let other = alias.map(one).transpose()?.flatten();
        match (one(key)?, other) {
            (Some(n), Some(m)) if n != m => {
                Err(self.wrong(key, &format!("{m}, as `{}` has it", alias.unwrap_or_default()), &n.to_string()))
            }
            (n, m) => Ok(n.or(m).unwrap_or(default)),
        }
    }

    fn number(
        &self,
        key: &'static str,
        default: f32,
        expected: &str,
        fits: impl Fn(f32) -> bool,
    ) -> Result<f32, ModelError> {
        let Some(value) = self.map.get(key) else { return Ok(default) };
        match value.as_f64().map(|n| n as f32) {
            Some(n) if n.is_finite() && fits(n) => Ok(n),
            _ => Err(self.wrong(key, expected, &value.to_string())),
        }
    }

    /// A token of the vocabulary; of several (`eos_token_id` may be a list) the first.
    fn token(&self, key: &'static str, default: u32, vocab: usize) -> Result<u32, ModelError> {
        let said = match self.map.get(key) {
            Some(Value::Array(several)) if key == "eos_token_id" && !several.is_empty() => Some(&several[0]),
            said => said,
        };
        let id = said.map_or(Some(u64::from(default)), Value::as_u64);
        match id.filter(|&id| id < vocab as u64) {
            Some(id) => Ok(id as u32),
            None => {
                let found = said.map_or_else(|| default.to_string(), Value::to_string);
                Err(self.wrong(key, &format!("a token id below {vocab}"), &found))
            }
        }
    }
}
