//! The keys of one JSON object, read one by one with what is expected in the message.

use std::path::Path;

use serde_json::{Map, Value};

use crate::ModelError;

/// A width, or a length of context.
pub(crate) const MAX_WIDTH: usize = 1 << 24;
pub(crate) const MAX_HEADS: usize = 1 << 16;
pub(crate) const MAX_LAYERS: usize = 4096;
/// Token ids are signed 32-bit numbers in most of what reads them.
pub(crate) const MAX_VOCAB: usize = i32::MAX as usize;

/// What a number that is a probability must be.
pub(crate) const PROBABILITY: &str = "a number from 0 up to, not including, 1";

/// What a JSON value is, in words.
pub(crate) fn kind_of(value: &Value) -> &'static str {
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
pub(crate) struct Keys<'a> {
    pub path: &'a Path,
    pub map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub(crate) fn wrong(&self, key: &'static str, expected: &str, found: &str) -> ModelError {
        ModelError::ConfigKey { path: self.path.into(), key, expected: expected.into(), found: found.into() }
    }

    pub(crate) fn text(&self, key: &'static str) -> Result<Option<&'a str>, ModelError> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a text", &other.to_string())),
        }
    }

    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, ModelError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, "`true` or `false`", &other.to_string())),
        }
    }

    /// A whole number from 1 to `limit`, under its name or under transformers' general name for it.
    pub(crate) fn size(
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

    pub(crate) fn number(
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
    pub(crate) fn token(&self, key: &'static str, default: u32, vocab: usize) -> Result<u32, ModelError> {
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

    /// A size that may be null, which is then none.
    pub(crate) fn size_or_null(
        &self,
        key: &'static str,
        default: Option<usize>,
        limit: usize,
    ) -> Result<Option<usize>, ModelError> {
        match self.map.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(_) => self.size(key, None, 1, limit).map(Some),
        }
    }

    /// A token of the vocabulary, or none.
    pub(crate) fn token_or_null(
        &self,
        key: &'static str,
        default: Option<u32>,
        vocab: usize,
    ) -> Result<Option<u32>, ModelError> {
        match (self.map.get(key), default) {
            (Some(Value::Null), _) | (None, None) => Ok(None),
            (_, default) => self.token(key, default.unwrap_or(0), vocab).map(Some),
        }
    }

    /// One token of the vocabulary, several, or none.
    pub(crate) fn tokens(&self, key: &'static str, default: Option<u32>, vocab: usize) -> Result<Vec<u32>, ModelError> {
        let Some(Value::Array(several)) = self.map.get(key) else {
            return Ok(self.token_or_null(key, default, vocab)?.into_iter().collect());
        };
        let ids = several.iter().map(|id| id.as_u64().filter(|&id| id < vocab as u64).map(|id| id as u32));
        match ids.collect::<Option<Vec<u32>>>() {
            Some(ids) if !ids.is_empty() => Ok(ids),
            _ => Err(self.wrong(
                key,
                &format!("a token id below {vocab}, or several"),
                &Value::from(several.clone()).to_string(),
            )),
        }
    }
}
