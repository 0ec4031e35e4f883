//! What a command is set to: by its flags, by a file that it names, by its environment, else by the trainer's defaults.

use std::path::Path;

use serde_json::Value as Json;

use super::edit::flagged;
use super::{Command, Reading, config, flags, recognise};
use crate::trainer::Place;
use crate::{Knob, LaunchError, Trainer, Value};

impl Command {
    /// What the command is set to. `folder` is where it runs, `env` what it would find in its environment.
    pub fn read(&self, folder: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Reading, LaunchError> {
        let mut reading = Reading::default();
        for knob in Knob::ALL {
            for layer in self.layers() {
                let Some(place) = layer.place(knob) else { continue };
                if let Some(value) = self.said(layer, place, folder, &env)? {
                    reading.settings.insert(knob, value);
                    reading.said.push(knob);
                    break;
                }
            }
            let default = || self.layers().find_map(|layer| layer.place(knob)?.default.clone());
            if !reading.said.contains(&knob)
                && let Some(value) = default()
            {
                reading.settings.insert(knob, value);
            }
        }
        Ok(reading)
    }

    fn said(
        &self,
        layer: &Trainer,
        place: &Place,
        folder: &Path,
        env: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Value>, LaunchError> {
        let range = self.range(layer.launcher);
        for flag in &place.flags {
            if let Some(found) = flags::find(&self.words, range.clone(), flag).pop() {
                return match found.value {
                    Some(_) if place.alone => Ok(Some(Value::On(true))),
                    Some(text) => Ok(Some(ours(place, &text))),
                    // A flag of on and off that stands alone is on.
                    None if place.alone || matches!(place.default, Some(Value::On(_))) => Ok(Some(Value::On(true))),
                    None => Err(LaunchError::NoValue { flag: flag.clone() }),
                };
            }
        }
        for (word, written) in &place.words {
            let Some((flag, value)) = flagged(written) else { continue };
            if let Some(found) = flags::find(&self.words, range.clone(), flag).pop()
                && found.value.as_deref().is_none_or(|said| said.eq_ignore_ascii_case(value))
            {
                return Ok(Some(Value::Word(word.clone())));
            }
        }
        if let Some(key) = &place.config
            && let Some(name) = self.first_of(&key.flags)
            && folder.join(&name).is_file()
            && let Some(found) = config::get(&config::read(&folder.join(&name))?, &key.key)
            && let Some(value) = of_json(found)
        {
            return Ok(Some(ours(place, &value.to_string())));
        }
        let variable = |name: &str| self.assigned(name).map(|(_, text)| text.to_string()).or_else(|| env(name));
        Ok(place.env.as_deref().and_then(variable).and_then(|text| {
            let known = place.words.iter().find(|(_, written)| text.contains(written.as_str()));
            known.map(|(word, _)| Value::Word(word.clone()))
        }))
    }

    /// What `env NAME=value` before the program says of a variable, and which word does.
    pub(super) fn assigned(&self, name: &str) -> Option<(usize, &str)> {
        let env = self.words.iter().take(self.program + 1).position(|word| recognise::name_of(word) == "env")?;
        let set = self.words.iter().enumerate().skip(env + 1);
        let mut set = set.take_while(|(_, word)| word.contains('=') || word.starts_with('-'));
        set.find_map(|(at, word)| Some((at, word.split_once('=').filter(|(said, _)| *said == name)?.1)))
    }
}

/// Their text as our value.
fn ours(place: &Place, text: &str) -> Value {
    let known = place.words.iter().find(|(_, written)| written.as_str() == text);
    if let Some((word, _)) = known {
        return Value::Word(word.clone());
    }
    match (text.parse::<u64>(), text.to_ascii_lowercase().as_str()) {
        (Ok(count), _) => Value::Count(count),
        (_, "true") => Value::On(true),
        (_, "false") => Value::On(false),
        _ => Value::Word(text.to_string()),
    }
}

fn of_json(found: &Json) -> Option<Value> {
    match found {
        Json::Bool(on) => Some(Value::On(*on)),
        Json::Number(number) => number.as_u64().map(Value::Count),
        Json::String(text) if text != "auto" => Some(Value::Word(text.clone())),
        _ => None,
    }
}
