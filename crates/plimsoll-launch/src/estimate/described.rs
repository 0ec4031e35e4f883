//! A shape from a JSON text: a Hugging Face config, or a short description by hand.
//!
//! `{"cnn_lstm": {"version": 1, "channels": [64, 128, 256], "lstm": 256, "steps": 60, "features": 112}}`, or the numbers of
//! a transformer: `{"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 8192, "gated": false, "params": 5000000}`.

use serde::Deserialize;
use serde_json::Value;

use super::EstimateError;
use super::cnn_lstm::{self, CnnLstm, Version};
use super::config::from_config;
use super::shape::{ByHand, Dims, Shape};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    version: u8,
    channels: [u64; 3],
    lstm: u64,
    steps: u64,
    features: u64,
    #[serde(default = "two")]
    pool: u64,
}

fn two() -> u64 {
    2
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    #[serde(default)]
    encoder_layers: u64,
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    ffn: u64,
    vocab: u64,
    #[serde(default)]
    tied: bool,
    #[serde(default)]
    gated: bool,
    params: Option<u64>,
}

/// The shape that a JSON value describes.
pub fn described(value: &Value) -> Result<Shape, EstimateError> {
    if value.get("model_type").is_some() || value.get("architectures").is_some() {
        return from_config(value);
    }
    let wrong = |key: &str, expected: &'static str, found: String| EstimateError::BadKey {
        key: key.to_string(),
        expected,
        found,
    };
    if let Some(series) = value.get("cnn_lstm") {
        let form = "`version`, `channels` (three), `lstm`, `steps`, `features` and perhaps `pool`";
        let series = Series::deserialize(series).map_err(|error| wrong("cnn_lstm", form, error.to_string()))?;
        let version = match series.version {
            1 => Version::V1,
            2 => Version::V2,
            other => return Err(wrong("cnn_lstm.version", "1 or 2", other.to_string())),
        };
        let Series { channels, lstm, steps, features, pool, .. } = series;
        return Ok(cnn_lstm::shape(CnnLstm { version, channels, lstm, steps, features, pool }));
    }
    let form = "a Hugging Face config (`model_type`), `cnn_lstm`, or `layers`, `hidden`, `heads`, `ffn` and `vocab`";
    let numbers = Numbers::deserialize(value).map_err(|error| wrong("shape", form, error.to_string()))?;
    if numbers.heads == 0 {
        return Err(wrong("heads", "a number of at least 1", "0".to_string()));
    }
    let dims = Dims {
        encoder_layers: numbers.encoder_layers,
        decoder_layers: numbers.layers,
        hidden: numbers.hidden,
        heads: numbers.heads,
        kv_heads: numbers.kv_heads.unwrap_or(numbers.heads),
        head_dim: numbers.head_dim.unwrap_or(numbers.hidden / numbers.heads),
        ffn: numbers.ffn,
        vocab: numbers.vocab,
        tied: numbers.tied,
    };
    Shape::by_hand(ByHand { params: numbers.params, dims, gated: numbers.gated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_read_and_a_wrong_one_says_what_there_is() {
        let series = serde_json::json!({ "cnn_lstm": {
            "version": 1, "channels": [64, 128, 256], "lstm": 256, "steps": 60, "features": 110 } });
        assert_eq!(described(&series).unwrap().params(), 3_099_142);
        let hand =
            serde_json::json!({ "layers": 2, "hidden": 64, "heads": 2, "ffn": 256, "vocab": 1000, "params": 900000 });
        assert_eq!(described(&hand).unwrap().params(), 900_000);
        let error = described(&serde_json::json!({ "layer": 2 })).unwrap_err().to_string();
        assert!(error.contains("cnn_lstm") && error.contains("model_type"), "{error}");
        assert!(described(&serde_json::json!({ "model_type": "qwen2" })).is_err());
    }
}
