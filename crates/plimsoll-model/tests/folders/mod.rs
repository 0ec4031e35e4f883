//! Small folders for the tests, made by hand: config, tokenizer stub, weights with known numbers.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::Path;

use plimsoll_model::{TensorView, write_safetensors};
use plimsoll_plan::spec::{ModelSpec, Param};
use serde_json::{Value, json};

/// A config of the smallest T5 that still has every part.
pub fn config() -> Value {
    json!({
        "model_type": "t5", "vocab_size": 20, "d_model": 6, "d_kv": 3, "d_ff": 8, "num_layers": 1, "num_heads": 2,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "task_specific_params": {"beams": 4},
    })
}

/// Configs of the smallest decoders that still have every part.
pub fn decoder_config(family: &str) -> Value {
    match family {
        "gpt2" => json!({
            "model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 10,
            "bos_token_id": 1, "eos_token_id": 2, "task_specific_params": {"beams": 4},
        }),
        _ => json!({
            "model_type": family, "vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 10,
            "bos_token_id": 1, "eos_token_id": 2, "task_specific_params": {"beams": 4},
        }),
    }
}

/// The config with some keys set; a key set to the text `absent` is removed.
pub fn config_with(changes: &[(&str, Value)]) -> Value {
    changed(config(), changes)
}

/// A config with some keys set; a key set to the text `absent` is removed.
pub fn changed(mut config: Value, changes: &[(&str, Value)]) -> Value {
    for (key, value) in changes {
        if *value == json!("absent") {
            config.as_object_mut().unwrap().remove(*key);
        } else {
            config[*key] = value.clone();
        }
    }
    config
}

/// A folder with this config and a tokenizer file.
pub fn write_folder(dir: &Path, config: &Value) {
    fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
    fs_err::write(dir.join("tokenizer.json"), r#"{"version":"1.0"}"#).unwrap();
}

/// Numbers that differ for every tensor and element.
pub fn numbers(params: &[Param]) -> Vec<Vec<f32>> {
    let number = |i: usize, j: usize| (i * 1000 + j) as f32 * 0.25 - 7.0;
    params.iter().enumerate().map(|(i, p)| (0..p.elements()).map(|j| number(i, j)).collect()).collect()
}

/// Views of these parameters.
pub fn views<'a>(params: &'a [Param], data: &'a [Vec<f32>]) -> Vec<TensorView<'a>> {
    params.iter().zip(data).map(|(p, data)| TensorView { name: &p.name, shape: &p.shape, data }).collect()
}

/// Writes the weights of this spec as model.safetensors; returns the parameters and their numbers.
pub fn write_weights(dir: &Path, spec: &ModelSpec) -> (Vec<Param>, Vec<Vec<f32>>) {
    let params = spec.params();
    let data = numbers(&params);
    write_file(&dir.join("model.safetensors"), &views(&params, &data));
    (params, data)
}

/// Writes tensors as a file.
pub fn write_file(path: &Path, tensors: &[TensorView<'_>]) {
    write_safetensors(&mut fs_err::File::create(path).unwrap(), &[], tensors).unwrap();
}

/// A safetensors file made of any header and so many bytes of data.
pub fn raw_file(path: &Path, header: &str, data_bytes: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    fs_err::write(path, bytes).unwrap();
}
