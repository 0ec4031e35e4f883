//! The text by which the features of a model of series are normalised: read and written whole, and understood elsewhere.

use std::path::Path;

use serde::de::IgnoredAny;

use crate::{ModelError, small_file};

/// Its name in a model folder.
pub(crate) const FILE: &str = "normalisation.json";

/// The text of a folder, if it has one.
pub(crate) fn read(dir: &Path) -> Result<Option<String>, ModelError> {
    let path = dir.join(FILE);
    if !path.try_exists()? {
        return Ok(None);
    }
    let text = String::from_utf8(small_file::read(&path)?).map_err(|_| ModelError::NotText { path: path.clone() })?;
    check(&path, &text)?;
    Ok(Some(text))
}

/// Refuses what is not JSON.
pub(crate) fn check(path: &Path, text: &str) -> Result<(), ModelError> {
    serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(|source| ModelError::Json { path: path.into(), source })
}
