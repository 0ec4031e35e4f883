//! What a run of a foreign trainer was asked to be: `launch.json` in its folder, from which it goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_launch::ladder::Allow;
use plimsoll_launch::trainer::Place;
use plimsoll_launch::{Command, Knob, Settings, Shelf};
use plimsoll_machine::Bytes;
use plimsoll_recover::atomic_write;
use plimsoll_remote::digest_of;
use serde::{Deserialize, Serialize};

use crate::render::{Fail, OrFail};

/// Its file.
pub const CHARGE: &str = "launch.json";

/// What was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Charge {
    /// The user's command.
    pub words: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// The trainer that was named.
    pub trainer: Option<String>,
    /// Trainer files of the user's.
    pub trainer_files: Vec<PathBuf>,
    /// Flags of knobs that were named on the command line.
    pub flags: BTreeMap<Knob, String>,
    /// The flag that takes a checkpoint.
    pub resume_flag: Option<String>,
    /// Where checkpoints are.
    pub checkpoints: Vec<String>,
    /// Settings that the user wants, over those of the command.
    pub set: Settings,
    /// Other-result rungs that are allowed.
    pub allow: Allow,
    /// The most RAM that it may take.
    pub ram: Option<Bytes>,
    /// Card memory to plan for.
    pub vram: Option<Bytes>,
    /// For another machine than this one: whether it has cards.
    pub elsewhere: Option<bool>,
    /// Whether it computes on a card, where that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_card: Option<bool>,
    /// A description of the model.
    pub shape: Option<PathBuf>,
    /// The length of its samples, where the user says it.
    pub length: Option<u64>,
    /// Whether the estimate may not change it before it starts.
    pub as_is: bool,
    /// Seconds without motion after which it counts as standing still.
    pub stall_after: u64,
    /// Seconds that a stop may take, where the user says so.
    pub stop_within: Option<u64>,
    /// Whether the trainer's output is not shown.
    pub quiet: bool,
    /// When the run began, in milliseconds since 1970: older checkpoints are not its own.
    pub began_unix_ms: u64,
    /// What it was understood as, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub understood: Option<Understood>,
}

/// What a charge means on the machine on which it is read: files of trainers and shapes are another machine's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Understood {
    /// The trainer that it was taken for.
    pub trainer: String,
    /// What launches that.
    pub launcher: Option<String>,
    /// Stands for what both are.
    pub definition: String,
    /// Stands for the description of the model.
    pub shape: Option<String>,
}

impl Charge {
    /// The same, with what it is understood as here.
    pub fn understood(mut self) -> Result<Charge, Fail> {
        let Command { trainer, launcher, .. } = self.command()?;
        let definition = serde_json::to_vec(&(&trainer, &launcher)).or_failed()?;
        let shape = self.shape.as_deref().map(|path| fs_err::read(described_in(path)).or_usage()).transpose()?;
        self.understood = Some(Understood {
            trainer: trainer.name,
            launcher: launcher.map(|launcher| launcher.name),
            definition: digest_of(&definition).to_string(),
            shape: shape.map(|text| digest_of(&text).to_string()),
        });
        Ok(self)
    }

    /// Of a run folder.
    pub fn of_run(run: &Path) -> Result<Charge, Fail> {
        let path = run.join(CHARGE);
        let text = fs_err::read_to_string(&path).or_usage()?;
        let read = serde_json::from_str(&text).or_usage();
        read.map_err(|fail| fail.context(format!("cannot read `{}`", path.display())))
    }

    /// Writes it into a run folder.
    pub fn write(&self, run: &Path) -> Result<(), Fail> {
        let text = serde_json::to_vec_pretty(self).or_failed()?;
        Ok(atomic_write(&run.join(CHARGE), &text)?)
    }

    /// The trainers that are known.
    pub fn shelf(&self) -> Result<Shelf, Fail> {
        let mut shelf = Shelf::built_in().or_failed()?;
        if let Some(folder) = own_trainers() {
            shelf.add_all(&folder).or_usage()?;
        }
        for file in &self.trainer_files {
            shelf.add(file).or_usage()?;
        }
        Ok(shelf)
    }

    /// The command, understood.
    pub fn command(&self) -> Result<Command, Fail> {
        let shelf = self.shelf()?;
        let mut command = match (&self.trainer, self.words.is_empty()) {
            (Some(name), true) => Command::imagined(&shelf, name).or_usage()?,
            (named, _) => Command::understand(self.words.clone(), &shelf, named.as_deref(), &self.folder).or_usage()?,
        };
        for (knob, flag) in &self.flags {
            let place = Place { flags: vec![flag.clone()], ..Place::default() };
            command.trainer.knobs.insert(*knob, place);
        }
        let ways = &mut command.trainer.checkpoints;
        if let Some(flag) = &self.resume_flag {
            ways.resume = Some(flag.clone());
            // It was named, so it need not be guessed.
            command.source.push_str(&format!(" {flag} "));
        }
        if !self.checkpoints.is_empty() {
            ways.paths = self.checkpoints.clone();
            ways.form.get_or_insert(plimsoll_launch::trainer::Form::TorchFile);
            (ways.root, ways.default_root) = (Vec::new(), Some(".".to_string()));
        }
        Ok(command)
    }
}

/// The file that describes a model: one that is named, or that of a folder.
pub fn described_in(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_path_buf() }
}

/// Where a user's own trainer files are.
fn own_trainers() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(config.join("plimsoll/trainers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_definition_of_the_same_name_and_another_shape_are_understood_as_another() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let of = |trainer: &str, shape: &str| {
            fs_err::write(at("mine.toml"), trainer).unwrap();
            fs_err::write(at("config.json"), shape).unwrap();
            let charge = Charge {
                words: vec!["./train".to_string()],
                folder: folder.path().to_path_buf(),
                trainer: Some("mine".to_string()),
                trainer_files: vec![at("mine.toml")],
                shape: Some(folder.path().to_path_buf()),
                ..Charge::default()
            };
            charge.understood().unwrap().understood.unwrap()
        };
        let usual = "name = \"mine\"\nbase = \"generic\"\n";
        let first = of(usual, "{}");
        assert_eq!((first.trainer.as_str(), &first), ("mine", &of(usual, "{}")));
        let other = of(&format!("{usual}[stop]\nwithin_seconds = 7\n"), "{}");
        assert_eq!((&other.trainer, &other.shape), (&first.trainer, &first.shape));
        assert_ne!(other.definition, first.definition);
        assert_ne!(of(usual, "{ }").shape, first.shape);
    }
}
