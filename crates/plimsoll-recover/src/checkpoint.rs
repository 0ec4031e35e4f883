//! Checkpoints: folders `step-N` that are whole or are not there.
//!
//! A checkpoint is written under a temporary name, every file synced, `manifest.json` (lengths, checksums, facts) last,
//! and only then renamed; what leaves is renamed away first and deleted under that other name. So at every instant,
//! whatever is killed, each folder with a good name is a whole checkpoint. [`Writer`] writes one, [`list`] and
//! [`verify`] look, [`latest_complete`] is where a resume starts, [`retain`] keeps the disk from filling.
//!
//! What the files hold is the caller's affair.

mod folder;
mod leftovers;
mod manifest;
mod place;
mod retain;
mod shelf;
mod sink;
mod verify;
mod writer;

pub use leftovers::clean_leftovers;
pub(crate) use leftovers::lives_elsewhere;
pub use manifest::{FORMAT, FileFacts, MANIFEST, Manifest};
pub use retain::{follow, retain, to_follow, to_remove};
pub use shelf::{Found, Latest, Skipped, State, latest_complete, list};
pub use sink::BUFFER;
pub use verify::verify;
pub use writer::Writer;
