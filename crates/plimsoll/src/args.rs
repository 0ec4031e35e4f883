//! What was said on the command line, word for word: verbs, flags, help.
//!
//! Nothing is judged here beyond the form of a value; what the words mean together with a job file, and which values
//! are in range, is the business of `settings`. Every key of a job file has its flag in [`JobFlags`].

mod data;
mod deploy;
mod remote;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll_machine::Bytes;

use crate::job::count::Count;
use crate::job::recompute::Recompute;
pub use data::{DataArgs, DataVerb, InspectArgs, PrepareArgs, RowArgs, TokenizerArgs};
pub use deploy::{DeployArgs, DeployTarget, ForeignFlags};
pub use remote::{AgentArgs, AgentVerb, RemoteArgs, RemoteVerb};
pub use remote::{
    FarJobArgs, FarLogsArgs, FarPlanArgs, FarPullArgs, FarPushArgs, FarRunArgs, FarTrainArgs, FarWatchArgs, Sending,
};

/// Heading of the flags that hold a choice of the plan.
const PINS: &str = "Pins (hold a choice of the plan; the result stays the same)";

/// Heading of the flags for other people's trainers.
const FOREIGN: &str = "Foreign trainers (computed estimates, corrected by what runs measured here)";

/// Trains and fine-tunes models inside the memory a machine has
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 110, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  plimsoll probe                                        what this machine can give
  plimsoll plan examples/chat/job.toml                  what the job needs, part by part
  plimsoll train examples/chat/job.toml                 plan, then train
  plimsoll train --model t5-small --data pairs.jsonl    no job file needed
  plimsoll run -- python3 train.py --batch-size 32      guard somebody else's trainer

Exit codes: 0 done, 1 the run failed, 2 usage or bad input, 3 does not fit, 4 stopped and resumable")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// One verb and what was said with it.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the machine, and what a run may use of it
    Probe(ProbeArgs),
    /// Show what a job needs, part by part, and whether it fits
    Plan(PlanArgs),
    /// Plan, then train
    Train(TrainArgs),
    /// Plan, start, guard and resume somebody else's trainer: any command
    Run(RunArgs),
    /// Go on with a run from its last complete checkpoint
    Resume(ResumeArgs),
    /// Try a model: print its answers to prompts
    Generate(GenerateArgs),
    /// Measure a run's model: loss and BLEU-4
    Eval(EvalArgs),
    /// Fold an adapter into its base: a whole model folder
    Merge(MergeArgs),
    /// Look at data before training on them
    Data(DataArgs),
    /// List a run's checkpoints, and verify them
    Checkpoints(CheckpointsArgs),
    /// Look at a run, live or dead: loss, memory, time, events
    Watch(WatchArgs),
    /// Look over a job, or somebody else's training command, before it starts
    Check(CheckArgs),
    /// Say what happened to a run: causes, evidence, what was done, what to change
    Doctor(DoctorArgs),
    /// Show the logs of a run's trainer, by start and by rank, or search them
    Logs(LogsArgs),
    /// Copy what a run's mirror lacks to it
    Mirror(MirrorArgs),
    /// Write the file that runs a job elsewhere: compose, systemd, Slurm, Kubernetes
    Deploy(Box<DeployArgs>),
    /// Send, start, follow and fetch runs on another machine, over SSH
    Remote(RemoteArgs),
    /// The far side of `remote`
    #[command(hide = true)]
    RemoteAgent(AgentArgs),
    /// The training process, started by `train` and `resume`
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// `plimsoll probe`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll probe                 RAM, swap, limits, cores, disk and cards, for people
  plimsoll probe --json          the same, for programs
  plimsoll probe /data/runs      with the disk that holds /data/runs")]
pub struct ProbeArgs {
    /// Folder whose disk is looked at: where runs will be written
    #[arg(value_name = "DIR", default_value = ".")]
    pub path: PathBuf,
    /// Measure how fast this machine trains, for a few seconds, and keep it for the plans to come
    #[arg(long)]
    pub rates: bool,
    /// Compute threads to measure with [default: the usable cores]
    #[arg(long, value_name = "N", requires = "rates", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll plan`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll plan [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll plan job.toml                                the plan for this machine
  plimsoll plan job.toml --ram 2GiB                     would it fit into 2 GiB?
  plimsoll plan --model t5-small --data pairs.jsonl --json
  plimsoll plan job.toml --micro-batch 4                hold one choice, let the plan make the others
  plimsoll plan job.toml --sweep --svg curve.svg        what each amount of RAM buys
  plimsoll plan -- accelerate launch --num_processes 2 train.py --num_train_epochs 3
  plimsoll plan --trainer hf-trainer --shape qwen --set batch=4 --length 1024 --vram 12GiB
  plimsoll plan --trainer deepspeed --shape qwen --length 512 --set zero_stage=2 --write configs
  plimsoll plan --profile rtx3060-production            what a guide says, and what is true; `list` names all
  plimsoll plan --profile guide --machine server.json --trainer piper   the guide's table beside the computed one

Exit code 3: it does not fit; what would make it fit is printed."
)]
pub struct PlanArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// Plan a foreign trainer: piper, lightning, hf-trainer, accelerate, deepspeed, torchrun, generic, or a TOML file
    #[arg(long, value_name = "NAME|FILE", help_heading = FOREIGN, conflicts_with = "job")]
    pub trainer: Option<String>,
    /// The model's shape: a config.json, a folder with one, or a description
    #[arg(long, value_name = "FILE", help_heading = FOREIGN)]
    pub shape: Option<PathBuf>,
    /// Length of its samples, for the estimate: tokens, or seconds of sound [default: the command's]
    #[arg(long, value_name = "N", help_heading = FOREIGN)]
    pub length: Option<u64>,
    /// Set a knob of the trainer: batch, accumulation, workers, length, zero_stage ...; may be given several times
    #[arg(long, value_name = "KNOB=VALUE", help_heading = FOREIGN)]
    pub set: Vec<String>,
    /// Changes of the result that are allowed to make it fit: batch, length[=N], precision[=NAME], optimizer[=NAME]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = FOREIGN)]
    pub allow: Vec<String>,
    /// Estimate the settings as they are; change none of them
    #[arg(long, help_heading = FOREIGN)]
    pub as_is: bool,
    /// Write DeepSpeed JSON, accelerate YAML, arguments for Hugging Face and Lightning, and an env file into this folder
    #[arg(long, value_name = "DIR", help_heading = FOREIGN)]
    pub write: Option<PathBuf>,
    /// Print a guide's preset with its corrections; `list` names all. With a trainer, a command or a machine: its settings, and the
    /// guide's figures beside the computed ones; `guide` is the preset that the guide means for the machine
    #[arg(long, value_name = "NAME", help_heading = FOREIGN, conflicts_with = "job")]
    pub profile: Option<String>,
    /// Plan for the machine in this file, which `plimsoll probe --json` wrote there
    #[arg(long, value_name = "FILE", help_heading = FOREIGN, conflicts_with = "job")]
    pub machine: Option<PathBuf>,
    /// The command of a foreign trainer
    #[arg(last = true, value_name = "COMMAND", help_heading = FOREIGN, conflicts_with = "job")]
    pub command: Vec<String>,
    /// Show what each amount of RAM buys, from the least with which the job runs
    #[arg(long, conflicts_with_all = ["trainer", "command", "profile"])]
    pub sweep: bool,
    /// Draw the sweep into this file, as SVG
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll train`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll train [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll train job.toml
  plimsoll train job.toml --ram 2GiB --out runs/second-try
  plimsoll train --model t5-small --data pairs.jsonl --eval held-out.jsonl
  plimsoll train job.toml --optimizer '{ name = \"adamw\", lr = 3e-4, betas = [0.9, 0.98] }'
  plimsoll train job.toml --plan-only                   stop before step 1

Ctrl-C saves and exits 4; `plimsoll resume RUN` goes on."
)]
pub struct TrainArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// Run folder to make [default: runs/NAME-N, the first that does not exist]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Go on with the run in `--out` if there is one, with the job that it began with; else start it
    #[arg(long, requires = "out", conflicts_with = "plan_only")]
    pub go_on: bool,
    /// Plan, say so, and stop before step 1
    #[arg(long)]
    pub plan_only: bool,
}

/// `plimsoll run`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll run [OPTIONS] -- COMMAND...",
    after_help = "\
Examples:
  plimsoll run -- python3 -m piper.train fit --data.csv_path metadata.csv
  plimsoll run --ram 12GiB -- accelerate launch --num_processes 2 train.py --bf16 True
  plimsoll run -- deepspeed --num_gpus 4 train.py --deepspeed_config ds.json
  plimsoll run --allow batch,length=8 -- python3 -m piper.train fit    may change the result
  plimsoll run --knob batch=--bs --resume-flag --load --checkpoints 'out/*.pt' -- ./train --bs 8

The command runs as it is typed, in a memory cgroup of its own. What is changed in it, and why, is said; files of yours
are never edited. When it dies, the cause is found, only what that cause asks for is changed, with the effective batch
kept wherever the trainer can accumulate, and it goes on from its own last whole checkpoint.
Ctrl-C asks it to stop and exits 4; `plimsoll resume RUN` goes on."
)]
pub struct RunArgs {
    /// The trainer, by name (piper, lightning, hf-trainer, accelerate, deepspeed, torchrun, generic) or as a TOML file
    /// [default: recognised from the command]
    #[arg(long, value_name = "NAME|FILE")]
    pub trainer: Option<String>,
    /// Most RAM that it may take, all its processes together [default: what the machine can give, less a twentieth]
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<Bytes>,
    /// Card memory to plan for [default: what the cards have]
    #[arg(long, value_name = "SIZE")]
    pub vram: Option<Bytes>,
    /// The model's shape, for the estimate: a config.json, a folder with one, or a description [default: the command's]
    #[arg(long, value_name = "FILE")]
    pub shape: Option<PathBuf>,
    /// Length of its samples, for the estimate: tokens, or seconds of sound [default: the command's]
    #[arg(long, value_name = "N")]
    pub length: Option<u64>,
    /// Set a knob, by our name for it: batch, accumulation, workers, precision ...; may be given several times
    #[arg(long, value_name = "KNOB=VALUE")]
    pub set: Vec<String>,
    /// Changes of the result that are allowed to make it fit: batch, length[=N], precision[=NAME], optimizer[=NAME]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub allow: Vec<String>,
    /// Tell the flag of a knob, for a trainer that is not known; may be given several times
    #[arg(long, value_name = "KNOB=FLAG", allow_hyphen_values = true)]
    pub knob: Vec<String>,
    /// Tell the flag that takes a checkpoint to go on from
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub resume_flag: Option<String>,
    /// Tell where its checkpoints are: a path with * in it; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub checkpoints: Vec<String>,
    /// Start with the command's own settings, whatever the estimate says
    #[arg(long)]
    pub as_is: bool,
    /// Seconds without work, output or steps after which it counts as standing still
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub stall_after: u64,
    /// Seconds that a stop may take before it is cut short [default: what the trainer needs]
    #[arg(long, value_name = "SECONDS")]
    pub stop_within: Option<u64>,
    /// Run folder to make [default: runs/TRAINER-N, the first that does not exist]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Go on with the run in `--out` if there is one, with the command that it began with; else start it
    #[arg(long, requires = "out")]
    pub go_on: bool,
    /// Do not show the trainer's output; `plimsoll logs RUN` does
    #[arg(long)]
    pub quiet: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `plimsoll logs`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll logs runs/piper-1                         what the last start wrote
  plimsoll logs runs/piper-1 --start 1               what the first one wrote
  plimsoll logs runs/hf-trainer-1 --rank 1           what one rank wrote
  plimsoll logs runs/hf-trainer-1 --grep 'out of memory'   lines of all starts and ranks, with file and number")]
pub struct LogsArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Which start, from 1 [default: the last; with --grep, all]
    #[arg(long, value_name = "N")]
    pub start: Option<u64>,
    /// Only this rank's log
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Only lines that match this pattern, with file and line number; exit 1 where there is none
    #[arg(long, value_name = "PATTERN")]
    pub grep: Option<String>,
}

/// `plimsoll resume`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll resume runs/chat-1                  go on after Ctrl-C, a crash or a power cut
  plimsoll resume s3://bucket/runs/chat-1      on a fresh machine, from the mirror
  plimsoll resume s3://bucket/runs/chat-1 --out runs/chat-1 --data /mnt/pairs.jsonl")]
pub struct ResumeArgs {
    /// Run folder, or the URL of its mirror
    #[arg(value_name = "RUN|URL")]
    pub run: PathBuf,
    /// Folder to bring a mirrored run to [default: the last part of the URL]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Where the model's folder is on this machine, for a mirrored run [default: where it was]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Where the training data is on this machine, for a mirrored run [default: where it was]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub data: Vec<PathBuf>,
    /// Where the held-out data is on this machine, for a mirrored run [default: where it was]
    #[arg(long, value_name = "FILE")]
    pub eval: Option<PathBuf>,
}

/// `plimsoll generate`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll generate runs/chat-1 --prompt 'add 2 and 3'
  plimsoll generate runs/chat-1 --prompt one --prompt two --beams 4 --json
  plimsoll generate models/t5-small < prompts.txt       one prompt a line
  plimsoll generate runs/sft-1 --chat                   talk to it
  plimsoll generate runs/sft-1 --prompt hi --temperature 0.7 --top-p 0.9 --seed 3")]
pub struct GenerateArgs {
    /// Run folder, a Hugging Face model folder, or a PEFT adapter folder
    #[arg(value_name = "RUN|MODEL_DIR")]
    pub from: PathBuf,
    /// Model folder that an adapter is for [default: as the adapter says]
    #[arg(long, value_name = "DIR")]
    pub base: Option<PathBuf>,
    /// Text to answer; may be given several times [default: the lines of stdin]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// Beams to search with; 1 is greedy
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub beams: u32,
    /// Most tokens of one answer
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_new: u32,
    /// Draw tokens at this temperature instead of taking the likeliest
    #[arg(long, value_name = "T", conflicts_with = "beams")]
    pub temperature: Option<f32>,
    /// Draw from the likeliest N tokens only; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0, requires = "temperature")]
    pub top_k: usize,
    /// Draw from the likeliest tokens that come to this share
    #[arg(long, value_name = "P", default_value_t = 1.0, requires = "temperature")]
    pub top_p: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A conversation: each line is a turn, and the model sees those before it
    #[arg(long, conflicts_with_all = ["prompt", "json"])]
    pub chat: bool,
    /// What the system says first in a conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Take prompts as they are, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll merge`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll merge runs/sft-1 --out models/sft            the run's adapter, folded into its base
  plimsoll merge adapter --base models/qwen --out merged --dtype bf16")]
pub struct MergeArgs {
    /// Run folder, or a PEFT adapter folder
    #[arg(value_name = "RUN|ADAPTER_DIR")]
    pub from: PathBuf,
    /// Model folder that the adapter is for [default: as the run or the adapter says]
    #[arg(long, value_name = "DIR")]
    pub base: Option<PathBuf>,
    /// Folder to write; must not exist
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How to store the weights [default: as the base has them]
    #[arg(long, value_name = "f32|bf16")]
    pub dtype: Option<String>,
}

/// `plimsoll eval`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll eval runs/chat-1                             on the job's own evaluation file
  plimsoll eval runs/chat-1 --data test.jsonl --json    on another file")]
pub struct EvalArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// File to evaluate on [default: the job's `data.eval`]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll checkpoints`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll checkpoints runs/chat-1             which steps can be resumed from
  plimsoll checkpoints runs/chat-1 --verify    read every byte and check it
  plimsoll checkpoints runs/chat-1 --model best --out chat-best    a model folder of the best evaluation's weights")]
pub struct CheckpointsArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Read every byte of every checkpoint and check it against its manifest
    #[arg(long)]
    pub verify: bool,
    /// Write the model that a checkpoint holds, as `RUN/model` holds that of the last step
    #[arg(long, value_name = "best|last|STEP", requires = "out", conflicts_with = "verify")]
    pub model: Option<Which>,
    /// Folder for that model; it must not be there yet
    #[arg(long, value_name = "DIR", requires = "model")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which of a run's checkpoints is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of the best evaluation.
    Best,
    /// The last one that is whole.
    Last,
    /// That of a step.
    Step(u64),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Which, String> {
        match text {
            "best" => Ok(Which::Best),
            "last" => Ok(Which::Last),
            step => step.parse().map(Which::Step).map_err(|_| "expected `best`, `last` or the number of a step".into()),
        }
    }
}

/// `plimsoll watch`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll watch runs/chat-1                 in this terminal; q leaves, the run goes on
  plimsoll watch runs/chat-1 --once          print one view as text
  plimsoll watch runs/chat-1 --web           as a page on this machine, with /metrics for Prometheus")]
pub struct WatchArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Print one view as text and leave
    #[arg(long, conflicts_with = "web")]
    pub once: bool,
    /// Serve the view as a page on 127.0.0.1
    #[arg(long)]
    pub web: bool,
    /// Port of the page; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 7410, requires = "web")]
    pub port: u16,
}

/// `plimsoll check`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll check [OPTIONS] -- COMMAND...\n       plimsoll check [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll check -- python3 -m piper.train fit --data.csv_path metadata.csv ...
  plimsoll check --json -- torchrun --nproc_per_node 2 train.py --per_device_train_batch_size 8
  plimsoll check job.toml                               a job of our own: does it fit, can its data be read

Each point is `ok`, `FAIL` or `??` (could not be looked at), with what to do. Nothing is started but the command's own
Python, which is asked what it can import, without a network. Exit code 1: something fails."
)]
pub struct CheckArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// The trainer of the command, by name or as a TOML file [default: recognised from the command]
    #[arg(long, value_name = "NAME|FILE", requires = "command")]
    pub trainer: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The command
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "job")]
    pub command: Vec<String>,
}

/// `plimsoll doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll doctor runs/chat-1                what happened, the evidence, what to change
  plimsoll doctor runs/chat-1 --json         the same, for programs
  plimsoll doctor train.log                  what a trainer's or kernel's log says of a death
  plimsoll doctor train.log --dmesg k.log    the same, with the kernel's log of that time (dmesg -T > k.log)
  plimsoll doctor 0/stderr.log 1/stderr.log  a log of each rank")]
pub struct DoctorArgs {
    /// Run folder, or log files of one death
    #[arg(value_name = "RUN|LOGFILE", required = true)]
    pub from: Vec<PathBuf>,
    /// The kernel's log of that time; may be given several times
    #[arg(long, value_name = "FILE")]
    pub dmesg: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll mirror`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll mirror runs/chat-1                upload what the mirror lacks, then end")]
pub struct MirrorArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Go on until SIGTERM, which ends it once all is there
    #[arg(long, hide = true)]
    pub follow: bool,
}

/// `plimsoll worker`
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Most RAM that the plan may take, below the job's budget
    #[arg(long)]
    pub cap: Option<Bytes>,
    /// Plan anew instead of keeping the plan of before
    #[arg(long)]
    pub anew: bool,
    /// Keep whole gradients, so that an update can be left out
    #[arg(long)]
    pub whole_gradients: bool,
    /// Descriptor of the pipe to the supervisor
    #[arg(long)]
    pub news: Option<i32>,
}

/// Where the first weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Init {
    /// The model folder's weights
    Weights,
    /// Drawn from the seed; only config.json and the tokenizer are read
    Random,
}

/// Something that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// A job: a file, flags, or both; a flag outweighs the file.
#[derive(Clone, Debug, Default, Args)]
pub struct JobFlags {
    /// Job file (TOML); each of its keys has a flag, and a flag outweighs the file
    #[arg(value_name = "JOB")]
    pub job: Option<PathBuf>,

    /// Hugging Face model folder: config.json, safetensors, tokenizer.json
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<PathBuf>,
    /// Where the first weights come from [default: weights]
    #[arg(long, value_enum, value_name = "weights|random", hide_possible_values = true, help_heading = "Model")]
    pub init: Option<Init>,
    /// Dropout while training, 0 to less than 1 [default: the model's]
    #[arg(long, value_name = "P", help_heading = "Model", allow_negative_numbers = true)]
    pub dropout: Option<f64>,

    /// What is trained: all, lora, or a TOML table such as { freeze = ["encoder.*"] } or { lora = { r = 16 } } [default: all]
    #[arg(long, value_name = "WHAT", help_heading = "Model")]
    pub train: Option<String>,
    /// How weights that are only read are stored; int8 and nf4 need LoRA [default: as the file has them]
    #[arg(long, value_name = "file|f32|int8|nf4", help_heading = "Model")]
    pub base: Option<String>,

    /// Training data, JSONL, CSV, text, Parquet or Arrow; a URL (s3, gs, az, http, https) or a quoted pattern such as 'data/*.jsonl'
    /// works too, and so does a folder that `data prepare` made
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Data")]
    pub data: Vec<PathBuf>,
    /// Held-out data to evaluate on
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub eval: Option<PathBuf>,
    /// Column with the input text [default: guessed from the usual names]
    #[arg(long, value_name = "COL", help_heading = "Data")]
    pub source: Option<String>,
    /// Column with the text to learn [default: guessed from the usual names]
    #[arg(long, value_name = "COL", help_heading = "Data")]
    pub target: Option<String>,
    /// Tokens of a source to keep [default: from the data]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub max_source: Option<Count>,
    /// Tokens of a target to keep [default: from the data]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub max_target: Option<Count>,
    /// Tokens of a sample of chat or text [default: from the data]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub max_len: Option<Count>,
    /// What a row is [default: pairs for T5, chat where a decoder's data has messages, else text]
    #[arg(long, value_name = "pairs|chat|text", help_heading = "Data")]
    pub kind: Option<String>,
    /// Put several chats or texts into one sample; none sees another
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, help_heading = "Data")]
    pub packed: Option<Switch>,
    /// What becomes of a row longer than a sample [default: split; pairs and chats: cut]
    #[arg(long, value_name = "split|cut|drop", help_heading = "Data")]
    pub long: Option<String>,
    /// Shuffle the samples in every epoch; this is the default
    #[arg(long, help_heading = "Data", conflicts_with = "no_shuffle")]
    pub shuffle: bool,
    /// Keep the order of the files
    #[arg(long, help_heading = "Data")]
    pub no_shuffle: bool,
    /// Blocks of rows that are mixed at a time: more mixes better and takes more memory [default: 64]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub window: Option<Count>,
    /// Memory that the loader stays below; fewer blocks and threads where it must [default: none, but a window of at most 128MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Data")]
    pub data_memory: Option<Bytes>,
    /// What becomes of rows (and Parquet pages) too large for that memory: the file is refused, or they are left out and counted [default: refuse]
    #[arg(long, value_name = "refuse|skip", help_heading = "Data")]
    pub oversized: Option<String>,
    /// Pack `.gz` and `.zst` anew, once, in parts that can be entered; off reads them in their own order, without a shuffle [default: on]
    #[arg(long, value_name = "on|off", help_heading = "Data")]
    pub unpack: Option<Switch>,
    /// Most of the disk for parts of data that lie elsewhere [default: 8GiB, at most a quarter of what is free]
    #[arg(long, value_name = "SIZE", help_heading = "Data")]
    pub data_cache: Option<Bytes>,

    /// Samples per weight update; every plan keeps it [default: 32]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub effective_batch: Option<Count>,
    /// Passes over the data [default: 3]
    #[arg(long, value_name = "N", help_heading = "Training", conflicts_with = "steps")]
    pub epochs: Option<Count>,
    /// Weight updates, instead of epochs
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<Count>,
    /// adafactor, adamw, adamw16bit, adamw8bit, lion or sgd, or a TOML table with further keys [default: adafactor]
    #[arg(long, value_name = "NAME|TABLE", help_heading = "Training")]
    pub optimizer: Option<String>,
    /// Learning rate [default: adafactor 1e-3, adamw 1e-4]
    #[arg(long, value_name = "RATE", help_heading = "Training", allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// constant, linear, cosine or one-cycle, or a TOML table with further keys, such as
    /// { name = "cosine-warm-restarts", t_0 = 1000, t_mult = 2 } [default: constant]
    #[arg(long, value_name = "NAME|TABLE", help_heading = "Training")]
    pub schedule: Option<String>,
    /// Updates over which the learning rate rises from 0 [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup_steps: Option<Count>,
    /// How trained weights are stored; bf16 rounds stochastically [default: f32]
    #[arg(long, value_name = "f32|bf16", help_heading = "Training")]
    pub precision: Option<String>,
    /// Where the steps run; auto: on a card if there is one that can be used [default: cpu]
    #[arg(long, value_name = "cpu|cuda|auto", help_heading = "Training")]
    pub device: Option<String>,
    /// Number type of activations and products on a card; weights keep f32 masters [default: f32]
    #[arg(long, value_name = "f32|bf16|f16", help_heading = "Training")]
    pub compute: Option<String>,
    /// Global gradient norm to clip at; 0 is off [default: off]
    #[arg(long, value_name = "NORM", help_heading = "Training", allow_negative_numbers = true)]
    pub clip_norm: Option<f64>,
    /// Updates between evaluations; 0 is off [default: 200 where there is evaluation data]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub eval_every: Option<Count>,
    /// End the run after N evaluations without an improvement of the loss, or as a table says, such as
    /// { patience = 5, min_delta = 0.001, on = "accuracy" }; 0 is off [default: 0]
    #[arg(long, value_name = "N|TABLE", help_heading = "Training")]
    pub early_stop: Option<String>,
    /// Updates between checkpoints; 0 saves only at the end or when stopped [default: 500]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub save_every: Option<Count>,
    /// Minutes between checkpoints, besides those by updates; 0 is off [default: 15]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub save_minutes: Option<Count>,
    /// Checkpoints to keep, besides the best one and the last one made when stopping [default: 3]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub keep: Option<Count>,
    /// Seconds that a stop may take before it is cut short; 0 is as long as it needs [default: 0]
    #[arg(long, value_name = "SECONDS", help_heading = "Training")]
    pub stop_within: Option<Count>,
    /// Steps in a row without a finite loss and gradient that end the run [default: 5]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub max_skips: Option<Count>,
    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub threads: Option<Count>,
    /// Seed of weights, shuffling and dropout [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<Count>,

    /// RAM that the run may use, such as 2GiB [default: what the machine can give]
    #[arg(long, value_name = "BYTES", help_heading = "Budget")]
    pub ram: Option<Bytes>,
    /// Memory of the card that the run may use, such as 6GiB, all included [default: what is free]
    #[arg(long, value_name = "BYTES", help_heading = "Budget")]
    pub vram: Option<Bytes>,
    /// Disk that the run may use, such as 20GiB [default: what is free]
    #[arg(long, value_name = "BYTES", help_heading = "Budget")]
    pub disk: Option<Bytes>,

    /// Copy checkpoints and the model there: s3://bucket/prefix, gs://, az://, file:// [default: nowhere]
    #[arg(long, value_name = "URL", help_heading = "Mirror")]
    pub mirror: Option<String>,
    /// Bytes a second that the mirror may send, such as 5MiB [default: no limit]
    #[arg(long, value_name = "BYTES", help_heading = "Mirror")]
    pub mirror_rate: Option<Bytes>,
    /// Checkpoints to keep at the mirror; 0 is all [default: 0]
    #[arg(long, value_name = "N", help_heading = "Mirror")]
    pub mirror_keep: Option<Count>,

    /// Samples per micro-batch; divides the effective batch
    #[arg(long, value_name = "N", help_heading = PINS)]
    pub micro_batch: Option<Count>,
    /// Blocks whose activations are computed twice instead of kept
    #[arg(
        long,
        value_name = "N|all|none",
        help_heading = PINS
    )]
    pub recompute: Option<Recompute>,
    /// Target tokens per chunk of the loss
    #[arg(long, value_name = "N", help_heading = PINS)]
    pub loss_chunk: Option<Count>,
    /// Update each weight as soon as its gradient is complete
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, help_heading = PINS)]
    pub optimizer_in_backward: Option<Switch>,
    /// Threads that read and tokenise
    #[arg(long, value_name = "N", help_heading = PINS)]
    pub loader_threads: Option<Count>,
    /// Steps between cells of an LSTM that are kept, the rest being computed again; 0 keeps everything
    #[arg(long, value_name = "N", help_heading = PINS)]
    pub lstm_every: Option<Count>,
    /// Write checkpoints in the background, from a copy in RAM
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true, help_heading = PINS)]
    pub snapshot: Option<Switch>,
}
