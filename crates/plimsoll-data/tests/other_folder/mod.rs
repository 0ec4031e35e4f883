//! Files of another folder, read as those of a store are: listed, looked at, and read in parts of one version.

#![allow(dead_code)]

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_data::*;

/// What all URLs begin with; behind it stands the path.
const HOME: &str = "s3://bucket";
/// Bytes that are handed on at a time.
const PIECE: usize = 10_000;

#[derive(Debug, Default)]
pub struct OtherFolder {
    /// Requests for parts, and the bytes that they gave.
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
    /// What the next requests for parts are answered with.
    pub faults: Mutex<Vec<RemoteFault>>,
    /// Nothing tells versions of a file apart.
    pub nameless: AtomicBool,
}

pub fn url(path: &Path) -> PathBuf {
    PathBuf::from(format!("{HOME}{}", path.display()))
}

fn absent() -> RemoteFault {
    RemoteFault::Refused { problem: "is not there".into(), hint: "look at the name".into() }
}

impl OtherFolder {
    pub fn shared() -> (Arc<OtherFolder>, Arc<dyn RemoteFiles>) {
        let folder = Arc::new(OtherFolder::default());
        (folder.clone(), folder)
    }

    fn facts(&self, path: &Path) -> Result<RemoteFile, RemoteFault> {
        let facts = fs_err::metadata(path).map_err(|_| absent())?;
        let version = match self.nameless.load(Ordering::Relaxed) {
            true => String::new(),
            false => format!("{}.{}.{}", facts.ino(), facts.mtime(), facts.mtime_nsec()),
        };
        Ok(RemoteFile { url: url(path).display().to_string(), bytes: facts.len(), version })
    }

    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl RemoteFiles for OtherFolder {
    fn list(&self, prefix: &str) -> Result<Vec<RemoteFile>, RemoteFault> {
        let folder = Path::new(&prefix[HOME.len()..prefix.rfind('/').unwrap()]);
        let entries = fs_err::read_dir(folder).map_err(|_| absent())?;
        let files: Result<Vec<_>, _> = entries.map(|entry| self.facts(&entry.unwrap().path())).collect();
        Ok(files?.into_iter().filter(|file| file.url.starts_with(prefix)).collect())
    }

    fn look(&self, url: &str) -> Result<RemoteFile, RemoteFault> {
        self.facts(Path::new(&url[HOME.len()..]))
    }

    fn read(
        &self,
        file: &RemoteFile,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<io::Result<()>, RemoteFault> {
        if let Some(fault) = self.faults.lock().unwrap().pop() {
            return Err(fault);
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(part.end - part.start, Ordering::Relaxed);
        let path = Path::new(&file.url[HOME.len()..]);
        if self.facts(path)? != *file {
            return Err(RemoteFault::Changed { found: "another one".into() });
        }
        let mut open = fs_err::File::open(path).unwrap();
        open.seek(SeekFrom::Start(part.start)).unwrap();
        let (mut from, mut piece) = (open.take(part.end - part.start), [0; PIECE]);
        loop {
            match from.read(&mut piece).unwrap() {
                0 => return Ok(Ok(())),
                read => {
                    if let Err(error) = take(&piece[..read]) {
                        return Ok(Err(error));
                    }
                }
            }
        }
    }

    fn heap_bytes(&self) -> u64 {
        8 << 10
    }
}
