//! Files that lie elsewhere (`s3://`, `gs://`, `az://`, `http://`, `https://`), as this crate knows them: a URL, a length, a version,
//! and somebody who can list, look and read.
//!
//! Invariant: no network, no credentials and no runtime here; the program brings them ([`RemoteFiles`]). A URL is carried as a path, so
//! that messages name it as they name any file.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::DataError;

/// What URLs of files begin with.
const SCHEMES: [&str; 6] = ["s3://", "gs://", "az://", "http://", "https://", "file://"];

/// A file elsewhere, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Where it is.
    pub url: String,
    /// Its length.
    pub bytes: u64,
    /// What tells this version of it from others; empty where nobody says.
    pub version: String,
}

/// Why somebody who reads files elsewhere does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteFault {
    /// It is not what it was when it was looked at.
    Changed {
        /// What is there now.
        found: String,
    },
    /// It cannot be read, and trying again does not help or was done for long enough.
    Refused {
        /// What is wrong, as it stands behind the URL: "answers 403 AccessDenied".
        problem: String,
        /// What to do about it.
        hint: String,
    },
    /// The program was asked to end while it waited.
    Stopped,
}

/// Reads files elsewhere. Whatever passes (a broken connection, a server that is busy) is tried again behind this trait, and makes
/// the caller wait.
pub trait RemoteFiles: fmt::Debug + Send + Sync {
    /// All files whose URL begins with `prefix`, in the order of their URLs.
    fn list(&self, prefix: &str) -> Result<Vec<RemoteFile>, RemoteFault>;

    /// Length and version of a file.
    fn look(&self, url: &str) -> Result<RemoteFile, RemoteFault>;

    /// Gives all bytes of a part of a file to `take`, in order, in pieces of any length; only of the version that was looked at.
    fn read(
        &self,
        file: &RemoteFile,
        part: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<std::io::Result<()>, RemoteFault>;

    /// The most heap that reading takes, in bytes, for connections and whatever else it holds.
    fn heap_bytes(&self) -> u64;
}

impl RemoteFault {
    /// With the URL that it is about.
    pub(crate) fn of(self, url: &str) -> DataError {
        let path = PathBuf::from(url);
        match self {
            RemoteFault::Changed { found } => {
                let (place, expected) = ("its version".to_string(), "the one that was opened".to_string());
                DataError::Changed { path, place, expected, found }
            }
            RemoteFault::Refused { problem, hint } => DataError::Remote { path, problem, hint },
            RemoteFault::Stopped => DataError::Stopped,
        }
    }
}

/// The URL in a path, where it is one.
pub fn remote_url(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}

/// Refuses a URL that may hold a secret: who it is of, or a query. It is not repeated.
pub fn refuse_secrets(url: &str) -> Result<(), DataError> {
    let root = url.find("://").map_or(0, |at| at + 3);
    let host = url[root..].trim_start_matches('/').split('/').next().unwrap_or_default();
    // In a store a question mark is a wildcard, unless something is set behind it.
    let query = url.find('?').is_some_and(|at| url.starts_with("http") || url[at..].contains('='));
    if !host.contains('@') && !query {
        return Ok(());
    }
    let reason = "it has credentials or a query in it, which would end up in the run's folder; expected a URL without";
    Err(DataError::BadPattern { pattern: format!("{}...", &url[..root]), reason: reason.into() })
}

/// The URLs that a pattern over URLs matches, sorted. Only what lies behind the first folder with a wildcard is listed, and `*` stays
/// inside a folder, as in patterns over paths.
pub fn expand_url(pattern: &str, files: &dyn RemoteFiles) -> Result<Vec<PathBuf>, DataError> {
    refuse_secrets(pattern)?;
    let root = pattern.find("://").map_or(0, |at| at + 3);
    let bucket_end = pattern[root..].find('/').map_or(pattern.len(), |at| root + at);
    let of_server = pattern.starts_with("http");
    let Some(first) = pattern.find(['*', '?', '[']) else { return Ok(vec![pattern.into()]) };
    let reason = if of_server {
        "a server of files has no list of them; name each file"
    } else if first < bucket_end {
        "a wildcard in the name of a bucket; expected one behind it"
    } else {
        ""
    };
    if !reason.is_empty() {
        return Err(DataError::BadPattern { pattern: pattern.into(), reason: reason.into() });
    }
    let matcher = glob::Pattern::new(pattern)
        .map_err(|e| DataError::BadPattern { pattern: pattern.into(), reason: e.to_string() })?;
    let listed = files.list(&pattern[..first]).map_err(|fault| fault.of(pattern))?;
    // A name may itself hold these characters.
    if listed.iter().any(|file| file.url == pattern) {
        return Ok(vec![pattern.into()]);
    }
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let mut urls: Vec<PathBuf> = listed
        .into_iter()
        .filter(|file| matcher.matches_with(&file.url, options))
        .map(|file| file.url.into())
        .collect();
    urls.sort_unstable();
    if urls.is_empty() {
        return Err(DataError::NoFiles { pattern: pattern.into() });
    }
    Ok(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Names(&'static [&'static str]);

    impl RemoteFiles for Names {
        fn list(&self, prefix: &str) -> Result<Vec<RemoteFile>, RemoteFault> {
            let file = |url: &str| RemoteFile { url: url.into(), bytes: 1, version: String::new() };
            Ok(self.0.iter().filter(|url| url.starts_with(prefix)).map(|url| file(url)).collect())
        }
        fn look(&self, _: &str) -> Result<RemoteFile, RemoteFault> {
            Err(RemoteFault::Stopped)
        }
        fn read(
            &self,
            _: &RemoteFile,
            _: Range<u64>,
            _: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
        ) -> Result<std::io::Result<()>, RemoteFault> {
            Err(RemoteFault::Stopped)
        }
        fn heap_bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn patterns_over_urls_match_names_inside_their_folder_in_order() {
        let names =
            Names(&["s3://b/d/2.csv", "s3://b/d/1.csv", "s3://b/d/x/3.csv", "s3://b/e/4.csv", "s3://b/d/[5].csv"]);
        let found = |pattern: &str| -> Result<Vec<String>, String> {
            let found = expand_url(pattern, &names).map_err(|e| e.to_string())?;
            Ok(found.iter().map(|path| path.display().to_string()).collect())
        };
        assert_eq!(found("s3://b/d/[12].csv").unwrap(), ["s3://b/d/1.csv", "s3://b/d/2.csv"]);
        assert_eq!(found("s3://b/*/*.csv").unwrap().len(), 4);
        assert_eq!(found("s3://b/**/*.csv").unwrap().len(), 5);
        assert_eq!(found("s3://b/d/[5].csv").unwrap(), ["s3://b/d/[5].csv"]);
        assert_eq!(found("s3://b/d/7.csv").unwrap(), ["s3://b/d/7.csv"]);
        assert!(found("s3://b/d/*.parquet").unwrap_err().contains("matches no file"));
        assert!(found("s3://*/d/1.csv").unwrap_err().contains("bucket"));
        assert!(found("http://host/*.csv").unwrap_err().contains("name each file"));
        let secret = [
            "https://h/a.csv?sig=s3cret",
            "https://me:s3cret@h/a.csv",
            "s3://me:s3cret@b/*.csv",
            "https:///me:s3cret@h/a.csv",
            "az://c/a.csv?sv=1&sig=s3cret",
        ];
        assert_eq!(found("s3://b/d/?.csv").unwrap().len(), 2);
        for url in secret {
            let told = found(url).unwrap_err();
            assert!(told.contains("credentials") && !told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn a_url_is_told_from_a_path() {
        assert_eq!(remote_url(Path::new("s3://b/k.csv")), Some("s3://b/k.csv"));
        assert_eq!(remote_url(Path::new("/s3:/b/k.csv")), None);
        assert_eq!(remote_url(Path::new("s3:/b")), None);
    }
}
