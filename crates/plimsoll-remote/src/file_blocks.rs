//! Files as blocks: how a file that comes over the wire is put together, on whichever side.
//!
//! Invariant: a name only ever stands for a whole file. What has come so far is beside it under another name, survives
//! whatever ends us, and is compared block by block before it is gone on with, so nothing depends on what was being written
//! when.

use std::fs::{FileTimes, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fs_err::File;
use fs_err::os::unix::fs::OpenOptionsExt;

use crate::digest::DIGEST_BYTES;
use crate::wire::{BLOCK, MOST_DIGESTS, Stamp, There};
use crate::{FarPath, digest_of};

/// What of a file's mode is for others than its owner.
const OTHERS: u32 = 0o077;
/// Behind the name of a file that is not whole yet.
const UNFINISHED: &str = ".plimsoll~";

/// Whether a name is that of a file that is not whole yet.
pub fn is_unfinished(name: &str) -> bool {
    name.ends_with(UNFINISHED)
}

/// Which version of a file this is.
pub fn stamp_of(path: &Path) -> std::io::Result<Stamp> {
    let found = fs_err::metadata(path)?;
    if !found.is_file() {
        return Err(std::io::Error::other(format!("`{}` is not a file", path.display())));
    }
    Ok(Stamp {
        length: found.len(),
        seconds: found.mtime(),
        nanos: found.mtime_nsec().clamp(0, 999_999_999) as u32,
        executable: found.mode() & 0o100 != 0,
        private: found.mode() & OTHERS == 0,
    })
}

/// Blocks of a file of so many bytes.
pub fn blocks_of(length: u64) -> u64 {
    length.div_ceil(BLOCK as u64)
}

/// One block of a file, as far as the file goes.
pub fn read_block(file: &File, block: u64, into: &mut Vec<u8>) -> std::io::Result<()> {
    into.resize(BLOCK, 0);
    let (mut there, from) = (0, block.saturating_mul(BLOCK as u64));
    while there < BLOCK {
        match file.file().read_at(&mut into[there..], from + there as u64) {
            Ok(0) => break,
            Ok(read) => there += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    into.truncate(there);
    Ok(())
}

/// Digests of blocks, one behind the other; fewer where the file ends before.
pub fn digests(path: &Path, from: u64, count: u32) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::with_capacity(BLOCK);
    let mut out = Vec::with_capacity(count.min(MOST_DIGESTS) as usize * DIGEST_BYTES);
    for block in from..from.saturating_add(u64::from(count.min(MOST_DIGESTS))) {
        read_block(&file, block, &mut bytes)?;
        if bytes.is_empty() {
            break;
        }
        out.extend(digest_of(&bytes).0);
    }
    Ok(out)
}

/// Puts files together in one folder.
#[derive(Debug)]
pub struct Receiver {
    folder: PathBuf,
    open: Option<(FarPath, File)>,
}

impl Receiver {
    /// Into `folder`.
    pub fn into_folder(folder: &Path) -> Receiver {
        Receiver { folder: folder.to_path_buf(), open: None }
    }

    /// What is there of a file.
    pub fn there(&self, path: &FarPath) -> There {
        let stamp = stamp_of(&path.in_folder(&self.folder)).ok();
        There { stamp, part: fs_err::metadata(self.part(path)).map_or(0, |part| part.len()) }
    }

    /// Where what has come so far of a file is.
    pub fn part(&self, path: &FarPath) -> PathBuf {
        let whole = path.in_folder(&self.folder);
        let name = whole.file_name().map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
        whole.with_file_name(format!(".{name}{UNFINISHED}"))
    }

    /// A file will come in blocks: how many bytes are there to compare with, of it or of the version before it. One that is
    /// `private` is its owner's alone from here on.
    pub fn begin(&mut self, path: &FarPath, private: bool) -> std::io::Result<u64> {
        let (whole, part) = (path.in_folder(&self.folder), self.part(path));
        make_folder_of(&whole)?;
        if part.symlink_metadata().is_err() && whole.is_file() {
            fs_err::copy(&whole, &part)?;
        }
        let file = open_part(&part, private)?;
        let length = file.metadata()?.len();
        self.open = Some((path.clone(), file));
        Ok(length)
    }

    /// One block of it.
    pub fn put(&mut self, path: &FarPath, block: u64, bytes: &[u8]) -> std::io::Result<()> {
        let at = block.checked_mul(BLOCK as u64).ok_or_else(|| std::io::Error::other("no file has such a block"))?;
        self.opened(path)?.file().write_all_at(bytes, at)
    }

    /// All blocks are there: the file gets its name.
    pub fn finish(&mut self, path: &FarPath, stamp: &Stamp) -> std::io::Result<()> {
        self.opened(path)?.set_len(stamp.length)?;
        let Some((_, file)) = self.open.take() else { return Ok(()) };
        let whole = path.in_folder(&self.folder);
        let mode = file.metadata()?.permissions().mode() & 0o777;
        let mode = if stamp.executable { mode | 0o111 } else { mode & !0o111 };
        // Whoever may not read it may not run it either.
        let mode = if stamp.private || mode & (OTHERS & !0o111) == 0 { mode & !OTHERS } else { mode };
        file.set_permissions(Permissions::from_mode(mode))?;
        if let Some(modified) = time_of(stamp) {
            file.file().set_times(FileTimes::new().set_modified(modified))?;
        }
        file.sync_all()?;
        fs_err::rename(self.part(path), &whole)?;
        sync_folder_of(&whole)
    }

    /// A whole file at once.
    pub fn write(&mut self, path: &FarPath, stamp: &Stamp, bytes: &[u8]) -> std::io::Result<()> {
        let part = self.part(path);
        make_folder_of(&part)?;
        let file = open_part(&part, stamp.private)?;
        file.set_len(0)?;
        file.file().write_all_at(bytes, 0)?;
        self.open = Some((path.clone(), file));
        self.finish(path, &Stamp { length: bytes.len() as u64, ..*stamp })
    }

    fn opened(&mut self, path: &FarPath) -> std::io::Result<&File> {
        match &self.open {
            Some((open, file)) if open == path => Ok(file),
            _ => Err(std::io::Error::other(format!("`{path}` was not begun"))),
        }
    }
}

/// What has come so far of a file, which may be nothing yet.
fn open_part(part: &Path, private: bool) -> std::io::Result<File> {
    let mut options = fs_err::OpenOptions::new();
    let mode = if private { 0o666 & !OTHERS } else { 0o666 };
    let file = options.read(true).write(true).create(true).truncate(false).mode(mode).open(part)?;
    if private {
        file.set_permissions(Permissions::from_mode(file.metadata()?.permissions().mode() & 0o777 & !OTHERS))?;
    }
    Ok(file)
}

fn time_of(stamp: &Stamp) -> Option<SystemTime> {
    let whole = Duration::from_secs(stamp.seconds.unsigned_abs());
    let base = if stamp.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base?.checked_add(Duration::from_nanos(u64::from(stamp.nanos.min(999_999_999))))
}

fn make_folder_of(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs_err::create_dir_all)
}

fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_its_name_when_it_is_whole_and_looks_as_it_shall() {
        let folder = tempfile::tempdir().unwrap();
        let path = FarPath::new("deep/er/run.sh").unwrap();
        let whole = path.in_folder(folder.path());
        let mut receiver = Receiver::into_folder(folder.path());
        assert_eq!(receiver.begin(&path, false).unwrap(), 0);
        receiver.put(&path, 1, b"end").unwrap();
        assert!(!whole.exists());
        receiver.put(&path, 0, &vec![7; BLOCK]).unwrap();
        let stamp =
            Stamp { length: BLOCK as u64 + 3, seconds: 1_000_000_000, nanos: 5, executable: true, private: false };
        receiver.finish(&path, &stamp).unwrap();
        assert_eq!(stamp_of(&whole).unwrap(), stamp);
        assert_eq!(fs_err::read_dir(whole.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_its_owners_alone_is_so_from_its_first_byte_on_and_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut receiver = Receiver::into_folder(folder.path());
        let mode = |path: &Path| fs_err::metadata(path).unwrap().permissions().mode() & 0o777;
        let stamp = |private, executable| Stamp { length: 2, seconds: 1, nanos: 0, executable, private };
        let (path, other) = (FarPath::new(".env").unwrap(), FarPath::new("open").unwrap());
        let whole = path.in_folder(folder.path());
        receiver.begin(&path, true).unwrap();
        assert_eq!(mode(&receiver.part(&path)), 0o600);
        receiver.put(&path, 0, b"ab").unwrap();
        receiver.finish(&path, &stamp(true, true)).unwrap();
        assert_eq!((mode(&whole), stamp_of(&whole).unwrap()), (0o700, stamp(true, true)));
        // Written by somebody who minds nothing, and sent again as what others may read: it becomes no wider.
        receiver.write(&path, &stamp(false, true), b"ab").unwrap();
        assert!(stamp(false, true).is_met_by(&stamp_of(&whole).unwrap()));
        receiver.write(&other, &stamp(false, false), b"ab").unwrap();
        let usual = mode(&other.in_folder(folder.path()));
        receiver.write(&path, &stamp(true, false), b"ab").unwrap();
        assert_eq!(mode(&whole), 0o600);
        // What others could read before, they cannot any more when its first new block comes.
        receiver.begin(&other, true).unwrap();
        assert_eq!(mode(&receiver.part(&other)), 0o600);
        receiver.finish(&other, &stamp(true, false)).unwrap();
        assert_eq!(mode(&other.in_folder(folder.path())), usual & 0o700);
    }

    #[test]
    fn what_came_before_a_cut_is_gone_on_with_and_what_was_longer_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = FarPath::new("a").unwrap();
        fs_err::write(path.in_folder(folder.path()), vec![1; 2 * BLOCK + 9]).unwrap();
        let mut receiver = Receiver::into_folder(folder.path());
        assert_eq!(receiver.begin(&path, false).unwrap(), 2 * BLOCK as u64 + 9);
        receiver.put(&path, 0, &vec![2; BLOCK]).unwrap();
        // Another one, after the first was killed.
        let mut receiver = Receiver::into_folder(folder.path());
        assert_eq!(receiver.there(&path).part, 2 * BLOCK as u64 + 9);
        receiver.begin(&path, false).unwrap();
        let there = digests(&receiver.part(&path), 0, 9).unwrap();
        assert_eq!(there[..DIGEST_BYTES], digest_of(&vec![2; BLOCK]).0);
        assert_eq!(there.len(), 3 * DIGEST_BYTES);
        receiver
            .finish(&path, &Stamp { length: BLOCK as u64, seconds: 1, nanos: 0, executable: false, private: false })
            .unwrap();
        assert_eq!(fs_err::read(path.in_folder(folder.path())).unwrap(), vec![2; BLOCK]);
    }

    #[test]
    fn a_block_of_a_file_that_was_not_begun_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut receiver = Receiver::into_folder(folder.path());
        let path = FarPath::new("a").unwrap();
        assert!(receiver.put(&path, 0, b"x").is_err());
        receiver.begin(&path, false).unwrap();
        assert!(receiver.put(&path, u64::MAX, b"x").is_err());
        assert!(receiver.put(&FarPath::new("b").unwrap(), 0, b"x").is_err());
    }
}
