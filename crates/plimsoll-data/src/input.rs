//! A file of data, wherever it lies: the one place of this crate that opens one and reads it.
//!
//! Invariant: reads are by position, share no offset between threads and give the bytes that the file had when it was found, or an
//! error. What lies elsewhere comes through a [`BlockCache`]; its errors are facts of this crate ([`DataError`]) inside those of the
//! system, and [`DataError`]'s `From` takes them out again. It knows nothing of formats and rows.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::DataError;
use crate::block_cache::{BlockCache, RemoteBlocks};
use crate::page_cache::{PagedFile, Pages};
use crate::remote::{RemoteFiles, remote_url};

/// The largest file elsewhere that is believed: which of its parts are here is then a map of 8 MiB.
const LARGEST: u64 = 1 << 46;

/// Where a file is, and how it is read.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    path: PathBuf,
    bytes: u64,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Here(Pages),
    There(Arc<RemoteBlocks>),
}

/// What is needed to read files that lie elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub files: Arc<dyn RemoteFiles>,
    pub cache: Arc<BlockCache>,
}

impl Origin {
    /// Looks for the file of a path or URL.
    pub fn find(path: &Path, reach: Option<&Reach>) -> Result<Origin, DataError> {
        let Some(url) = remote_url(path) else {
            let bytes = fs_err::metadata(path)?.len();
            return Ok(Origin { path: path.into(), bytes, place: Place::Here(Pages::Stay) });
        };
        let Some(reach) = reach else { return Err(DataError::NoStore { path: path.into() }) };
        let file = reach.files.look(url).map_err(|fault| fault.of(url))?;
        let bytes = file.bytes;
        if bytes > LARGEST {
            let (problem, hint) = (format!("says that it has {bytes} bytes"), format!("expected at most {LARGEST}"));
            return Err(DataError::Remote { path: path.into(), problem, hint });
        }
        let blocks = RemoteBlocks::new(file, reach.files.clone(), reach.cache.clone());
        Ok(Origin { path: path.into(), bytes, place: Place::There(Arc::new(blocks)) })
    }

    /// Whether the kernel may keep its pages in memory.
    pub fn keep(&mut self, pages: Pages) {
        if let Place::Here(here) = &mut self.place {
            *here = pages;
        }
    }

    /// Its path or URL.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length when it was found.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it lies elsewhere.
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::There(_))
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let there = if let Place::There(blocks) = &self.place { blocks.heap_bytes() } else { 0 };
        self.path.capacity() as u64 + there
    }

    /// A name for what is made of this version of it: the same for the same path, up to the first dash, and another one for each version.
    pub fn name(&self) -> io::Result<String> {
        let mut hasher = DefaultHasher::new();
        match &self.place {
            Place::Here(_) => {
                let facts = fs_err::metadata(&self.path)?;
                fs_err::canonicalize(&self.path)?.hash(&mut hasher);
                let time = i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec());
                Ok(format!("{:016x}-{}-{time}", hasher.finish(), facts.len()))
            }
            Place::There(blocks) => {
                let file = blocks.file();
                file.url.hash(&mut hasher);
                let url = hasher.finish();
                blocks.mark().hash(&mut hasher);
                Ok(format!("{url:016x}-{}-{:016x}", file.bytes, hasher.finish()))
            }
        }
    }

    /// Tells this version of it from all others, as far as anybody can; nothing where another one might look the same.
    pub fn version(&self) -> Option<String> {
        match &self.place {
            Place::Here(_) => {
                let facts = fs_err::metadata(&self.path).ok()?;
                let changed = Duration::new(facts.mtime().try_into().ok()?, facts.mtime_nsec().try_into().ok()?);
                // The clock of a file system ticks every few milliseconds, of some every two seconds. What changes once more in the
                // same tick shows no other time.
                let tick = Duration::from_millis(if facts.mtime_nsec() == 0 { 2_000 } else { 100 });
                let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
                let calm = now.checked_sub(changed).is_some_and(|since| since >= tick);
                let (number, bytes) = (facts.ino(), facts.len());
                let status = (facts.ctime(), facts.ctime_nsec());
                calm.then(|| format!("{number} of {bytes} bytes, {changed:?}, {status:?}"))
            }
            Place::There(blocks) => {
                let file = blocks.file();
                (!file.version.is_empty()).then(|| format!("{} of {} bytes, {}", file.url, file.bytes, file.version))
            }
        }
    }

    pub fn open(&self) -> io::Result<Input> {
        Ok(match &self.place {
            Place::Here(pages) => Input::Here(PagedFile::open(&self.path, *pages)?),
            Place::There(blocks) => Input::There { blocks: blocks.clone(), open: Mutex::default() },
        })
    }

    /// From its first byte on, through a buffer of `capacity` bytes.
    pub fn reader(&self, capacity: usize) -> io::Result<io::BufReader<InputReader>> {
        Ok(io::BufReader::with_capacity(capacity, InputReader { input: self.open()?, at: 0 }))
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) enum Input {
    Here(PagedFile),
    There {
        blocks: Arc<RemoteBlocks>,
        /// The block that was read last, as the number of it.
        open: Mutex<Option<(u64, PagedFile)>>,
    },
}

impl Input {
    /// How long it is now; what lies elsewhere is of the version that was found, or cannot be read.
    pub fn len(&self) -> io::Result<u64> {
        match self {
            Input::Here(file) => file.len(),
            Input::There { blocks, .. } => Ok(blocks.file().bytes),
        }
    }

    /// Reads at least a byte, unless `out` is empty or the file ends before.
    pub fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Input::Here(file) => file.read_at(out, at),
            Input::There { blocks, open } => {
                let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
                blocks.read_at(&mut open, out, at)
            }
        }
    }

    /// Fills `out`.
    pub fn read_exact_at(&self, mut out: &mut [u8], mut at: u64) -> io::Result<()> {
        while !out.is_empty() {
            match self.read_at(out, at) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was")),
                Ok(read) => {
                    out = &mut out[read..];
                    at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A file from some byte on.
#[derive(Debug)]
pub(crate) struct InputReader {
    input: Input,
    at: u64,
}

impl Read for InputReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
