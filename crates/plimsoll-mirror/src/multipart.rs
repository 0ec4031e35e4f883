//! Files that are longer than a part: uploads whose ids and parts are written down after every part, so that they are
//! gone on with after a kill of either end; and, in a file system, a write under another name and a rename.
//!
//! Invariant: one part is in memory at a time.

use std::sync::Arc;

use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use plimsoll_machine::Bytes;
use plimsoll_recover::checkpoint::FileFacts;

use crate::send::{Mirror, TRIES, check};
use crate::source::{Source, crc32_from};
use crate::state::{Sent, Upload};
use crate::trouble::{Nature, trouble};
use crate::{MirrorError, PART};

/// No provider takes more parts of one object.
const MOST_PARTS: u64 = 10_000;

/// Bytes of a part of a file of this length: [`PART`], and more only where there would be too many.
pub(crate) fn part_of(length: Bytes) -> Bytes {
    let least = length.0.div_ceil(MOST_PARTS).next_multiple_of(1 << 20);
    Bytes(least.max(PART.0))
}

impl Mirror<'_> {
    /// Copies by an upload that outlives this process.
    pub(crate) async fn send_in_parts(
        &mut self,
        store: Arc<dyn MultipartStore>,
        name: &str,
        source: &mut Source,
        expected: Option<FileFacts>,
    ) -> Result<Sent, MirrorError> {
        let key = self.remote.key(name);
        let begun = self.meter.done;
        for _ in 0..TRIES {
            self.meter.done = begun;
            let resumed = self.state.uploads.get(name).is_some_and(|upload| upload.of == source.stamp);
            if !resumed {
                self.begin(&*store, &key, name, source).await?;
            }
            if !self.send_parts(&*store, &key, name, source, resumed).await? {
                self.state.uploads.remove(name);
                continue;
            }
            let upload = self.state.uploads[name].clone();
            if let Err(error) = check(source, expected, upload.crc32) {
                self.abort(&*store, &key, name).await;
                return Err(error);
            }
            if let Some(sent) = self.complete(&*store, &key, name, &upload, resumed).await? {
                self.state.uploads.remove(name);
                return Ok(sent);
            }
            self.state.uploads.remove(name);
            self.save();
        }
        let (url, problem) = (self.remote.url.clone(), format!("lost the upload of `{name}` {TRIES} times"));
        Err(MirrorError::Refused { url, problem })
    }

    async fn begin(
        &mut self,
        store: &dyn MultipartStore,
        key: &Key,
        name: &str,
        source: &Source,
    ) -> Result<(), MirrorError> {
        self.abort(store, key, name).await;
        let id = self.patience.insist(async || store.create_multipart(key).await).await?;
        let part = part_of(source.stamp.bytes);
        let upload = Upload { id, part, parts: Vec::new(), crc32: 0, of: source.stamp };
        self.state.uploads.insert(name.to_string(), upload);
        self.save();
        Ok(())
    }

    /// Sends the parts that are missing; false if the store does not know the upload any more.
    async fn send_parts(
        &mut self,
        store: &dyn MultipartStore,
        key: &Key,
        name: &str,
        source: &mut Source,
        resumed: bool,
    ) -> Result<bool, MirrorError> {
        let upload = self.state.uploads[name].clone();
        let (id, part, length) = (upload.id, upload.part.0, source.stamp.bytes.0);
        let there = upload.parts.len() as u64;
        self.moved(Bytes((there * part).min(length)));
        for index in there..length.div_ceil(part) {
            let offset = index * part;
            let bytes = source.part(offset, part.min(length - offset))?;
            let crc32 = crc32_from(self.state.uploads[name].crc32, offset, &bytes);
            let count = Bytes(bytes.len() as u64);
            let payload = PutPayload::from(bytes);
            let put = async || store.put_part(key, &id, index as usize, payload.clone()).await;
            // Some stores refuse an id that they do not know instead of saying so. A new id tells the two apart.
            let unknown = |nature| resumed && index == there && nature == Nature::Lasting;
            let Some(PartId { content_id }) = self.patience.persist_unless(put, unknown).await? else {
                return Ok(false);
            };
            if let Some(upload) = self.state.uploads.get_mut(name) {
                upload.parts.push(content_id);
                upload.crc32 = crc32;
            }
            self.save();
            self.moved(count);
        }
        Ok(true)
    }

    /// Makes the parts one object and verifies it; `None` if the upload is lost or came out wrong.
    async fn complete(
        &self,
        store: &dyn MultipartStore,
        key: &Key,
        name: &str,
        upload: &Upload,
        resumed: bool,
    ) -> Result<Option<Sent>, MirrorError> {
        let length = upload.of.bytes.0;
        let parts = || upload.parts.iter().map(|part| PartId { content_id: part.clone() }).collect::<Vec<_>>();
        let finish = async || store.complete_multipart(key, &upload.id, parts()).await;
        let unknown = |nature| resumed && nature == Nature::Lasting;
        let done = self.patience.persist_unless(finish, unknown).await?;
        // An upload that is not there may have been completed, and the answer was lost with a connection or a process.
        if done.is_none() && self.read_back(name).await? != Some((length, upload.crc32)) {
            return Ok(None);
        }
        let checksums =
            upload.parts.iter().all(|part| part.contains("ChecksumSHA256") || part.contains("ChecksumCRC64"));
        let content = (!checksums).then_some(upload.crc32);
        match self.verified(name, length, content).await {
            Ok(e_tag) => Ok(Some(Sent { crc32: upload.crc32, e_tag, of: upload.of })),
            Err(MirrorError::Altered { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives an upload up, so that its parts cost nothing. The store may have forgotten it, or be away: one try.
    pub(crate) async fn abort(&mut self, store: &dyn MultipartStore, key: &Key, name: &str) {
        if let Some(upload) = self.state.uploads.remove(name) {
            let _ = store.abort_multipart(key, &upload.id).await;
            self.save();
        }
    }

    /// Copies into a file system.
    pub(crate) async fn write_in_parts(
        &mut self,
        name: &str,
        source: &mut Source,
        expected: Option<FileFacts>,
    ) -> Result<Sent, MirrorError> {
        let (begun, mut tries) = (self.meter.done, 0);
        loop {
            self.meter.done = begun;
            self.sweep(name);
            let crc32 = match self.write_whole(name, source, expected).await? {
                Ok(crc32) => crc32,
                Err(error) => {
                    self.patience.weather(trouble(&error)).await?;
                    continue;
                }
            };
            tries += 1;
            match self.verified(name, source.stamp.bytes.0, Some(crc32)).await {
                Err(MirrorError::Altered { .. }) if tries < TRIES => {}
                done => return done.map(|e_tag| Sent { crc32, e_tag, of: source.stamp }),
            }
        }
    }

    /// One try; the outer error ends it, the inner one is the store's.
    async fn write_whole(
        &mut self,
        name: &str,
        source: &mut Source,
        expected: Option<FileFacts>,
    ) -> Result<object_store::Result<u32>, MirrorError> {
        let (store, key) = (Arc::clone(&self.remote.store), self.remote.key(name));
        let pace = self.remote.folder.as_ref().and_then(|folder| folder.pace.clone());
        let mut upload: Box<dyn MultipartUpload> = match store.put_multipart(&key).await {
            Ok(upload) => upload,
            Err(error) => return Ok(Err(error)),
        };
        let part = pace.as_ref().map_or(PART.0, |pace| pace.piece());
        let length = source.stamp.bytes.0;
        let (mut crc32, mut offset) = (0, 0);
        while offset < length {
            let bytes = source.part(offset, part.min(length - offset))?;
            let count = bytes.len() as u64;
            crc32 = crc32_from(crc32, offset, &bytes);
            if let Some(pace) = &pace {
                pace.pay(count).await;
            }
            if let Err(error) = upload.put_part(PutPayload::from(bytes)).await {
                return Ok(Err(error));
            }
            offset += count;
            self.moved(Bytes(count));
        }
        if let Err(error) = check(source, expected, crc32) {
            // What was written has no good name yet, and loses its other one.
            let _ = upload.abort().await;
            return Err(error);
        }
        Ok(upload.complete().await.map(|_| crc32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_planned_until_there_would_be_too_many() {
        assert_eq!(part_of(Bytes(1)), PART);
        assert_eq!(part_of(Bytes(PART.0 * MOST_PARTS)), PART);
        let long = Bytes(PART.0 * MOST_PARTS + 1);
        assert_eq!(part_of(long), Bytes::mib(9));
        assert!(long.0.div_ceil(part_of(long).0) <= MOST_PARTS);
    }
}
