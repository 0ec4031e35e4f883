//! Which algorithm of the matrix library is fastest for a product, found once a card and kept: the library's own guess was up to
//! a quarter slower than its best (H200, products of a 0.5 B model: 36.2 ms a step by guess, 33.4 by trial).
//!
//! Another algorithm adds in another order. So what was found for a product holds ever after on this machine: a run that goes
//! on computes with what it began with. One process finds at a time; the others wait for it and take what it found. Without a
//! folder to keep it in, the library's guess is taken.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// An algorithm, as the library describes it.
pub(crate) type Algorithm = [u64; 8];

/// What was found, one line a product: its name, then the algorithm's eight numbers.
#[derive(Debug, Default)]
pub(crate) struct Tuned {
    path: Option<PathBuf>,
    found: HashMap<String, Algorithm>,
    /// Locked as long as this lives.
    _lock: Option<fs_err::File>,
}

impl Tuned {
    /// What was kept in a folder.
    pub fn read(folder: Option<&Path>) -> Tuned {
        let Some((folder, lock)) = folder.and_then(|folder| Some((folder, lock(folder)?))) else {
            return Tuned::default();
        };
        let path = folder.join("products.txt");
        let text = fs_err::read_to_string(&path).unwrap_or_default();
        // A later line replaces one that the library refused.
        Tuned { path: Some(path), found: text.lines().filter_map(line).collect(), _lock: Some(lock) }
    }

    /// Whether what is found can be kept.
    pub fn keeps(&self) -> bool {
        self.path.is_some()
    }

    /// The algorithm of a product.
    pub fn get(&self, name: &str) -> Option<Algorithm> {
        self.found.get(name).copied()
    }

    /// Keeps an algorithm; whether it could be.
    pub fn keep(&mut self, name: String, algorithm: Algorithm) -> bool {
        let Some(path) = &self.path else { return false };
        let numbers: Vec<String> = algorithm.iter().map(|n| format!("{n:x}")).collect();
        let text = format!("{name} {}\n", numbers.join(" "));
        let file = fs_err::OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_data()));
        if written.is_ok() {
            self.found.insert(name, algorithm);
        }
        written.is_ok()
    }
}

/// Waits until no other process finds; none where the folder cannot be written to.
fn lock(folder: &Path) -> Option<fs_err::File> {
    fs_err::create_dir_all(folder).ok()?;
    let file = fs_err::File::create(folder.join("products.lock")).ok()?;
    file.file().lock().ok()?;
    Some(file)
}

fn line(text: &str) -> Option<(String, Algorithm)> {
    let (name, numbers) = text.split_once(' ')?;
    let numbers: Vec<u64> = numbers.split(' ').map(|n| u64::from_str_radix(n, 16).ok()).collect::<Option<_>>()?;
    Some((name.to_string(), numbers.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_holds_until_it_is_found_anew_and_broken_lines_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut tuned = Tuned::read(Some(folder.path()));
        assert!(tuned.keep("a".into(), [1; 8]) && tuned.keep("b".into(), [u64::MAX; 8]));
        drop(tuned);
        let path = folder.path().join("products.txt");
        let more = "a 2 2 2 2 2 2 2 2\nshort 1 2\nwrong 1 2 3 4 5 6 7 x\ncut 1 2 3";
        fs_err::write(&path, fs_err::read_to_string(&path).unwrap() + more).unwrap();
        let again = Tuned::read(Some(folder.path()));
        assert_eq!((again.get("a"), again.get("b")), (Some([2; 8]), Some([u64::MAX; 8])));
        assert_eq!(again.found.len(), 2);
        assert!(!Tuned::read(None).keep("a".into(), [1; 8]) && !Tuned::read(None).keeps());
    }
}
