//! Writing one checkpoint.
//!
//! Invariant: until [`Writer::finish`] has renamed it, nothing of a new checkpoint is visible under a good name, and
//! nothing older has been touched. A writer that is dropped takes its temporary folder with it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;
use serde_json::Value;

use super::folder::Folder;
use super::manifest::{FileFacts, MANIFEST, Manifest, check_length, check_name};
use super::place::{put_in_place, remove_if_there};
use super::sink::{BUFFER, Sink};
use crate::RecoverError;
use crate::durable::{folder_of, sync_folder};

/// A checkpoint in the making.
#[derive(Debug)]
pub struct Writer {
    parent: PathBuf,
    temporary: PathBuf,
    step: u64,
    files: BTreeMap<String, FileFacts>,
    buffer: Vec<u8>,
}

impl Writer {
    /// Begins the checkpoint of `step` in the folder `checkpoints`, which is made if it is not there. A process writes
    /// one checkpoint of a step at a time.
    pub fn begin(checkpoints: &Path, step: u64) -> Result<Writer, RecoverError> {
        if !checkpoints.is_dir() {
            fs::create_dir_all(checkpoints)?;
            sync_folder(&folder_of(checkpoints))?;
        }
        let temporary = checkpoints.join(Folder::Temporary(step, std::process::id()).name());
        // In a fresh container the process that was killed here had, as likely as not, the same pid.
        remove_if_there(&temporary)?;
        fs::create_dir(&temporary)?;
        let buffer = Vec::with_capacity(BUFFER.0 as usize);
        Ok(Writer { parent: checkpoints.to_path_buf(), temporary, step, files: BTreeMap::new(), buffer })
    }

    /// Streams one file: `produce` writes it piece by piece, in order. Returns the file's length.
    pub fn file(
        &mut self,
        name: &str,
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Bytes, RecoverError> {
        check_name(name)?;
        if self.files.contains_key(name) {
            return Err(RecoverError::FileTwice { name: name.to_string(), step: self.step });
        }
        let path = self.temporary.join(name);
        let file = fs::File::create(&path)?;
        let mut sink = Sink::new(&file, &mut self.buffer);
        let written = produce(&mut sink).and_then(|()| sink.finish());
        let facts = written.map_err(|source| RecoverError::NotWritten { path, source })?;
        self.files.insert(name.to_string(), facts);
        Ok(facts.bytes)
    }

    /// The length of the files so far.
    pub fn bytes(&self) -> Bytes {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Writes the manifest with `facts` (plan, SIMD level, cursor) and gives the checkpoint its name, in the place of an
    /// older one of the same step. Returns the checkpoint's folder.
    pub fn finish(mut self, facts: Value) -> Result<PathBuf, RecoverError> {
        let manifest = Manifest::new(self.step, std::mem::take(&mut self.files), facts);
        let path = self.temporary.join(MANIFEST);
        let text = manifest.to_text()?;
        check_length(&text, &path)?;
        let mut file = fs::File::create(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync_folder(&self.temporary)?;
        put_in_place(&self.parent, &self.temporary, self.step)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` the folder has its good name, and there is nothing here to find.
        let _ = remove_if_there(&self.temporary);
    }
}
