//! LoRA adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`, in and out.
//!
//! Invariant: an `AdapterFolder` means the same here as in PEFT. Every setting that would change the numbers and that
//! we do not compute is refused by its key, also one that this version has never heard of. What is written holds the
//! factors alone, never a weight of the base.

use std::path::{Path, PathBuf};

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{ModelSpec, Param};
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec, stored};
use serde_json::{Map, Value, json};

use crate::config::{Keys, kind_of, shortest};
use crate::partial::{Existing, Partial};
use crate::source::TensorSource;
use crate::write::{Outgoing, write_from};
use crate::{ModelError, WeightFiles, folder, names, small_file};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Settings of PEFT that we do not compute; null, false and empty mean that they are not in use.
const REFUSED: [&str; 18] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "exclude_modules",
    "kasa_config",
    "layer_replication",
    "layers_to_transform",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];
/// Settings that are read here, or that change no number of a trained adapter.
const HARMLESS: [&str; 24] = [
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
];

/// A folder with an adapter.
#[derive(Debug)]
pub struct AdapterFolder {
    dir: PathBuf,
    lora: LoraSpec,
    base: Option<String>,
    weights: WeightFiles,
}

impl AdapterFolder {
    /// Reads adapter_config.json and the header of the factors.
    pub fn open(dir: impl AsRef<Path>) -> Result<AdapterFolder, ModelError> {
        let dir = dir.as_ref();
        for file in [CONFIG, WEIGHTS] {
            if !dir.join(file).try_exists()? {
                return Err(ModelError::AdapterMissing { dir: dir.into(), file, found: small_file::names_in(dir)? });
            }
        }
        let path = dir.join(CONFIG);
        let raw: Value = serde_json::from_slice(&small_file::read(&path)?)
            .map_err(|source| ModelError::Json { path: path.clone(), source })?;
        let (lora, base) = read(&path, &raw)?;
        let weights = WeightFiles::open_file(dir.join(WEIGHTS))?;
        let others: Vec<String> = weights.names().filter(|name| !is_factor(name)).map(String::from).collect();
        if !others.is_empty() {
            return Err(ModelError::TrainedExtras { path: weights.place().into(), tensors: others });
        }
        Ok(AdapterFolder { dir: dir.into(), lora, base, weights })
    }

    /// LoRA's numbers.
    pub fn lora(&self) -> &LoraSpec {
        &self.lora
    }

    /// The model that it was trained on, as it was written: a path or a name; none where PEFT knew none.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The factors, under their names in `stored` (`MODULE.lora_A.weight`) as well as under PEFT's.
    pub fn weights(&self) -> &WeightFiles {
        &self.weights
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says whether the factors are exactly those of this model's modules. Reads no weights.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), ModelError> {
        let params = adapter_params(spec, &self.lora)?;
        self.weights.check(&params)?;
        let extras = self.weights.extras(&params);
        match extras.is_empty() {
            true => Ok(()),
            false => Err(ModelError::TrainedExtras { path: self.weights.place().into(), tensors: extras }),
        }
    }
}

/// Both factors of every module that has them, in the model's order.
pub fn adapter_params(spec: &ModelSpec, lora: &LoraSpec) -> Result<Vec<Param>, ModelError> {
    let all = stored(spec, &TrainSpec::Lora(lora.clone()), &Storage::default());
    let params: Vec<Param> = all.into_iter().filter(|held| held.adapter).map(|held| held.param).collect();
    match params.is_empty() {
        true => Err(ModelError::NoSuchModules { targets: lora.targets.clone() }),
        false => Ok(params),
    }
}

fn is_factor(name: &str) -> bool {
    let ours = names::from_adapter(name);
    ours.is_some_and(|name| name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight"))
}

/// Reads a parsed adapter_config.json; `path` is for messages.
fn read(path: &Path, raw: &Value) -> Result<(LoraSpec, Option<String>), ModelError> {
    let Value::Object(map) = raw else {
        return Err(ModelError::NotAnObject { path: path.into(), found: kind_of(raw).into() });
    };
    let keys = Keys { path, map };
    must_be(&keys, "peft_type", &["LORA"])?;
    for key in REFUSED {
        if let Some(found) = map.get(key).filter(|value| in_use(value)) {
            return Err(keys.wrong(key, "absent", &found.to_string()));
        }
    }
    let known = |key: &str| REFUSED.contains(&key) || HARMLESS.contains(&key);
    if let Some((key, found)) = map.iter().find(|(key, value)| !known(key) && in_use(value)) {
        return Err(ModelError::AdapterKey { path: path.into(), key: key.clone(), found: found.to_string() });
    }
    if map.get("bias").is_some_and(|value| !value.is_null()) {
        must_be(&keys, "bias", &["none"])?;
    }
    if map.get("task_type").is_some_and(|value| !value.is_null()) {
        must_be(&keys, "task_type", &["CAUSAL_LM", "SEQ_2_SEQ_LM"])?;
    }
    // The others change the base when they begin (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA), so that it is not the base.
    if matches!(map.get("init_lora_weights"), Some(Value::String(_))) {
        must_be(&keys, "init_lora_weights", &["gaussian", "orthogonal", "eva"])?;
    }
    let lora = LoraSpec {
        r: keys.size("r", None, 8, 1 << 16)?,
        alpha: keys.number("lora_alpha", 8.0, "a number above 0", |a| a > 0.0)?,
        dropout: keys
            .number("lora_dropout", 0.0, "a number from 0 up to, not including, 1", |p| (0.0..1.0).contains(&p))?,
        rslora: keys.flag("use_rslora")?.unwrap_or(false),
        targets: targets(&keys)?,
    };
    let base = match map.get("base_model_name_or_path") {
        Some(Value::Null) => None,
        _ => keys.text("base_model_name_or_path")?.filter(|base| !base.is_empty()).map(String::from),
    };
    Ok((lora, base))
}

fn must_be(keys: &Keys<'_>, key: &'static str, choices: &[&str]) -> Result<(), ModelError> {
    let found = keys.text(key)?;
    if found.is_some_and(|found| choices.contains(&found)) {
        return Ok(());
    }
    let expected = choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(" or ");
    Err(keys.wrong(key, &expected, found.unwrap_or("nothing")))
}

/// A list: a single text is a regular expression to PEFT.
fn targets(keys: &Keys<'_>) -> Result<Vec<String>, ModelError> {
    let said = keys.map.get("target_modules").unwrap_or(&Value::Null);
    let list: Option<Vec<String>> =
        said.as_array().and_then(|list| list.iter().map(|name| name.as_str().map(String::from)).collect());
    let mut list = list
        .filter(|list| !list.is_empty() && list.iter().all(|name| !name.is_empty()))
        .ok_or_else(|| keys.wrong("target_modules", "a list of names of modules", &said.to_string()))?;
    // PEFT writes a set, in any order.
    list.sort();
    list.dedup();
    Ok(list)
}

fn in_use(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// Writes an adapter's folder: config, factors (f32, asked for by their names in `stored`) and the tokenizer files of the
/// folder `side`. `base` is what is written as the model it belongs to, a path or a name.
pub fn save_adapter(
    dir: impl AsRef<Path>,
    lora: &LoraSpec,
    spec: &ModelSpec,
    base: &str,
    tensors: &mut dyn TensorSource,
    side: impl AsRef<Path>,
    existing: Existing,
) -> Result<(), ModelError> {
    let (dir, side) = (dir.as_ref(), side.as_ref());
    let params = adapter_params(spec, lora)?;
    folder::tokenizer_in(side)?;
    let partial = Partial::begin(dir, existing)?;
    partial.write_json(CONFIG, &Value::Object(to_save(lora, spec, base)))?;
    partial.copy_side_files(side)?;
    let outgoing: Vec<Outgoing> = params
        .into_iter()
        .map(|p| Outgoing {
            name: names::in_adapter(&p.name).unwrap_or_default(),
            from: p.name,
            shape: p.shape,
            count: false,
        })
        .collect();
    let mut file = partial.create(WEIGHTS)?;
    write_from(&mut file, Dtype::F32, &outgoing, tensors)?;
    file.sync_all()?;
    partial.finish(dir, existing)
}

/// PEFT's keys, with its defaults where nothing is said.
fn to_save(lora: &LoraSpec, spec: &ModelSpec, base: &str) -> Map<String, Value> {
    let alpha = match lora.alpha.fract() == 0.0 && lora.alpha < 1e9 {
        true => json!(lora.alpha as u64),
        false => shortest(lora.alpha),
    };
    let task = if spec.decoder().is_some() { "CAUSAL_LM" } else { "SEQ_2_SEQ_LM" };
    let mut map: Map<String, Value> = REFUSED.iter().map(|key| (key.to_string(), Value::Null)).collect();
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!(task)),
        ("base_model_name_or_path", json!(base)),
        ("r", json!(lora.r)),
        ("lora_alpha", alpha),
        ("lora_dropout", shortest(lora.dropout)),
        ("use_rslora", json!(lora.rslora)),
        ("target_modules", json!(lora.targets)),
        ("fan_in_fan_out", json!(spec.decoder().is_some_and(|d| d.weights_are_in_out()))),
        ("bias", json!("none")),
        ("inference_mode", json!(true)),
        ("init_lora_weights", json!(true)),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
        ("lora_bias", json!(false)),
        ("use_dora", json!(false)),
        ("use_qalora", json!(false)),
        ("auto_mapping", Value::Null),
        ("revision", Value::Null),
    ] {
        map.insert(key.into(), value);
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<f64>().prop_map(|n| json!(n)),
            any::<i64>().prop_map(|n| json!(n)),
            (1u64..64).prop_map(|n| json!(n)),
            any::<bool>().prop_map(|b| json!(b)),
            Just(Value::Null),
            Just(json!("none")),
            Just(json!(["q_proj"])),
            Just(json!({})),
            "[a-z]{0,4}".prop_map(|t| json!(t)),
        ]
    }

    proptest! {
        #[test]
        fn a_random_adapter_config_never_panics_and_what_is_believed_has_a_scale(
            pairs in prop::collection::vec((prop::sample::select([REFUSED.as_slice(), HARMLESS.as_slice()].concat()), value()), 0..6),
        ) {
            let mut raw = json!({"peft_type": "LORA", "target_modules": ["v"], "r": 4});
            for (key, value) in pairs {
                raw[key] = value;
            }
            if let Ok((lora, _)) = read(Path::new("x"), &raw) {
                prop_assert!(lora.r > 0 && lora.scale().is_finite() && !lora.targets.is_empty());
            }
        }
    }
}
