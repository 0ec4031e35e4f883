//! What is remembered of a mirror on disk, in `RUN/mirror/state.json`: what is there, what is on its way, and the ids of
//! uploads that are under way, so that they are gone on with after a kill.
//!
//! Invariant: a step is in `uploaded` only after its manifest was read back from the other end. Losing this file costs
//! time, never data.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;
use plimsoll_recover::atomic_write;
use serde::{Deserialize, Serialize};

use crate::MirrorError;

/// The folder in a run that is the mirror's own.
pub(crate) const FOLDER: &str = "mirror";
const FILE: &str = "state.json";

/// What is known of a run's mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Where it is.
    pub url: String,
    /// The run's name there, drawn once.
    pub run: String,
    /// Checkpoints that were copied whole, and the checksums of their manifests. Some may have been removed there.
    pub uploaded: BTreeMap<u64, u32>,
    /// Checkpoints that are not copied, because newer ones would make them leave at once.
    pub skipped: BTreeSet<u64>,
    /// The checkpoint that is being copied.
    pub uploading: Option<u64>,
    /// Uploads that are under way, by key.
    pub uploads: BTreeMap<String, Upload>,
    /// Files that are there, by key. Those of a checkpoint only while it is being copied.
    pub files: BTreeMap<String, Sent>,
}

/// An upload in parts that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upload {
    /// Its id at the store.
    pub id: String,
    /// Bytes of a part.
    pub part: Bytes,
    /// What the store answered to each part.
    pub parts: Vec<String>,
    /// The checksum of the bytes of these parts, as they were read.
    pub crc32: u32,
    /// The file that is read.
    pub of: Stamp,
}

/// A file that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Its checksum.
    pub crc32: u32,
    /// The store's mark of this very content.
    pub e_tag: Option<String>,
    /// The file that was read.
    pub of: Stamp,
}

/// Which file it was: another one, or another content, has another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Length.
    pub bytes: Bytes,
    /// Time of the last change, in nanoseconds.
    pub modified_ns: i64,
    /// Number in the file system.
    pub inode: u64,
}

impl Stamp {
    /// The stamp of an open file or a path.
    pub(crate) fn of(facts: &std::fs::Metadata) -> Stamp {
        let modified_ns = facts.mtime().wrapping_mul(1_000_000_000).wrapping_add(facts.mtime_nsec());
        Stamp { bytes: Bytes(facts.len()), modified_ns, inode: facts.ino() }
    }
}

impl State {
    /// Whether the mirror needs the checkpoint of this step no more: it may be removed here.
    pub fn lets_go(&self, step: u64) -> bool {
        self.uploading != Some(step) && (self.uploaded.contains_key(&step) || self.skipped.contains(&step))
    }

    /// The same run's state for `url`: what was copied elsewhere counts for nothing there.
    pub(crate) fn at(self, url: &str) -> State {
        if self.url == url { self } else { State { url: url.to_string(), run: self.run, ..State::default() } }
    }

    /// Forgets all files and uploads below `prefix`, and returns the ids of those uploads.
    pub(crate) fn forget(&mut self, prefix: &str) -> Vec<(String, String)> {
        let inside = |key: &String| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        self.files.retain(|key, _| !inside(key));
        let gone: Vec<_> = self.uploads.extract_if(.., |key, _| inside(key)).collect();
        gone.into_iter().map(|(key, upload)| (key, upload.id)).collect()
    }

    pub(crate) fn write(&self, run: &Path) -> Result<(), MirrorError> {
        let path = path(run);
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from)?;
        Ok(atomic_write(&path, &text)?)
    }
}

/// What is remembered of the mirror of the run in `folder`; nothing, where nothing was copied yet.
pub fn read(folder: &Path) -> Result<State, MirrorError> {
    let path = path(folder);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        text => text?,
    };
    serde_json::from_slice(&text).map_err(|error| MirrorError::StateText { path, problem: error.to_string() })
}

fn path(run: &Path) -> PathBuf {
    run.join(FOLDER).join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp { bytes: Bytes(9), modified_ns: 7, inode: 5 }
    }

    fn state() -> State {
        let upload = Upload { id: "id-1".into(), part: Bytes::mib(8), parts: vec!["a".into()], crc32: 3, of: stamp() };
        State {
            url: "s3://a/b".into(),
            run: "r".into(),
            uploaded: [(10, 1), (20, 2)].into(),
            skipped: [15].into(),
            uploading: Some(30),
            uploads: [("checkpoints/step-30/weights".into(), upload)].into(),
            files: [("job.toml".into(), Sent { crc32: 1, e_tag: Some("\"x\"".into()), of: stamp() })].into(),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_a_run_without_it_has_an_empty_one() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(read(run.path()).unwrap(), State::default());
        fs::create_dir(run.path().join(FOLDER)).unwrap();
        state().write(run.path()).unwrap();
        assert_eq!(read(run.path()).unwrap(), state());
    }

    #[test]
    fn a_step_may_leave_once_it_is_there_or_not_wanted_but_never_while_it_is_on_its_way() {
        let mut state = state();
        let free = |state: &State| [10, 15, 30, 40].map(|step| state.lets_go(step));
        assert_eq!(free(&state), [true, true, false, false]);
        state.uploading = Some(10);
        assert_eq!(free(&state), [false, true, false, false]);
    }

    #[test]
    fn at_another_url_nothing_is_there_but_the_run_keeps_its_name() {
        assert_eq!(state().at("s3://a/b"), state());
        let elsewhere = state().at("s3://other");
        assert_eq!((elsewhere.run.as_str(), elsewhere.uploaded.len(), elsewhere.uploads.len()), ("r", 0, 0));
    }

    #[test]
    fn forgetting_a_checkpoint_gives_back_the_ids_of_its_uploads() {
        let mut state = state();
        assert_eq!(state.forget("checkpoints/step-3"), []);
        assert_eq!(
            state.forget("checkpoints/step-30"),
            [("checkpoints/step-30/weights".to_string(), "id-1".to_string())]
        );
        assert!(state.uploads.is_empty() && state.files.len() == 1);
    }

    #[test]
    fn a_state_that_is_not_json_is_told_with_its_place() {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join(FOLDER)).unwrap();
        fs::write(path(run.path()), "{").unwrap();
        let error = read(run.path()).unwrap_err().to_string();
        assert!(error.contains("state.json"), "{error}");
    }
}
