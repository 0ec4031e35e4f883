//! The checklist before a foreign training: each point passed, failed or not known, why, and what to do. Pure.
//!
//! The guides end in such lists; some of their points are not true (a fixed batch for a card, `empty_cache` in the
//! code). Here a point is about something that was seen to end a training, and its threshold comes from this training's
//! own figures. What could not be looked at is `??`, never a pass; what does not apply is not listed.

mod card;
mod host;
mod run;
mod trainer;

use std::fmt;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

pub use card::{CardFacts, CardHolder};
pub use host::{HostFacts, LoaderFacts};
pub use run::RunFacts;
pub use trainer::{Module, Programs, TrainerCheck};

/// All that the points are judged by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckFacts {
    /// The machine and its limits.
    pub host: HostFacts,
    /// How batches are loaded.
    pub loader: LoaderFacts,
    /// The card; `None` for a training on processors.
    pub card: Option<CardFacts>,
    /// The trainer and its command.
    pub trainer: TrainerCheck,
    /// Checkpoints, evaluation, stopping.
    pub run: RunFacts,
}

/// How a point stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// As it should be.
    Pass,
    /// Not as it should be.
    Fail,
    /// Could not be looked at.
    Unknown,
}

/// A point of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is about.
    pub name: &'static str,
    /// How it stands.
    pub mark: Mark,
    /// What was found.
    pub found: String,
    /// What to do; for a point that passed, nothing.
    pub cure: Option<String>,
}

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checklist {
    /// Its points, in the order in which they are worth looking at.
    pub items: Vec<Item>,
}

/// Judges every point that applies.
pub fn check(facts: &CheckFacts) -> Checklist {
    let mut items = trainer::items(&facts.trainer);
    items.extend(host::items(&facts.host, &facts.loader));
    items.extend(facts.card.iter().flat_map(card::items));
    items.extend(run::items(&facts.run));
    Checklist { items }
}

impl Checklist {
    /// The points that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.mark == Mark::Fail)
    }
}

impl Item {
    fn pass(name: &'static str, found: impl Into<String>) -> Item {
        Item { name, mark: Mark::Pass, found: found.into(), cure: None }
    }

    fn fail(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Item {
        Item { name, mark: Mark::Fail, found: found.into(), cure: Some(cure.into()) }
    }

    fn unknown(name: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Item {
        Item { name, mark: Mark::Unknown, found: found.into(), cure: Some(cure.into()) }
    }

    /// Whether what the training needs is there; `are` says in what way it is there.
    fn demand(name: &'static str, need: Option<Bytes>, there: Bytes, are: &str, cure: &str) -> Item {
        match need {
            Some(need) if need <= there => Item::pass(name, format!("{need} are needed, {there} {are}")),
            Some(need) => Item::fail(name, format!("{need} are needed, {there} {are}"), cure),
            None => {
                let found = format!("{there} {are}; what the training needs is not known");
                Item::unknown(name, found, "let it be reckoned: `plimsoll plan --trainer NAME`")
            }
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mark::Pass => "ok",
            Mark::Fail => "FAIL",
            Mark::Unknown => "??",
        })
    }
}

impl fmt::Display for Checklist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.items.iter().map(|item| item.name.len()).max().unwrap_or_default();
        for item in &self.items {
            writeln!(f, "{:<4}  {:<width$}  {}", item.mark, item.name, item.found)?;
            if let Some(cure) = &item.cure {
                writeln!(f, "{:<4}  {:<width$}  -> {cure}", "", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "check/check_test.rs"]
mod tests;
