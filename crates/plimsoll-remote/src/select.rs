//! Which files of a folder are meant: all but those that patterns leave out, in the order of their names.

use std::path::Path;

use glob::Pattern;

use crate::file_blocks::{is_unfinished, stamp_of};
use crate::wire::{Listed, Stamp};
use crate::{FarPath, RemoteError};

/// What is not code: histories, environments, results and what compilers left.
pub const USUAL: &[&str] =
    &[".git", "runs", "target", ".venv", "venv", "node_modules", "__pycache__", ".cache", "*.pyc", "lightning_logs"];
/// Weights in forms that plimsoll does not read, which many model folders hold beside those that it does.
pub const OTHER_WEIGHTS: &[&str] =
    &[".git", ".cache", "*.bin", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth", "*.gguf", "*.tflite"];

/// Folders within folders, at most.
const DEEPEST: usize = 64;

/// Patterns of what is left out: of a name, or of a path where there is a `/` in it.
#[derive(Clone, Debug, Default)]
pub struct Excludes(Vec<Pattern>);

impl Excludes {
    /// These patterns.
    pub fn new<T: AsRef<str>>(patterns: &[T]) -> Result<Excludes, RemoteError> {
        let pattern = |text: &T| {
            let text = text.as_ref().trim_end_matches('/');
            let wrong = |error: glob::PatternError| RemoteError::Pattern {
                pattern: text.to_string(),
                why: error.msg.to_string(),
            };
            Pattern::new(text).map_err(wrong)
        };
        Ok(Excludes(patterns.iter().map(pattern).collect::<Result<_, _>>()?))
    }

    /// Whether a path, relative to the folder that is looked through, is left out. Those around it were asked before.
    pub fn leaves_out(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.0.iter().any(|pattern| match pattern.as_str().contains('/') {
            true => pattern.matches(path),
            false => pattern.matches(name),
        })
    }
}

/// All files below `folder`, in the order of their paths. Links are followed: what is behind them is what a job reads.
pub fn files(folder: &Path, excludes: &Excludes) -> Result<Vec<Listed>, RemoteError> {
    let mut found = Vec::new();
    walk(folder, "", excludes, 0, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(
    folder: &Path,
    below: &str,
    excludes: &Excludes,
    depth: usize,
    found: &mut Vec<Listed>,
) -> Result<(), RemoteError> {
    if depth > DEEPEST {
        let fact = format!("`{}` is deeper than {DEEPEST} folders, or a link leads back to itself", folder.display());
        return Err(RemoteError::Io(std::io::Error::other(fact)));
    }
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let shown = name.to_string_lossy();
        let path = if below.is_empty() { shown.to_string() } else { format!("{below}/{shown}") };
        if excludes.leaves_out(&path) || is_unfinished(&shown) {
            continue;
        }
        // Asked last, so that it can be left out, by `?` for what is not UTF-8.
        if name.to_str().is_none() {
            return Err(RemoteError::FarPath { path: entry.path().display().to_string() });
        }
        let kind = match fs_err::metadata(entry.path()) {
            Ok(kind) => kind,
            // What went away meanwhile, or a link to nowhere, is no file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if kind.is_dir() {
            walk(&entry.path(), &path, excludes, depth + 1, found)?;
        } else if kind.is_file() {
            let stamp: Stamp = stamp_of(&entry.path())?;
            found.push(Listed { path: FarPath::new(path)?, stamp });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_order_and_what_is_excluded_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let path = folder.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, "x").unwrap();
        };
        for path in ["b", "a/z.py", "a/x.pyc", ".git/config", "data/raw/1", "data/fine/1", ".b.plimsoll~"] {
            at(path);
        }
        std::os::unix::fs::symlink(folder.path().join("b"), folder.path().join("link")).unwrap();
        let excludes = Excludes::new(&[".git", "*.pyc", "data/raw/"]).unwrap();
        let found = files(folder.path(), &excludes).unwrap();
        let names: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["a/z.py", "b", "data/fine/1", "link"]);
    }

    #[test]
    fn a_name_that_is_no_text_is_an_error_unless_it_is_left_out() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("a"), "x").unwrap();
        fs_err::write(folder.path().join(std::ffi::OsStr::from_bytes(b"b\xff.tmp")), "x").unwrap();
        let found = |exclude: &[&str]| files(folder.path(), &Excludes::new(exclude).unwrap());
        assert!(matches!(found(&[]), Err(RemoteError::FarPath { .. })));
        for exclude in ["*.tmp", "b?.tmp"] {
            assert_eq!(found(&[exclude]).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_link_that_leads_back_is_an_error_and_no_endless_walk() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        assert!(files(folder.path(), &Excludes::default()).is_err());
        assert!(matches!(Excludes::new(&["[a"]), Err(RemoteError::Pattern { .. })));
    }
}
