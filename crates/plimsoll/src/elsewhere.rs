//! Data that lie elsewhere: who reads them (the stores of plimsoll-mirror, for the loader of plimsoll-data, which knows no network), and
//! how much of the disk parts of them may take.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use plimsoll_data::{RemoteFault, RemoteFile, RemoteFiles, cache_ceiling};
use plimsoll_machine::Bytes;
use plimsoll_mirror::{Object, ObjectError, Objects, READING};

/// Reads objects for the loader.
#[derive(Debug)]
pub struct Store(pub Objects);

fn fault(error: ObjectError) -> RemoteFault {
    match error {
        ObjectError::Changed { found } => RemoteFault::Changed { found },
        ObjectError::Refused { problem, hint } => RemoteFault::Refused { problem, hint },
        ObjectError::Stopped => RemoteFault::Stopped,
    }
}

fn file(Object { url, bytes, version }: Object) -> RemoteFile {
    RemoteFile { url, bytes: bytes.0, version }
}

impl RemoteFiles for Store {
    fn list(&self, prefix: &str) -> Result<Vec<RemoteFile>, RemoteFault> {
        self.0.list(prefix).map(|found| found.into_iter().map(file).collect()).map_err(fault)
    }

    fn look(&self, url: &str) -> Result<RemoteFile, RemoteFault> {
        self.0.look(url).map(file).map_err(fault)
    }

    fn read(
        &self,
        file: &RemoteFile,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<std::io::Result<()>, RemoteFault> {
        let (url, version) = (file.url.clone(), file.version.clone());
        self.0.read(&Object { url, bytes: Bytes(file.bytes), version }, part, take).map_err(fault)
    }

    fn heap_bytes(&self) -> u64 {
        READING.0
    }
}

/// Asks whether this process is to end.
type Ask = Box<dyn Fn() -> bool + Send + Sync>;

static ASKED_TO_END: OnceLock<Ask> = OnceLock::new();

/// While a store is waited for, `asked` says whether to give up because the process is to end. The first one counts.
pub fn end_when(asked: impl Fn() -> bool + Send + Sync + 'static) {
    let _ = ASKED_TO_END.set(Box::new(asked));
}

/// Who reads files that lie elsewhere, for all of this process; nothing is started before something is read.
pub fn files(hear: fn(&str)) -> &'static Arc<dyn RemoteFiles> {
    static FILES: OnceLock<Arc<dyn RemoteFiles>> = OnceLock::new();
    let asked = || ASKED_TO_END.get().is_some_and(|asked| asked());
    FILES.get_or_init(|| Arc::new(Store(Objects::new(asked, hear))))
}

/// How much of the disk parts of such data may take in `folder`: as said, or what is usual.
pub fn cache(said: Option<Bytes>, folder: &Path) -> Bytes {
    Bytes(cache_ceiling(said.map(|said| said.0), folder))
}
