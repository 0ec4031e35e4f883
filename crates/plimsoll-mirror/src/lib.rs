//! Object stores. A run's copy elsewhere: checkpoints, the final model and what a fresh machine needs to go on; and
//! objects read by position, for data that lie there ([`Objects`]).
//!
//! [`once`] copies what is missing, [`follow`] goes on doing so beside a run, [`fetch`] brings a run back. A checkpoint
//! exists there only when its `manifest.json` does, and that goes last, after everything else was verified; what leaves
//! loses its manifest first. [`state`] is what is remembered on disk, so that a killed copy goes on where it was.
//!
//! Architecture invariant: it knows files, checksums and keys. It knows no tensor, no journal and no screen; what
//! happens is told as plain [`Report`]s. No credential is ever part of a report, an error or a file.

mod address;
mod checkpoints;
mod credentials;
mod download;
mod error;
mod fetch;
mod folders;
mod ini;
mod layout;
mod multipart;
mod objects;
mod patience;
mod rate;
mod remote;
mod report;
mod round;
mod send;
mod shelf;
mod source;
pub mod state;
mod trouble;
mod wire;

use plimsoll_machine::Bytes;

pub use error::MirrorError;
pub use fetch::{Fetched, fetch};
pub use objects::{Object, ObjectError, Objects, READING};
pub use report::{End, Report, Wish};
pub use round::{follow, once};

/// Bytes of a part: what is in memory of a file at a time. Files that are shorter go in one piece.
pub const PART: Bytes = Bytes::mib(8);

/// The most that a mirroring process takes, program and all, for files of up to 10,000 parts.
///
/// Measured while it copied a checkpoint of 256 MiB to an S3 server (`tests/mirror.rs` of the binary holds it against
/// this figure): 28 MiB at most, of them 10 MiB its own, the rest pages of the program, which it shares with the worker.
pub const MEMORY: Bytes = Bytes::mib(36);
