//! Writing other settings into a command, and the checkpoint that it goes on from.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Command, config, flags, recognise};
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
    /// Whether a knob can be set in this command.
    pub fn can_set(&self, knob: Knob, folder: &Path) -> bool {
        self.home(knob, folder).is_some()
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
            if self.is_hidden() {
                return place.env.is_some().then_some((layer, place));
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
        if self.is_hidden() {
            return None;
        }
        let range = self.range(layer.launcher);
        let there = |flag: &&String| !flags::find(&self.words, range.clone(), flag).is_empty();
        place.flags.iter().find(there).or_else(|| match layer.guesses {
            true => place.flags.iter().find(|flag| self.knows(flag)),
            false => place.flags.first(),
        })
    }

    /// The command with `settings` in the place of its own. Copies of files go into `copies`.
    pub fn with(&self, settings: &Settings, folder: &Path, copies: &Path) -> Result<Edited, LaunchError> {
        let mut draft = self.clone();
        let mut edited = Edited::default();
        for (knob, value) in settings {
            let Some((layer, place)) = self.home(*knob, folder) else {
                let why = self.why_not(*knob);
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
            self.edit(layer.launcher, |words, range, end| {
                flags::set(words, range, end, &rows.table, Some(&to.display().to_string()));
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
                self.edit(layer.launcher, |words, range, end| match wanted {
                    true => flags::set(words, range, end, &flag, Some(&on)),
                    false => flags::remove(words, range, &flag, false),
                });
            }
            return Ok(());
        }
        let flag = self.flag_of(layer, place).cloned();
        if let Some(flag) = &flag {
            let on = value.on().unwrap_or(true);
            self.edit(layer.launcher, |words, range, end| match (place.alone, on) {
                (true, true) => flags::set(words, range, end, flag, None),
                (true, false) => flags::remove(words, range, flag, true),
                (false, _) => flags::set(words, range, end, flag, Some(&text)),
            });
        }
        if let Some(key) = &place.config
            && let Some((said_by, name)) = key.flags.iter().find_map(|flag| Some((flag, self.value_of(flag)?)))
        {
            self.put_config(&key.key, said_by, &name, value, flag.is_some(), folder, copies, edited)?;
            return Ok(());
        }
        if let (None, Some(name)) = (&flag, &place.env) {
            if let Some((at, before)) = self.assigned(name) {
                self.words[at] = format!("{name}={}", in_list(before, place, &text));
                return Ok(());
            }
            let before = edited.env.get(name).cloned().or_else(|| std::env::var(name).ok()).unwrap_or_default();
            edited.env.insert(name.clone(), in_list(&before, place, &text));
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
                        self.edit(launcher, |words, range, end| flags::set(words, range, end, said_by, Some(&text)));
                        break;
                    }
                }
                edited.copies.push(FileCopy { of: path, to, content });
            }
        }
        Ok(())
    }

    /// Edits the words of a layer and keeps the script's place.
    fn edit(&mut self, launcher: bool, with: impl FnOnce(&mut Vec<String>, Range<usize>, usize)) {
        let (range, end, before) = (self.range(launcher), self.end(launcher), self.words.len());
        with(&mut self.words, range, end);
        if let (true, Some(script)) = (launcher, self.script) {
            self.script = Some(script + self.words.len() - before);
        }
    }

    /// The words that make a command go on from the checkpoint at `path`, in the way of the layer whose form it has;
    /// `None` where no way is known.
    pub fn going_on(&self, edited: &Edited, path: &Path, form: Form) -> Option<Edited> {
        let taken = |layer: &Trainer| {
            let known = |flag: &&String| !self.is_hidden() && (!layer.guesses || self.knows(flag));
            layer.checkpoints.resume.as_ref().filter(known).cloned()
        };
        let has_way = |layer: &&Trainer| taken(layer).is_some() || layer.checkpoints.resume_env.is_some();
        let same_form = |layer: &&Trainer| layer.checkpoints.form == Some(form);
        let layer = self.layers().filter(same_form).find(has_way).or_else(|| self.layers().find(has_way))?;
        let ways = &layer.checkpoints;
        let path = match ways.resume_with {
            ResumeWith::Checkpoint => path,
            ResumeWith::Folder => path.parent()?,
        };
        let text = path.display().to_string();
        let mut edited = edited.clone();
        if let Some(flag) = taken(layer) {
            let launchers: Vec<Trainer> = self.launcher.iter().cloned().collect();
            let script = recognise::parts(&edited.words, &launchers).script;
            let mut draft = Command { words: edited.words, script, ..self.clone() };
            // The flag is the script's, also where a launcher's file knows it.
            draft.edit(false, |words, range, end| flags::set(words, range, end, &flag, Some(&text)));
            edited.words = draft.words;
        }
        if let Some(name) = &ways.resume_env {
            edited.env.insert(name.clone(), text);
        }
        Some(edited)
    }

    /// Why a knob cannot be set in this command.
    fn why_not(&self, knob: Knob) -> String {
        let refused = self.layers().find_map(|layer| layer.knobs.get(&knob)?.refused.clone());
        if let Some(why) = refused {
            return why;
        }
        let Some(place) = self.layers().find_map(|layer| layer.place(knob)) else {
            return "it has no such knob that we know of".to_string();
        };
        if self.is_hidden() {
            return "a shell runs the command out of one text; give its words themselves".to_string();
        }
        let named = |flags: &[String]| flags.iter().map(|flag| format!("`{flag}`")).collect::<Vec<_>>().join(", ");
        match (&place.config, &place.rows) {
            (_, Some(rows)) => format!("the command names no table (`{}`)", rows.table),
            (Some(key), _) if place.flags.is_empty() => format!("the command names no file ({})", named(&key.flags)),
            _ => format!("neither the command nor its script has {}", named(&place.flags)),
        }
    }
}

/// A word that is a flag of its own, and its value.
pub(super) fn flagged(written: &str) -> Option<(&str, &str)> {
    written.split_once(' ').filter(|(flag, _)| flag.starts_with("--"))
}

/// A variable that is a list, with `text` in the place of the knob's other words.
fn in_list(before: &str, place: &Place, text: &str) -> String {
    let others = before.split(',').filter(|part| !part.is_empty() && !place.words.values().any(|word| word == part));
    others.chain(Some(text).filter(|text| !text.is_empty())).collect::<Vec<_>>().join(",")
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

fn to_json(value: &Value) -> Json {
    match value {
        Value::On(on) => Json::Bool(*on),
        Value::Count(count) => Json::from(*count),
        Value::Word(word) => Json::String(word.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_a_list_keeps_its_other_parts() {
        let place = Place {
            words: [("expandable".to_string(), "expandable_segments:True".to_string())].into(),
            ..Place::default()
        };
        let on = "expandable_segments:True";
        assert_eq!(in_list("", &place, on), on);
        assert_eq!(in_list("max_split_size_mb:128", &place, on), format!("max_split_size_mb:128,{on}"));
        assert_eq!(in_list(&format!("{on},a:1"), &place, on), format!("a:1,{on}"));
        assert_eq!(in_list(&format!("{on},a:1"), &place, ""), "a:1");
    }
}
