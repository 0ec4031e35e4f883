//! What starts the ranks of a training and waits for them: what a death looks like and what a start costs depend on it.

use serde::{Deserialize, Serialize};

use crate::Command;

/// What started the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launcher {
    /// Nothing: the command is the one rank.
    #[default]
    None,
    /// torchrun, and accelerate with several processes, which uses it.
    Torchrun,
    /// accelerate with one process.
    Accelerate,
    /// deepspeed: a runner, its `launch.py`, the ranks.
    #[serde(rename = "deepspeed")]
    DeepSpeed,
    /// mpirun, srun and their like.
    Mpi,
}

impl Launcher {
    /// Of a command that starts so many ranks.
    pub fn of(command: &Command, ranks: u64) -> Launcher {
        match command.launcher.as_ref().map(|launcher| launcher.name.as_str()) {
            Some("deepspeed") => Launcher::DeepSpeed,
            Some("accelerate") if ranks <= 1 => Launcher::Accelerate,
            Some(_) => Launcher::Torchrun,
            None => Launcher::None,
        }
    }
}
