//! A config file that a command names, as JSON or YAML: a key is read, and a copy with another value is made.
//!
//! Keys are paths with dots. A copy is always JSON, which every YAML reader takes too.

use std::path::Path;

use serde_json::{Map, Value};

use crate::LaunchError;

/// The content of a file.
pub(super) fn read(path: &Path) -> Result<Value, LaunchError> {
    let text = fs_err::read_to_string(path)?;
    let wrong = |problem: String| LaunchError::Config { path: path.to_path_buf(), problem };
    let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let content: Value = match yaml {
        true => serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?,
        false => serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?,
    };
    match content {
        Value::Object(_) => Ok(content),
        other => Err(wrong(format!("expected a table of keys, found `{other}`"))),
    }
}

/// The value at a key.
pub(super) fn get<'a>(content: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(content, |at, part| at.get(part))
}

/// Sets a key; tables on the way are made.
pub(super) fn set(content: &mut Value, key: &str, value: Value) {
    let mut at = content;
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Some(table) = at.as_object_mut() else { return };
        if parts.peek().is_none() {
            table.insert(part.to_string(), value);
            return;
        }
        at = table.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_dots_are_read_and_made() {
        let mut content = serde_json::json!({ "a": { "b": 1 }, "c": 2 });
        assert_eq!(get(&content, "a.b"), Some(&Value::from(1)));
        assert_eq!(get(&content, "a.x"), None);
        set(&mut content, "a.b", Value::from(3));
        set(&mut content, "d.e.f", Value::from("x"));
        set(&mut content, "c.g", Value::from(true));
        assert_eq!(content, serde_json::json!({ "a": { "b": 3 }, "c": { "g": true }, "d": { "e": { "f": "x" } } }));
    }

    #[test]
    fn yaml_and_json_are_read_and_a_wrong_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = folder.path().join("a.yaml");
        fs_err::write(&yaml, "num_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n").unwrap();
        assert_eq!(get(&read(&yaml).unwrap(), "deepspeed_config.zero_stage"), Some(&Value::from(2)));
        let json = folder.path().join("a.json");
        fs_err::write(&json, "{ \"a\": 1, // no comment\n}").unwrap();
        let error = read(&json).unwrap_err().to_string();
        assert!(error.contains("a.json") && error.contains("line 1"), "{error}");
        fs_err::write(&json, "[1]").unwrap();
        assert!(read(&json).unwrap_err().to_string().ends_with("expected a table of keys, found `[1]`"));
    }
}
