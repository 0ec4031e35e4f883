//! Files and arguments for trainers, as their own loaders read them.
//!
//! Each is a pure function from settings to text; the caller writes it into the run folder, never over a user's file. What
//! a trainer would refuse is refused here, and a knob that has no place in a form is handed back, never dropped.

use crate::estimate::EstimateError;
use crate::knob::Knob;

pub mod accelerate;
pub mod arguments;
pub mod deepspeed;
pub mod environment;

pub use accelerate::{Accelerate, Distribution};
pub use arguments::{Arguments, hf, lightning};
pub use deepspeed::{Batches, Buckets, DeepSpeed, Half};
pub use environment::{Environment, env_file};

/// Why a file is not written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WriteError {
    /// DeepSpeed would not take these.
    #[error(transparent)]
    Refused(#[from] EstimateError),
    /// Offloading to a disk without saying which.
    #[error("offloading to `nvme` needs a path on that disk")]
    NoDisk,
    /// A knob whose value has no form in this trainer's arguments.
    #[error("`{knob}` of `{found}` cannot be passed; expected {expected}")]
    NoForm {
        /// Which.
        knob: Knob,
        /// What can be passed.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A value that would not survive being read back.
    #[error("`{key}` cannot hold `{value}`: {why}")]
    Unwritable {
        /// Which key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
}
