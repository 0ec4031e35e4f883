//! `cnn-lstm`: config.json holds a `SeriesSpec` key by key, beside the few keys that say what the folder is.
//!
//! Unlike the configs of transformers, nothing unknown is carried along: each key is the model's own, and one that this version
//! does not know would make another model.

use std::fmt;
use std::path::Path;

use plimsoll_plan::spec::SeriesSpec;
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::Config;
use crate::ModelError;

/// What `model_type` says.
pub(crate) const MODEL_TYPE: &str = "cnn-lstm";
/// Keys beside those of the model.
const BESIDE: [&str; 4] = ["model_type", "architectures", "dtype", "torch_dtype"];

/// The spec of a parsed config.
pub(super) fn read(path: &Path, raw: &Value) -> Result<SeriesSpec, ModelError> {
    let Stated(spec) = Stated::deserialize(raw).map_err(|source| ModelError::Json { path: path.into(), source })?;
    spec.check().map_err(|wrong| ModelError::Spec { path: path.into(), place: None, wrong: Box::new(wrong) })?;
    Ok(spec)
}

/// The same of its text, whose errors say line and column.
pub(super) fn read_text(path: &Path, text: &[u8]) -> Result<SeriesSpec, ModelError> {
    let Stated(spec) = serde_json::from_slice(text).map_err(|source| ModelError::Json { path: path.into(), source })?;
    spec.check().map_err(|wrong| ModelError::Spec { path: path.into(), place: None, wrong: Box::new(wrong) })?;
    Ok(spec)
}

/// Writes what the spec makes true; what the config said before of the model goes.
pub(super) fn write(config: &mut Config, spec: &SeriesSpec) {
    config.keep(&BESIDE);
    config.put("model_type", json!(MODEL_TYPE));
    stated(spec).into_iter().for_each(|(key, value)| config.put(&key, value));
}

/// A config of this spec and nothing else.
pub(crate) fn config_of(spec: &SeriesSpec) -> Value {
    let mut map = stated(spec);
    map.insert("model_type".into(), json!(MODEL_TYPE));
    Value::Object(map)
}

/// The keys of a spec. By way of text, which has the shortest decimal of an f32, not that of its double.
fn stated(spec: &SeriesSpec) -> Map<String, Value> {
    let text = serde_json::to_string(spec).expect("a spec has texts for keys");
    serde_json::from_str(&text).expect("a spec is an object")
}

/// A spec, as a config has it.
struct Stated(SeriesSpec);

impl<'de> Deserialize<'de> for Stated {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Stated, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Stated;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the keys of a `cnn-lstm`")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Stated, A::Error> {
                SeriesSpec::deserialize(MapAccessDeserializer::new(Own(map))).map(Stated)
            }
        }
        from.deserialize_map(Keys)
    }
}

/// The entries of a map that are the model's own.
struct Own<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Own<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.0.next_key::<String>()? {
            if !BESIDE.contains(&key.as_str()) {
                let key: StringDeserializer<A::Error> = key.into_deserializer();
                return seed.deserialize(key).map(Some);
            }
            self.0.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}
