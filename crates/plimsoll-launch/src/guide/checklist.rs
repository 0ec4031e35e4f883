//! Guide 004's list before a start, held against settings.
//!
//! What no setting shows has to be looked at; `plimsoll check` does so on this machine.

use serde::Deserialize;

use super::book::RTX3060;
use crate::knob::{Knob, Settings, Value};

/// One entry of the list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The guide's name of it.
    pub name: String,
    at_most: Option<(Knob, u64)>,
    at_least: Option<(Knob, u64)>,
    /// What to look at, where no knob shows it.
    pub look: Option<String>,
    /// Ids of what is wrong with it.
    #[serde(default)]
    pub corrections: Vec<String>,
}

/// How an entry came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As the guide wants it.
    Pass,
    /// Not so: what was found, and the guide's limit.
    Fail {
        /// What is set.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// No setting shows it.
    Look,
}

impl Check {
    /// Its outcome with these settings.
    pub fn outcome(&self, settings: &Settings) -> Outcome {
        let judge = |rule: &Option<(Knob, u64)>, holds: fn(u64, u64) -> bool| {
            let (knob, limit) = (*rule)?;
            let found = settings.get(&knob).and_then(Value::count)?;
            Some(if holds(found, limit) { Outcome::Pass } else { Outcome::Fail { found, limit } })
        };
        let most = judge(&self.at_most, |found, limit| found <= limit);
        most.or(judge(&self.at_least, |found, limit| found >= limit)).unwrap_or(Outcome::Look)
    }
}

/// The list, with the outcome of each entry.
pub fn checklist(settings: &Settings) -> Vec<(&'static Check, Outcome)> {
    RTX3060.check.iter().map(|check| (check, check.outcome(settings))).collect()
}

/// Names of the entries that fail.
pub fn failures(settings: &Settings) -> Vec<&'static str> {
    let failed = checklist(settings).into_iter().filter(|(_, outcome)| matches!(outcome, Outcome::Fail { .. }));
    failed.map(|(check, _)| check.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_setting_shows_is_neither_passed_nor_failed() {
        let outcomes = checklist(&Settings::new());
        assert_eq!(outcomes.len(), 7);
        assert!(outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Look));
        let settings = Settings::from([(Knob::Batch, 129.into()), (Knob::Accumulation, 2.into())]);
        assert_eq!(checklist(&settings)[0].1, Outcome::Fail { found: 129, limit: 128 });
        assert_eq!(checklist(&settings)[1].1, Outcome::Pass);
    }
}
