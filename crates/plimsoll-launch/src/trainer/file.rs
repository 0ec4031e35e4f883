//! Reading a trainer file, and laying one over the trainer that it builds on.

use serde::Deserialize;
use toml::{Table, Value};

use super::Trainer;
use crate::LaunchError;

/// The tables of a file, before they are laid over a base; `file` is for the messages.
pub(super) fn read(file: &str, text: &str) -> Result<Table, LaunchError> {
    toml::from_str(text).map_err(|error| wrong(file, &error, text))
}

/// The name of the trainer that `table` builds on.
pub(super) fn base(table: &Table) -> Option<&str> {
    table.get("base").and_then(Value::as_str)
}

/// `over` laid over `under`: tables are merged, all else is replaced.
pub(super) fn lay(under: &Table, over: &Table) -> Table {
    let mut merged = under.clone();
    for (key, value) in over {
        let value = match (merged.get(key), value) {
            // A knob says all of itself: what the base could do, this one may refuse.
            (Some(Value::Table(below)), Value::Table(above)) if key != "knobs" => Value::Table(lay(below, above)),
            (Some(Value::Table(below)), Value::Table(above)) => {
                let mut knobs = below.clone();
                knobs.extend(above.clone());
                Value::Table(knobs)
            }
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    merged
}

/// The trainer that a whole table describes.
pub(super) fn trainer(file: &str, table: Table) -> Result<Trainer, LaunchError> {
    let trainer = Trainer::deserialize(table).map_err(|error| wrong(file, &error, ""))?;
    let missing = |key: &str| LaunchError::TrainerFile {
        file: file.to_string(),
        place: String::new(),
        problem: format!("expected `{key}`, found nothing"),
    };
    if trainer.name.is_empty() {
        return Err(missing("name"));
    }
    for (knob, place) in &trainer.knobs {
        let worded = place.words.values().any(|word| word.starts_with("--"));
        let placed =
            worded || !place.flags.is_empty() || place.env.is_some() || place.config.is_some() || place.rows.is_some();
        if !placed && place.refused.is_none() {
            return Err(missing(&format!("knobs.{knob}.flags` (or `env`, `config`, `rows`, `refused`)")));
        }
    }
    Ok(trainer)
}

fn wrong(file: &str, error: &toml::de::Error, text: &str) -> LaunchError {
    let place = error.span().filter(|_| !text.is_empty()).map_or(String::new(), |span| {
        let before = &text[..span.start.min(text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!(" line {line} column {column}")
    });
    LaunchError::TrainerFile { file: file.to_string(), place, problem: error.message().trim().to_string() }
}
