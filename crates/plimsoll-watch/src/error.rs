//! What can be wrong with a journal or a summary, as facts.

use std::net::SocketAddr;
use std::path::PathBuf;

/// What went wrong while recording or reading a run.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A file operation failed; the message already names the path.
    #[error(transparent)]
    File(#[from] std::io::Error),

    /// A line of the journal is not a record.
    #[error("`{path}` line {line}: expected a journal record, found `{found}`: {problem}")]
    NotARecord {
        /// The journal.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The start of the line.
        found: String,
        /// What the parser says.
        problem: String,
    },

    /// A summary is not what is expected.
    #[error("summary line {line} column {column}: {problem}")]
    NotASummary {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser says.
        problem: String,
    },

    /// Another program has the page's port.
    #[error("`{address}` is taken: another program listens there")]
    PortTaken {
        /// Where the page should have been.
        address: SocketAddr,
    },

    /// The page cannot have its address.
    #[error("cannot listen on `{address}`")]
    NoAddress {
        /// Where the page should have been.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}
