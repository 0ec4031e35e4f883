//! Files of the run, read once, in parts, without keeping them in the page cache; and the kernel's random numbers.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use fs_err as fs;
use plimsoll_machine::Bytes;
use rustix::fs::{Advice, fadvise};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::state::Stamp;

/// A file that is being copied.
pub(crate) struct Source {
    file: fs::File,
    pub path: PathBuf,
    pub stamp: Stamp,
}

impl Source {
    pub(crate) fn open(path: &Path) -> io::Result<Source> {
        let file = fs::File::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        Ok(Source { file, path: path.to_path_buf(), stamp })
    }

    /// Reads `length` bytes from `offset` on, all of them, and lets the kernel forget the pages.
    pub(crate) fn part(&mut self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.read_exact(&mut bytes)?;
        // Only advice: a file system may have no use for it.
        let _ = fadvise(&self.file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
        Ok(bytes)
    }
}

/// Goes on with a checksum: that of `before` bytes is known.
pub(crate) fn crc32_from(crc32: u32, before: u64, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial_len(crc32, before);
    hasher.update(bytes);
    hasher.finalize()
}

/// The length and checksum of the file `path`, read through a small buffer.
pub(crate) fn crc32_of(path: &Path) -> io::Result<(Bytes, u32)> {
    let mut file = fs::File::open(path)?;
    let (mut hasher, mut bytes) = (Hasher::new(), 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let got = file.read(&mut buffer)?;
        if got == 0 {
            return Ok((Bytes(bytes), hasher.finalize()));
        }
        hasher.update(&buffer[..got]);
        bytes += got as u64;
    }
}

/// A name that no other run has.
pub(crate) fn new_name() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// A number from 0 to 1.
pub(crate) fn chance() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(_) => u64::from_ne_bytes(bytes),
        // A kernel without it: names are still as different as clocks are.
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |now| (now.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_gone_on_with_from_any_place() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n * 7) as u8).collect();
        for cut in [0, 1, 2500, 4999, 5000] {
            let first = crc32fast::hash(&bytes[..cut]);
            assert_eq!(crc32_from(first, cut as u64, &bytes[cut..]), crc32fast::hash(&bytes), "{cut}");
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error_and_not_a_short_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, [1; 100]).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.part(40, 60).unwrap(), [1; 60]);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50).unwrap();
        assert_eq!(source.part(40, 60).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn names_differ_and_chances_are_chances() {
        assert_ne!(new_name(), new_name());
        assert!((0..100).map(|_| chance()).all(|chance| (0.0..1.0).contains(&chance)));
    }
}
