//! From what is asked for (paths, URLs, globs) to files.
//!
//! Invariant: files come in the order asked for, those of one glob sorted; what matches nothing is an error. It opens no file.

use std::path::PathBuf;

use crate::DataError;
use crate::remote::{RemoteFiles, expand_url, refuse_secrets, remote_url};

/// The files of `patterns`. Patterns of URLs stay as they are where nobody can list them.
pub(crate) fn expand(patterns: &[PathBuf], files: Option<&dyn RemoteFiles>) -> Result<Vec<PathBuf>, DataError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        remote_url(pattern).map(refuse_secrets).transpose()?;
        if let (Some(url), Some(files)) = (remote_url(pattern), files) {
            paths.extend(expand_url(url, files)?);
            continue;
        }
        let text = pattern.to_string_lossy().into_owned();
        if remote_url(pattern).is_some() || pattern.is_file() || !text.contains(['*', '?', '[']) {
            paths.push(pattern.clone());
            continue;
        }
        let before = paths.len();
        let found =
            glob::glob(&text).map_err(|e| DataError::BadPattern { pattern: text.clone(), reason: e.to_string() })?;
        for path in found {
            let path = path.map_err(|e| DataError::Io(e.into()))?;
            if path.is_file() {
                paths.push(path);
            }
        }
        if paths.len() == before {
            return Err(DataError::NoFiles { pattern: text });
        }
    }
    if paths.is_empty() {
        return Err(DataError::NoFiles { pattern: String::new() });
    }
    Ok(paths)
}
