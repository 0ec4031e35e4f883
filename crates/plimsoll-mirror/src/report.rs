//! What is asked for, what is told meanwhile, and how it ends. Plain values, for others to translate.

use std::path::PathBuf;

use plimsoll_machine::Bytes;

/// What shall be copied where.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// The run folder.
    pub run: PathBuf,
    /// The model folder that the run began with; its small files go along.
    pub model: PathBuf,
    /// Where to: `s3://`, `gs://`, `az://` or `file://`.
    pub url: String,
    /// Most bytes a second; `None`: no limit.
    pub rate: Option<Bytes>,
    /// Checkpoints to keep there; `None`: all.
    pub keep: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// So much of a checkpoint, or of the model (no step), has gone its way.
    Progress {
        /// The checkpoint's step.
        step: Option<u64>,
        /// What is done.
        done: Bytes,
        /// Of so much.
        total: Bytes,
    },
    /// A checkpoint, or the model (no step), is whole at the other end, and was verified there.
    Mirrored {
        /// The checkpoint's step.
        step: Option<u64>,
        /// Where.
        url: String,
        /// Its length.
        bytes: Bytes,
        /// How long it took.
        seconds: f64,
    },
    /// An old checkpoint was removed at the other end.
    Removed {
        /// Its step.
        step: u64,
    },
    /// Something does not work, and is tried again. Told once, until something else is told.
    Trouble {
        /// What.
        message: String,
    },
    /// It works again.
    Recovered,
    /// A checkpoint at the other end cannot be used.
    PassedOver {
        /// Its step.
        step: u64,
        /// Why.
        reason: String,
    },
}

/// How copying ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything is there.
    AllThere,
    /// Everything is there but this, which cannot be copied.
    Without(Vec<String>),
    /// It was told to end at once; the next one goes on.
    Interrupted,
}

/// Under which circumstances it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// What is there now, for somebody who waits.
    Once,
    /// Beside a run.
    Following,
    /// The run has ended: what is left.
    Finishing,
}
