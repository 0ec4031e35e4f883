//! What was meant: one value with every setting of a run, each judged, each knowing whether it was given or assumed.
//!
//! A flag outweighs the job file, the job file outweighs the default. Whoever holds a [`Settings`] need not look at
//! flags or job files again. Lengths, columns and budgets that nobody gave stay open (`None`): data and machine answer
//! them later.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_data::series::SeriesSpec;
use plimsoll_data::{Columns, Kind, Long, WINDOW_BLOCKS};
use plimsoll_machine::Bytes;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Allow;
use plimsoll_plan::train::{OptimizerSpec, ScheduleSpec};
use plimsoll_plan::trained::TrainSpec;
use toml::Value;

use crate::args::{Init, JobFlags};
use crate::job::early_stop::EarlyStop;
use crate::job::mixture::MixtureSet;
use crate::job::paths::{Paths, is_description};
use crate::job::read::JobFile;
use crate::job::recompute::Recompute;
use crate::job::resolve;
use crate::job::run_folder::DESCRIPTION;
use crate::job::series::SERIES;
use crate::job::trained::Base;
use crate::job::write::inline;
use crate::render::{Fail, OrFail};

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A job file.
    Job {
        /// Its name, without the folder.
        file: String,
        /// Line in it, from 1.
        line: usize,
    },
    /// A flag of the command line.
    Flag,
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Job { file, line } => write!(f, "given in {file}, line {line}"),
            Origin::Flag => f.write_str("flag"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// Passes over the data.
    Epochs(u64),
    /// Weight updates.
    Steps(u64),
}

/// Choices of the plan that the user holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pins {
    /// Samples per micro-batch; divides the effective batch.
    pub micro_batch: Option<u64>,
    /// Blocks that are computed twice.
    pub recompute: Option<Recompute>,
    /// Target tokens per chunk of the loss.
    pub loss_chunk: Option<u64>,
    /// Update weights during the backward pass.
    pub optimizer_in_backward: Option<bool>,
    /// Threads that read and tokenise.
    pub loader_threads: Option<u64>,
    /// Steps between cells of an LSTM that are kept; 0: everything is.
    pub lstm_every: Option<u64>,
    /// Write checkpoints in the background, from a copy.
    pub snapshot: Option<bool>,
}

/// Where checkpoints and the model are copied to.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// `s3://bucket/prefix` and the like, without credentials.
    pub url: String,
    /// Most bytes a second; `None`: no limit.
    pub rate: Option<Bytes>,
    /// Checkpoints to keep there; `None`: all.
    pub keep: Option<u64>,
}

/// Every setting of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The job file, where there was one.
    pub job_file: Option<PathBuf>,
    /// Hugging Face model folder; absolute, as all paths here are.
    pub model: PathBuf,
    /// Where the first weights come from.
    pub init: Init,
    /// Dropout instead of the model's own.
    pub dropout: Option<f64>,
    /// What is trained.
    pub train: TrainSpec,
    /// How weights that are only read are stored.
    pub base: Base,
    /// How weights that are trained are stored.
    pub precision: Dtype,
    /// Form of activations on a card; `None`: steps run on the CPU.
    pub card: Option<Dtype>,
    /// Where no card can be used, the CPU will do.
    pub card_optional: bool,
    /// What the plan may change where nothing else fits.
    pub allow: Allow,
    /// What a row is; `None`: as the model asks for.
    pub kind: Option<Kind>,
    /// How series become samples; `None`: the data are texts.
    pub series: Option<SeriesSpec>,
    /// Several documents in one sample.
    pub packed: bool,
    /// What becomes of texts that are too long.
    pub long: Long,
    /// Tokens of a sample of chat or text; `None`: as the data asks for.
    pub max_tokens: Option<u64>,
    /// Training files that exist, patterns expanded, of all sets; never empty.
    pub train_data: Vec<PathBuf>,
    /// The sets of a mixture; empty where there is none.
    pub mixture: Vec<MixtureSet>,
    /// Held-out file that exists.
    pub eval_data: Option<PathBuf>,
    /// Column with the input; `None`: guess.
    pub source: Option<String>,
    /// Column with the text to learn; `None`: guess.
    pub target: Option<String>,
    /// Tokens of a source to keep; `None`: as the data asks for.
    pub max_source: Option<u64>,
    /// Tokens of a target to keep; `None`: as the data asks for.
    pub max_target: Option<u64>,
    /// Shuffle in every epoch.
    pub shuffle: bool,
    /// Blocks of rows that are mixed at a time.
    pub window: u64,
    /// Memory that the loader must stay below; `None`: it does where it can.
    pub data_memory: Option<Bytes>,
    /// Most of the disk for parts of data that lie elsewhere; `None`: as the disk has room.
    pub cache: Option<Bytes>,
    /// Rows that are too large to be read are left out.
    pub skip_oversized: bool,
    /// Packed files are packed anew in parts that can be entered.
    pub unpack: bool,
    /// Samples per weight update.
    pub effective_batch: u64,
    /// Length of the run.
    pub length: RunLength,
    /// Optimizer.
    pub optimizer: OptimizerSpec,
    /// Course of the learning rate.
    pub schedule: ScheduleSpec,
    /// Global gradient norm to clip at; `None`: off.
    pub clip_norm: Option<f64>,
    /// Updates between evaluations; `None`: off.
    pub eval_every: Option<u64>,
    /// When evaluations that no longer get better end the run; `None`: never.
    pub early_stop: Option<EarlyStop>,
    /// Updates between checkpoints; `None`: only at the end or when stopped.
    pub save_every: Option<u64>,
    /// Minutes between checkpoints, besides those by updates; `None`: off.
    pub save_minutes: Option<u64>,
    /// Checkpoints to keep.
    pub keep: u64,
    /// Seconds that a stop may take; `None`: as long as it needs.
    pub stop_within: Option<u64>,
    /// Steps in a row without a finite loss and gradient that end the run.
    pub max_skips: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Seed of weights, shuffling and dropout.
    pub seed: u64,
    /// RAM that the run may use; `None`: what the machine can give.
    pub ram: Option<Bytes>,
    /// Memory of the card that the run may use; `None`: what is free.
    pub vram: Option<Bytes>,
    /// Disk that the run may use; `None`: what is free.
    pub disk: Option<Bytes>,
    /// Where checkpoints are copied to.
    pub mirror: Option<Mirror>,
    /// Held choices.
    pub pins: Pins,
    pub(crate) origins: BTreeMap<&'static str, Origin>,
}

/// One setting, ready to be said or written.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'a> {
    /// Key in a job file, such as `train.effective_batch`.
    pub key: &'static str,
    /// Its value.
    pub value: Value,
    /// Where it comes from.
    pub origin: &'a Origin,
}

/// The form of activations, as a job names it.
fn compute_name(form: Dtype) -> &'static str {
    match form {
        Dtype::Bf16 => "bf16",
        Dtype::F16 => "f16",
        _ => "f32",
    }
}

impl Settings {
    /// Settings from what was said. Exit 2 with the place, where something is wrong, missing or not supported yet.
    pub fn resolve(flags: &JobFlags) -> Result<Settings, Fail> {
        let file = flags.job.as_deref().map(JobFile::read).transpose()?;
        resolve::settings(file.as_ref(), flags, Paths::Find)
    }

    /// The settings that a run folder holds. Model and data need not be there any more.
    pub fn from_run(folder: &Path) -> Result<Settings, Fail> {
        let path = folder.join("job.toml");
        if !path.is_file() {
            let fail = Fail::usage(format!("`{}` is not a run: it has no `job.toml`", folder.display()));
            return Err(match folder.is_file() {
                true => fail.hint("name the run folder, not a file; `plimsoll train JOB` starts a run"),
                false => fail,
            });
        }
        let mut settings = resolve::settings(Some(&JobFile::read(&path)?), &JobFlags::default(), Paths::AsWritten)?;
        let description = folder.join(DESCRIPTION);
        if is_description(&settings.model) && description.is_file() {
            settings.model = std::path::absolute(description)?;
        }
        Ok(settings)
    }

    /// Columns of evaluation data, as far as they were said: for all data, else for the first set of a mixture.
    pub fn eval_columns(&self) -> Columns {
        let all = Columns { source: self.source.clone(), target: self.target.clone() };
        let first = self.mixture.first().filter(|_| all == Columns::default());
        first.map_or(all, |set| Columns { source: set.source.clone(), target: set.target.clone() })
    }

    /// Where the value of a key comes from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Whether a setting was said, by a flag or in the job.
    pub fn says(&self, key: &str) -> bool {
        *self.origin(key) != Origin::Default
    }

    /// The name that the run folder begins with: the folder of the job file, or the model.
    pub fn run_name(&self) -> String {
        let folder = match &self.job_file {
            Some(file) => std::path::absolute(file).ok().and_then(|file| file.parent().map(Path::to_path_buf)),
            None => Some(self.model.clone()),
        };
        let name = folder.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "run".to_string())
    }

    /// Every setting that has a value, in the order of a job file.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let count = |n: u64| Some(Value::Integer(i64::try_from(n).unwrap_or(i64::MAX)));
        let opt = |n: Option<u64>| n.and_then(count);
        let text = |text: &str| Some(Value::String(text.to_string()));
        let path = |path: &Path| text(&path.to_string_lossy());
        let bytes = |bytes: Option<Bytes>| bytes.and_then(|bytes| text(&exact(bytes)));
        let (epochs, steps) = match self.length {
            RunLength::Epochs(n) => (count(n), None),
            RunLength::Steps(n) => (None, count(n)),
        };
        let train = self.train_data.iter().filter_map(|file| path(file)).collect();
        let sets = self.mixture.iter().map(MixtureSet::to_toml).collect();
        let recompute = self.pins.recompute.and_then(|recompute| match recompute {
            Recompute::All => text("all"),
            Recompute::Blocks(n) => count(n),
        });
        let all = [
            ("model.path", path(&self.model)),
            ("model.init", text(if self.init == Init::Random { "random" } else { "weights" })),
            ("model.dropout", self.dropout.map(Value::Float)),
            ("model.train", Value::try_from(&self.train).ok()),
            ("model.base", text(self.base.name())),
            ("data.train", Some(Value::Array(train)).filter(|_| self.mixture.is_empty())),
            ("data.mixture", Some(Value::Array(sets)).filter(|_| !self.mixture.is_empty())),
            ("data.eval", self.eval_data.as_deref().and_then(path)),
            ("data.columns.source", self.source.as_deref().and_then(text)),
            ("data.columns.target", self.target.as_deref().and_then(text)),
            ("data.max_len.source", opt(self.max_source)),
            ("data.max_len.target", opt(self.max_target)),
            ("data.max_len.tokens", opt(self.max_tokens)),
            ("data.kind", self.kind.map(kind_name).or(self.series.as_ref().map(|_| SERIES)).and_then(text)),
            ("data.series", self.series.as_ref().and_then(|series| Value::try_from(series).ok())),
            ("data.packed", self.packed.then_some(Value::Boolean(true))),
            ("data.long", long_name(self.long).and_then(text)),
            ("data.shuffle", Some(Value::Boolean(self.shuffle))),
            ("data.window", (self.window != WINDOW_BLOCKS as u64).then(|| count(self.window)).flatten()),
            ("data.memory", bytes(self.data_memory)),
            ("data.oversized", self.skip_oversized.then(|| text("skip")).flatten()),
            ("data.unpack", (!self.unpack).then_some(Value::Boolean(false))),
            ("data.cache", bytes(self.cache)),
            ("train.effective_batch", count(self.effective_batch)),
            ("train.epochs", epochs),
            ("train.steps", steps),
            ("train.optimizer", Value::try_from(&self.optimizer).ok()),
            ("train.schedule", Value::try_from(&self.schedule).ok()),
            ("train.precision", (self.precision == Dtype::Bf16).then(|| text("bf16")).flatten()),
            ("train.device", self.card.and_then(|_| text(if self.card_optional { "auto" } else { "cuda" }))),
            ("train.compute", self.card.and_then(|form| text(compute_name(form)))),
            ("train.clip_norm", Some(Value::Float(self.clip_norm.unwrap_or(0.0)))),
            ("train.eval_every", count(self.eval_every.unwrap_or(0))),
            ("train.early_stop", self.early_stop.and_then(|rule| Value::try_from(rule).ok())),
            ("train.save_every", count(self.save_every.unwrap_or(0))),
            ("train.save_minutes", count(self.save_minutes.unwrap_or(0))),
            ("train.keep", count(self.keep)),
            ("train.stop_within", count(self.stop_within.unwrap_or(0))),
            ("train.max_skips", count(self.max_skips)),
            ("train.threads", count(self.threads as u64)),
            ("train.seed", count(self.seed)),
            ("budget.ram", bytes(self.ram)),
            ("budget.vram", bytes(self.vram)),
            ("budget.disk", bytes(self.disk)),
            ("allow.precision", self.allow.bf16_weights.then(|| text("bf16")).flatten()),
            ("allow.optimizer", self.allow.adamw8bit.then(|| text("adamw8bit")).flatten()),
            ("allow.lora", self.allow.lora.as_ref().and_then(|lora| Value::try_from(lora).ok())),
            ("allow.base", self.allow.quantise.and_then(|d| text(if d == Dtype::Nf4 { "nf4" } else { "int8" }))),
            ("allow.length", self.allow.shorter.and_then(|n| count(n as u64))),
            ("mirror.url", self.mirror.as_ref().and_then(|mirror| text(&mirror.url))),
            ("mirror.rate", bytes(self.mirror.as_ref().and_then(|mirror| mirror.rate))),
            ("mirror.keep", opt(self.mirror.as_ref().and_then(|mirror| mirror.keep))),
            ("pin.micro_batch", opt(self.pins.micro_batch)),
            ("pin.recompute", recompute),
            ("pin.loss_chunk", opt(self.pins.loss_chunk)),
            ("pin.optimizer_in_backward", self.pins.optimizer_in_backward.map(Value::Boolean)),
            ("pin.loader_threads", opt(self.pins.loader_threads)),
            ("pin.lstm_every", opt(self.pins.lstm_every)),
            ("pin.snapshot", self.pins.snapshot.map(Value::Boolean)),
        ];
        all.into_iter()
            .filter_map(|(key, value)| value.map(|value| Entry { key, value, origin: self.origin(key) }))
            .collect()
    }

    /// The resolved job file: every setting, and behind it where it came from. [`Settings::from_run`] reads it back.
    pub fn to_toml(&self) -> String {
        let mut out =
            String::from("# The job as it was understood. Written by plimsoll; `plimsoll resume` reads it.\n");
        let mut open = "";
        for entry in self.entries() {
            let (table, key) = entry.key.split_once('.').unwrap_or(("", entry.key));
            if table != open {
                out.push_str(&format!("\n[{table}]\n"));
                open = table;
            }
            let value = inline(&entry.value);
            // A file name may hold a line end; a comment may not.
            let origin = entry.origin.to_string().replace(['\n', '\r'], " ");
            out.push_str(&format!("{key} = {value}  # {origin}\n"));
        }
        out
    }

    /// Writes `job.toml` into the run folder, and beside it the model's description where it has one: what is
    /// changed in the original later is another run's.
    pub fn write_run(&self, folder: &Path) -> Result<(), Fail> {
        plimsoll_recover::atomic_write(&folder.join("job.toml"), self.to_toml().as_bytes())?;
        if is_description(&self.model) {
            plimsoll_recover::atomic_write(&folder.join(DESCRIPTION), &fs_err::read(&self.model).or_usage()?)?;
        }
        Ok(())
    }
}

/// The kind that a job file calls so.
pub fn kind_named(name: &str) -> Option<Kind> {
    [Kind::Pairs, Kind::Chat, Kind::Text].into_iter().find(|kind| kind_name(*kind) == name)
}

/// As a job file says it.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Pairs => "pairs",
        Kind::Chat => "chat",
        Kind::Text => "text",
    }
}

/// As a job file says it, where it has to.
fn long_name(long: Long) -> Option<&'static str> {
    match long {
        Long::Split => None,
        Long::Cut => Some("cut"),
        Long::Drop => Some("drop"),
    }
}

/// Bytes without rounding, in the largest unit that is whole.
fn exact(bytes: Bytes) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes.0 > 0 && bytes.0.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes.0 >> shift);
        }
    }
    bytes.0.to_string()
}

#[cfg(test)]
mod tests;
