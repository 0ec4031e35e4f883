//! `plimsoll deploy`: what was said.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{FOREIGN, JobFlags};

/// Heading of what goes into the file.
const FILE: &str = "File";

/// Who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeployTarget {
    /// A docker compose file
    Compose,
    /// A systemd service
    Systemd,
    /// A Slurm batch script
    Slurm,
    /// A Kubernetes job
    K8s,
}

/// `plimsoll deploy`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll deploy <compose|systemd|slurm|k8s> [JOB] [OPTIONS]\n       \
                      plimsoll deploy <compose|systemd|slurm|k8s> [OPTIONS] -- COMMAND...",
    after_help = "\
Examples:
  plimsoll deploy compose job.toml --out runs/chat -o compose.yaml
  plimsoll deploy systemd job.toml --ram 2GiB           print the unit
  plimsoll deploy slurm job.toml --mirror s3://bucket/chat -o chat.sbatch
  plimsoll deploy k8s job.toml --claim disk=/data --image registry/plimsoll:0.1.0
  plimsoll deploy compose --machine server.json --image piper -- python3 -m piper.train fit --data.csv_path m.csv
  plimsoll deploy compose --profile immers-4gpu         what the guide's file meant, corrected

The job is planned first, on this machine, or within `--ram`, or for a machine that `plimsoll probe --json` has looked at. The
memory limit is that plan and a margin, a stop waits until the checkpoint is written, a restart goes on with the run, and a job
that cannot fit is not started for ever. Variables of the environment are passed by name; a value of one is never written.
Exit code 3: it does not fit, and nothing is written."
)]
pub struct DeployArgs {
    /// Who runs it
    #[arg(value_enum, value_name = "TARGET")]
    pub runner: DeployTarget,
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// Somebody else's trainer.
    #[command(flatten)]
    pub foreign: ForeignFlags,
    /// Run folder: a start that finds a run there goes on with it [default: runs/NAME]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Write this file instead of printing; one that is there is left alone
    #[arg(short = 'o', long = "file", value_name = "FILE", help_heading = FILE)]
    pub file: Option<PathBuf>,
    /// Write over the file
    #[arg(long, requires = "file", help_heading = FILE)]
    pub force: bool,
    /// Name of the service or job [default: of the job's folder, or of the trainer]
    #[arg(long, value_name = "NAME", help_heading = FILE)]
    pub name: Option<String>,
    /// Container image with `plimsoll` in it, for compose and k8s [default: plimsoll:VERSION, on cards plimsoll:VERSION-cuda; of another trainer plimsoll-TRAINER]
    #[arg(long, value_name = "IMAGE", help_heading = FILE)]
    pub image: Option<String>,
    /// Pass this variable of the environment, by name; may be given several times. Those of stores are passed where the job has their URLs
    #[arg(long, value_name = "NAME", help_heading = FILE)]
    pub env: Vec<String>,
    /// Kubernetes secret that holds the variables [default: the name]
    #[arg(long, value_name = "NAME", help_heading = FILE)]
    pub secret: Option<String>,
    /// Kubernetes volume claim, and where it is mounted: stands for all folders below; may be given several times
    #[arg(long, value_name = "NAME=/PATH", help_heading = FILE)]
    pub claim: Vec<String>,
    /// Print JSON: what was decided, and the file's text
    #[arg(long)]
    pub json: bool,
    /// The command of a foreign trainer
    #[arg(last = true, value_name = "COMMAND", help_heading = FOREIGN, conflicts_with = "job")]
    pub command: Vec<String>,
}

/// Of somebody else's trainer.
#[derive(Clone, Debug, Default, Args)]
pub struct ForeignFlags {
    /// The trainer, by name or as a TOML file [default: recognised from the command]
    #[arg(long, value_name = "NAME|FILE", help_heading = FOREIGN, conflicts_with = "job")]
    pub trainer: Option<String>,
    /// The model's shape, for the estimate: a config.json, a folder with one, or a description [default: the command's]
    #[arg(long, value_name = "FILE", help_heading = FOREIGN)]
    pub shape: Option<PathBuf>,
    /// Length of its samples, for the estimate: tokens, or seconds of sound [default: the command's]
    #[arg(long, value_name = "N", help_heading = FOREIGN)]
    pub length: Option<u64>,
    /// Set a knob of the trainer: batch, accumulation, workers ...; may be given several times
    #[arg(long, value_name = "KNOB=VALUE", help_heading = FOREIGN)]
    pub set: Vec<String>,
    /// Changes of the result that are allowed to make it fit: batch, length[=N], precision[=NAME], optimizer[=NAME]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = FOREIGN)]
    pub allow: Vec<String>,
    /// Tell the flag of a knob, for a trainer that is not known; may be given several times
    #[arg(long, value_name = "KNOB=FLAG", allow_hyphen_values = true, help_heading = FOREIGN)]
    pub knob: Vec<String>,
    /// Tell the flag that takes a checkpoint to go on from
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true, help_heading = FOREIGN)]
    pub resume_flag: Option<String>,
    /// Tell where its checkpoints are: a path with * in it; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = FOREIGN)]
    pub checkpoints: Vec<String>,
    /// Keep the command's own settings, whatever the estimate says
    #[arg(long, help_heading = FOREIGN)]
    pub as_is: bool,
    /// Plan for the machine in this file, which `plimsoll probe --json` wrote there
    #[arg(long, value_name = "FILE", help_heading = FOREIGN, conflicts_with = "job")]
    pub machine: Option<PathBuf>,
    /// Cards that it gets [default: one a rank, where it computes on cards]
    #[arg(long, value_name = "N", help_heading = FOREIGN, conflicts_with = "job")]
    pub cards: Option<u64>,
    /// Cores that it gets [default: of its ranks and loader processes; of the machine, where those are not known; no more than it has]
    #[arg(long, value_name = "N", help_heading = FOREIGN, conflicts_with = "job", value_parser = clap::value_parser!(u64).range(1..))]
    pub cores: Option<u64>,
    /// Settings of a guide's profile; `guide` is the one for the machine. Without a command, the guide's own with data in /data
    #[arg(long, value_name = "NAME", help_heading = FOREIGN, conflicts_with = "job")]
    pub profile: Option<String>,
}
