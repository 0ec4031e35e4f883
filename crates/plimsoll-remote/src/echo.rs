//! Whether the settings that arrived are those that were asked for.
//!
//! Invariant: a setting that got lost, was changed on the way or came from nowhere is a [`Difference`]. Only what the
//! caller names may differ: what data or machine answer over there.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::harmless::harmless_line;

/// Settings by their key, such as `train.seed`.
pub type Flat = BTreeMap<String, Value>;

/// A setting that is not what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its key.
    pub key: String,
    /// As it was asked for.
    pub asked: Option<Value>,
    /// As it arrived.
    pub arrived: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |value: &Option<Value>| value.as_ref().map_or("nothing".to_string(), |value| format!("`{value}`"));
        let (key, asked, arrived) = (&self.key, told(&self.asked), told(&self.arrived));
        f.write_str(&harmless_line(&format!("`{key}`: asked {asked}, arrived {arrived}")))
    }
}

/// What differs, by key. `open` are keys that the far side may answer by itself where they were not asked for.
pub fn differences(asked: &Flat, arrived: &Flat, open: &[&str]) -> Vec<Difference> {
    let keys: std::collections::BTreeSet<&String> = asked.keys().chain(arrived.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        let (wanted, got) = (asked.get(key), arrived.get(key));
        let answered = wanted.is_none() && open.contains(&key.as_str());
        if !answered && !same(wanted, got) {
            found.push(Difference { key: key.clone(), asked: wanted.cloned(), arrived: got.cloned() });
        }
    }
    found
}

/// 1 and 1.0 are one number, however they were written.
fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}

/// The leaves of a TOML or JSON table by their dotted keys. Lists are leaves, and so are tables below `whole`.
pub fn flat(table: &Value, whole: &[&str]) -> Flat {
    let mut out = Flat::new();
    flatten("", table, whole, &mut out);
    out
}

fn flatten(key: &str, value: &Value, whole: &[&str], out: &mut Flat) {
    match value {
        Value::Object(table) if key.is_empty() || !whole.contains(&key) => {
            for (name, value) in table {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, value, whole, out);
            }
        }
        value => drop(out.insert(key.to_string(), value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_knob_that_is_lost_changed_or_added_is_told_by_its_key() {
        let asked = flat(&json!({ "train": { "seed": 7, "lr": 1.0, "keep": 2 }, "pin": { "micro_batch": 4 } }), &[]);
        let arrived = flat(&json!({ "train": { "seed": 1, "lr": 1, "steps": 9 }, "pin": { "micro_batch": 4 } }), &[]);
        let told: Vec<String> = differences(&asked, &arrived, &[]).iter().map(Difference::to_string).collect();
        let expected = [
            "`train.keep`: asked `2`, arrived nothing",
            "`train.seed`: asked `7`, arrived `1`",
            "`train.steps`: asked nothing, arrived `9`",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_key_from_afar_moves_no_cursor() {
        let arrived = flat(&json!({ "a\u{1b}[2J": "\u{9b}1m" }), &[]);
        let told = differences(&Flat::new(), &arrived, &[])[0].to_string();
        assert_eq!(told, "`a\u{fffd}[2J`: asked nothing, arrived `\"\u{fffd}1m\"`");
    }

    #[test]
    fn what_is_open_may_be_answered_but_not_changed() {
        let arrived = flat(&json!({ "data": { "kind": "pairs" } }), &[]);
        assert!(differences(&Flat::new(), &arrived, &["data.kind"]).is_empty());
        let asked = flat(&json!({ "data": { "kind": "text" } }), &[]);
        assert_eq!(differences(&asked, &arrived, &["data.kind"]).len(), 1);
        assert_eq!(differences(&asked, &Flat::new(), &["data.kind"]).len(), 1);
    }

    #[test]
    fn tables_can_be_leaves() {
        let table = json!({ "a": { "b": { "c": 1 } }, "d": [1, 2] });
        assert_eq!(flat(&table, &["a.b"]).keys().collect::<Vec<_>>(), ["a.b", "d"]);
        assert_eq!(flat(&table, &[]).keys().collect::<Vec<_>>(), ["a.b.c", "d"]);
    }
}
