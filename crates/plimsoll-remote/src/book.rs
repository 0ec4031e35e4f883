//! The remotes that have a name: `remotes.toml` in the user's configuration folder.
//!
//! Invariant: the file is whole at any moment, and holds names and addresses, no secrets. Who changes it has it alone. An entry
//! that somebody spoilt spoils no other one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{Address, RemoteError};

/// Names and what they stand for.
#[derive(Clone, Debug, Default)]
pub struct Book {
    path: PathBuf,
    page: Page,
}

/// The file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Page {
    #[serde(default)]
    remote: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
}

impl Book {
    /// Where the user's book is: `$XDG_CONFIG_HOME/plimsoll/remotes.toml`, else below `~/.config`.
    pub fn usual_path() -> Option<PathBuf> {
        let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let config = config.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
        Some(config.join("plimsoll/remotes.toml"))
    }

    /// Reads a book; one that is not there is empty.
    pub fn read(path: &Path) -> Result<Book, RemoteError> {
        let text = match fs_err::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        let page = toml::from_str(&text)
            .map_err(|error| RemoteError::Book { path: path.to_path_buf(), why: error.message().to_string() })?;
        Ok(Book { path: path.to_path_buf(), page })
    }

    /// All of them, by name; an entry that is no address says why.
    pub fn remotes(&self) -> impl Iterator<Item = (&str, Result<Address, RemoteError>)> {
        self.page.remote.iter().map(|(name, entry)| (name.as_str(), self.understood(name, entry)))
    }

    /// What a name stands for.
    pub fn find(&self, name: &str) -> Result<Address, RemoteError> {
        self.understood(name, self.entry(name)?)
    }

    fn entry(&self, name: &str) -> Result<&Entry, RemoteError> {
        self.page.remote.get(name).ok_or_else(|| {
            let known = self.page.remote.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            RemoteError::NoSuchRemote { name: name.to_string(), known }
        })
    }

    fn understood(&self, name: &str, entry: &Entry) -> Result<Address, RemoteError> {
        let (path, name) = (self.path.clone(), name.to_string());
        entry.url.parse().map_err(|error: RemoteError| RemoteError::Entry { path, name, why: error.to_string() })
    }

    /// Gives `address` a name in the book at `path`; what the name stood for before, if that was something else.
    pub fn add(path: &Path, name: &str, address: &Address) -> Result<Option<Address>, RemoteError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with(['-', '.']) || !name.chars().all(plain) {
            return Err(RemoteError::Name { name: name.to_string() });
        }
        Book::change(path, |book| {
            let before = book.find(name).ok().filter(|before| before != address);
            book.page.remote.insert(name.to_string(), Entry { url: address.to_string() });
            Ok(before)
        })
    }

    /// Forgets a name, whatever it stands for. Nothing happens on the far side.
    pub fn remove(path: &Path, name: &str) -> Result<(), RemoteError> {
        Book::change(path, |book| {
            book.entry(name)?;
            book.page.remote.remove(name);
            Ok(())
        })
    }

    /// Reads, changes and writes a book while nobody else does.
    fn change<T>(path: &Path, change: impl FnOnce(&mut Book) -> Result<T, RemoteError>) -> Result<T, RemoteError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs_err::create_dir_all(folder)?;
        // Given back when it is closed, whatever ends us.
        let lock =
            fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(".remotes.lock"))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
        let mut book = Book::read(path)?;
        let changed = change(&mut book)?;
        let text = toml::to_string(&book.page)
            .map_err(|error| RemoteError::Book { path: path.to_path_buf(), why: error.to_string() })?;
        plimsoll_recover::atomic_write(path, text.as_bytes())?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_added_is_found_by_the_next_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/remotes.toml");
        let (first, other) = (address("ssh://me@box:2200/srv/a%23b"), address("ssh://me@box:2201/srv"));
        assert_eq!(Book::add(&path, "box", &first).unwrap(), None);
        assert_eq!(Book::read(&path).unwrap().find("box").unwrap(), first);
        assert_eq!(Book::add(&path, "box", &other).unwrap(), Some(first));
        Book::remove(&path, "box").unwrap();
        assert_eq!(Book::read(&path).unwrap().remotes().count(), 0);
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.toml");
        Book::add(&path, "box", &address("ssh://box/srv")).unwrap();
        assert!(Book::read(&path).unwrap().find("bx").unwrap_err().to_string().contains("`box`"));
        assert!(Book::remove(&path, "bx").unwrap_err().to_string().contains("`box`"));
        assert!(Book::add(&path, "-x", &address("ssh://box/srv")).is_err());
        assert!(Book::add(&path, "a/b", &address("ssh://box/srv")).is_err());
    }

    #[test]
    fn an_entry_that_is_no_address_is_refused_and_removed_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.toml");
        let text = "[remote.box]\nurl = \"ssh://me:secret@box/srv\"\n[remote.odd]\nurl = \"ssh://box/a#b\"\n";
        fs_err::write(&path, text).unwrap();
        Book::add(&path, "good", &address("ssh://box/srv")).unwrap();
        let book = Book::read(&path).unwrap();
        assert!(book.find("good").is_ok());
        let error = book.find("box").unwrap_err().to_string();
        assert!(error.contains("`box`") && error.contains("password") && !error.contains("secret"), "{error}");
        assert_eq!(
            book.remotes().map(|(name, found)| (name, found.is_ok())).collect::<Vec<_>>(),
            [("box", false), ("good", true), ("odd", false)]
        );
        Book::remove(&path, "box").unwrap();
        Book::add(&path, "odd", &address("ssh://box/a%23b")).unwrap();
        assert!(Book::read(&path).unwrap().remotes().all(|(_, found)| found.is_ok()));
        fs_err::write(&path, "[remote.box]\nurl = \"ssh://box/srv\"\npassword = \"x\"\n").unwrap();
        assert!(Book::read(&path).is_err());
    }

    #[test]
    fn of_many_who_write_at_once_none_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.toml");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for n in 0..5 {
                        Book::add(path, &format!("box-{writer}-{n}"), &address("ssh://box/srv")).unwrap();
                    }
                });
            }
        });
        assert_eq!(Book::read(&path).unwrap().remotes().count(), 40);
    }
}
