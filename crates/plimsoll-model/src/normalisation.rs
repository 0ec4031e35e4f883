//! The text by which the features of a model of series are normalised: read whole, written in pieces, and understood elsewhere.
//!
//! Invariant: what is written is what is read, so nothing longer than [`NORMALISATION_LIMIT`] is either. Of thousands of series it is many
//! megabytes, so a writer need not hold it.

use std::io::{self, BufReader, Write};
use std::path::Path;

use serde::de::IgnoredAny;

use crate::{ModelError, small_file};

/// Its name in a model folder.
pub(crate) const FILE: &str = "normalisation.json";

/// The most bytes of it that are written and read: some three million means and deviations.
pub const NORMALISATION_LIMIT: u64 = 256 << 20;

/// Writes a text, piece by piece.
pub type WriteText<'a> = &'a dyn Fn(&mut dyn Write) -> io::Result<()>;

/// The text of a folder, if it has one.
pub(crate) fn read(dir: &Path) -> Result<Option<String>, ModelError> {
    let path = dir.join(FILE);
    if !path.try_exists()? {
        return Ok(None);
    }
    let text = small_file::read_within(&path, NORMALISATION_LIMIT)?;
    let text = String::from_utf8(text).map_err(|_| ModelError::NotText { path: path.clone() })?;
    serde_json::from_str::<IgnoredAny>(&text).map_err(|source| ModelError::Json { path, source })?;
    Ok(Some(text))
}

/// Refuses one that was written, and is longer than what is read, or not JSON; `path` is where it will be.
pub(crate) fn check(file: fs_err::File, path: &Path) -> Result<(), ModelError> {
    let (got_bytes, limit_bytes) = (file.metadata()?.len(), NORMALISATION_LIMIT);
    if got_bytes > limit_bytes {
        return Err(ModelError::FileTooLarge { path: path.into(), limit_bytes, got_bytes });
    }
    let read = serde_json::from_reader::<_, IgnoredAny>(BufReader::new(file));
    read.map(drop).map_err(|source| ModelError::Json { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_that_is_too_long_to_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs_err::File::create(dir.path().join("n")).unwrap();
        // It takes nothing of the disk.
        file.set_len(NORMALISATION_LIMIT + 1).unwrap();
        let error = check(file, Path::new("m/normalisation.json")).unwrap_err();
        assert!(matches!(error, ModelError::FileTooLarge { .. }), "{error}");
    }
}
