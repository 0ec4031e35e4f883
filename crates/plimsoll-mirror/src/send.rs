//! Copying one file, whole: read once, its checksum taken on the way, and verified at the other end.
//!
//! Invariant: what `send` returns was there, with the length and checksum of what was read, when it returned; and what
//! was read is what the manifest says, where there is one.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes as Chunk;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::{ObjectStoreExt, PutPayload};
use plimsoll_machine::Bytes;
use plimsoll_recover::RecoverError;
use plimsoll_recover::checkpoint::FileFacts;

use crate::patience::Patience;
use crate::remote::Remote;
use crate::report::Wish;
use crate::shelf::Local;
use crate::source::Source;
use crate::state::{Sent, State};
use crate::wire::{STALL, StoodStill};
use crate::{MirrorError, PART};

/// How often what came out wrong is sent again before that is called a failure.
pub(crate) const TRIES: u32 = 5;

/// A mirror at work.
pub(crate) struct Mirror<'a> {
    pub wish: &'a Wish,
    pub remote: Remote,
    pub patience: Patience<'a>,
    pub state: State,
    /// Checkpoints that cannot be copied.
    pub refused: Vec<Local>,
    /// What cannot be copied, and why; by what it is.
    pub problems: BTreeMap<String, String>,
    /// The checkpoints' folder when it was last looked at and all of it was there.
    pub seen: Option<crate::state::Stamp>,
    pub meter: Meter,
}

/// How far a checkpoint or the model is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pub step: Option<u64>,
    pub done: Bytes,
    pub total: Bytes,
}

impl Mirror<'_> {
    /// Copies the file `path` to `name`, unless it is there already.
    pub(crate) async fn send(
        &mut self,
        name: &str,
        path: &Path,
        expected: Option<FileFacts>,
    ) -> Result<Sent, MirrorError> {
        let mut source = Source::open(path)?;
        if let Some(facts) = expected.filter(|facts| facts.bytes != source.stamp.bytes) {
            let (expected, found) = (facts.bytes, source.stamp.bytes);
            return Err(RecoverError::FileLength { path: path.to_path_buf(), expected, found }.into());
        }
        if let Some(sent) = self.still_there(name, &source, expected).await? {
            self.moved(source.stamp.bytes);
            return Ok(sent);
        }
        let sent = if source.stamp.bytes <= PART {
            let bytes = source.part(0, source.stamp.bytes.0)?;
            let crc32 = crc32fast::hash(&bytes);
            check(&source, expected, crc32)?;
            let length = source.stamp.bytes;
            let e_tag = self.put(name, bytes.into(), crc32).await?;
            self.moved(length);
            Sent { crc32, e_tag, of: source.stamp }
        } else {
            match self.remote.parts.clone() {
                Some(store) => self.send_in_parts(store, name, &mut source, expected).await?,
                None => self.write_in_parts(name, &mut source, expected).await?,
            }
        };
        self.state.files.insert(name.to_string(), sent.clone());
        self.save();
        Ok(sent)
    }

    /// Puts `bytes` in one piece, reads them back, and returns the store's mark of them.
    pub(crate) async fn put(&mut self, name: &str, bytes: Chunk, crc32: u32) -> Result<Option<String>, MirrorError> {
        let key = self.remote.key(name);
        self.sweep(name);
        let mut tries = 0;
        loop {
            if let Some(pace) = self.remote.folder.as_ref().and_then(|folder| folder.pace.as_ref()) {
                pace.pay(bytes.len() as u64).await;
            }
            let (store, patience) = (&self.remote.store, &self.patience);
            patience.insist(async || store.put(&key, PutPayload::from_bytes(bytes.clone())).await).await?;
            tries += 1;
            match self.verified(name, bytes.len() as u64, Some(crc32)).await {
                Err(MirrorError::Altered { .. }) if tries < TRIES => {}
                done => return done,
            }
        }
    }

    /// Looks at an object that was just written: its length, and where `crc32` is given its content. The store's mark
    /// of it; or [`MirrorError::Altered`].
    pub(crate) async fn verified(
        &self,
        name: &str,
        length: u64,
        crc32: Option<u32>,
    ) -> Result<Option<String>, MirrorError> {
        let key = self.remote.key(name);
        let (store, patience) = (&self.remote.store, &self.patience);
        let meta = patience.insist(async || store.head(&key).await).await?;
        let mut found = (meta.size, crc32);
        if crc32.is_some() && meta.size == length {
            let back = self.read_back(name).await?;
            found = back.map_or((0, None), |(length, crc32)| (length, Some(crc32)));
        }
        if found == (length, crc32) {
            return Ok(meta.e_tag);
        }
        let told = |(length, crc32): (u64, Option<u32>)| match crc32 {
            Some(crc32) => format!("{length} bytes with checksum `{crc32:08x}`"),
            None => format!("{length} bytes"),
        };
        let (expected, found) = (told((length, crc32)), told(found));
        Err(MirrorError::Altered { url: self.remote.url.clone(), key: name.to_string(), expected, found })
    }

    /// Length and checksum of an object, read whole; `None` if it is not there.
    pub(crate) async fn read_back(&self, name: &str) -> Result<Option<(u64, u32)>, MirrorError> {
        let (key, store) = (self.remote.key(name), &self.remote.store);
        let read = async || {
            let mut stream = store.get(&key).await?.into_stream();
            let (mut hasher, mut length) = (crc32fast::Hasher::new(), 0);
            while let Some(chunk) = next_chunk(&mut stream).await? {
                hasher.update(&chunk);
                length += chunk.len() as u64;
            }
            Ok((length, hasher.finalize()))
        };
        self.patience.persist(read).await
    }

    /// What was sent before, if it was this file, and the store still has it.
    async fn still_there(
        &self,
        name: &str,
        source: &Source,
        expected: Option<FileFacts>,
    ) -> Result<Option<Sent>, MirrorError> {
        let right = |sent: &&Sent| sent.of == source.stamp && expected.is_none_or(|facts| facts.crc32 == sent.crc32);
        let Some(sent) = self.state.files.get(name).filter(right) else {
            return Ok(None);
        };
        let (key, store) = (self.remote.key(name), &self.remote.store);
        let meta = self.patience.persist(async || store.head(&key).await).await?;
        let same = meta.is_some_and(|meta| meta.size == sent.of.bytes.0 && meta.e_tag == sent.e_tag);
        Ok(same.then(|| sent.clone()))
    }

    /// Removes an object; one that is not there is fine.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), MirrorError> {
        let (key, store) = (self.remote.key(name), &self.remote.store);
        self.patience.persist(async || store.delete(&key).await).await.map(drop)
    }

    /// Counts what is done.
    pub(crate) fn moved(&mut self, bytes: Bytes) {
        self.meter.done += bytes;
        if self.meter.total > Bytes::ZERO {
            self.patience.progress(self.meter.step, self.meter.done, self.meter.total);
        }
    }

    /// Writes down what is known. Without it a kill costs time, so a disk that does not take it stops nothing.
    pub(crate) fn save(&self) {
        if let Err(error) = self.state.write(&self.wish.run) {
            self.patience.trouble(format!("what was copied cannot be written down: {error}"));
        }
    }

    /// Removes what a killed write to a file system has left beside `name` (`NAME#1`).
    pub(crate) fn sweep(&self, name: &str) {
        let Some(folder) = &self.remote.folder else { return };
        let path = folder.root.join(name);
        let (Some(parent), Some(file)) = (path.parent(), path.file_name().and_then(|file| file.to_str())) else {
            return;
        };
        for entry in fs_err::read_dir(parent).into_iter().flatten().flatten() {
            let found = entry.file_name();
            let left = found.to_str().and_then(|found| found.strip_prefix(file)?.strip_prefix('#'));
            if left.is_some_and(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())) {
                let _ = fs_err::remove_file(entry.path());
            }
        }
    }
}

/// Refuses a file that is not what the manifest says.
pub(crate) fn check(source: &Source, expected: Option<FileFacts>, found: u32) -> Result<(), MirrorError> {
    match expected {
        Some(facts) if facts.crc32 != found => {
            let path = source.path.clone();
            Err(RecoverError::FileChecksum { path, expected: facts.crc32, found }.into())
        }
        _ => Ok(()),
    }
}

/// The next piece of a download. One that does not come is an error.
pub(crate) async fn next_chunk(
    stream: &mut BoxStream<'static, object_store::Result<Chunk>>,
) -> object_store::Result<Option<Chunk>> {
    match tokio::time::timeout(STALL, stream.next()).await {
        Ok(chunk) => chunk.transpose(),
        Err(_) => Err(object_store::Error::Generic { store: "HTTP", source: Box::new(StoodStill) }),
    }
}
