//! Files of `torch.save`: zip archives, whose directory is written last. Without it, or with one that points outside of
//! the file, the file was cut.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use fs_err as fs;

/// The end of an archive without a comment, and the most that a comment makes of it.
const END: u64 = 22;
const LONGEST_COMMENT: u64 = 65_535;

/// What is wrong with a file of `torch.save`; `None` where nothing is.
pub(super) fn torn(path: &Path) -> Option<String> {
    match look(path) {
        Ok(None) => None,
        Ok(Some(problem)) => Some(format!("`{}` {problem}", path.display())),
        Err(error) => Some(error.to_string()),
    }
}

fn look(path: &Path) -> std::io::Result<Option<&'static str>> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = [0u8; 4];
    if length < END {
        return Ok(Some(if length == 0 { "is empty" } else { "is cut: it is shorter than any archive" }));
    }
    file.read_exact(&mut head)?;
    if head != *b"PK\x03\x04" {
        // The form before torch 1.6 is a pickle, whose end cannot be told without reading it.
        return Ok(if head[0] == 0x80 { None } else { Some("is no file of torch.save") });
    }
    let from = length.saturating_sub(END + LONGEST_COMMENT);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::with_capacity((length - from) as usize);
    file.take(length - from).read_to_end(&mut tail)?;
    let Some(at) = tail.windows(4).rposition(|four| four == b"PK\x05\x06") else {
        return Ok(Some("is cut: it has no directory"));
    };
    let end = &tail[at..];
    if end.len() < END as usize {
        return Ok(Some("is cut: its directory is not whole"));
    }
    let number = |at: usize| u64::from(u32::from_le_bytes([end[at], end[at + 1], end[at + 2], end[at + 3]]));
    let (size, start) = (number(12), number(16));
    // Larger archives keep the true numbers in a longer record before this one.
    let long = size == u64::from(u32::MAX) || start == u64::from(u32::MAX);
    if !long && start + size > length {
        return Ok(Some("is cut: its directory lies outside of it"));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with one stored file, as `torch.save` lays it out.
    fn archive() -> Vec<u8> {
        let mut bytes = b"PK\x03\x04".to_vec();
        bytes.resize(30, 0);
        bytes.extend(b"archive/data.pkl payload");
        let start = bytes.len() as u32;
        let mut directory = b"PK\x01\x02".to_vec();
        directory.resize(60, 1);
        let size = directory.len() as u32;
        bytes.extend(&directory);
        bytes.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        bytes.extend(size.to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    #[test]
    fn a_whole_file_is_whole_and_every_cut_of_it_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pt");
        let bytes = archive();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(torn(&path), None);
        for end in 0..bytes.len() {
            fs::write(&path, &bytes[..end]).unwrap();
            assert!(torn(&path).is_some(), "cut at {end} of {}", bytes.len());
        }
        fs::write(&path, [b"nonsense".as_slice(), &bytes].concat()).unwrap();
        assert!(torn(&path).unwrap().ends_with("is no file of torch.save"));
    }
}
