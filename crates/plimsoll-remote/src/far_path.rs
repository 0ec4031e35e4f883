//! A path below the far folder, the same text on both sides.
//!
//! Invariant: relative, without `.`, `..`, empty parts and control characters, so that joined to a folder it stays in it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::RemoteError;

/// A path below the far folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FarPath(String);

/// Longest path, and longest name: one that file systems of Linux take with what marks a file that is not whole yet.
const LONGEST: usize = 4000;
const LONGEST_NAME: usize = 240;

impl FarPath {
    /// Checks `text`.
    pub fn new(text: impl Into<String>) -> Result<FarPath, RemoteError> {
        let text = text.into();
        let fair = |part: &str| {
            !matches!(part, "" | "." | "..") && part.len() <= LONGEST_NAME && !part.chars().any(char::is_control)
        };
        match text.len() <= LONGEST && text.split('/').all(fair) {
            true => Ok(FarPath(text)),
            false => Err(RemoteError::FarPath { path: text }),
        }
    }

    /// A local relative path.
    pub fn of(path: &Path) -> Result<FarPath, RemoteError> {
        let text = path.to_str().ok_or_else(|| RemoteError::FarPath { path: path.display().to_string() })?;
        FarPath::new(text)
    }

    /// Something below it.
    pub fn join(&self, below: &FarPath) -> Result<FarPath, RemoteError> {
        FarPath::new(format!("{}/{}", self.0, below.0))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where it is in `folder`.
    pub fn in_folder(&self, folder: &Path) -> PathBuf {
        folder.join(&self.0)
    }
}

impl fmt::Display for FarPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for FarPath {
    type Error = RemoteError;

    fn try_from(text: String) -> Result<FarPath, RemoteError> {
        FarPath::new(text)
    }
}

impl From<FarPath> for String {
    fn from(path: FarPath) -> String {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_leaves_the_folder_is_refused() {
        for text in ["", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a/", "a\nb", "a\0b"] {
            assert!(FarPath::new(text).is_err(), "{text:?}");
            assert!(serde_json::from_value::<FarPath>(text.into()).is_err(), "{text:?}");
        }
        assert!(FarPath::new("x".repeat(241)).is_err());
        assert!(FarPath::new("inputs/ab/a file, ü.jsonl").is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_taken_stays_below_its_folder(text in "[a/.\\-~ ]{0,12}") {
            if let Ok(path) = FarPath::new(text) {
                let parts: Vec<_> = Path::new(path.as_str()).components().collect();
                let plain = parts.iter().all(|part| matches!(part, std::path::Component::Normal(_)));
                prop_assert!(plain && !parts.is_empty());
            }
        }
    }
}
