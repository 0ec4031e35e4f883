//! Which checkpoints there are, and which of them a resume can start from.
//!
//! Order is by step number, never by date: copies and clocks lie about dates.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::Manifest;
use super::folder::Folder;
use super::verify::{inspect, verify};
use crate::RecoverError;

/// A folder that has a checkpoint's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The step in its name.
    pub step: u64,
    /// Where it is.
    pub path: PathBuf,
    /// What a quick look says of it.
    pub state: State,
}

/// What a quick look (manifest and lengths, no content) says of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Manifest and lengths are right; [`verify`] reads the content too.
    Complete,
    /// It cannot be used, and why.
    Incomplete(String),
}

/// Where a resume starts.
#[derive(Debug)]
pub struct Latest {
    /// The newest checkpoint whose every byte is right, if there is one.
    pub manifest: Option<Manifest>,
    /// The newer ones that were passed over, newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that was passed over.
#[derive(Debug)]
pub struct Skipped {
    /// The step in its name.
    pub step: u64,
    /// Where it is.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: RecoverError,
}

/// The checkpoints in `dir`, by ascending step. A folder that is not there has none.
pub fn list(dir: &Path) -> Result<Vec<Found>, RecoverError> {
    let look = |(step, path): (u64, PathBuf)| {
        let state = inspect(&path).map_or_else(|error| State::Incomplete(error.to_string()), |_| State::Complete);
        Found { step, path, state }
    };
    Ok(candidates(dir)?.into_iter().map(look).collect())
}

/// The newest checkpoint in `dir` that verifies, and the broken ones that are newer.
pub fn latest_complete(dir: &Path) -> Result<Latest, RecoverError> {
    let mut skipped = Vec::new();
    for (step, path) in candidates(dir)?.into_iter().rev() {
        match verify(&path) {
            Ok(manifest) => return Ok(Latest { manifest: Some(manifest), skipped }),
            Err(reason) => skipped.push(Skipped { step, path, reason }),
        }
    }
    Ok(Latest { manifest: None, skipped })
}

/// Every folder that may hold a step's checkpoint: `step-N`, or the one aside where that name is free.
fn candidates(dir: &Path) -> Result<BTreeMap<u64, PathBuf>, RecoverError> {
    let (mut named, mut aside) = (BTreeMap::new(), BTreeMap::new());
    for (folder, path) in folders(dir)? {
        match folder {
            Folder::Step(step) => named.insert(step, path),
            Folder::Aside(step, _) => aside.insert(step, path),
            Folder::Temporary(..) | Folder::Old(..) => None,
        };
    }
    for (step, path) in aside {
        named.entry(step).or_insert(path);
    }
    Ok(named)
}

/// The folders in `dir` that have a name of ours.
pub(super) fn folders(dir: &Path) -> Result<Vec<(Folder, PathBuf)>, RecoverError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(folder) = entry.file_name().to_str().and_then(Folder::parse) {
            found.push((folder, entry.path()));
        }
    }
    Ok(found)
}
