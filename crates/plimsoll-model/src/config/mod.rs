//! config.json, read into a `ModelSpec` and written back.
//!
//! Follows the config classes of transformers 5.22, defaults included: `t5.rs` for T5 and MT5, `decoder.rs` for GPT-2,
//! Llama, Mistral, Qwen2 and Qwen3; `series.rs` is our own form, for `cnn-lstm`. Keys that are not ours are left alone, so that they reach the saved model.
//! Invariant: a spec that comes out of here can be trained: no size is zero, no product of sizes overflows, every
//! special token is in the vocabulary. What we cannot compute is refused by the name of its key.

mod decoder;
mod keys;
mod rope;
pub(crate) mod series;
mod t5;
mod write_back;

use std::path::Path;

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{DecoderFamily, DecoderSpec, ModelSpec};
use serde_json::Value;

use crate::ModelError;
pub(crate) use keys::{Keys, kind_of};
use write_back::Config;
pub(crate) use write_back::shortest;

/// Which class of transformers the folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    T5,
    /// T5 with other defaults and another scale of the head.
    Mt5,
    Decoder(DecoderFamily),
    /// Not of transformers.
    Series,
}

/// What a config says.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub family: Family,
    /// As for random weights: `tied` is what the config says, not what a file of weights shows.
    pub spec: ModelSpec,
    /// Factor on everything that is drawn at random (T5's `initializer_factor`).
    pub init_factor: f32,
}

/// 1 PiB: so that sums over weights, gradients, states and activations stay far from 64 bits.
const MAX_MODEL_BYTES: u128 = 1 << 50;

const KNOWN: &str = "`t5`, `mt5`, `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3` or `cnn-lstm`";

/// Reads the text of a config.json; `path` is for messages.
pub(crate) fn read_text(path: &Path, text: &[u8]) -> Result<(Value, Said), ModelError> {
    let raw: Value = serde_json::from_slice(text).map_err(|source| ModelError::Json { path: path.into(), source })?;
    if raw.get("model_type").and_then(Value::as_str) == Some(series::MODEL_TYPE) {
        // What is wrong is told with its place in the text.
        series::read_text(path, text)?;
    }
    let said = read(path, &raw)?;
    Ok((raw, said))
}

/// Reads a parsed config.json; `path` is for messages.
pub(crate) fn read(path: &Path, raw: &Value) -> Result<Said, ModelError> {
    let Value::Object(map) = raw else {
        return Err(ModelError::NotAnObject { path: path.into(), found: kind_of(raw).into() });
    };
    let keys = Keys { path, map };
    let family = match keys.text("model_type")? {
        Some("t5") => Family::T5,
        Some("mt5") => Family::Mt5,
        Some("gpt2") => Family::Decoder(DecoderFamily::Gpt2),
        Some("llama") => Family::Decoder(DecoderFamily::Llama),
        Some("mistral") => Family::Decoder(DecoderFamily::Mistral),
        Some("qwen2") => Family::Decoder(DecoderFamily::Qwen2),
        Some("qwen3") => Family::Decoder(DecoderFamily::Qwen3),
        Some(series::MODEL_TYPE) => Family::Series,
        found => return Err(keys.wrong("model_type", KNOWN, found.unwrap_or("nothing"))),
    };
    let (spec, init_factor) = match family {
        Family::T5 | Family::Mt5 => t5::read(&keys, family == Family::Mt5)?,
        Family::Decoder(family) => (decoder::read(&keys, family)?.into(), 1.0),
        Family::Series => (series::read(path, raw)?.into(), 1.0),
    };
    // Every side is bounded, so that no single product overflows 64 bits; their sum may.
    let got_bytes = spec.params().iter().map(|p| 4 * p.elements() as u128).sum();
    if got_bytes > MAX_MODEL_BYTES {
        return Err(ModelError::ModelTooLarge { path: path.into(), got_bytes, limit_bytes: MAX_MODEL_BYTES });
    }
    Ok(Said { family, spec, init_factor })
}

/// The config of a model to be saved: the given one, with what the spec and our files make true. `path` is the given
/// one's, for messages.
pub(crate) fn to_save(path: &Path, raw: &Value, spec: &ModelSpec, dtype: Dtype) -> Result<Value, ModelError> {
    let said = read(path, raw)?;
    let mut config = Config::of(raw);
    match (said.family, spec) {
        (Family::T5, ModelSpec::T5(spec)) => t5::write(&mut config, "T5ForConditionalGeneration", spec),
        (Family::Mt5, ModelSpec::T5(spec)) => t5::write(&mut config, "MT5ForConditionalGeneration", spec),
        (Family::Decoder(family), ModelSpec::Decoder(spec)) if family == spec.family => {
            decoder::write(&mut config, spec);
        }
        (Family::Series, ModelSpec::Series(spec)) => series::write(&mut config, spec),
        _ => return Err(ModelError::SpecNotSaid { path: path.into() }),
    }
    config.dtype(dtype);
    let value = config.into_value();
    let same = match (spec, read(path, &value)?.spec) {
        // A job may change the dropout of a run; only GPT-2 has a key for each.
        (ModelSpec::Decoder(spec), ModelSpec::Decoder(again)) => {
            DecoderSpec { dropout: spec.dropout, ..again } == *spec
        }
        (ModelSpec::Series(spec), ModelSpec::Series(again)) => again == *spec,
        _ => true,
    };
    if same { Ok(value) } else { Err(ModelError::SpecNotSaid { path: path.into() }) }
}

/// The generation_config.json of a model whose source had none; series have none at all.
pub(crate) fn generation(spec: &ModelSpec) -> Value {
    match spec {
        ModelSpec::T5(spec) => t5::generation(spec),
        ModelSpec::Decoder(spec) => decoder::generation(spec),
        ModelSpec::Series(_) => Value::Object(Default::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_plan::spec::Positions;
    use proptest::prelude::*;
    use serde_json::{Map, json};

    const KEYS: [&str; 44] = [
        "vocab_size",
        "d_model",
        "d_kv",
        "num_layers",
        "num_heads",
        "n_embd",
        "n_layer",
        "n_head",
        "n_inner",
        "n_positions",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "original_max_position_embeddings",
        "initializer_range",
        "rms_norm_eps",
        "layer_norm_epsilon",
        "attention_dropout",
        "resid_pdrop",
        "attention_bias",
        "mlp_bias",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "partial_rotary_factor",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "hidden_act",
        "activation_function",
        "quantization_config",
        "scale_attn_weights",
        "num_experts",
        "is_encoder_decoder",
        "feed_forward_proj",
    ];

    fn leaf() -> impl Strategy<Value = Value> {
        prop_oneof![
            3 => (0u64..70).prop_map(|n| json!(n)),
            1 => any::<u64>().prop_map(|n| json!(n)),
            1 => any::<i64>().prop_map(|n| json!(n)),
            1 => any::<f64>().prop_map(|n| json!(n)),
            1 => (0.0..2.0).prop_map(|n: f64| json!(n)),
            1 => any::<bool>().prop_map(|b| json!(b)),
            1 => Just(Value::Null),
            1 => prop::sample::select(vec!["silu", "gelu_new", "linear", "llama3", "full_attention", "sliding_attention", ""])
                .prop_map(|t| json!(t)),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let rope = prop::sample::select(vec![
            "rope_type",
            "type",
            "rope_theta",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "full_attention",
        ]);
        prop_oneof![
            6 => leaf(),
            1 => prop::collection::vec(leaf(), 0..4).prop_map(Value::Array),
            1 => prop::collection::vec((rope, leaf()), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(k, v)| (k.to_string(), v)).collect())),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn a_random_config_never_panics_and_what_is_believed_can_be_trained_and_saved(
            kind in prop::sample::select(vec!["t5", "mt5", "gpt2", "llama", "mistral", "qwen2", "qwen3"]),
            pairs in prop::collection::vec((prop::sample::select(KEYS.to_vec()), value()), 0..6),
        ) {
            let mut map = Map::new();
            map.insert("model_type".into(), json!(kind));
            for (key, value) in pairs {
                map.insert(key.into(), value);
            }
            let raw = Value::Object(map);
            let Ok(said) = read(Path::new("config.json"), &raw) else { return Ok(()) };
            prop_assert!(said.spec.params().iter().all(|p| p.elements() > 0));
            prop_assert!((said.spec.eos_id() as usize) < said.spec.vocab());
            prop_assert!((said.spec.pad_id() as usize) < said.spec.vocab());
            if let ModelSpec::Decoder(spec) = &said.spec {
                prop_assert_eq!(spec.heads % spec.kv_heads, 0);
                prop_assert!(spec.positions == Positions::Learned || spec.d_head % 2 == 0);
                prop_assert!(spec.windows.is_empty() || spec.windows.len() == spec.layers);
                if let Positions::Rope(rope) = spec.positions {
                    prop_assert!((0..spec.d_head / 2).all(|i| rope.frequency(i, spec.d_head).is_finite()));
                }
            }
            let saved = to_save(Path::new("config.json"), &raw, &said.spec, Dtype::F32);
            prop_assert!(saved.is_ok(), "{:?}", saved);
        }
    }
}
