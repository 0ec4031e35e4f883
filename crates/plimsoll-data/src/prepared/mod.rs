//! Prepared data: rows tokenised once, in shards, for passes that only read them.
//!
//! Start at `write.rs` (makes a set) and `open.rs` (reads one). A set keeps the blocks of the files that it was made from, row by
//! row, so orders and cursors mean the same for both, and a run may change from one to the other. `maker.rs` says what is stored of
//! a row and for which lengths it is the same as tokenising anew; `fit.rs` cuts it to a length; `words.rs`, `shard.rs` and
//! `manifest.rs` are the bytes.
//!
//! Shards are read by position into the window's own buffer, and not mapped: a mapping that a file is cut short under kills the
//! process, its bytes may change after they were checked, and its pages are memory that no formula bounds. The kernel keeps the
//! pages of files for a mapping and for reads alike, so what a mapping would save is one copy of a few MiB a window.

mod asked;
mod digest;
mod fit;
#[cfg(test)]
mod forged;
mod maker;
mod manifest;
mod open;
mod report;
mod shard;
mod words;
mod write;

pub(crate) use digest::digest;
pub(crate) use fit::{Fit, PART_WORDS};
pub(crate) use open::{Prepared, open};
pub use open::{is_prepared, prepared_kind, unfinished};
pub use report::{PreparedLengths, PreparedReport, verify_prepared};
pub(crate) use words::{ENTRY_BYTES, Side, TokenRows};
pub use write::{PrepareSettings, SHARD_BYTES, estimate_prepared, forget_prepared, prepare};
