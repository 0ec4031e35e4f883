//! A training command as people type it: taken apart, read, and put together again with other settings.
//!
//! `[wrapper words] [launcher words] script [script words]`. Invariants: what is not touched stays word for word; a flag
//! that stands twice is refused, because which one counts depends on the trainer; a file of the user's is never edited,
//! a changed copy takes its place; no word is written where a shell's own text would hide it. Nothing is started here.

mod config;
mod edit;
pub(crate) mod flags;
mod reading;
pub(crate) mod recognise;
mod refuse;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use edit::{Change, Edited, FileCopy, RowCut};

use crate::{LaunchError, Settings, Shelf, Trainer};

/// A command and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its words.
    pub words: Vec<String>,
    /// Where the program is among them: behind `env X=1`, `srun`, `uv run`.
    pub program: usize,
    /// The first word behind that program and its own verb or module (`accelerate launch`).
    pub own: usize,
    /// Where the script or module is; `None`: all words behind the program are its own.
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
        shelf: &Shelf,
        named: Option<&str>,
        folder: &Path,
    ) -> Result<Command, LaunchError> {
        if words.is_empty() {
            return Err(LaunchError::NoCommand);
        }
        let launchers: Vec<Trainer> = shelf.all()?.into_iter().filter(|one| one.launcher).collect();
        let parts = recognise::parts(&words, &launchers);
        let source = parts.script.map(|at| script_text(&words[at], parts.module, folder)).unwrap_or_default();
        let (launcher, trainer) = recognise::recognise(&words, parts, &launchers, &source, shelf, named)?;
        let recognise::Parts { program, own, script, .. } = parts;
        let command = Command { words, program, own, script, launcher, trainer, source, imagined: false };
        command.refuse()?;
        Ok(command)
    }

    /// A command of a trainer of which nothing is known but its name: only for planning.
    pub fn imagined(shelf: &Shelf, name: &str) -> Result<Command, LaunchError> {
        let named = shelf.get(name)?;
        let (launcher, trainer) = match named.launcher {
            true => (Some(named), shelf.get("generic")?),
            false => (None, named),
        };
        let words = vec![name.to_string()];
        let source = String::new();
        Ok(Command { words, program: 0, own: 1, script: None, launcher, trainer, source, imagined: true })
    }

    /// The trainers, the one that is nearest to the training first.
    pub fn layers(&self) -> impl Iterator<Item = &Trainer> {
        std::iter::once(&self.trainer).chain(&self.launcher)
    }

    /// The words that belong to a layer: the launcher's are before the script, the trainer's behind it.
    fn range(&self, launcher: bool) -> Range<usize> {
        match (self.script, launcher) {
            (Some(script), true) => self.program..before_script(&self.words, script).max(self.program),
            (Some(script), false) => script + 1..self.words.len(),
            (None, _) => self.program + 1..self.words.len(),
        }
    }

    /// Where a new flag of a layer goes: behind its others, and before a `--`.
    fn end(&self, launcher: bool) -> usize {
        let range = match (self.script, launcher) {
            // What else is there may be the launched program's.
            (None, true) => return self.own.min(self.words.len()),
            _ => self.range(launcher),
        };
        self.words[range.clone()].iter().position(|word| word == "--").map_or(range.end, |at| range.start + at)
    }

    /// Whether a shell runs the command out of one text (`bash -c "..."`): its words cannot be read or set.
    pub fn is_hidden(&self) -> bool {
        let text = |word: &String| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
        let shell =
            self.words.get(self.program).is_some_and(|word| recognise::SHELLS.contains(&recognise::name_of(word)));
        shell && self.words[self.program + 1..].iter().take_while(|word| word.starts_with('-')).any(text)
    }

    /// All places of a flag, the launcher's before the trainer's.
    fn found(&self, flag: &str) -> Vec<flags::Flag> {
        let mut found = flags::find(&self.words, self.range(false), flag);
        if self.script.is_some() {
            found.splice(0..0, flags::find(&self.words, self.range(true), flag));
        }
        found
    }

    /// The value of a flag, wherever it stands.
    pub fn value_of(&self, flag: &str) -> Option<String> {
        self.found(flag).pop().and_then(|found| found.value)
    }

    /// The first of `flags` that has a value.
    pub fn first_of(&self, flags: &[String]) -> Option<String> {
        flags.iter().find_map(|flag| self.value_of(flag))
    }

    /// What it is, in a word or two: `hf-trainer by torchrun`.
    pub fn name(&self) -> String {
        self.layers().map(|layer| layer.name.as_str()).collect::<Vec<_>>().join(" by ")
    }

    /// Whether its words ask for DeepSpeed.
    pub fn asks_for_deepspeed(&self) -> bool {
        let asks = ["--deepspeed", "--deepspeed_config", "--use_deepspeed"];
        asks.iter().any(|flag| !flags::find(&self.words, 0..self.words.len(), flag).is_empty())
    }

    /// Whether its words tell it to leave cards alone.
    pub fn leaves_cards_alone(&self) -> bool {
        let is = |flag: &str, word: &str| self.value_of(flag).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let on = |flag: &str| {
            let found = flags::find(&self.words, 0..self.words.len(), flag).pop();
            found.is_some_and(|found| !matches!(found.value.as_deref(), Some("False" | "false" | "0")))
        };
        is("--trainer.accelerator", "cpu") || is("--device", "cpu") || on("--cpu") || on("--use_cpu") || on("--no_cuda")
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
        !self.found(flag).is_empty()
            || self.source.match_indices(flag).any(|(at, _)| ends(&self.source[at + flag.len()..]))
    }
}

/// Flags that are given more than once to one program, with their values. What a launcher and its script both have is
/// no double, and lists that are appended to (`--x+=`) may come again.
pub fn doubled(words: &[String]) -> BTreeMap<String, Vec<String>> {
    let built_in = Shelf::built_in().and_then(|shelf| shelf.all()).unwrap_or_default();
    let launchers: Vec<Trainer> = built_in.into_iter().filter(|one| one.launcher).collect();
    let parts = recognise::parts(words, &launchers);
    let first = parts.script.map_or(words.len(), |script| before_script(words, script)).max(parts.program);
    let ranges = [parts.program..first, parts.script.map_or(first, |script| script + 1)..words.len()];
    let doubles = ranges.into_iter().flat_map(|range| flags::doubles(words, range));
    doubles.map(|double| (double.flag, double.values)).collect()
}

/// The end of the words before a script: a module's `-m` is no flag of the launcher's.
fn before_script(words: &[String], script: usize) -> usize {
    let module = script > 0 && matches!(words[script - 1].as_str(), "-m" | "--module");
    script - usize::from(module)
}

/// The text of the script, or nothing: it helps to recognise, and is not needed.
fn script_text(script: &str, module: bool, folder: &Path) -> String {
    const LONGEST: u64 = 4 << 20;
    let below = script.replace('.', "/");
    let paths = match module {
        true => vec![format!("{below}.py"), format!("{below}/__main__.py")],
        false => vec![script.to_string()],
    };
    let readable = |path: &PathBuf| fs_err::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LONGEST);
    let path = paths.into_iter().map(|path| folder.join(path)).find(readable);
    path.and_then(|path| fs_err::read_to_string(path).ok()).unwrap_or_default()
}
