//! `train.optimizer`: a table with Hugging Face's names becomes an [`OptimizerSpec`].
//!
//! A key that belongs to another optimizer is refused, and so is every combination that `transformers` and `torch`
//! refuse. Two defaults differ from the Python classes on purpose: AdamW's weight decay is 0, and an Adafactor that is
//! given a rate takes neither relative step nor parameter scale (Hugging Face's trainer and its T5 recipes do the same).

use plimsoll_plan::train::OptimizerSpec;
use serde::Deserialize;
use toml::Value;

use super::keys;

/// The optimizer's table, as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { name = \"adamw\", lr = 1e-4 }")]
#[allow(missing_docs, reason = "the names are Hugging Face's; OptimizerSpec documents them")]
pub struct OptimizerTable {
    pub name: Option<String>,
    pub lr: Option<f64>,
    pub betas: Option<[f64; 2]>,
    pub eps: Option<Value>,
    pub weight_decay: Option<f64>,
    pub clip_threshold: Option<f64>,
    pub decay_rate: Option<f64>,
    pub beta1: Option<f64>,
    pub beta2: Option<Value>,
    pub scale_parameter: Option<bool>,
    pub relative_step: Option<bool>,
    pub warmup_init: Option<bool>,
    pub momentum: Option<f64>,
    pub dampening: Option<f64>,
    pub nesterov: Option<bool>,
}

/// What is wrong with a table: the key in it, the fact, and perhaps the remedy.
#[derive(Debug)]
pub struct Wrong {
    /// Key inside the table.
    pub key: &'static str,
    /// Continues "`key` ...".
    pub fact: String,
    /// The remedy.
    pub hint: Option<String>,
}

impl Wrong {
    pub(super) fn new(key: &'static str, fact: impl Into<String>) -> Wrong {
        Wrong { key, fact: fact.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Wrong {
        self.hint = Some(hint.into());
        self
    }
}

/// A number that must satisfy `holds`.
pub(super) fn in_range(
    key: &'static str,
    value: f64,
    expected: &str,
    holds: impl Fn(f64) -> bool,
) -> Result<f64, Wrong> {
    if value.is_finite() && holds(value) {
        Ok(value)
    } else {
        Err(Wrong::new(key, format!("must be {expected}, found `{value}`")))
    }
}

/// Refuses a name that is none of `known`.
pub(super) fn unknown_name(name: &str, known: &[&str]) -> Wrong {
    let wrong = Wrong::new("name", format!("must be one of `{}`, found `{name}`", known.join("`, `")));
    match keys::nearest(name, known.iter().copied()) {
        Some(meant) => wrong.hint(format!("did you mean `{meant}`?")),
        None => wrong,
    }
}

const NAMES: &[&str] = &["adafactor", "adamw", "adamw16bit", "adamw8bit", "lion", "sgd"];

impl OptimizerTable {
    /// The table that a bare name stands for.
    pub fn named(name: &str) -> OptimizerTable {
        // A bare `adafactor` is the default optimizer; only a table without `lr` asks for the relative step.
        let lr = if name == "adafactor" { Some(1e-3) } else { None };
        OptimizerTable { name: Some(name.to_string()), lr, ..OptimizerTable::default() }
    }

    /// Every number filled in and judged.
    pub fn resolve(&self) -> Result<OptimizerSpec, Wrong> {
        let Some(name) = self.name.as_deref() else {
            return Err(Wrong::new("name", "is missing").hint(format!("one of `{}`", NAMES.join("`, `"))));
        };
        let own: &[&str] = match name {
            "adamw" | "adamw16bit" | "adamw8bit" => &["betas", "eps", "weight_decay"],
            "lion" => &["betas", "weight_decay"],
            "adafactor" => &[
                "eps",
                "clip_threshold",
                "decay_rate",
                "beta1",
                "weight_decay",
                "scale_parameter",
                "relative_step",
                "warmup_init",
            ],
            "sgd" => &["momentum", "dampening", "nesterov", "weight_decay"],
            other => return Err(unknown_name(other, NAMES)),
        };
        if let Some(key) = self.given().into_iter().find(|key| !own.contains(key)) {
            let wrong = Wrong::new(key, format!("is not an option of `{name}`"));
            return Err(match (name, key) {
                ("adamw" | "adamw16bit" | "adamw8bit" | "lion", "beta1" | "beta2") => {
                    wrong.hint("say `betas = [0.9, 0.999]`")
                }
                _ => wrong.hint(format!("options of `{name}`: `lr`, `{}`", own.join("`, `"))),
            });
        }
        let lr = self.lr.map(|lr| in_range("lr", lr, "a finite number above 0", |lr| lr > 0.0)).transpose()?;
        let weight_decay =
            in_range("weight_decay", self.weight_decay.unwrap_or(0.0), "a finite number of 0 or more", |d| d >= 0.0)?;
        match name {
            "adamw" => self.adamw(lr.unwrap_or(1e-4), weight_decay),
            "adamw16bit" | "adamw8bit" => Ok(match (self.adamw(lr.unwrap_or(1e-4), weight_decay)?, name) {
                (OptimizerSpec::AdamW { lr, betas, eps, weight_decay }, "adamw8bit") => {
                    OptimizerSpec::AdamW8bit { lr, betas, eps, weight_decay }
                }
                (OptimizerSpec::AdamW { lr, betas, eps, weight_decay }, _) => {
                    OptimizerSpec::AdamW16bit { lr, betas, eps, weight_decay }
                }
                (other, _) => other,
            }),
            "lion" => self.lion(lr.unwrap_or(1e-5), weight_decay),
            "adafactor" => self.adafactor(lr, weight_decay),
            _ => self.sgd(lr, weight_decay),
        }
    }

    /// The keys that were given, `name` and `lr` aside.
    fn given(&self) -> Vec<&'static str> {
        let table = [
            ("betas", self.betas.is_some()),
            ("eps", self.eps.is_some()),
            ("weight_decay", self.weight_decay.is_some()),
            ("clip_threshold", self.clip_threshold.is_some()),
            ("decay_rate", self.decay_rate.is_some()),
            ("beta1", self.beta1.is_some()),
            ("beta2", self.beta2.is_some()),
            ("scale_parameter", self.scale_parameter.is_some()),
            ("relative_step", self.relative_step.is_some()),
            ("warmup_init", self.warmup_init.is_some()),
            ("momentum", self.momentum.is_some()),
            ("dampening", self.dampening.is_some()),
            ("nesterov", self.nesterov.is_some()),
        ];
        table.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }

    fn lion(&self, lr: f64, weight_decay: f64) -> Result<OptimizerSpec, Wrong> {
        let betas = self.betas.unwrap_or([0.9, 0.99]);
        for beta in betas {
            in_range("betas", beta, "two numbers from 0 to less than 1", |b| (0.0..1.0).contains(&b))?;
        }
        Ok(OptimizerSpec::Lion { lr, betas, weight_decay })
    }

    fn adamw(&self, lr: f64, weight_decay: f64) -> Result<OptimizerSpec, Wrong> {
        let betas = self.betas.unwrap_or([0.9, 0.999]);
        for beta in betas {
            in_range("betas", beta, "two numbers from 0 to less than 1", |b| (0.0..1.0).contains(&b))?;
        }
        let eps = match &self.eps {
            None => 1e-8,
            Some(value) => number(value).ok_or_else(|| {
                Wrong::new("eps", format!("must be one number, found `{value}`")).hint("a pair is `adafactor`'s form")
            })?,
        };
        let eps = in_range("eps", eps, "a finite number of 0 or more", |eps| eps >= 0.0)?;
        Ok(OptimizerSpec::AdamW { lr, betas, eps, weight_decay })
    }

    fn adafactor(&self, lr: Option<f64>, weight_decay: f64) -> Result<OptimizerSpec, Wrong> {
        let relative_step = self.relative_step.unwrap_or(lr.is_none());
        let scale_parameter = self.scale_parameter.unwrap_or(relative_step);
        let warmup_init = self.warmup_init.unwrap_or(false);
        if lr.is_some() && relative_step {
            return Err(Wrong::new("relative_step", "cannot be true where `lr` is given")
                .hint("leave out `lr`, or set `relative_step = false`"));
        }
        if lr.is_none() && !relative_step {
            return Err(Wrong::new("relative_step", "cannot be false where `lr` is not given")
                .hint("give `lr`; `lr = 1e-3` is usual for T5"));
        }
        if warmup_init && !relative_step {
            return Err(Wrong::new("warmup_init", "needs `relative_step = true`")
                .hint("leave out `lr` and `relative_step`, or use the schedule's `warmup_steps`"));
        }
        let eps = match &self.eps {
            None => [1e-30, 1e-3],
            Some(value) => pair(value).ok_or_else(|| {
                Wrong::new("eps", format!("must be two numbers, found `{value}`")).hint("the default is [1e-30, 1e-3]")
            })?,
        };
        for eps in eps {
            in_range("eps", eps, "two finite numbers of 0 or more", |eps| eps >= 0.0)?;
        }
        let clip_threshold = self.clip_threshold.unwrap_or(1.0);
        let beta1 = self.beta1.map(|b| in_range("beta1", b, "from 0 to less than 1", |b| (0.0..1.0).contains(&b)));
        Ok(OptimizerSpec::Adafactor {
            lr,
            eps,
            clip_threshold: in_range("clip_threshold", clip_threshold, "a finite number above 0", |t| t > 0.0)?,
            decay_rate: in_range("decay_rate", self.decay_rate.unwrap_or(-0.8), "a number below 0", |r| r < 0.0)?,
            beta1: beta1.transpose()?,
            weight_decay,
            scale_parameter,
            relative_step,
            warmup_init,
        })
    }

    fn sgd(&self, lr: Option<f64>, weight_decay: f64) -> Result<OptimizerSpec, Wrong> {
        let Some(lr) = lr else {
            return Err(Wrong::new("lr", "is needed with `sgd`: no rate suits every model"));
        };
        let momentum = self.momentum.unwrap_or(0.0);
        let momentum = in_range("momentum", momentum, "a finite number of 0 or more", |m| m >= 0.0)?;
        let dampening = in_range("dampening", self.dampening.unwrap_or(0.0), "a finite number", |_| true)?;
        let nesterov = self.nesterov.unwrap_or(false);
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            return Err(Wrong::new("nesterov", "needs a `momentum` above 0 and a `dampening` of 0"));
        }
        Ok(OptimizerSpec::Sgd { lr, momentum, dampening, nesterov, weight_decay })
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Float(x) => Some(*x),
        Value::Integer(n) => Some(*n as f64),
        _ => None,
    }
}

fn pair(value: &Value) -> Option<[f64; 2]> {
    match value.as_array()?.as_slice() {
        [a, b] => Some([number(a)?, number(b)?]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<OptimizerSpec, Wrong> {
        toml::from_str::<OptimizerTable>(text).unwrap().resolve()
    }

    #[test]
    fn the_defaults_are_hugging_faces() {
        assert_eq!(resolve("name = 'adamw'\nlr = 1e-4").unwrap(), OptimizerSpec::adamw(1e-4));
        assert_eq!(resolve("name = 'sgd'\nlr = 1").unwrap(), OptimizerSpec::sgd(1.0));
        assert_eq!(resolve("name = 'adafactor'").unwrap(), OptimizerSpec::adafactor_relative());
        assert_eq!(resolve("name = 'adafactor'\nlr = 1e-3").unwrap(), OptimizerSpec::adafactor(1e-3));
        assert_eq!(OptimizerTable::named("adafactor").resolve().unwrap(), OptimizerSpec::adafactor(1e-3));
    }

    #[test]
    fn each_wrong_number_or_combination_is_refused_by_its_key() {
        let refused = [
            ("lr = 1.0", "name"),
            ("name = 'adam'", "name"),
            ("name = 'adamw'\nlr = 0", "lr"),
            ("name = 'adamw'\nlr = nan", "lr"),
            ("name = 'adamw'\nlr = inf", "lr"),
            ("name = 'adamw'\nbetas = [0.9, 1.0]", "betas"),
            ("name = 'adamw'\nbeta1 = 0.9", "beta1"),
            ("name = 'adamw'\nbeta2 = 0.9", "beta2"),
            ("name = 'adamw'\neps = [1e-8, 1]", "eps"),
            ("name = 'adamw'\neps = -1e-8", "eps"),
            ("name = 'adamw'\nweight_decay = -0.1", "weight_decay"),
            ("name = 'adamw'\nmomentum = 0.9", "momentum"),
            ("name = 'adafactor'\nlr = 1e-3\nrelative_step = true", "relative_step"),
            ("name = 'adafactor'\nrelative_step = false", "relative_step"),
            ("name = 'adafactor'\nlr = 1e-3\nwarmup_init = true", "warmup_init"),
            ("name = 'adafactor'\neps = 1e-8", "eps"),
            ("name = 'adafactor'\neps = [1e-30, -1]", "eps"),
            ("name = 'adafactor'\nclip_threshold = 0", "clip_threshold"),
            ("name = 'adafactor'\ndecay_rate = 0.8", "decay_rate"),
            ("name = 'adafactor'\nbeta1 = 1", "beta1"),
            ("name = 'adafactor'\nbetas = [0.9, 0.999]", "betas"),
            ("name = 'sgd'", "lr"),
            ("name = 'sgd'\nlr = 1\nmomentum = -1", "momentum"),
            ("name = 'sgd'\nlr = 1\nnesterov = true", "nesterov"),
            ("name = 'sgd'\nlr = 1\nnesterov = true\nmomentum = 0.9\ndampening = 0.1", "nesterov"),
        ];
        for (text, key) in refused {
            match resolve(text) {
                Err(wrong) => assert_eq!(wrong.key, key, "{text}"),
                Ok(spec) => panic!("{text} became {spec:?}"),
            }
        }
    }
}
