//! The chat template of a folder and the special tokens that templates name. Text only: nothing is rendered here.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{Keys, kind_of};
use crate::{ModelError, small_file};

/// What a conversation is turned into text by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template, in Jinja.
    pub text: String,
    /// The special tokens of tokenizer_config.json by their names in templates (`bos_token`, `eos_token`, ...).
    pub tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The template of a folder that need not hold a model of ours, if it has one: `chat_template.jinja`, else `chat_template` of
    /// tokenizer_config.json (of several, the one called `default`).
    pub fn in_folder(dir: &Path) -> Result<Option<ChatTemplate>, ModelError> {
        read(dir)
    }
}

/// The template of a folder, if it has one.
pub(crate) fn read(dir: &Path) -> Result<Option<ChatTemplate>, ModelError> {
    let path = dir.join("tokenizer_config.json");
    let map = match path.is_file() {
        true => object(&path)?,
        false => Map::new(),
    };
    let own_file = dir.join("chat_template.jinja");
    let text = match own_file.is_file() {
        true => Some(text_of(&own_file)?),
        false => template(&Keys { path: &path, map: &map })?,
    };
    Ok(text.map(|text| ChatTemplate { text, tokens: tokens(&map) }))
}

fn object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let value: Value = serde_json::from_slice(&small_file::read(path)?)
        .map_err(|source| ModelError::Json { path: path.into(), source })?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(ModelError::NotAnObject { path: path.into(), found: kind_of(&other).into() }),
    }
}

fn text_of(path: &Path) -> Result<String, ModelError> {
    String::from_utf8(small_file::read(path)?).map_err(|_| ModelError::NotText { path: path.into() })
}

/// One text, or a list of `{name, template}`, of which the one called `default` counts.
fn template(keys: &Keys<'_>) -> Result<Option<String>, ModelError> {
    let said = match keys.map.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(said) => said,
    };
    let called = |one: &&Value| one["name"] == "default";
    let default = said.as_array().and_then(|list| list.iter().find(called)).and_then(|one| one["template"].as_str());
    match default {
        Some(text) => Ok(Some(text.into())),
        None => Err(keys.wrong("chat_template", "a text, or a list with a template called `default`", kind_of(said))),
    }
}

/// Every `..._token` that is a text, or an object with one (`add_bos_token` is neither).
fn tokens(map: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_string);
    map.iter()
        .filter(|(key, _)| key.ends_with("_token"))
        .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
        .collect()
}
