//! Everything that can be wrong with a trainer file, a command or a setting, as facts.

use std::path::PathBuf;

use crate::Knob;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file operation failed; the message names the path.
    #[error(transparent)]
    File(#[from] std::io::Error),

    /// A trainer file is not what it should be.
    #[error("trainer file `{file}`{place}: {problem}")]
    TrainerFile {
        /// The file, or the name of a built-in one.
        file: String,
        /// Line and column, where known.
        place: String,
        /// What the parser says.
        problem: String,
    },

    /// No trainer has this name.
    #[error("there is no trainer `{name}`; there are {there}{near}")]
    NoTrainer {
        /// What was asked for.
        name: String,
        /// Those that there are.
        there: String,
        /// The nearest, where one is near.
        near: String,
    },

    /// The command is empty.
    #[error("there is no command; expected `-- COMMAND ...`")]
    NoCommand,

    /// A flag is given twice; which one counts depends on the trainer.
    #[error("`{flag}` is given twice: `{first}` and `{second}`; one of them would be ignored")]
    Twice {
        /// The flag.
        flag: String,
        /// Its first value.
        first: String,
        /// Its second.
        second: String,
    },

    /// A flag that is almost one of the trainer's.
    #[error("`{found}` is not a flag of `{trainer}`; did you mean `{meant}`?")]
    NearMiss {
        /// What was found.
        found: String,
        /// The trainer.
        trainer: String,
        /// What was probably meant.
        meant: String,
    },

    /// A flag without its value.
    #[error("`{flag}` needs a value")]
    NoValue {
        /// The flag.
        flag: String,
    },

    /// No knob has this name.
    #[error("there is no knob `{name}`; there are {there}")]
    NoKnob {
        /// What was asked for.
        name: String,
        /// Those that there are.
        there: String,
    },

    /// The trainer has no such knob.
    #[error("`{trainer}` cannot set `{knob}`: {why}")]
    CannotSet {
        /// The trainer.
        trainer: String,
        /// The knob.
        knob: Knob,
        /// Why.
        why: String,
    },

    /// A value that the knob cannot have.
    #[error("`{knob}` cannot be `{found}`; expected {expected}")]
    BadValue {
        /// The knob.
        knob: Knob,
        /// What was found.
        found: String,
        /// What is expected.
        expected: String,
    },

    /// A config file of the command's cannot be read as what it is.
    #[error("`{path}`: {problem}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}
