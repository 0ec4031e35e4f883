//! `train.early_stop`: when evaluations that no longer get better end a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::count::Count;
use super::optimizer::{Wrong, in_range};

/// The table, as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { patience = 5, min_delta = 0.001 }")]
#[allow(missing_docs, reason = "EarlyStop documents them")]
pub struct EarlyStopTable {
    pub patience: Option<Count>,
    pub min_delta: Option<f64>,
    pub on: Option<String>,
}

/// A run ends when its evaluations do not get better any more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EarlyStop {
    /// Evaluations in a row without an improvement that end the run; at least 1.
    pub patience: u64,
    /// What is better by no more than this is no improvement.
    pub min_delta: f64,
    /// What is looked at.
    pub on: Measure,
}

/// What of an evaluation is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The mean loss; lower is better.
    #[default]
    Loss,
    /// Share of classes that are right.
    Accuracy,
    /// The mean of the classes' F1.
    MacroF1,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Loss => "loss",
            Measure::Accuracy => "accuracy",
            Measure::MacroF1 => "macro F1",
        })
    }
}

impl EarlyStopTable {
    /// Every number filled in and judged; none where it is switched off.
    pub fn resolve(&self) -> Result<Option<EarlyStop>, Wrong> {
        let Some(patience) = self.patience else {
            return Err(Wrong::new("patience", "must be given: evaluations without an improvement".to_string()));
        };
        let min_delta = self.min_delta.unwrap_or(0.0);
        let min_delta = in_range("min_delta", min_delta, "a finite number of 0 or more", |n| n >= 0.0)?;
        let on = match self.on.as_deref() {
            None | Some("loss") => Measure::Loss,
            Some("accuracy") => Measure::Accuracy,
            Some("macro_f1") => Measure::MacroF1,
            Some(other) => {
                return Err(Wrong::new("on", format!("must be `loss`, `accuracy` or `macro_f1`, found `{other}`")));
            }
        };
        Ok((patience.0 > 0).then_some(EarlyStop { patience: patience.0, min_delta, on }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<Option<EarlyStop>, Wrong> {
        toml::from_str::<EarlyStopTable>(text).unwrap().resolve()
    }

    #[test]
    fn the_loss_is_looked_at_and_anything_better_is_an_improvement_unless_said_otherwise() {
        let plain = EarlyStop { patience: 3, min_delta: 0.0, on: Measure::Loss };
        assert_eq!(resolve("patience = 3").unwrap(), Some(plain));
        let all = EarlyStop { patience: 2, min_delta: 0.5, on: Measure::MacroF1 };
        assert_eq!(resolve("patience = 2\nmin_delta = 0.5\non = 'macro_f1'").unwrap(), Some(all));
        assert_eq!(resolve("patience = 0").unwrap(), None);
        let written = toml::to_string(&all).unwrap();
        assert_eq!(resolve(&written).unwrap(), Some(all));
    }

    #[test]
    fn each_wrong_key_is_refused_by_its_name() {
        for (text, key) in [
            ("", "patience"),
            ("patience = 1\nmin_delta = -1", "min_delta"),
            ("patience = 1\nmin_delta = nan", "min_delta"),
            ("patience = 1\non = 'f1'", "on"),
        ] {
            match resolve(text) {
                Err(wrong) => assert_eq!(wrong.key, key, "{text}"),
                Ok(rule) => panic!("{text} became {rule:?}"),
            }
        }
    }
}
