//! Blocks of files that lie elsewhere, kept on the local disk up to a ceiling; the oldest are given up first.
//!
//! Invariants: a block is whole or not there (written beside, renamed; its checksum, which also covers what it is a block of, finds
//! what a crash of the machine may have left); all blocks together never exceed the ceiling; several processes share one folder, by a
//! lock that is held while a block is added. What a killed process left half written goes at the next opening. It knows no network.

use std::collections::BinaryHeap;
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fs_err::{File, OpenOptions};
use rustix::fs::{Advice, FlockOperation, fadvise, fdatasync, flock};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::packed::sweep;
use crate::page_cache::Pages;

/// Bytes behind a block: its checksum and this.
pub(crate) const FOOTER: usize = 8;
const MAGIC: &[u8; 4] = b"PLB1";
/// Blocks that are given up in one walk over the folder, at most.
const GIVEN_UP: usize = 1024;
/// Heap of such a walk.
pub(crate) const WALK_HEAP: u64 = (GIVEN_UP * size_of::<(i128, u64, PathBuf)>() + GIVEN_UP * 160 + (64 << 10)) as u64;

/// A folder of blocks.
#[derive(Debug)]
pub(crate) struct Shelf {
    folder: PathBuf,
    ceiling: u64,
    /// Its pages are not to stay in memory.
    goes: AtomicBool,
}

/// What a block is a block of, as part of its checksum.
pub(crate) struct Label<'a> {
    pub url: &'a str,
    pub version: &'a str,
    pub number: u64,
}

impl Label<'_> {
    fn checksum(&self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(self.url.as_bytes());
        hasher.update(&[0]);
        hasher.update(self.version.as_bytes());
        hasher.update(&self.number.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    /// Puts the footer behind a block.
    pub fn seal(&self, block: &mut Vec<u8>) {
        let checksum = self.checksum(block);
        block.extend_from_slice(&checksum.to_le_bytes());
        block.extend_from_slice(MAGIC);
    }

    /// Whether a block with its footer is this one, whole.
    pub fn is_on(&self, sealed: &[u8]) -> bool {
        let Some((block, footer)) = sealed.len().checked_sub(FOOTER).map(|at| sealed.split_at(at)) else {
            return false;
        };
        footer[..4] == self.checksum(block).to_le_bytes() && footer[4..] == *MAGIC
    }
}

impl Shelf {
    /// Opens or makes the folder, removes what was left half written, and makes it as small as it may be.
    pub fn open(folder: &Path, ceiling: u64) -> io::Result<Shelf> {
        let shelf = Shelf { folder: folder.join("blocks"), ceiling, goes: AtomicBool::new(false) };
        let lock = shelf.lock()?;
        sweep(&shelf.folder)?;
        lock.set(shelf.give_up(ceiling)?)?;
        Ok(shelf)
    }

    /// What becomes of pages of blocks.
    pub fn pages(&self) -> Pages {
        if self.goes.load(Ordering::Relaxed) { Pages::Go } else { Pages::Stay }
    }

    /// Whether the kernel may keep pages of blocks in memory.
    pub fn keep(&self, pages: Pages) {
        self.goes.store(pages == Pages::Go, Ordering::Relaxed);
    }

    /// Where a block lies, or will.
    pub fn place(&self, file: u64, number: u64) -> PathBuf {
        self.folder.join(format!("{file:016x}-{number:08x}.block"))
    }

    /// Adds a sealed block.
    pub fn add(&self, place: &Path, sealed: &[u8]) -> io::Result<()> {
        let lock = self.lock()?;
        if place.exists() {
            return Ok(());
        }
        let bytes = sealed.len() as u64;
        let mut there = lock.total().unwrap_or(u64::MAX);
        if there.saturating_add(bytes) > self.ceiling {
            // A sixteenth more, so that it is not done for every block.
            there = self.give_up((self.ceiling - self.ceiling / 16).saturating_sub(bytes))?;
        }
        let beside = place.with_extension(format!("{}.part", std::process::id()));
        let mut written = self.write(&beside, sealed);
        if written.as_ref().is_err_and(is_full) {
            there = self.give_up(there / 2)?;
            written = self.write(&beside, sealed);
        }
        if let Err(error) = written.and_then(|()| fs_err::rename(&beside, place)) {
            let _ = fs_err::remove_file(&beside);
            return Err(error);
        }
        lock.set(there + bytes)
    }

    fn write(&self, place: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(place)?;
        if self.pages() == Pages::Stay {
            return file.write_all(bytes);
        }
        // As reads do: no page stays, where the kernel takes that.
        let uncached = ReadWriteFlags::from_bits_retain(0x80);
        let mut done = 0;
        while done < bytes.len() {
            match pwritev2(file.file(), &[IoSlice::new(&bytes[done..])], done as u64, uncached) {
                Ok(written) if written > 0 => done += written,
                _ => break,
            }
        }
        if done < bytes.len() {
            file.seek(SeekFrom::Start(done as u64))?;
            file.write_all(&bytes[done..])?;
            // Pages that are not written yet cannot go.
            fdatasync(file.file())?;
            let _ = fadvise(file.file(), 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    fn lock(&self) -> io::Result<Lock> {
        let place = self.folder.join("lock");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&place);
        let file = match open() {
            // Somebody cleared the cache while it was in use.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs_err::create_dir_all(&self.folder)?;
                open()?
            }
            file => file?,
        };
        flock(file.file(), FlockOperation::LockExclusive)?;
        Ok(Lock { file })
    }

    /// Removes the oldest blocks until the rest has at most so many bytes; gives what it has. Only under the lock.
    fn give_up(&self, most: u64) -> io::Result<u64> {
        loop {
            let (mut total, mut oldest) = (0, BinaryHeap::with_capacity(GIVEN_UP + 1));
            for entry in fs_err::read_dir(&self.folder)? {
                let path = entry?.path();
                if path.extension().is_none_or(|ending| ending != "block") {
                    continue;
                }
                let Ok(facts) = fs_err::metadata(&path) else { continue };
                total += facts.len();
                let age = i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec());
                oldest.push((age, facts.len(), path));
                if oldest.len() > GIVEN_UP {
                    oldest.pop();
                }
            }
            if total <= most {
                return Ok(total);
            }
            for (_, bytes, path) in oldest.into_sorted_vec() {
                match fs_err::remove_file(path) {
                    // Somebody else was quicker.
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => total -= bytes,
                }
                if total <= most {
                    return Ok(total);
                }
            }
        }
    }
}

/// Bytes of all that lies in the blocks of a folder.
pub(crate) fn bytes_held(folder: &Path) -> u64 {
    let length = |entry: fs_err::DirEntry| entry.metadata().map_or(0, |facts| facts.len());
    fs_err::read_dir(folder.join("blocks")).map_or(0, |entries| entries.flatten().map(length).sum())
}

/// The right to add and remove blocks, and how many bytes they have together.
struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Said, and not left to the closing: a fork of this process made meanwhile has the file open, and would hold the lock to its end.
        let _ = flock(self.file.file(), FlockOperation::Unlock);
    }
}

impl Lock {
    fn total(&self) -> Option<u64> {
        let (mut file, mut eight) = (self.file.file(), [0; 8]);
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut eight)).ok()?;
        Some(u64::from_le_bytes(eight))
    }

    fn set(&self, total: u64) -> io::Result<()> {
        let mut file = self.file.file();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&total.to_le_bytes())
    }
}

/// There is no room on the disk, or none for us.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(folder: &Path) -> Vec<String> {
        let names = fs_err::read_dir(folder.join("blocks")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
        names.sort();
        names
    }

    fn size(folder: &Path) -> u64 {
        let names = blocks(folder);
        names.iter().map(|name| fs_err::metadata(folder.join("blocks").join(name)).unwrap().len()).sum()
    }

    #[test]
    fn the_oldest_blocks_go_first_and_the_ceiling_holds_for_all_who_share_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let one = Shelf::open(dir.path(), 10_000).unwrap();
        let two = Shelf::open(dir.path(), 10_000).unwrap();
        two.keep(Pages::Go);
        for number in 0..40 {
            let shelf = if number % 2 == 0 { &one } else { &two };
            shelf.add(&shelf.place(7, number), &[number as u8; 1000]).unwrap();
            assert!(size(dir.path()) <= 10_000, "{number}");
            assert!(shelf.place(7, number).exists());
        }
        let left = blocks(dir.path());
        assert!(left.len() >= 8 && left[0].as_str() > "0000000000000007-0000001d", "{left:?}");
        // One who may have less makes it so.
        let three = Shelf::open(dir.path(), 3_000).unwrap();
        assert!(size(dir.path()) <= 3_000 && three.place(7, 39).exists());
    }

    #[test]
    fn what_a_dead_process_left_half_written_is_swept_and_a_wrong_count_is_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path(), 10_000).unwrap();
        shelf.add(&shelf.place(1, 1), &[1; 100]).unwrap();
        // No process has this number: it is above the most that Linux gives.
        fs_err::write(dir.path().join("blocks/0000000000000001-00000002.4194305.part"), [2; 50]).unwrap();
        fs_err::write(dir.path().join("blocks/lock"), [255; 8]).unwrap();
        let shelf = Shelf::open(dir.path(), 10_000).unwrap();
        assert_eq!(blocks(dir.path()), ["0000000000000001-00000001.block"]);
        assert_eq!(shelf.lock().unwrap().total(), Some(100));
    }

    #[test]
    fn a_lock_ends_though_a_fork_has_its_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(dir.path(), 10_000).unwrap();
        let lock = shelf.lock().unwrap();
        // What a fork has: the same open file, by another number.
        let copy = lock.file.file().try_clone().unwrap();
        drop(lock);
        let other = File::open(dir.path().join("blocks/lock")).unwrap();
        flock(other.file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(copy);
    }

    #[test]
    fn a_block_is_whole_and_of_its_own_file_or_none() {
        let label = Label { url: "s3://b/k", version: "v1", number: 3 };
        let mut block = b"bytes of a block".to_vec();
        label.seal(&mut block);
        assert!(label.is_on(&block));
        assert!(!Label { number: 4, ..label }.is_on(&block));
        assert!(!Label { url: "s3://b/k", version: "v2", number: 3 }.is_on(&block));
        block[3] ^= 1;
        assert!(!Label { url: "s3://b/k", version: "v1", number: 3 }.is_on(&block));
        assert!(!Label { url: "s3://b/k", version: "v1", number: 3 }.is_on(b"short"));
    }
}
