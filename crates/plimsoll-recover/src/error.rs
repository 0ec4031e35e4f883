//! Everything that can go wrong here, as facts: which file, what was expected, what was found.
//!
//! The remedy is not part of a fact; whoever prints the error adds the hint.

use std::io;
use std::path::PathBuf;

use plimsoll_machine::{Bytes, MachineError};

/// What went wrong while saving, finding or supervising.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// A file operation failed; the message already names the path.
    #[error(transparent)]
    File(#[from] io::Error),

    /// A system call failed.
    #[error("`{call}` failed for `{place}`: {source}")]
    Call {
        /// The system call.
        call: &'static str,
        /// The path or process it was about.
        place: String,
        /// What the kernel said.
        source: io::Error,
    },

    /// The content of a checkpoint's file could not be produced or written.
    #[error("could not write `{path}` of the checkpoint: {source}")]
    NotWritten {
        /// The file, in the temporary folder.
        path: PathBuf,
        /// What its producer or the disk said.
        source: io::Error,
    },

    /// A name that cannot be a file of a checkpoint.
    #[error("`{name}` cannot be a checkpoint's file; expected a plain name that is not `manifest.json`")]
    FileName {
        /// What was found.
        name: String,
    },

    /// The same file was written twice into one checkpoint.
    #[error("`{name}` is already in the checkpoint of step {step}")]
    FileTwice {
        /// The file.
        name: String,
        /// The checkpoint's step.
        step: u64,
    },

    /// The manifest is missing: the checkpoint was never finished.
    #[error("`{path}` is not there; a checkpoint without it was never finished")]
    ManifestMissing {
        /// Where it should be.
        path: PathBuf,
    },

    /// The manifest is longer than any that is written.
    #[error("`{path}` is longer than {limit} bytes; no manifest is", limit = limit.0)]
    ManifestTooLong {
        /// The manifest.
        path: PathBuf,
        /// The most that is read.
        limit: Bytes,
    },

    /// The manifest does not start with its own checksum.
    #[error("`{path}` line 1: expected `{{\"crc32\": \"8 hexadecimal digits\",`, found `{found}`")]
    ManifestHead {
        /// The manifest.
        path: PathBuf,
        /// The start of what was found.
        found: String,
    },

    /// The manifest's text is not what its first line says.
    #[error("`{path}`: expected checksum `{expected:08x}`, found `{found:08x}`")]
    ManifestChecksum {
        /// The manifest.
        path: PathBuf,
        /// What its first line says.
        expected: u32,
        /// What its text gives.
        found: u32,
    },

    /// The manifest is not the JSON that is expected.
    #[error("`{path}` line {line} column {column}: {problem}")]
    ManifestText {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the parser says.
        problem: String,
    },

    /// The manifest is of a format that this version does not know.
    #[error("`{path}`: expected format `{expected}`, found `{found}`")]
    ManifestFormat {
        /// The manifest.
        path: PathBuf,
        /// The format that this version reads.
        expected: u32,
        /// What was found.
        found: u32,
    },

    /// The folder's name and the manifest disagree on the step.
    #[error("`{path}`: the folder's name says step {expected}, the manifest step {found}")]
    ManifestStep {
        /// The manifest.
        path: PathBuf,
        /// The step in the folder's name.
        expected: u64,
        /// The step in the manifest.
        found: u64,
    },

    /// A file that the manifest lists is missing.
    #[error("`{path}` is not there; the manifest lists it with {expected} bytes", expected = expected.0)]
    FileMissing {
        /// Where it should be.
        path: PathBuf,
        /// The length that it should have.
        expected: Bytes,
    },

    /// A file has another length than the manifest says.
    #[error("`{path}`: expected {expected} bytes, found {found}", expected = expected.0, found = found.0)]
    FileLength {
        /// The file.
        path: PathBuf,
        /// The length in the manifest.
        expected: Bytes,
        /// The length on disk.
        found: Bytes,
    },

    /// A file has other bytes than those that were saved.
    #[error("`{path}`: expected checksum `{expected:08x}`, found `{found:08x}`")]
    FileChecksum {
        /// The file.
        path: PathBuf,
        /// The checksum in the manifest.
        expected: u32,
        /// The checksum of what is on disk.
        found: u32,
    },

    /// A file was asked for that the checkpoint does not have.
    #[error("the checkpoint `{path}` has no file `{name}`")]
    FileUnlisted {
        /// The checkpoint.
        path: PathBuf,
        /// What was asked for.
        name: String,
    },

    /// There is less room on the disk than is needed.
    #[error("`{path}` has {free} free, {needed} are needed")]
    DiskTooFull {
        /// What is needed.
        needed: Bytes,
        /// What there is.
        free: Bytes,
        /// Where.
        path: PathBuf,
    },

    /// Another process trains in this run folder.
    #[error("`{path}` is in use by {}", process.map_or("another process".to_string(), |pid| format!("process {pid}")))]
    RunInUse {
        /// The run folder.
        path: PathBuf,
        /// Who has it, if it said so.
        process: Option<u32>,
    },

    /// The worker could not be started.
    #[error("could not start `{program}`: {source}")]
    NotStarted {
        /// The program.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },

    /// The worker already uses more than the limit that its cgroup was to be given.
    #[error("`{path}` holds {used}, more than the limit of {limit} that it was to be given")]
    LeafTooFull {
        /// The cgroup.
        path: PathBuf,
        /// What it uses that cannot be dropped.
        used: Bytes,
        /// The limit.
        limit: Bytes,
    },

    /// The machine could not be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
}
