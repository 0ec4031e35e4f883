//! Rotary positions as configs state them: `rope_parameters` of transformers 5, `rope_theta` and `rope_scaling` of 4.
//!
//! `rope_scaling` wins over `rope_parameters`; a base inside of either wins over `rope_theta` beside it.

use plimsoll_plan::spec::{RopeScaling, RopeSpec};
use serde_json::{Map, Value};

use super::Keys;
use super::keys::MAX_VOCAB;
use crate::ModelError;

const DEFAULT_THETA: f32 = 10_000.0;
const KINDS: &str = "`default`, `linear` or `llama3`";

/// One of the two objects.
struct Said<'a> {
    keys: &'a Keys<'a>,
    key: &'static str,
    map: Map<String, Value>,
}

pub(super) fn read(keys: &Keys<'_>, max_positions: usize) -> Result<RopeSpec, ModelError> {
    let said = said(keys)?;
    for nested in ["full_attention", "sliding_attention"] {
        if said.map.contains_key(nested) {
            return Err(said.wrong("one set of numbers for all blocks"));
        }
    }
    // Beside the object or in it: part of a head that stays unturned is not computed here.
    if said.number("partial_rotary_factor", |f| f == 1.0) == Some(None) {
        return Err(said.wrong("an object whose `partial_rotary_factor`, if any, is 1"));
    }
    if keys.map.get("partial_rotary_factor").is_some_and(|f| !f.is_null()) {
        keys.number("partial_rotary_factor", 1.0, "1", |f| f == 1.0)?;
    }
    let beside = keys.number("rope_theta", DEFAULT_THETA, "a number from 1 on", |t| t >= 1.0)?;
    let theta = match said.number("rope_theta", |t| t >= 1.0) {
        None => beside,
        Some(theta) => theta.ok_or_else(|| said.wrong("an object whose `rope_theta` is a number from 1 on"))?,
    };
    Ok(RopeSpec { theta, scaling: scaling(&said, max_positions)? })
}

/// The object that counts; an empty one where there is none.
fn said<'a>(keys: &'a Keys<'a>) -> Result<Said<'a>, ModelError> {
    for key in ["rope_scaling", "rope_parameters"] {
        match keys.map.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) if map.is_empty() => {}
            Some(Value::Object(map)) => return Ok(Said { keys, key, map: map.clone() }),
            Some(other) => return Err(keys.wrong(key, "an object", &other.to_string())),
        }
    }
    Ok(Said { keys, key: "rope_parameters", map: Map::new() })
}

fn scaling(said: &Said<'_>, max_positions: usize) -> Result<RopeScaling, ModelError> {
    let kind = said.map.get("rope_type").or_else(|| said.map.get("type"));
    let factor = || said.required("factor", |f| f >= 1.0, "an object whose `factor` is a number from 1 on");
    match kind.map_or(Some("default"), Value::as_str) {
        Some("default") => Ok(RopeScaling::Default),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
        Some("llama3") => {
            let positive = |name, expected| said.required(name, |f| f > 0.0, expected);
            let low = positive("low_freq_factor", "an object whose `low_freq_factor` is a number above 0")?;
            let high = positive("high_freq_factor", "an object whose `high_freq_factor` is a number above 0")?;
            if high <= low {
                return Err(said.wrong("an object whose `high_freq_factor` is above its `low_freq_factor`"));
            }
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: original_context(said, max_positions)?,
            })
        }
        _ => Err(said.wrong(&format!("an object whose `rope_type` is {KINDS}"))),
    }
}

/// Beside the object, else in it, else the longest context.
fn original_context(said: &Said<'_>, max_positions: usize) -> Result<usize, ModelError> {
    let key = "original_max_position_embeddings";
    if said.keys.map.contains_key(key) {
        return said.keys.size(key, None, max_positions, MAX_VOCAB);
    }
    match said.map.get(key) {
        None => Ok(max_positions),
        Some(value) => {
            value.as_u64().map(|n| n as usize).filter(|n| (1..=MAX_VOCAB).contains(n)).ok_or_else(|| {
                said.wrong("an object whose `original_max_position_embeddings` is a whole number above 0")
            })
        }
    }
}

impl Said<'_> {
    fn wrong(&self, expected: &str) -> ModelError {
        self.keys.wrong(self.key, expected, &Value::Object(self.map.clone()).to_string())
    }

    /// A number of the object: not there, there but impossible, or there.
    fn number(&self, name: &str, fits: impl Fn(f32) -> bool) -> Option<Option<f32>> {
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(value.as_f64().map(|n| n as f32).filter(|n| n.is_finite() && fits(*n)))
    }

    fn required(&self, name: &str, fits: impl Fn(f32) -> bool, expected: &str) -> Result<f32, ModelError> {
        self.number(name, fits).flatten().ok_or_else(|| self.wrong(expected))
    }
}
