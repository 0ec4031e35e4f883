//! All trainers that are known: the built-in ones, and a user's own beside or over them.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table;

use super::{Trainer, file};
use crate::LaunchError;

/// A base stands before what builds on it.
const BUILT_IN: [(&str, &str); 7] = [
    ("lightning", include_str!("../../trainers/lightning.toml")),
    ("piper", include_str!("../../trainers/piper.toml")),
    ("hf-trainer", include_str!("../../trainers/hf-trainer.toml")),
    ("accelerate", include_str!("../../trainers/accelerate.toml")),
    ("deepspeed", include_str!("../../trainers/deepspeed.toml")),
    ("torchrun", include_str!("../../trainers/torchrun.toml")),
    ("generic", include_str!("../../trainers/generic.toml")),
];
/// Trainers that build on each other go this deep at most.
const DEEPEST: usize = 8;

/// The trainers, by name.
#[derive(Clone, Debug)]
pub struct Shelf {
    tables: BTreeMap<String, (String, Table)>,
}

impl Shelf {
    /// The built-in ones.
    pub fn built_in() -> Result<Shelf, LaunchError> {
        let mut shelf = Shelf { tables: BTreeMap::new() };
        for (name, text) in BUILT_IN {
            shelf.put(name, text)?;
        }
        Ok(shelf)
    }

    /// Adds the trainer of a file, in the place of one with the same name; returns its name.
    pub fn add(&mut self, path: &Path) -> Result<String, LaunchError> {
        self.put(&path.display().to_string(), &fs_err::read_to_string(path)?)
    }

    /// Adds every `*.toml` of a folder; one that is not there has none.
    pub fn add_all(&mut self, folder: &Path) -> Result<(), LaunchError> {
        let Ok(entries) = fs_err::read_dir(folder) else { return Ok(()) };
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        paths.iter().try_for_each(|path| self.add(path).map(drop))
    }

    fn put(&mut self, from: &str, text: &str) -> Result<String, LaunchError> {
        let table = file::read(from, text)?;
        let name = table.get("name").and_then(toml::Value::as_str).unwrap_or_default().to_string();
        // A trainer may build on the one whose name it takes over.
        let table = match file::base(&table) {
            Some(base) if base == name => {
                let under = self.tables.get(base).map(|(_, under)| under.clone()).unwrap_or_default();
                let mut merged = file::lay(&under, &table);
                match under.get("base") {
                    Some(further) => merged.insert("base".to_string(), further.clone()),
                    None => merged.remove("base"),
                };
                merged
            }
            _ => table,
        };
        self.tables.insert(name.clone(), (from.to_string(), table));
        self.get(&name)?;
        Ok(name)
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.tables.keys().map(String::as_str).collect()
    }

    /// The trainer of a name, with what it builds on under it.
    pub fn get(&self, name: &str) -> Result<Trainer, LaunchError> {
        let (from, table) = self.tables.get(name).ok_or_else(|| self.none(name))?;
        let mut whole = table.clone();
        let mut base = file::base(table).map(str::to_string);
        for _ in 0..DEEPEST {
            let Some(under) = base else { return file::trainer(from, whole) };
            // How a base is recognised and described is its own.
            let mut below = self.tables.get(&under).ok_or_else(|| self.none(&under))?.1.clone();
            base = file::base(&below).map(str::to_string);
            below.remove("recognise");
            below.remove("launcher");
            whole = file::lay(&below, &whole);
        }
        Err(LaunchError::TrainerFile {
            file: from.clone(),
            place: String::new(),
            problem: format!("`base` goes on for more than {DEEPEST} trainers"),
        })
    }

    /// All of them.
    pub fn all(&self) -> Result<Vec<Trainer>, LaunchError> {
        self.tables.keys().map(|name| self.get(name)).collect()
    }

    fn none(&self, name: &str) -> LaunchError {
        let near = self.tables.keys().min_by_key(|known| strsim::damerau_levenshtein(known, name));
        let near = near.filter(|known| strsim::damerau_levenshtein(known, name) <= 3);
        LaunchError::NoTrainer {
            name: name.to_string(),
            there: self.names().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            near: near.map_or(String::new(), |near| format!("; did you mean `{near}`?")),
        }
    }
}
