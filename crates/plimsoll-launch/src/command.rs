//! A training command as people type it: taken apart, read, and put together again with other settings.
//!
//! `[environment] [launcher words] script [script words]`. Invariants: what is not touched stays word for word; a flag
//! that stands twice is refused, because which one counts depends on the trainer; a file of the user's is never edited,
//! a changed copy takes its place. Nothing is started here.

mod config;
mod edit;
mod flags;
mod recognise;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use edit::{Change, Edited, FileCopy, RowCut};
pub use recognise::recognise;

use crate::{LaunchError, Settings, Trainer};

/// A command and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its words.
    pub words: Vec<String>,
    /// Where the script or module is among them; `None`: all words belong to one program.
    pub script: Option<usize>,
    /// What launches it.
    pub launcher: Option<Trainer>,
    /// What it is.
    pub trainer: Trainer,
    /// The text of its script, where that could be read.
    pub source: String,
    /// Whether there is no command yet, only a trainer's name: every knob that the trainer has can be set.
    pub imagined: bool,
}

/// What a command is set to, and where each setting was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// All settings, defaults included.
    pub settings: Settings,
    /// Those that the command itself names.
    pub said: Vec<crate::Knob>,
}

impl Command {
    /// The words of a command, understood with the trainers of `shelf`; `named` outweighs what is recognised.
    pub fn understand(
        words: Vec<String>,
        shelf: &crate::Shelf,
        named: Option<&str>,
        folder: &Path,
    ) -> Result<Command, LaunchError> {
        if words.is_empty() {
            return Err(LaunchError::NoCommand);
        }
        let script = recognise::script(&words);
        let source = script.map(|at| script_text(&words, at, folder)).unwrap_or_default();
        let (launcher, trainer) = recognise(&words, script, &source, shelf, named)?;
        let command = Command { words, script, launcher, trainer, source, imagined: false };
        command.refuse_doubles()?;
        Ok(command)
    }

    /// A command of a trainer of which nothing is known but its name: only for planning.
    pub fn imagined(shelf: &crate::Shelf, name: &str) -> Result<Command, LaunchError> {
        let named = shelf.get(name)?;
        let (launcher, trainer) = match named.launcher {
            true => (Some(named), shelf.get("generic")?),
            false => (None, named),
        };
        let words = vec![name.to_string()];
        Ok(Command { words, script: None, launcher, trainer, source: String::new(), imagined: true })
    }

    /// The trainers, the one that is nearest to the training first.
    pub fn layers(&self) -> impl Iterator<Item = &Trainer> {
        std::iter::once(&self.trainer).chain(&self.launcher)
    }

    /// The words that belong to a layer: the launcher's are before the script, the trainer's behind it.
    fn range(&self, launcher: bool) -> std::ops::Range<usize> {
        match (self.script, launcher) {
            (Some(script), true) => 0..script,
            (Some(script), false) => script + 1..self.words.len(),
            (None, _) => 1..self.words.len(),
        }
    }

    /// The value of a flag, wherever it stands.
    pub fn value_of(&self, flag: &str) -> Option<String> {
        flags::find(&self.words, 0..self.words.len(), flag).into_iter().next_back().and_then(|found| found.value)
    }

    /// The first of `flags` that has a value.
    pub fn first_of(&self, flags: &[String]) -> Option<String> {
        flags.iter().find_map(|flag| self.value_of(flag))
    }

    /// The folders below which a layer's checkpoints may be, relative to where the command runs.
    pub fn checkpoint_roots(&self, layer: &Trainer) -> Vec<PathBuf> {
        let ways = &layer.checkpoints;
        let said: Vec<PathBuf> = ways.root.iter().filter_map(|flag| self.value_of(flag)).map(PathBuf::from).collect();
        if said.is_empty() { ways.default_root.iter().map(PathBuf::from).collect() } else { said }
    }

    /// Whether the script or the words know a flag.
    fn knows(&self, flag: &str) -> bool {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_');
        !flags::find(&self.words, 0..self.words.len(), flag).is_empty()
            || self.source.match_indices(flag).any(|(at, _)| ends(&self.source[at + flag.len()..]))
    }
}

/// The text of the script, or nothing: it helps to recognise, and is not needed.
fn script_text(words: &[String], at: usize, folder: &Path) -> String {
    const LONGEST: u64 = 4 << 20;
    let path = folder.join(&words[at]);
    match fs_err::metadata(&path) {
        Ok(found) if found.is_file() && found.len() <= LONGEST => fs_err::read_to_string(&path).unwrap_or_default(),
        _ => String::new(),
    }
}
