//! Copying what is no checkpoint: single files of the run, and folders (the final model, the small files of the model
//! that it began with) whose list of lengths and checksums goes last.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Instant;

use fs_err as fs;
use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::FileFacts;
use serde::{Deserialize, Serialize};

use crate::MirrorError;
use crate::layout::{BASE, BASE_FILES, COMPLETE, MODEL};
use crate::report::Report;
use crate::send::{Meter, Mirror};
use crate::state::{Sent, Stamp};

/// `.complete`: what a folder consists of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub files: BTreeMap<String, FileFacts>,
}

impl Contents {
    fn to_text(&self) -> Result<Vec<u8>, MirrorError> {
        Ok(serde_json::to_vec_pretty(self).map_err(io::Error::from)?)
    }
}

impl Mirror<'_> {
    /// Copies a file of the run if it is there and has changed since it was copied last.
    pub(crate) async fn file(&mut self, name: &str) -> Result<(), MirrorError> {
        let path = self.wish.run.join(name);
        let Some(stamp) = stamp_of(&path)? else {
            return Ok(());
        };
        if self.state.files.get(name).is_some_and(|sent| sent.of == stamp) {
            return Ok(());
        }
        match self.send(name, &path, None).await {
            Err(error) if error.is_local() => {
                self.cannot(name, error);
                Ok(())
            }
            sent => {
                self.problems.remove(name);
                sent.map(drop)
            }
        }
    }

    /// Copies the small files of the model that the run began with.
    pub(crate) async fn base(&mut self) -> Result<(), MirrorError> {
        let dir = self.wish.model.clone();
        let names = BASE_FILES.iter().filter(|name| dir.join(name).is_file()).map(|name| name.to_string()).collect();
        self.folder_unless_local(BASE, &dir, names).await.map(drop)
    }

    /// Copies the final model, which appears in the run whole or not at all.
    pub(crate) async fn model(&mut self) -> Result<(), MirrorError> {
        let dir = self.wish.run.join(MODEL);
        if !dir.join("config.json").is_file() {
            return Ok(());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if let (true, Some(name)) = (entry.path().is_file(), entry.file_name().to_str()) {
                names.push(name.to_string());
            }
        }
        let began = Instant::now();
        if let Some(bytes) = self.folder_unless_local(MODEL, &dir, names).await? {
            let url = format!("{}/{MODEL}", self.remote.url);
            let seconds = began.elapsed().as_secs_f64();
            self.patience.tell(Report::Mirrored { step: None, url, bytes, seconds });
        }
        Ok(())
    }

    /// Copies a folder; what is wrong with the folder itself is told and stops nothing.
    async fn folder_unless_local(
        &mut self,
        home: &str,
        dir: &Path,
        names: Vec<String>,
    ) -> Result<Option<Bytes>, MirrorError> {
        match self.folder(home, dir, names).await {
            Err(error) if error.is_local() => {
                self.cannot(home, error);
                Ok(None)
            }
            done => done,
        }
    }

    /// Copies a folder, its list last, and returns its length; `None` if nothing was to be done.
    async fn folder(&mut self, home: &str, dir: &Path, names: Vec<String>) -> Result<Option<Bytes>, MirrorError> {
        if names.is_empty() {
            return Ok(None);
        }
        let last = format!("{home}/{COMPLETE}");
        let before = stamps(dir, &names)?;
        if self.is_copied(home, &before)? {
            return Ok(None);
        }
        self.state.files.remove(&last);
        self.remove(&last).await?;
        let total = before.iter().map(|(_, stamp)| stamp.bytes).sum();
        if home == MODEL {
            self.meter = Meter { step: None, done: Bytes::ZERO, total };
        }
        let mut contents = Contents::default();
        for name in &names {
            let sent = self.send(&format!("{home}/{name}"), &dir.join(name), None).await?;
            contents.files.insert(name.clone(), FileFacts { bytes: sent.of.bytes, crc32: sent.crc32 });
        }
        self.meter = Meter::default();
        if stamps(dir, &names)? != before {
            // Another one took its place meanwhile; the next round copies that.
            return Ok(None);
        }
        let text = contents.to_text()?;
        let (length, crc32) = (Bytes(text.len() as u64), crc32fast::hash(&text));
        let e_tag = self.put(&last, text.into(), crc32).await?;
        let of = Stamp { bytes: length, modified_ns: 0, inode: 0 };
        self.state.files.insert(last, Sent { crc32, e_tag, of });
        self.save();
        self.problems.remove(home);
        Ok(Some(total))
    }

    /// Whether all these files, and the list of them, are there.
    fn is_copied(&self, home: &str, files: &[(String, Stamp)]) -> Result<bool, MirrorError> {
        let mut contents = Contents::default();
        for (name, stamp) in files {
            match self.state.files.get(&format!("{home}/{name}")) {
                Some(sent) if sent.of == *stamp => {
                    contents.files.insert(name.clone(), FileFacts { bytes: stamp.bytes, crc32: sent.crc32 });
                }
                _ => return Ok(false),
            }
        }
        let crc32 = crc32fast::hash(&contents.to_text()?);
        Ok(self.state.files.get(&format!("{home}/{COMPLETE}")).is_some_and(|sent| sent.crc32 == crc32))
    }

    fn cannot(&mut self, what: &str, error: MirrorError) {
        let message = format!("`{what}` is not copied: {error}");
        self.patience.trouble(message.clone());
        self.problems.insert(what.to_string(), message);
    }
}

fn stamps(dir: &Path, names: &[String]) -> Result<Vec<(String, Stamp)>, MirrorError> {
    names.iter().map(|name| Ok((name.clone(), Stamp::of(&fs::metadata(dir.join(name))?)))).collect()
}

/// The stamp of a file, if it is there.
fn stamp_of(path: &Path) -> Result<Option<Stamp>, MirrorError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        facts => Ok(Some(Stamp::of(&facts?))),
    }
}
