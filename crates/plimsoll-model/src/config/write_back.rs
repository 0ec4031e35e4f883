//! A config on its way out: the raw one, changed only where it would be read as something else.

use plimsoll_plan::dtype::Dtype;
use serde_json::{Map, Value, json};

/// The keys of a config to be saved.
pub(super) struct Config {
    map: Map<String, Value>,
}

impl Config {
    pub(super) fn of(raw: &Value) -> Config {
        Config { map: raw.as_object().cloned().unwrap_or_default() }
    }

    /// Keeps these keys alone.
    pub(super) fn keep(&mut self, keys: &[&str]) {
        self.map.retain(|key, _| keys.contains(&key.as_str()));
    }

    /// Sets a key, unless it says the same already.
    pub(super) fn put(&mut self, key: &str, value: Value) {
        let same = match (self.map.get(key), &value) {
            // 0.1 as f32 is not 0.1 as f64: a number that we would read the same stays as it was written.
            (Some(Value::Number(old)), Value::Number(new)) => {
                old.as_f64().map(|n| n as f32) == new.as_f64().map(|n| n as f32) && old.is_f64() == new.is_f64()
            }
            // Several end tokens: the spec of a T5 knows the first.
            (Some(Value::Array(old)), new) => old.first() == Some(new) || self.map.get(key) == Some(new),
            (old, new) => old == Some(new),
        };
        if !same {
            self.map.insert(key.into(), value);
        }
    }

    /// Sets a key to a number, unless it is read as that number already.
    pub(super) fn put_number(&mut self, key: &str, value: f32) {
        if self.map.get(key).and_then(Value::as_f64).map(|n| n as f32) != Some(value) {
            self.map.insert(key.into(), shortest(value));
        }
    }

    /// The class that the model is for.
    pub(super) fn class(&mut self, class: &str) {
        self.map.insert("architectures".into(), json!([class]));
    }

    /// transformers 4 reads `torch_dtype`; 5 reads `dtype` first.
    pub(super) fn dtype(&mut self, dtype: Dtype) {
        let name = if dtype == Dtype::Bf16 { "bfloat16" } else { "float32" };
        self.put("torch_dtype", json!(name));
        if self.map.contains_key("dtype") {
            self.map.insert("dtype".into(), json!(name));
        }
    }

    pub(super) fn into_value(self) -> Value {
        Value::Object(self.map)
    }
}

/// The shortest decimal that is read back as the same f32.
pub(crate) fn shortest(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or(f64::from(value)))
}
