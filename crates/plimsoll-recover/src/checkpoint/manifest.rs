//! `manifest.json`: what a checkpoint consists of, written last, and the only door through which one is read.
//!
//! The first line holds the checksum of all bytes after it, so that a flipped bit in a fact (a cursor, a step) is found
//! like one in a weight. The text is ordinary JSON all the same. Names in it are plain file names: a manifest cannot
//! lead out of its folder.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folder::Folder;
use crate::RecoverError;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";

/// The format that this version writes and reads.
pub const FORMAT: u32 = 1;

/// The longest manifest that is written or read.
const LIMIT: Bytes = Bytes::mib(4);

const HEAD: &str = "{\"crc32\": \"";
const HEAD_LENGTH: usize = HEAD.len() + 8 + "\",\n".len();

/// What a checkpoint consists of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// The step after which it was saved.
    pub step: u64,
    /// Its files by name, the manifest itself left out.
    pub files: BTreeMap<String, FileFacts>,
    /// What the run noted beside the files: plan, SIMD level, loader cursor.
    pub facts: Value,
    #[serde(skip)]
    path: PathBuf,
}

/// What is known of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Its length.
    pub bytes: Bytes,
    /// The CRC-32 of its content.
    pub crc32: u32,
}

impl Manifest {
    pub(super) fn new(step: u64, files: BTreeMap<String, FileFacts>, facts: Value) -> Manifest {
        Manifest { format: FORMAT, step, files, facts, path: PathBuf::new() }
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of all its files together.
    pub fn bytes(&self) -> Bytes {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Opens one of its files, after a look at its length; [`super::verify`] has looked at the content.
    pub fn open_file(&self, name: &str) -> Result<fs::File, RecoverError> {
        let unlisted = || RecoverError::FileUnlisted { path: self.path.clone(), name: name.to_string() };
        let facts = self.files.get(name).ok_or_else(unlisted)?;
        open_of_length(&self.path.join(name), facts.bytes)
    }

    pub(super) fn to_text(&self) -> io::Result<String> {
        let whole = serde_json::to_string_pretty(self)?;
        let rest = &whole[whole.find('\n').map_or(1, |end| end + 1)..];
        Ok(format!("{HEAD}{:08x}\",\n{rest}\n", crc32fast::hash(format!("{rest}\n").as_bytes())))
    }

    /// Reads the manifest of the checkpoint `folder` and holds it against the folder's name.
    pub fn read(folder: &Path) -> Result<Manifest, RecoverError> {
        let path = folder.join(MANIFEST);
        let file = match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RecoverError::ManifestMissing { path });
            }
            opened => opened?,
        };
        let mut text = Vec::new();
        file.take(LIMIT.0 + 1).read_to_end(&mut text)?;
        let mut manifest = Manifest::parse(&text, &path)?;
        let named = folder.file_name().and_then(|name| Folder::parse(&name.to_string_lossy()));
        match named {
            Some(Folder::Step(step) | Folder::Aside(step, _)) if step != manifest.step => {
                Err(RecoverError::ManifestStep { path, expected: step, found: manifest.step })
            }
            _ => {
                manifest.path = folder.to_path_buf();
                Ok(manifest)
            }
        }
    }

    /// Reads a manifest's text; `path` only serves the messages.
    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Manifest, RecoverError> {
        if text.len() as u64 > LIMIT.0 {
            return Err(RecoverError::ManifestTooLong { path: path.to_path_buf(), limit: LIMIT });
        }
        let expected = head_checksum(text).ok_or_else(|| RecoverError::ManifestHead {
            path: path.to_path_buf(),
            found: String::from_utf8_lossy(&text[..text.len().min(HEAD_LENGTH)]).escape_debug().to_string(),
        })?;
        let found = crc32fast::hash(&text[HEAD_LENGTH..]);
        if found != expected {
            return Err(RecoverError::ManifestChecksum { path: path.to_path_buf(), expected, found });
        }
        let wrong = |error: serde_json::Error| RecoverError::ManifestText {
            path: path.to_path_buf(),
            line: error.line(),
            column: error.column(),
            problem: error.to_string(),
        };
        // The format is read alone first: a later one may have other fields.
        let Format { format } = serde_json::from_slice(text).map_err(wrong)?;
        if format != FORMAT {
            return Err(RecoverError::ManifestFormat { path: path.to_path_buf(), expected: FORMAT, found: format });
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(wrong)?;
        for name in manifest.files.keys() {
            check_name(name)?;
        }
        Ok(manifest)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Opens a file that the manifest lists with `expected` bytes.
pub(super) fn open_of_length(path: &Path, expected: Bytes) -> Result<fs::File, RecoverError> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RecoverError::FileMissing { path: path.to_path_buf(), expected });
        }
        opened => opened?,
    };
    let found = Bytes(file.metadata()?.len());
    if found != expected {
        return Err(RecoverError::FileLength { path: path.to_path_buf(), expected, found });
    }
    Ok(file)
}

/// Refuses what is not a plain file name.
pub(super) fn check_name(name: &str) -> Result<(), RecoverError> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']) && name != MANIFEST;
    if plain { Ok(()) } else { Err(RecoverError::FileName { name: name.to_string() }) }
}

/// The longest manifest that may be written.
pub(super) fn check_length(text: &str, path: &Path) -> Result<(), RecoverError> {
    if text.len() as u64 > LIMIT.0 {
        return Err(RecoverError::ManifestTooLong { path: path.to_path_buf(), limit: LIMIT });
    }
    Ok(())
}

fn head_checksum(text: &[u8]) -> Option<u32> {
    let head = std::str::from_utf8(text.get(..HEAD_LENGTH)?).ok()?;
    let digits = head.strip_prefix(HEAD)?.strip_suffix("\",\n")?;
    let lower = digits.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    if lower { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
#[path = "manifest_test.rs"]
mod tests;
