//! The words of `plimsoll remote`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{JobFlags, RunArgs};

/// `plimsoll remote`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  plimsoll remote add box ssh://me@gpu.example:2222/srv/plimsoll    a name for a folder there
  plimsoll remote probe box                      what that machine can give
  plimsoll remote plan box job.toml              what the job needs there, before it is rented for longer
  plimsoll remote train box job.toml             push what is missing, start, and leave
  plimsoll remote run box -- python3 train.py --batch-size 32
  plimsoll remote status box                     its runs
  plimsoll remote logs box chat-1 -f             what a run says; Ctrl-C leaves, the run goes on
  plimsoll remote watch box chat-1 --web         its page, through the same connection
  plimsoll remote stop box chat-1                save and stop
  plimsoll remote resume box chat-1
  plimsoll remote pull box chat-1                the result, or what there is of it

The system's ssh is used, with its own configuration; nothing is asked for and no password is stored. PLIMSOLL_SSH names
another program or gives it options, such as 'ssh -F my-config'. What a connection that breaks has sent is kept.")]
pub struct RemoteArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: RemoteVerb,
}

/// One verb of `plimsoll remote`.
#[derive(Debug, Subcommand)]
pub enum RemoteVerb {
    /// Give a folder on another machine a name
    Add {
        /// The name
        #[arg(value_name = "NAME")]
        name: String,
        /// Where it is: `ssh://user@host:port/dir`, of which user and port may be left out; `ssh://host/~/dir` is below the home there
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Forget a name; nothing happens over there
    Remove {
        /// The name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List the names
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Send the program and what a job needs, or a folder: only what differs
    Push(FarPushArgs),
    /// Show the machine, and what a run may use of it
    Probe {
        /// Name of the remote
        #[arg(value_name = "NAME")]
        name: String,
        /// Measure how fast it trains, for a few seconds, and keep it there for the plans to come
        #[arg(long)]
        rates: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a job needs there, part by part, and whether it fits
    Plan(Box<FarPlanArgs>),
    /// Push what is missing, start training, check that every setting arrived, and leave
    Train(Box<FarTrainArgs>),
    /// Push this folder, start somebody else's trainer in it under guard, and leave
    Run(Box<FarRunArgs>),
    /// Show what a run says
    Logs(FarLogsArgs),
    /// Look at a run: in this terminal, as text, or as a page
    Watch(FarWatchArgs),
    /// Ask a run to save and stop, and wait for it
    Stop(FarJobArgs),
    /// Go on with a run from its last complete checkpoint, and leave
    Resume(FarJobArgs),
    /// Bring a run here: all but its checkpoints, and only what differs
    Pull(FarPullArgs),
    /// List the runs there
    Status {
        /// Name of the remote
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What is sent.
#[derive(Clone, Debug, Default, Args)]
pub struct Sending {
    /// Leave out files whose name, or path below their folder, matches; may be given several times
    #[arg(long, value_name = "GLOB", help_heading = "Sending")]
    pub exclude: Vec<String>,
    /// Compare all blocks, also of files whose length and date are the same on both sides
    #[arg(long, help_heading = "Sending")]
    pub compare_all: bool,
}

/// `plimsoll remote push`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll remote push NAME [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll remote push box job.toml                     program, model and data of a job
  plimsoll remote push box --folder . --exclude '*.wav' a folder, to work/ over there"
)]
pub struct FarPushArgs {
    /// Name of the remote
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The job.
    #[command(flatten)]
    pub job: Box<JobFlags>,
    /// Send a folder instead of what a job needs
    #[arg(long, value_name = "DIR", conflicts_with = "JobFlags", help_heading = "Sending")]
    pub folder: Option<PathBuf>,
    /// What is sent.
    #[command(flatten)]
    pub sending: Sending,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll remote plan`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll remote plan NAME [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll remote plan box job.toml
  plimsoll remote plan box job.toml --ram 8GiB --json

What the job needs is sent first: the plan reads model and data. Exit code 3: it does not fit there."
)]
pub struct FarPlanArgs {
    /// Name of the remote
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// What is sent.
    #[command(flatten)]
    pub sending: Sending,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll remote train`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll remote train NAME [JOB] [OPTIONS]",
    after_help = "\
Examples:
  plimsoll remote train box job.toml
  plimsoll remote train box job.toml --steps 1000 --seed 7

It returns when the run is planned and has begun; the run goes on without it. A setting that is not the same over there is
an error, and the run is stopped. What runs already is not started again."
)]
pub struct FarTrainArgs {
    /// Name of the remote
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The job.
    #[command(flatten)]
    pub job: JobFlags,
    /// What is sent.
    #[command(flatten)]
    pub sending: Sending,
    /// Start it even if the same is running there
    #[arg(long)]
    pub beside: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll remote run`
#[derive(Debug, Args)]
#[command(
    override_usage = "plimsoll remote run NAME [OPTIONS] -- COMMAND...",
    after_help = "\
Examples:
  plimsoll remote run box -- python3 train.py --batch-size 32
  plimsoll remote run box --ram 12GiB --exclude 'data/raw' -- torchrun --nproc_per_node 2 train.py

This folder is sent to work/KEY/FOLDER over there, without histories, environments and runs, and the command starts in it;
Python and what it imports must be there."
)]
pub struct FarRunArgs {
    /// Name of the remote
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What is sent.
    #[command(flatten)]
    pub sending: Sending,
    /// Start it even if the same is running there
    #[arg(long)]
    pub beside: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How it is guarded.
    #[command(flatten)]
    pub run: RunArgs,
}

/// A run of a remote.
#[derive(Debug, Args)]
pub struct FarJobArgs {
    /// Name of the remote
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The run [default: the one that was started last]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
}

/// `plimsoll remote logs`
#[derive(Debug, Args)]
pub struct FarLogsArgs {
    /// The run.
    #[command(flatten)]
    pub of: FarJobArgs,
    /// Go on until the run ends
    #[arg(long, short)]
    pub follow: bool,
    /// From the beginning [default: the last 64 KiB]
    #[arg(long)]
    pub all: bool,
}

/// `plimsoll remote watch`
#[derive(Debug, Args)]
pub struct FarWatchArgs {
    /// The run.
    #[command(flatten)]
    pub of: FarJobArgs,
    /// Print one view as text and leave
    #[arg(long, conflicts_with = "web")]
    pub once: bool,
    /// Serve the view as a page on 127.0.0.1 of this machine
    #[arg(long)]
    pub web: bool,
    /// Port of the page on this machine; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 7410, requires = "web")]
    pub port: u16,
}

/// `plimsoll remote pull`
#[derive(Debug, Args)]
pub struct FarPullArgs {
    /// The run.
    #[command(flatten)]
    pub of: FarJobArgs,
    /// Folder to bring it to [default: runs/NAME-RUN]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// With its checkpoints, to go on here
    #[arg(long)]
    pub checkpoints: bool,
    /// Leave out files whose name, or path below the run, matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `plimsoll remote-agent`
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: AgentVerb,
}

/// The far side's parts.
#[derive(Debug, Subcommand)]
pub enum AgentVerb {
    /// Answer on stdin and stdout
    Serve {
        /// The folder.
        dir: PathBuf,
        /// This program.
        program: PathBuf,
    },
    /// Start a run, wait for it, and write down how it ended
    Keep {
        /// The folder.
        dir: PathBuf,
        /// The run.
        run: String,
        /// This program.
        program: PathBuf,
    },
    /// Become what a keeper starts, once that has written it down
    Begin {
        /// This program.
        program: PathBuf,
        /// Verb and flags.
        #[arg(last = true)]
        words: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;

    #[test]
    fn a_folder_is_pushed_without_words_of_a_job() {
        let read = |more: &str| {
            let words = format!("plimsoll remote push box --folder . {more}");
            Cli::try_parse_from(words.split_whitespace()).map(drop).map_err(|error| error.to_string())
        };
        read("--exclude *.wav --compare-all --json").unwrap();
        for more in ["job.toml", "--ram 2GiB", "--model m", "--seed 7", "--eval-every 3"] {
            assert!(read(more).unwrap_err().contains("cannot be used with"), "{more}");
        }
    }
}
