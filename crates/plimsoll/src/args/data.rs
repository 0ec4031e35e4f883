//! The arguments of `plimsoll data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use plimsoll_machine::Bytes;

use super::{Count, JobFlags};

/// `plimsoll data`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll data inspect pairs.jsonl      rows, columns, lengths, repeats, and whether a shuffle mixes them
  plimsoll data tokenizer pairs.jsonl --out tokenizer      a vocabulary of its words, as a tokenizer.json
  plimsoll data prepare job.toml --out prepared            its rows tokenised once, for many epochs")]
pub struct DataArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: DataVerb,
}

/// What `plimsoll data` does.
#[derive(Debug, Subcommand)]
pub enum DataVerb {
    /// Say what is in files: rows, columns, lengths, repeats, and whether a shuffle mixes them
    Inspect(InspectArgs),
    /// Train a tokenizer on the texts of files
    Tokenizer(TokenizerArgs),
    /// Tokenise the rows of a job once, into a folder to train from
    Prepare(PrepareArgs),
}

/// `plimsoll data prepare`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll data prepare [JOB] [OPTIONS] --out DIR",
    after_help = "\
Training from the folder (`data.train = \"DIR\"` or `--data DIR`) sees the same samples in the same order as from the files, and
a run may change over when it is resumed. It is worth it where rows are read many times, or the tokenizer is slow.
What is written is whole at any time: after Ctrl-C or a crash the same command goes on from the last whole shard.

Examples:
  plimsoll data prepare job.toml --out prepared
  plimsoll data prepare --model models/qwen --data 'chats/*.jsonl.gz' --max-len 1024 --out prepared
  plimsoll data inspect prepared                what it is, and whether every byte is as it was written"
)]
pub struct PrepareArgs {
    /// Job file (TOML), whose model, data and lengths count; a flag outweighs it
    #[arg(value_name = "JOB")]
    pub job: Option<PathBuf>,
    /// Folder to write to
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Model folder whose tokenizer and chat template are used
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Files or patterns
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// What a row is made of
    #[command(flatten)]
    pub rows_of: RowArgs,
    /// Tokens of a source to keep [default: from the data]
    #[arg(long, value_name = "N")]
    pub max_source: Option<Count>,
    /// Tokens of a target to keep [default: from the data]
    #[arg(long, value_name = "N")]
    pub max_target: Option<Count>,
    /// Tokens of a sample of chat or text [default: from the data]
    #[arg(long, value_name = "N")]
    pub max_len: Option<Count>,
    /// What becomes of a text longer than a sample [default: split]
    #[arg(long, value_name = "split|cut|drop")]
    pub long: Option<String>,
    /// Threads that tokenise [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<Count>,
    /// Disk that may be used, such as 20GiB [default: what is free]
    #[arg(long, value_name = "BYTES")]
    pub disk: Option<Bytes>,
    /// Bytes of a shard, which is what a crash loses at most
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub shard: Bytes,
    /// Write over data that were prepared otherwise
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PrepareArgs {
    /// The same as a job says it.
    pub fn job_flags(&self) -> JobFlags {
        JobFlags {
            job: self.job.clone(),
            model: self.model.clone(),
            data: self.data.clone(),
            kind: self.rows_of.kind.clone(),
            source: self.rows_of.source.clone(),
            target: self.rows_of.target.clone(),
            max_source: self.max_source,
            max_target: self.max_target,
            max_len: self.max_len,
            long: self.long.clone(),
            threads: self.threads,
            disk: self.disk,
            data_cache: self.rows_of.data_cache,
            ..JobFlags::default()
        }
    }
}

/// `plimsoll data inspect`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll data inspect pairs.jsonl                            lengths in bytes
  plimsoll data inspect 'chats/*.csv.gz' --model models/qwen --max-len 1024   and in tokens
  plimsoll data inspect 's3://bucket/texts/*.parquet'          files of a store, read where they are
  plimsoll data inspect --job job.toml                         the training data of a job, set by set
  plimsoll data inspect texts.txt --json                       the same, for programs")]
pub struct InspectArgs {
    /// Files, URLs (s3, gs, az, http, https) or patterns, or a folder that `data prepare` made
    #[arg(value_name = "FILE", required_unless_present = "job", conflicts_with = "job")]
    pub files: Vec<PathBuf>,
    /// Job file whose training data are looked at, with the sets of a mixture and their shares
    #[arg(long, value_name = "JOB")]
    pub job: Option<PathBuf>,
    /// Model folder whose tokenizer counts tokens
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// What a row is made of
    #[command(flatten)]
    pub rows_of: RowArgs,
    /// Say how many rows have more tokens than this
    #[arg(long, value_name = "N")]
    pub max_len: Option<Count>,
    /// Blocks of a shuffle window to judge [default: 64]
    #[arg(long, value_name = "N")]
    pub window: Option<Count>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll data tokenizer`
#[derive(Debug, Args)]
#[command(after_help = "\
Pairs are read with both sides, chats with the contents of their messages. Words are counted within `--memory`: what does
not fit, the rarest, is left out and told. The same data and settings give the same files.

Examples:
  plimsoll data tokenizer pairs.jsonl --out tokenizer                     bytes merged to 32000 tokens, as in GPT-2
  plimsoll data tokenizer 'texts/*.txt.gz' --model unigram --vocab 8000 --out tokenizer    as in T5
  plimsoll data tokenizer chats.jsonl --special '<|im_start|>' --special 'eos=<|im_end|>' --out tokenizer
  plimsoll data tokenizer big.parquet --rows 1000000 --seed 7 --memory 2GiB --out tokenizer --json")]
pub struct TokenizerArgs {
    /// Files, URLs (s3, gs, az, http, https) or patterns
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Folder to write `tokenizer.json` and `tokenizer_config.json` into
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How the vocabulary is made: bytes merged (GPT-2), pieces with probabilities (T5), characters merged (BERT)
    #[arg(long, value_name = "bpe|unigram|wordpiece", default_value = "bpe")]
    pub model: String,
    /// Tokens at most, special ones included
    #[arg(long, value_name = "N", default_value = "32000")]
    pub vocab: Count,
    /// One more special token; `ROLE=TOKEN` is the one for a role (pad, eos, unk, bos, cls, sep, mask); may be repeated
    #[arg(long, value_name = "TOKEN")]
    pub special: Vec<String>,
    /// Least occurrences of a pair to be merged, or of a word that unigram looks at [default: 2, unigram 1]
    #[arg(long, value_name = "N")]
    pub min_frequency: Option<Count>,
    /// Most memory for counting words and for training on them
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub memory: Bytes,
    /// Rows to read, drawn at random [default: all]
    #[arg(long, value_name = "N")]
    pub rows: Option<Count>,
    /// Seed of that draw
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What a row is made of
    #[command(flatten)]
    pub rows_of: RowArgs,
    /// Write over files that are there
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What a row of files is made of.
#[derive(Debug, Args)]
pub struct RowArgs {
    /// What a row is [default: by the columns]
    #[arg(long, value_name = "pairs|chat|text")]
    pub kind: Option<String>,
    /// Column that the model reads [default: guessed]
    #[arg(long, value_name = "COL")]
    pub source: Option<String>,
    /// Column that the model learns to write [default: guessed]
    #[arg(long, value_name = "COL")]
    pub target: Option<String>,
    /// Most of the disk for parts of files that lie elsewhere [default: 8GiB, at most a quarter of what is free]
    #[arg(long, value_name = "SIZE")]
    pub data_cache: Option<Bytes>,
}
