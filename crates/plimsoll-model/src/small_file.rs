//! Reading the small files of a folder (JSON) without trusting that they are small.
//!
//! Invariant: never more than the limit is allocated, whatever the file says or does; pipes and devices are refused
//! before they are opened for good.

use std::io::Read;
use std::path::Path;

use crate::ModelError;

/// More than any honest config, index or safetensors header of the families we know (a T5-11B header has 60 KiB).
pub(crate) const LIMIT_BYTES: u64 = 16 << 20;

/// The whole file, if it is a plain file of at most [`LIMIT_BYTES`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    read_within(path, LIMIT_BYTES)
}

/// The same, of at most so many bytes.
pub(crate) fn read_within(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, ModelError> {
    let facts = fs_err::metadata(path)?;
    if !facts.is_file() {
        return Err(ModelError::NotAFile { path: path.into() });
    }
    let too_large = |got_bytes| ModelError::FileTooLarge { path: path.into(), limit_bytes, got_bytes };
    if facts.len() > limit_bytes {
        return Err(too_large(facts.len()));
    }
    let mut bytes = Vec::with_capacity(facts.len() as usize);
    fs_err::File::open(path)?.take(limit_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// What a folder holds, by name and in order, for messages about what it does not hold.
pub(crate) fn names_in(dir: &Path) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
