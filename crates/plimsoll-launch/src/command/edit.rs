//! Reading what a command is set to, and writing other settings into it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Command, Reading, config, flags};
use crate::trainer::{Form, Place, ResumeWith, Rows};
use crate::{Knob, LaunchError, Settings, Trainer, Value};

/// A setting that was changed, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Which.
    pub knob: Knob,
    /// What it was.
    pub from: Option<Value>,
    /// What it is now.
    pub to: Value,
    /// Why.
    pub why: String,
}

/// A command with other settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Edited {
    /// Its words.
    pub words: Vec<String>,
    /// Variables of the environment that it gets on top of ours.
    pub env: BTreeMap<String, String>,
    /// Copies of files that take the place of the user's.
    pub copies: Vec<FileCopy>,
    /// A table that is to be cut, and to what.
    pub cut: Option<RowCut>,
}

/// A changed copy of a config file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileCopy {
    /// The user's file.
    pub of: PathBuf,
    /// Where the copy goes.
    pub to: PathBuf,
    /// What is in it.
    pub content: Json,
}

/// A table of sound files without those that are longer than this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowCut {
    /// Where the table is named.
    pub rows: Rows,
    /// The user's table.
    pub of: PathBuf,
    /// The folder of its sound files.
    pub folder: Option<PathBuf>,
    /// Where the copy goes.
    pub to: PathBuf,
    /// Seconds that a row may last.
    pub seconds: u64,
}

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
            if !reading.settings.contains_key(&knob) {
                let default = self.layers().find_map(|layer| layer.place(knob)?.default.clone());
                default.into_iter().for_each(|value| _ = reading.settings.insert(knob, value));
            }
        }
        Ok(reading)
    }

    /// Whether a knob can be set in this command.
    pub fn can_set(&self, knob: Knob, folder: &Path) -> bool {
        self.home(knob, folder).is_some()
    }

    /// Why a knob cannot be set.
    fn refusal(&self, knob: Knob) -> String {
        let refused = self.layers().find_map(|layer| layer.knobs.get(&knob)?.refused.clone());
        refused.unwrap_or_else(|| match self.layers().any(|layer| layer.place(knob).is_some()) {
            true => "neither the command nor its script has a flag or file for it that we know".to_string(),
            false => "it has no such knob that we know of".to_string(),
        })
    }

    /// The layer and place that a knob is set at.
    fn home(&self, knob: Knob, folder: &Path) -> Option<(&Trainer, &Place)> {
        // A layer that refuses a knob refuses it for those below.
        let refused = |layer: &&Trainer| layer.knobs.get(&knob).is_some_and(|place| place.refused.is_some());
        self.layers().take_while(|layer| !refused(layer)).find_map(|layer| {
            let place = layer.place(knob)?;
            if self.imagined {
                return Some((layer, place));
            }
            let flag = self.flag_of(layer, place).is_some();
            let file = place
                .config
                .as_ref()
                .is_some_and(|key| self.first_of(&key.flags).is_some_and(|name| folder.join(name).is_file()));
            let table = place.rows.as_ref().is_some_and(|rows| self.value_of(&rows.table).is_some());
            let worded = place.words.values().any(|word| word.starts_with("--"));
            (flag || file || table || worded || place.env.is_some()).then_some((layer, place))
        })
    }

    /// The flag that is written: the one that stands there, or the first that the program is known to take.
    fn flag_of<'a>(&self, layer: &Trainer, place: &'a Place) -> Option<&'a String> {
        let range = self.range(layer.launcher);
        let there = |flag: &&String| !flags::find(&self.words, range.clone(), flag).is_empty();
        place.flags.iter().find(there).or_else(|| match layer.guesses {
            true => place.flags.iter().find(|flag| self.knows(flag)),
            false => place.flags.first(),
        })
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
        Ok(place.env.as_deref().and_then(env).and_then(|text| {
            let known = place.words.iter().find(|(_, written)| text.contains(written.as_str()));
            known.map(|(word, _)| Value::Word(word.clone()))
        }))
    }

    /// The command with `settings` in the place of its own. Copies of files go into `copies`.
    pub fn with(&self, settings: &Settings, folder: &Path, copies: &Path) -> Result<Edited, LaunchError> {
        let mut draft = self.clone();
        let mut edited = Edited::default();
        for (knob, value) in settings {
            let Some((layer, place)) = self.home(*knob, folder) else {
                let why = self.refusal(*knob);
                return Err(LaunchError::CannotSet { trainer: self.trainer.name.clone(), knob: *knob, why });
            };
            if !self.imagined {
                draft.put(*knob, value, layer, place, folder, copies, &mut edited)?;
            }
        }
        edited.words = draft.words;
        Ok(edited)
    }

    fn put(
        &mut self,
        knob: Knob,
        value: &Value,
        layer: &Trainer,
        place: &Place,
        folder: &Path,
        copies: &Path,
        edited: &mut Edited,
    ) -> Result<(), LaunchError> {
        let text = theirs(knob, place, value)?;
        if let Some(rows) = &place.rows {
            let of = self.value_of(&rows.table).map(PathBuf::from).unwrap_or_default();
            let to = copies.join(of.file_name().unwrap_or(of.as_os_str()));
            self.edit(layer.launcher, |words, range| {
                flags::set(words, range, &rows.table, Some(&to.display().to_string()));
            });
            let seconds = value.count().unwrap_or(0);
            let folder = self.value_of(&rows.folder).map(PathBuf::from);
            edited.cut = Some(RowCut { rows: rows.clone(), of, folder, to, seconds });
            return Ok(());
        }
        // Words that are flags of their own: the others of the knob are taken away.
        if place.words.values().any(|written| flagged(written).is_some()) {
            let others: Vec<(String, String)> = place
                .words
                .values()
                .filter_map(|written| flagged(written).map(|(flag, on)| (flag.to_string(), on.to_string())))
                .collect();
            for (flag, on) in others {
                let wanted = text == format!("{flag} {on}");
                self.edit(layer.launcher, |words, range| match wanted {
                    true => flags::set(words, range, &flag, Some(&on)),
                    false => flags::remove(words, range, &flag, false),
                });
            }
            return Ok(());
        }
        let flag = self.flag_of(layer, place).cloned();
        if let Some(flag) = &flag {
            let on = value.on().unwrap_or(true);
            self.edit(layer.launcher, |words, range| match (place.alone, on) {
                (true, true) => flags::set(words, range, flag, None),
                (true, false) => flags::remove(words, range, flag, true),
                (false, _) => flags::set(words, range, flag, Some(&text)),
            });
        }
        if let Some(key) = &place.config
            && let Some((said_by, name)) = key.flags.iter().find_map(|flag| Some((flag, self.value_of(flag)?)))
        {
            self.put_config(&key.key, said_by, &name, value, flag.is_some(), folder, copies, edited)?;
            return Ok(());
        }
        if let (None, Some(name)) = (&flag, &place.env) {
            let before = edited.env.get(name).cloned().or_else(|| std::env::var(name).ok());
            let joined = match before.filter(|before| !before.is_empty() && !before.contains(&text)) {
                Some(before) => format!("{before},{text}"),
                None => text,
            };
            edited.env.insert(name.clone(), joined);
        }
        Ok(())
    }

    /// Sets a key of a config file in a copy of it. One that a flag sets too is changed only where the file insists.
    fn put_config(
        &mut self,
        key: &str,
        said_by: &str,
        name: &str,
        value: &Value,
        flagged: bool,
        folder: &Path,
        copies: &Path,
        edited: &mut Edited,
    ) -> Result<(), LaunchError> {
        let path = PathBuf::from(name);
        let copied = edited.copies.iter().position(|copy| copy.to == path || copy.of == path);
        let mut content = match copied {
            Some(at) => edited.copies[at].content.clone(),
            None if folder.join(&path).is_file() => config::read(&folder.join(&path))?,
            None => return Ok(()),
        };
        let found = config::get(&content, key);
        let insists = found.is_some_and(|found| found.as_str() != Some("auto"));
        if flagged && !insists {
            return Ok(());
        }
        config::set(&mut content, key, to_json(value));
        match copied {
            Some(at) => edited.copies[at].content = content,
            None => {
                let to = copies.join(path.file_name().unwrap_or(path.as_os_str())).with_extension("json");
                // The flag may stand on either side of the script.
                for launcher in [true, false] {
                    let there = !flags::find(&self.words, self.range(launcher), said_by).is_empty();
                    if there {
                        let text = to.display().to_string();
                        self.edit(launcher, |words, range| flags::set(words, range, said_by, Some(&text)));
                        break;
                    }
                }
                edited.copies.push(FileCopy { of: path, to, content });
            }
        }
        Ok(())
    }

    /// Edits the words of a layer and keeps the script's place.
    fn edit(&mut self, launcher: bool, with: impl FnOnce(&mut Vec<String>, std::ops::Range<usize>)) {
        let (range, before) = (self.range(launcher), self.words.len());
        with(&mut self.words, range);
        if let (true, Some(script)) = (launcher, self.script) {
            self.script = Some(script + self.words.len() - before);
        }
    }

    /// The words that make a command go on from the checkpoint at `path`, in the way of the layer whose form it has;
    /// `None` where no way is known.
    pub fn going_on(&self, edited: &Edited, path: &Path, form: Form) -> Option<Edited> {
        let has_way = |layer: &&Trainer| {
            let ways = &layer.checkpoints;
            let known = ways.resume.as_ref().is_some_and(|flag| !layer.guesses || self.knows(flag));
            known || ways.resume_env.is_some()
        };
        let same_form = |layer: &&Trainer| layer.checkpoints.form == Some(form);
        let layer = self.layers().filter(same_form).find(has_way).or_else(|| self.layers().find(has_way))?;
        let ways = &layer.checkpoints;
        let path = match ways.resume_with {
            ResumeWith::Checkpoint => path,
            ResumeWith::Folder => path.parent()?,
        };
        let text = path.display().to_string();
        let mut edited = edited.clone();
        if let Some(flag) = &ways.resume {
            let mut draft = self.clone();
            draft.words = edited.words;
            draft.script = super::recognise::script(&draft.words);
            // The flag is the script's, also where a launcher's file knows it.
            draft.edit(false, |words, range| flags::set(words, range, flag, Some(&text)));
            edited.words = draft.words;
        }
        if let Some(name) = &ways.resume_env {
            edited.env.insert(name.clone(), text);
        }
        Some(edited)
    }

    /// Refuses a flag of a knob that stands twice, and one that is a letter away from a knob's.
    pub(super) fn refuse_doubles(&self) -> Result<(), LaunchError> {
        for layer in self.layers() {
            let range = self.range(layer.launcher);
            let resume = layer.checkpoints.resume.iter();
            let single: Vec<Vec<&String>> = layer.knobs.values().map(|place| place.flags.iter().collect()).collect();
            for group in single.iter().cloned().chain(resume.map(|flag| vec![flag])) {
                let mut seen: Vec<flags::Found> =
                    group.iter().flat_map(|flag| flags::find(&self.words, range.clone(), flag)).collect();
                seen.sort_by_key(|found| found.at);
                seen.dedup_by_key(|found| found.at);
                if let [first, second, ..] = &seen[..] {
                    let text = |found: &flags::Found| found.value.clone().unwrap_or_default();
                    let flag = self.words[second.at].split('=').next().unwrap_or_default().to_string();
                    return Err(LaunchError::Twice { flag, first: text(first), second: text(second) });
                }
            }
            if !layer.guesses {
                self.refuse_near_misses(layer, range)?;
            }
        }
        Ok(())
    }

    fn refuse_near_misses(&self, layer: &Trainer, range: std::ops::Range<usize>) -> Result<(), LaunchError> {
        const SHORTEST: usize = 10;
        let known: Vec<&String> = self.layers().flat_map(|layer| layer.knobs.values()).flat_map(|p| &p.flags).collect();
        for word in &self.words[range] {
            let name = flags::plain(word.split('=').next().unwrap_or_default());
            if name.len() < SHORTEST || !name.starts_with("--") || self.source.contains(name.trim_start_matches('-')) {
                continue;
            }
            let same = |flag: &&&String| flags::plain(flag) == name;
            if known.iter().any(|flag| same(&flag)) {
                continue;
            }
            if let Some(meant) = known.iter().find(|flag| strsim::damerau_levenshtein(&flags::plain(flag), &name) == 1)
            {
                let (found, meant) = (word.clone(), meant.to_string());
                return Err(LaunchError::NearMiss { found, trainer: layer.name.clone(), meant });
            }
        }
        Ok(())
    }
}

/// A word that is a flag of its own, and its value.
fn flagged(written: &str) -> Option<(&str, &str)> {
    written.split_once(' ').filter(|(flag, _)| flag.starts_with("--"))
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

/// Our value as their text.
fn theirs(knob: Knob, place: &Place, value: &Value) -> Result<String, LaunchError> {
    if place.words.is_empty() {
        return Ok(match value {
            // Python's own words.
            Value::On(on) => if *on { "True" } else { "False" }.to_string(),
            other => other.to_string(),
        });
    }
    let word = value.to_string();
    match place.words.get(&word) {
        Some(written) => Ok(written.clone()),
        // The default needs no words of its own.
        None if place.default.as_ref() == Some(value) => Ok(String::new()),
        None => {
            let expected = place.words.keys().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            Err(LaunchError::BadValue { knob, found: word, expected })
        }
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

fn to_json(value: &Value) -> Json {
    match value {
        Value::On(on) => Json::Bool(*on),
        Value::Count(count) => Json::from(*count),
        Value::Word(word) => Json::String(word.clone()),
    }
}
