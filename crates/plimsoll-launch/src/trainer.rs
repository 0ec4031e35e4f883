//! A trainer as data: how it is recognised, where each knob goes, how it resumes, stops, tells its progress, and what it
//! cannot do.
//!
//! Built-in files are in `trainers/`; a user's own file has the same form and may build on one of them (`base`). A
//! command may have two: a launcher (`torchrun`, `accelerate`, `deepspeed`) and what it launches. Reading validates
//! everything, patterns included; what is not said is not guessed.

mod file;
mod pattern;
mod shelf;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use pattern::Pattern;
pub use shelf::Shelf;

use crate::{Knob, Value};

/// A trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trainer {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub says: String,
    /// The trainer that it builds on.
    pub base: Option<String>,
    /// Whether it starts others.
    pub launcher: bool,
    /// Whether its flags are only the usual spellings: those count that the command or its script knows.
    pub guesses: bool,
    /// How a command is known to be it.
    pub recognise: Recognise,
    /// Where its knobs are.
    pub knobs: BTreeMap<Knob, Place>,
    /// Settings of the environment that it always gets, where the user has not set them.
    pub env: BTreeMap<String, String>,
    /// How it goes on from a checkpoint, and where those are.
    pub checkpoints: Checkpoints,
    /// What its log tells.
    pub log: Log,
    /// The words that make it write a log for each rank, `{folder}` standing for where.
    pub rank_logs: Vec<String>,
    /// How it stops.
    pub stop: Stop,
    /// What it can and cannot do.
    pub can: Can,
    /// What must be there before it starts.
    pub needs: Needs,
    /// What it costs, for the estimate.
    pub costs: Costs,
}

/// How a command is known: any one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recognise {
    /// Names of programs, with the words that must follow: `accelerate launch`.
    pub programs: Vec<String>,
    /// Modules after `-m`.
    pub modules: Vec<String>,
    /// Flags that only it has.
    pub flags: Vec<String>,
    /// Text in the script.
    pub source: Vec<String>,
}

/// Where a knob is, and what it is when nobody sets it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Place {
    /// A flag; the first is the one that is written, the others are read too.
    pub flags: Vec<String>,
    /// A variable of the environment.
    pub env: Option<String>,
    /// A key of a JSON or YAML file that the command names, with dots.
    pub config: Option<ConfigKey>,
    /// The flag stands alone for "on".
    pub alone: bool,
    /// What our words are called there; a value that is not listed is not passed on.
    pub words: BTreeMap<String, String>,
    /// The trainer's default.
    pub default: Option<Value>,
    /// Why it cannot be set, where that is so.
    pub refused: Option<String>,
    /// The knob is a limit on rows of a table that the command names: a filtered copy takes its place.
    pub rows: Option<Rows>,
}

/// A key in a config file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigKey {
    /// The flags that name the file.
    pub flags: Vec<String>,
    /// The key, with dots.
    pub key: String,
}

/// A table of sound files whose rows can be cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// The flag that names the table.
    pub table: String,
    /// The flag that names the folder of the sound files.
    pub folder: String,
    /// What separates the columns.
    pub separator: char,
}

/// Checkpoints: their form, their place, and how one is passed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoints {
    /// How whole ones are told from torn ones; absent: the trainer has none that we know.
    pub form: Option<Form>,
    /// The flags that name the folder below which they are.
    pub root: Vec<String>,
    /// That folder, where no flag names it.
    pub default_root: Option<String>,
    /// Below it, patterns of paths.
    pub paths: Vec<String>,
    /// The flag that takes the checkpoint.
    pub resume: Option<String>,
    /// What that flag gets: the checkpoint itself, or the folder that holds it.
    pub resume_with: ResumeWith,
    /// The variable of the environment that takes it.
    pub resume_env: Option<String>,
}

/// What a resume flag gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeWith {
    /// The checkpoint.
    #[default]
    Checkpoint,
    /// The folder in which it is.
    Folder,
}

/// The form of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One file of `torch.save`.
    TorchFile,
    /// A `checkpoint-N` folder of the Hugging Face Trainer.
    HfTrainer,
    /// A `global_stepN` folder of DeepSpeed, with `latest` beside it.
    DeepSpeed,
    /// A folder of `Accelerator.save_state`.
    Accelerate,
}

/// What a log tells, as patterns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Progress: `step`, and perhaps `total` and `loss`, as named groups.
    pub progress: Vec<Pattern>,
    /// The loss, as the group `loss`, where it stands on a line of its own.
    pub loss: Vec<Pattern>,
    /// The training is done.
    pub done: Vec<Pattern>,
    /// The checkpoint was taken up.
    pub restored: Vec<Pattern>,
    /// It was not, although it was asked for.
    pub not_restored: Vec<Pattern>,
    /// DeepSpeed is at work.
    pub deepspeed: Vec<Pattern>,
    /// An evaluation has begun.
    pub evaluating: Vec<Pattern>,
    /// Whether the steps of its progress go on where a checkpoint ended; otherwise they begin anew in every epoch or start.
    pub counts_on: bool,
    /// How many steps the trainer counts for one of ours.
    pub steps_per_update: Option<u64>,
}

/// How a trainer is stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// Who is asked.
    pub ask: Ask,
    /// Whether it saves when asked.
    pub saves: bool,
    /// Seconds that it gets.
    pub within_seconds: u64,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop { ask: Ask::Main, saves: false, within_seconds: 30 }
    }
}

/// Who is asked to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The first process, which tells the others.
    #[default]
    Main,
    /// Every rank and every launcher: the first process would leave them behind.
    Everyone,
}

/// What a trainer can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Can {
    /// A checkpoint goes on only with the number of ranks that wrote it.
    pub world_fixed: bool,
    /// Gradients are averaged over micro-batches, so that batch and accumulation can be exchanged with the same result.
    pub exact_accumulation: bool,
}

/// What must be there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Libraries that it imports.
    pub imports: Vec<String>,
    /// Modules that must import, with what to do where one does not.
    pub modules: BTreeMap<String, String>,
    /// Programs that must be found, with what for.
    pub programs: BTreeMap<String, String>,
    /// Python that is run once before the start, outside of the limit: first-use compilation.
    pub warm_up: Option<String>,
    /// What is known to go wrong, and when.
    pub warnings: Vec<String>,
}

/// What the estimate needs to know of a trainer beyond its settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// The model's shape by name, where the trainer has only one.
    pub shape: Option<String>,
    /// The flags that name a folder with `config.json`.
    pub model: Vec<String>,
}

impl Trainer {
    /// Where a knob is, if it can be set at all.
    pub fn place(&self, knob: Knob) -> Option<&Place> {
        self.knobs.get(&knob).filter(|place| place.refused.is_none())
    }
}
