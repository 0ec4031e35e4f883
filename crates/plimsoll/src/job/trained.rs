//! `model.train`, `model.base`, `train.precision` and `[allow]`: what is trained, how it is stored, and what may be
//! changed where nothing else fits.

use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Allow;
use plimsoll_plan::trained::{LoraSpec, TrainSpec};
use serde::{Deserialize, Serialize};
use toml::{Spanned, Value};

use super::resolve::{Resolver, inline_value};
use super::write::inline;
use super::{AllowTable, Job};
use crate::args::JobFlags;
use crate::render::Fail;

/// How weights that are only read are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// As the file has them: the same result in less memory.
    #[default]
    File,
    /// In f32.
    F32,
    /// In 8 bits: another result.
    Int8,
    /// In 4 bits: another result.
    Nf4,
}

impl Base {
    /// As a job file says it.
    pub fn name(self) -> &'static str {
        match self {
            Base::File => "file",
            Base::F32 => "f32",
            Base::Int8 => "int8",
            Base::Nf4 => "nf4",
        }
    }
}

/// `{ lora = { ... } }`, as written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table like { r = 16, alpha = 32, targets = [\"q_proj\", \"v_proj\"] }"
)]
struct LoraTable {
    r: Option<i64>,
    alpha: Option<f64>,
    dropout: Option<f64>,
    rslora: Option<bool>,
    targets: Option<Vec<String>>,
}

/// `model.train`, as a table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "`all`, { freeze = [...] } or { lora = { r = 16 } }")]
struct TrainTable {
    freeze: Option<Vec<String>>,
    lora: Option<LoraTable>,
}

impl LoraTable {
    fn resolve(self) -> Result<LoraSpec, String> {
        let r = self.r.unwrap_or(16);
        if !(1..=4096).contains(&r) {
            return Err(format!("must have an `r` from 1 to 4096, found `{r}`"));
        }
        let alpha = self.alpha.unwrap_or(2.0 * r as f64);
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(format!("must have an `alpha` above 0, found `{alpha}`"));
        }
        let dropout = self.dropout.unwrap_or(0.0);
        if !(0.0..1.0).contains(&dropout) {
            return Err(format!("must have a `dropout` from 0 to less than 1, found `{dropout}`"));
        }
        let targets = self.targets.unwrap_or_default();
        if targets.iter().any(|t| t.is_empty()) {
            return Err("has an empty name in `targets`".into());
        }
        Ok(LoraSpec {
            r: r as usize,
            alpha: alpha as f32,
            dropout: dropout as f32,
            rslora: self.rslora.unwrap_or(false),
            targets,
        })
    }
}

impl Resolver<'_> {
    /// What is trained. LoRA without targets has those of the model's family, which `prepare` fills in.
    pub(super) fn trained(&mut self, job: &Job, flags: &JobFlags) -> Result<TrainSpec, Fail> {
        const KEY: &str = "model.train";
        let flag = flags.train.as_deref().map(|text| inline_value("--train", text)).transpose()?;
        let Some(value) = self.pick(KEY, flag, job.model.train.clone()) else { return Ok(TrainSpec::All) };
        match value.as_str() {
            Some("all") => return Ok(TrainSpec::All),
            Some("lora") => {
                return Ok(TrainSpec::Lora(LoraTable::default().resolve().map_err(|fact| self.refuse(KEY, fact))?));
            }
            _ => {}
        }
        let hint = "`all`, `lora`, { freeze = [\"encoder.*\"] } or { lora = { r = 16, targets = [\"q_proj\"] } }";
        let table: TrainTable = match value.is_table() {
            true => value.clone().try_into().map_err(|error: toml::de::Error| {
                self.refuse(KEY, format!("= {}: {}", inline(&value), error.message())).hint(hint)
            })?,
            false => return Err(self.refuse(KEY, format!("is `{}`", inline(&value))).hint(hint)),
        };
        match (table.freeze, table.lora) {
            (Some(patterns), None) if !patterns.is_empty() => Ok(TrainSpec::Freeze(patterns)),
            (None, Some(lora)) => Ok(TrainSpec::Lora(lora.resolve().map_err(|fact| self.refuse(KEY, fact))?)),
            _ => Err(self.refuse(KEY, "needs either `freeze` with patterns or `lora`").hint(hint)),
        }
    }

    /// How weights that are only read are stored.
    pub(super) fn base(&mut self, job: &Job, flags: &JobFlags, train: &TrainSpec) -> Result<Base, Fail> {
        const KEY: &str = "model.base";
        let base = match self.pick(KEY, flags.base.clone(), job.model.base.clone()).as_deref() {
            None | Some("file") => Base::File,
            Some("f32") => Base::F32,
            Some("int8") => Base::Int8,
            Some("nf4") => Base::Nf4,
            Some(other) => {
                return Err(self.refuse(KEY, format!("must be `file`, `f32`, `int8` or `nf4`, found `{other}`")));
            }
        };
        if matches!(base, Base::Int8 | Base::Nf4) && !matches!(train, TrainSpec::Lora(_)) {
            let fact = format!("= `{}` needs LoRA: a quantised weight cannot be trained", base.name());
            return Err(self.refuse(KEY, fact).hint("add `train = { lora = { r = 16 } }`"));
        }
        Ok(base)
    }

    /// How weights that are trained are stored.
    pub(super) fn precision(&mut self, job: &Job, flags: &JobFlags) -> Result<Dtype, Fail> {
        const KEY: &str = "train.precision";
        match self.pick(KEY, flags.precision.clone(), job.train.precision.clone()).as_deref() {
            None | Some("f32") => Ok(Dtype::F32),
            Some("bf16") => Ok(Dtype::Bf16),
            Some(other) => Err(self.refuse(KEY, format!("must be `f32` or `bf16`, found `{other}`"))),
        }
    }

    /// Other-result rungs that the plan may take where nothing else fits.
    pub(super) fn allowed(&mut self, job: &Job) -> Result<Allow, Fail> {
        let AllowTable { precision, optimizer, lora, base, length, batch } = job.allow.clone();
        let mut allow = Allow::default();
        for name in self.names("allow.precision", precision)? {
            match name.as_str() {
                "bf16" => allow.bf16_weights = true,
                _ => return Err(self.refuse("allow.precision", format!("knows `bf16`, found `{name}`"))),
            }
        }
        for name in self.names("allow.optimizer", optimizer)? {
            match name.as_str() {
                "adamw8bit" => allow.adamw8bit = true,
                _ => return Err(self.refuse("allow.optimizer", format!("knows `adamw8bit`, found `{name}`"))),
            }
        }
        for name in self.names("allow.base", base)? {
            allow.quantise = Some(match name.as_str() {
                "int8" => Dtype::Int8,
                "nf4" => Dtype::Nf4,
                _ => return Err(self.refuse("allow.base", format!("knows `int8` and `nf4`, found `{name}`"))),
            });
        }
        if let Some(value) = self.pick("allow.lora", None, lora).filter(|value| value.as_bool() != Some(false)) {
            let table: LoraTable = match value.as_bool() {
                Some(_) => LoraTable::default(),
                None => value.clone().try_into().map_err(|error: toml::de::Error| {
                    self.refuse("allow.lora", format!("= {}: {}", inline(&value), error.message()))
                })?,
            };
            allow.lora = Some(table.resolve().map_err(|fact| self.refuse("allow.lora", fact))?);
        }
        if let Some(value) = self.pick("allow.length", None, length).filter(|value| value.as_bool() != Some(false)) {
            let tokens = value.as_integer().filter(|n| *n >= 8);
            allow.shorter = Some(tokens.ok_or_else(|| {
                self.refuse(
                    "allow.length",
                    format!("must be a number of tokens of 8 or more, found `{}`", inline(&value)),
                )
            })? as usize);
        }
        if let Some(value) = self.pick("allow.batch", None, batch)
            && value.as_bool() != Some(false)
        {
            return Err(self
                .refuse("allow.batch", "is not supported: the effective batch is kept")
                .hint("leave it out"));
        }
        Ok(allow)
    }

    /// A list of names, or one.
    fn names(&mut self, key: &'static str, value: Option<Spanned<Value>>) -> Result<Vec<String>, Fail> {
        let Some(value) = self.pick(key, None, value) else { return Ok(Vec::new()) };
        let name = |value: &Value| value.as_str().map(str::to_string);
        let list = match &value {
            Value::Boolean(false) => Some(Vec::new()),
            Value::Array(list) => list.iter().map(name).collect(),
            one => name(one).map(|name| vec![name]),
        };
        list.ok_or_else(|| self.refuse(key, format!("must be a list of names, found `{}`", inline(&value))))
    }
}
