//! The job file, as it is written: TOML tables with every key optional, each value knowing its place in the text.
//!
//! Unknown and duplicate keys are refused while reading. No default is filled in here and no value is judged; that is
//! the business of `settings`. Keys that the program does not serve yet are read all the same, so that they can be
//! refused by name instead of being ignored.

pub mod count;
pub mod early_stop;
pub mod keys;
pub mod mixture;
pub mod optimizer;
pub mod paths;
pub mod read;
pub mod recompute;
pub mod resolve;
pub mod run_folder;
pub mod schedule;
pub mod series;
pub mod trained;
pub mod write;

use plimsoll_data::series::SeriesSpec;
use serde::Deserialize;
use toml::{Spanned, Value};

use count::Count;
use early_stop::EarlyStopTable;
use optimizer::OptimizerTable;
use paths::Files;
use recompute::Recompute;
use schedule::ScheduleTable;

/// A whole job file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct Job {
    /// `[model]`
    pub model: ModelTable,
    /// `[data]`
    pub data: DataTable,
    /// `[train]`
    pub train: TrainTable,
    /// `[budget]`
    pub budget: BudgetTable,
    /// `[allow]`
    pub allow: AllowTable,
    /// `[mirror]`
    pub mirror: MirrorTable,
    /// `[pin]`
    pub pin: PinTable,
}

/// `[model]`: what is trained.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ModelTable {
    /// Hugging Face folder.
    pub path: Option<Spanned<String>>,
    /// `weights` or `random`.
    pub init: Option<Spanned<String>>,
    /// `all`, `{ freeze = [...] }` or `{ lora = { ... } }`.
    pub train: Option<Spanned<Value>>,
    /// How weights that are only read are stored: `file`, `f32`, `int8`, `nf4`.
    pub base: Option<Spanned<String>>,
    /// Overrides the dropout of config.json.
    pub dropout: Option<Spanned<f64>>,
}

/// `[data]`: what it is trained on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct DataTable {
    /// Files or patterns.
    pub train: Option<Spanned<Files>>,
    /// Several sets of files, each with its weight.
    pub mixture: Option<Spanned<Vec<Spanned<MixtureTable>>>>,
    /// Held-out file.
    pub eval: Option<Spanned<String>>,
    /// `pairs`, `chat`, `text` or `series`.
    pub kind: Option<Spanned<String>>,
    /// How series become samples.
    pub series: Option<Spanned<SeriesSpec>>,
    /// Several documents in one sample.
    pub packed: Option<Spanned<bool>>,
    /// What becomes of texts that are too long: `split`, `cut` or `drop`.
    pub long: Option<Spanned<String>>,
    /// Names of the columns.
    pub columns: ColumnsTable,
    /// Tokens to keep.
    pub max_len: MaxLenTable,
    /// Shuffle in every epoch.
    pub shuffle: Option<Spanned<bool>>,
    /// Blocks that are mixed at a time.
    pub window: Option<Spanned<Count>>,
    /// Memory of the loader.
    pub memory: Option<Spanned<Value>>,
    /// What becomes of rows that are too large to be read: `refuse` or `skip`.
    pub oversized: Option<Spanned<String>>,
    /// Packed files are packed anew in parts that can be entered.
    pub unpack: Option<Spanned<bool>>,
    /// Most bytes of the disk for parts of files that lie elsewhere.
    pub cache: Option<Spanned<Value>>,
}

/// `[[data.mixture]]`: one set of several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { train = \"a.jsonl\", weight = 2.0 }")]
pub struct MixtureTable {
    /// Files or patterns.
    pub train: Option<Files>,
    /// How often each row comes in one pass.
    pub weight: Option<f64>,
    /// Names of the columns, where they are not those of `data.columns`.
    pub columns: ColumnsTable,
}

/// `data.columns`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { source = \"prompt\", target = \"response\" }")]
pub struct ColumnsTable {
    /// Column with the input.
    pub source: Option<Spanned<String>>,
    /// Column with the text to learn.
    pub target: Option<Spanned<String>>,
}

/// `data.max_len`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { source = 256, target = 256 }")]
pub struct MaxLenTable {
    /// Tokens of a source.
    pub source: Option<Spanned<Count>>,
    /// Tokens of a target.
    pub target: Option<Spanned<Count>>,
    /// Tokens of a sample of chat or text.
    pub tokens: Option<Spanned<Count>>,
}

/// `[train]`: how.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct TrainTable {
    /// Samples per update.
    pub effective_batch: Option<Spanned<Count>>,
    /// Passes over the data.
    pub epochs: Option<Spanned<Count>>,
    /// Updates, instead of epochs.
    pub steps: Option<Spanned<Count>>,
    /// Optimizer and its numbers.
    pub optimizer: Option<Spanned<OptimizerTable>>,
    /// Course of the learning rate.
    pub schedule: Option<Spanned<ScheduleTable>>,
    /// How trained weights are stored: `f32` or `bf16`.
    pub precision: Option<Spanned<String>>,
    /// Where steps run.
    pub device: Option<Spanned<String>>,
    /// Number type of activations on a card.
    pub compute: Option<Spanned<String>>,
    /// Global gradient norm; 0 is off.
    pub clip_norm: Option<Spanned<f64>>,
    /// Updates between evaluations; 0 is off.
    pub eval_every: Option<Spanned<Count>>,
    /// When evaluations that no longer get better end the run.
    pub early_stop: Option<Spanned<EarlyStopTable>>,
    /// Updates between checkpoints; 0 is off.
    pub save_every: Option<Spanned<Count>>,
    /// Minutes between checkpoints; 0 is off.
    pub save_minutes: Option<Spanned<Count>>,
    /// Checkpoints to keep.
    pub keep: Option<Spanned<Count>>,
    /// Seconds that a stop may take; 0 is as long as it needs.
    pub stop_within: Option<Spanned<Count>>,
    /// Steps in a row without a finite loss and gradient that end the run.
    pub max_skips: Option<Spanned<Count>>,
    /// Threads that compute.
    pub threads: Option<Spanned<Count>>,
    /// Seed of everything random.
    pub seed: Option<Spanned<Count>>,
}

/// `[budget]`: what the run may use, as texts such as `2GiB`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct BudgetTable {
    /// Of RAM.
    pub ram: Option<Spanned<Value>>,
    /// Of the card's memory.
    pub vram: Option<Spanned<Value>>,
    /// Of disk.
    pub disk: Option<Spanned<Value>>,
}

/// `[allow]`: other-result rungs that the plan may take where nothing else fits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct AllowTable {
    /// Lower precision.
    pub precision: Option<Spanned<Value>>,
    /// Another optimizer.
    pub optimizer: Option<Spanned<Value>>,
    /// Adapters instead of all weights.
    pub lora: Option<Spanned<Value>>,
    /// A quantised base.
    pub base: Option<Spanned<Value>>,
    /// Shorter sequences.
    pub length: Option<Spanned<Value>>,
    /// Another effective batch.
    pub batch: Option<Spanned<Value>>,
}

/// `[mirror]`: where checkpoints and the model are copied to. Credentials never stand here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct MirrorTable {
    /// `s3://bucket/prefix`, `gs://`, `az://`, `file://`.
    pub url: Option<Spanned<String>>,
    /// Most bytes a second.
    pub rate: Option<Spanned<Value>>,
    /// Checkpoints to keep there; 0 is all.
    pub keep: Option<Spanned<Count>>,
}

/// `[pin]`: choices of the plan that the user holds; the result stays the same.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct PinTable {
    /// Samples per micro-batch.
    pub micro_batch: Option<Spanned<Count>>,
    /// Blocks that are computed twice.
    pub recompute: Option<Spanned<Recompute>>,
    /// Target tokens per chunk of the loss.
    pub loss_chunk: Option<Spanned<Count>>,
    /// Update weights during the backward pass.
    pub optimizer_in_backward: Option<Spanned<bool>>,
    /// Threads that read and tokenise.
    pub loader_threads: Option<Spanned<Count>>,
    /// Steps between cells of an LSTM that are kept.
    pub lstm_every: Option<Spanned<Count>>,
    /// Write checkpoints in the background, from a copy.
    pub snapshot: Option<Spanned<bool>>,
}
