//! Parts of a file that lies elsewhere, by way of blocks on the local disk.
//!
//! Invariant: whatever is read comes from a block that was seen whole by its checksum; one block is held in memory at a time, however
//! many read. Who reads on where it read before gets more blocks in one request, up to [`MOST_AHEAD`]. It knows nothing of networks
//! (that is [`RemoteFiles`]) and nothing of what is in the files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::DataError;
use crate::block_shelf::{FOOTER, Label, Shelf, WALK_HEAP, bytes_held, is_full};
use crate::page_cache::{PagedFile, Pages};
use crate::per_process::PerProcess;
use crate::remote::{RemoteFile, RemoteFiles};

/// Bytes of a block: large enough that a request is worth it, small against a ceiling.
pub(crate) const BLOCK: u64 = 1 << 20;
/// Blocks that are asked for at once.
pub(crate) const MOST_AHEAD: u64 = 8;
/// A cache has room for so many blocks at least.
const LEAST_BLOCKS: u64 = 2 * MOST_AHEAD;
/// Places of a file that are followed: as many as columns are read in step.
const FOLLOWED: usize = 4;

/// The least that a cache takes, in bytes.
pub const LEAST_CACHE: u64 = LEAST_BLOCKS * (BLOCK + FOOTER as u64);

/// The most that a cache takes where nothing is said, in bytes.
const USUAL_CACHE: u64 = 8 << 30;

/// How much of the disk a cache in `folder` may take: as said, or 8 GiB, and of the free disk at most a quarter.
pub fn cache_ceiling(said: Option<u64>, folder: &Path) -> u64 {
    if let Some(said) = said {
        return said.max(LEAST_CACHE);
    }
    let there = folder.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."));
    let free = rustix::fs::statvfs(there).map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
    // What lies there already is not free, and counts.
    usual_ceiling(free.saturating_add(bytes_held(folder)))
}

fn usual_ceiling(free: u64) -> u64 {
    USUAL_CACHE.min(free / 4).max(LEAST_CACHE)
}

/// Blocks on the disk, and the one that is on its way there. A fork has a block of its own: a thread that is not there any more may hold
/// its parent's.
#[derive(Debug)]
pub(crate) struct BlockCache {
    shelf: Shelf,
    block: PerProcess<Mutex<Vec<u8>>>,
}

impl BlockCache {
    /// In a folder of ours, with at most so many bytes there.
    pub fn open(folder: &Path, ceiling: u64) -> io::Result<BlockCache> {
        Ok(BlockCache { shelf: Shelf::open(folder, ceiling.max(LEAST_CACHE))?, block: PerProcess::default() })
    }

    /// Whether the kernel may keep pages of blocks in memory.
    pub fn keep(&self, pages: Pages) {
        self.shelf.keep(pages);
    }

    fn block(&self) -> MutexGuard<'_, Vec<u8>> {
        self.block.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Heap of reading by way of it, in bytes.
    pub fn heap_bytes() -> u64 {
        BLOCK + FOOTER as u64 + WALK_HEAP
    }
}

/// One file, in blocks.
#[derive(Debug)]
pub(crate) struct RemoteBlocks {
    file: RemoteFile,
    /// Its version, or where that is not known a word that nobody else has: then nothing that others kept is used.
    mark: String,
    name: u64,
    files: Arc<dyn RemoteFiles>,
    cache: Arc<BlockCache>,
    /// A bit for each block that was seen whole in this process.
    seen: Box<[AtomicU64]>,
    followed: PerProcess<Mutex<[Followed; FOLLOWED]>>,
}

/// A place that somebody reads on from.
#[derive(Clone, Copy, Debug, Default)]
struct Followed {
    next: u64,
    /// How often it was read on from.
    times: u32,
    used: u64,
}

/// Blocks to ask for from `number` on: from the second time that it goes on where it was, twice as many each time; one thing may lie
/// across two blocks, and ends there. Pure.
fn ahead(followed: &mut [Followed; FOLLOWED], number: u64) -> u64 {
    let now = 1 + followed.iter().map(|place| place.used).max().unwrap_or(0);
    let known = followed.iter().position(|place| place.used > 0 && place.next == number);
    let (at, times) = match known {
        Some(at) => (at, followed[at].times + 1),
        None => ((0..FOLLOWED).min_by_key(|&at| followed[at].used).unwrap_or(0), 0),
    };
    let ahead = (1 << times.saturating_sub(1).min(16)).min(MOST_AHEAD);
    followed[at] = Followed { next: number + ahead, times, used: now };
    ahead
}

impl RemoteBlocks {
    pub fn new(file: RemoteFile, files: Arc<dyn RemoteFiles>, cache: Arc<BlockCache>) -> RemoteBlocks {
        let mark = match file.version.is_empty() {
            true => format!("unknown to process {} at {:?}", std::process::id(), SystemTime::now()),
            false => file.version.clone(),
        };
        let mut hasher = DefaultHasher::new();
        (&file.url, &mark, file.bytes).hash(&mut hasher);
        let words = file.bytes.div_ceil(BLOCK).div_ceil(64);
        let seen = (0..words).map(|_| AtomicU64::new(0)).collect();
        RemoteBlocks { name: hasher.finish(), mark, file, files, cache, seen, followed: PerProcess::default() }
    }

    pub fn file(&self) -> &RemoteFile {
        &self.file
    }

    /// What tells this version of it from others.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let texts = self.file.url.capacity() + self.file.version.capacity() + self.mark.capacity();
        (size_of::<RemoteBlocks>() + size_of_val(&*self.seen) + texts) as u64
    }

    fn block_bytes(&self, number: u64) -> u64 {
        BLOCK.min(self.file.bytes.saturating_sub(number * BLOCK))
    }

    fn label(&self, number: u64) -> Label<'_> {
        Label { url: &self.file.url, version: &self.mark, number }
    }

    /// Reads from the block that `at` lies in. `open` is the block that the caller read last.
    pub fn read_at(&self, open: &mut Option<(u64, PagedFile)>, out: &mut [u8], at: u64) -> io::Result<usize> {
        if at >= self.file.bytes || out.is_empty() {
            return Ok(0);
        }
        let (number, within) = (at / BLOCK, at % BLOCK);
        let count = out.len().min((self.block_bytes(number) - within) as usize);
        let out = &mut out[..count];
        if open.as_ref().is_none_or(|(held, _)| *held != number) {
            *open = None;
            *open = self.cached(number)?.map(|file| (number, file));
        }
        if let Some((_, file)) = open {
            if file.read_exact_at(out, within).is_ok() {
                return Ok(count);
            }
            // Somebody made it shorter, or the disk lost it: what is elsewhere is whole.
            *open = None;
            let _ = fs_err::remove_file(self.cache.shelf.place(self.name, number));
        }
        self.fetch(number, |block| out.copy_from_slice(&block[within as usize..][..count]))?;
        Ok(count)
    }

    /// A block that is on the disk, whole.
    fn cached(&self, number: u64) -> io::Result<Option<PagedFile>> {
        let (shelf, place) = (&self.cache.shelf, self.cache.shelf.place(self.name, number));
        let file = match PagedFile::open_for_a_while(&place, shelf.pages()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let bit = 1 << (number % 64);
        let seen = &self.seen[(number / 64) as usize];
        if seen.load(Ordering::Relaxed) & bit != 0 {
            return Ok(Some(file));
        }
        let sealed = self.block_bytes(number) as usize + FOOTER;
        let mut block = self.cache.block();
        room(&mut block);
        block.resize(sealed, 0);
        let whole = file.len()? == sealed as u64
            && file.read_exact_at(&mut block, 0).is_ok()
            && self.label(number).is_on(&block);
        if !whole {
            // Another process may have removed it.
            let _ = fs_err::remove_file(&place);
            return Ok(None);
        }
        seen.fetch_or(bit, Ordering::Relaxed);
        Ok(Some(file))
    }

    /// Brings a block, and perhaps some behind it; `with` gets the first.
    fn fetch(&self, number: u64, with: impl FnOnce(&[u8])) -> io::Result<()> {
        let shelf = &self.cache.shelf;
        let mut block = self.cache.block();
        room(&mut block);
        block.clear();
        let followed = self.followed.get(Mutex::default);
        let wanted = ahead(&mut followed.lock().unwrap_or_else(PoisonError::into_inner), number);
        let end = (number + wanted).min(self.file.bytes.div_ceil(BLOCK));
        let end = (number + 1..end).find(|n| shelf.place(self.name, *n).exists()).unwrap_or(end);
        let part = number * BLOCK..(end * BLOCK).min(self.file.bytes);
        let (mut at, mut with) = (number, Some(with));
        let mut take = |mut piece: &[u8]| -> io::Result<()> {
            while !piece.is_empty() {
                let missing = (self.block_bytes(at) as usize).saturating_sub(block.len());
                let (taken, rest) = piece.split_at(piece.len().min(missing));
                if taken.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than were asked for"));
                }
                block.extend_from_slice(taken);
                piece = rest;
                if taken.len() == missing {
                    if let Some(with) = with.take() {
                        with(&block);
                    }
                    let label = self.label(at);
                    label.seal(&mut block);
                    match shelf.add(&shelf.place(self.name, at), &block) {
                        Ok(()) => drop(self.seen[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Relaxed)),
                        // A full disk keeps nothing; what was asked for is in hand.
                        Err(error) if is_full(&error) => {}
                        Err(error) => return Err(error),
                    }
                    block.clear();
                    at += 1;
                }
            }
            Ok(())
        };
        let read = self.files.read(&self.file, part, &mut take).map_err(|fault| fault.of(&self.file.url));
        read.map_err(io::Error::other)??;
        if with.is_some() {
            let (path, hint) = (self.file.url.clone().into(), "try again".into());
            let problem = format!("gave less than byte {} to {}", number * BLOCK, end * BLOCK);
            return Err(io::Error::other(DataError::Remote { path, problem, hint }));
        }
        Ok(())
    }
}

/// Room for one block, taken once.
fn room(block: &mut Vec<u8>) {
    block.reserve_exact((BLOCK as usize + FOOTER).saturating_sub(block.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_what_was_said_or_a_quarter_of_the_free_disk_and_not_too_much() {
        const GIB: u64 = 1 << 30;
        assert_eq!(usual_ceiling(1000 * GIB), USUAL_CACHE);
        assert_eq!(usual_ceiling(4 * GIB), GIB);
        assert_eq!(usual_ceiling(0), LEAST_CACHE);
        assert_eq!(cache_ceiling(Some(50 * GIB), Path::new("/")), 50 * GIB);
        assert_eq!(cache_ceiling(Some(1), Path::new("/")), LEAST_CACHE);
    }

    #[test]
    fn who_reads_on_gets_more_at_a_time_and_who_jumps_does_not() {
        let mut followed = [Followed::default(); FOLLOWED];
        let mut next = |number| ahead(&mut followed, number);
        assert_eq!([next(0), next(1), next(2), next(4), next(8), next(16)], [1, 1, 2, 4, 8, 8]);
        assert_eq!([next(100), next(300), next(200)], [1, 1, 1]);
        // Columns in step.
        assert_eq!([next(101), next(24), next(301), next(102)], [1, 8, 1, 2]);
        assert_eq!([next(500), next(501)], [1, 1]);
    }
}
