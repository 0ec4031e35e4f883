//! Everything that can go wrong here, as facts. None of them holds a credential: what a store or a client says is
//! reduced to its status, its code and its message before it comes here.

use std::io;
use std::path::PathBuf;

use plimsoll_recover::RecoverError;

/// What went wrong while copying or fetching.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A file operation failed; the message already names the path.
    #[error(transparent)]
    File(#[from] io::Error),

    /// A checkpoint here is not what its manifest says, or could not be written.
    #[error(transparent)]
    Recover(#[from] RecoverError),

    /// Not a URL that can be copied to.
    #[error("`{url}` is not the URL of a mirror: {problem}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },

    /// Credentials that are named but cannot be used.
    #[error("credentials in `{place}`: {problem}")]
    Credentials {
        /// The file or variable.
        place: String,
        /// What is wrong.
        problem: String,
    },

    /// The store cannot be set up from what the environment says.
    #[error("`{url}` cannot be used: {problem}")]
    SetUp {
        /// Where to.
        url: String,
        /// What the store's client says.
        problem: String,
    },

    /// Nothing there answers, or not rightly, and it was tried long enough.
    #[error("`{url}` {problem}")]
    Unreachable {
        /// Where to.
        url: String,
        /// What happened last.
        problem: String,
    },

    /// The store refuses, and trying again does not help.
    #[error("`{url}` {problem}")]
    Refused {
        /// Where to.
        url: String,
        /// What it said.
        problem: String,
    },

    /// What came back is not what was sent.
    #[error("`{url}/{key}`: sent {expected}, found {found}")]
    Altered {
        /// The mirror.
        url: String,
        /// The object.
        key: String,
        /// Length or checksum that it should have.
        expected: String,
        /// What it has.
        found: String,
    },

    /// Another run has been copied there.
    #[error("`{url}` holds another run: expected `{expected}`, found `{found}`")]
    OtherRun {
        /// The mirror.
        url: String,
        /// The name of the run here.
        expected: String,
        /// The name of the run there.
        found: String,
    },

    /// What is remembered of earlier copies cannot be read.
    #[error("`{path}`: {problem}")]
    StateText {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        problem: String,
    },

    /// No run was copied there.
    #[error("`{url}` holds no run: `{key}` is not there")]
    NoRun {
        /// The mirror.
        url: String,
        /// What every copied run has.
        key: String,
    },

    /// A run is there, but no checkpoint of it.
    #[error("`{url}` holds no checkpoint")]
    NoCheckpoint {
        /// The mirror.
        url: String,
    },

    /// Checkpoints are there, and none of them is whole.
    #[error("`{url}` holds no checkpoint that is whole; tried {}", steps_text(tried))]
    NoneWhole {
        /// The mirror.
        url: String,
        /// Their steps, the newest first.
        tried: Vec<u64>,
    },

    /// The folder to fetch into holds something else.
    #[error("`{path}` is neither new nor a copy of the run at `{url}`")]
    NotACopy {
        /// The folder.
        path: PathBuf,
        /// The mirror.
        url: String,
    },
}

impl MirrorError {
    /// Whether it is about a file of the run and not about the mirror: others can still be copied.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, MirrorError::File(_) | MirrorError::Recover(_))
    }

    /// Whether a file that was looked for is not there any more.
    pub(crate) fn is_vanished(&self) -> bool {
        match self {
            MirrorError::File(error) | MirrorError::Recover(RecoverError::File(error)) => {
                error.kind() == io::ErrorKind::NotFound
            }
            MirrorError::Recover(RecoverError::ManifestMissing { .. } | RecoverError::FileMissing { .. }) => true,
            _ => false,
        }
    }
}

fn steps_text(steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(|step| format!("step {step}")).collect();
    steps.join(", ")
}
