//! What can go wrong in the engine: only at its start, or by a batch that breaks the plan.

/// Why the engine refuses.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The machine does not give the planned memory.
    #[error("the machine did not give the planned {bytes} bytes of memory: {source}")]
    ArenaRefused {
        /// Bytes asked for.
        bytes: u64,
        /// What the kernel said.
        source: rustix::io::Errno,
    },
    /// The compute threads could not be started.
    #[error("could not start {threads} compute threads: {reason}")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        reason: String,
    },
    /// A batch does not have the planned shape.
    #[error("batch breaks the plan: {what} is {found}, planned for at most {expected}")]
    Batch {
        /// Which number.
        what: &'static str,
        /// The plan's.
        expected: usize,
        /// The batch's.
        found: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Rows of the embedding table.
        vocab: usize,
    },
    /// The card cannot be used, or failed.
    #[error(transparent)]
    Card(#[from] crate::cuda::CudaError),
    /// The plan has no such pass.
    #[error("this program was planned without {what}")]
    NotPlanned {
        /// What was asked for.
        what: &'static str,
    },
}
