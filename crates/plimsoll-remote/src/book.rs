//! The remotes that have a name: `remotes.toml` in the user's configuration folder.
//!
//! Invariant: the file is whole at any moment, and holds names and addresses, no secrets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Address, RemoteError};

/// Names and what they stand for.
#[derive(Clone, Debug, Default)]
pub struct Book {
    path: PathBuf,
    remotes: BTreeMap<String, Address>,
}

/// The file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Page {
    #[serde(default)]
    remote: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize, Serialize)]
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
        let wrong = |why: String| RemoteError::Book { path: path.to_path_buf(), why };
        let page: Page = toml::from_str(&text).map_err(|error| wrong(error.message().to_string()))?;
        let mut remotes = BTreeMap::new();
        for (name, entry) in page.remote {
            let address = entry.url.parse().map_err(|error: RemoteError| wrong(format!("remote `{name}`: {error}")))?;
            remotes.insert(name, address);
        }
        Ok(Book { path: path.to_path_buf(), remotes })
    }

    /// All of them, by name.
    pub fn remotes(&self) -> &BTreeMap<String, Address> {
        &self.remotes
    }

    /// What a name stands for.
    pub fn find(&self, name: &str) -> Result<&Address, RemoteError> {
        self.remotes.get(name).ok_or_else(|| {
            let known = self.remotes.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            RemoteError::NoSuchRemote { name: name.to_string(), known }
        })
    }

    /// Gives `address` a name and writes the book; what the name stood for before, if that was something else.
    pub fn add(&mut self, name: &str, address: Address) -> Result<Option<Address>, RemoteError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with(['-', '.']) || !name.chars().all(plain) {
            return Err(RemoteError::Name { name: name.to_string() });
        }
        let before = self.remotes.insert(name.to_string(), address.clone()).filter(|before| *before != address);
        self.write()?;
        Ok(before)
    }

    /// Forgets a name and writes the book. Nothing happens on the far side.
    pub fn remove(&mut self, name: &str) -> Result<(), RemoteError> {
        self.find(name)?;
        self.remotes.remove(name);
        self.write()
    }

    fn write(&self) -> Result<(), RemoteError> {
        let entry = |address: &Address| Entry { url: address.to_string() };
        let page = Page { remote: self.remotes.iter().map(|(name, a)| (name.clone(), entry(a))).collect() };
        let text = toml::to_string(&page)
            .map_err(|error| RemoteError::Book { path: self.path.clone(), why: error.to_string() })?;
        if let Some(folder) = self.path.parent() {
            fs_err::create_dir_all(folder)?;
        }
        Ok(plimsoll_recover::atomic_write(&self.path, text.as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_found_by_the_next_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/remotes.toml");
        let mut book = Book::read(&path).unwrap();
        let address: Address = "ssh://me@box:2200/srv".parse().unwrap();
        assert_eq!(book.add("box", address.clone()).unwrap(), None);
        let mut again = Book::read(&path).unwrap();
        assert_eq!(again.find("box").unwrap(), &address);
        let other: Address = "ssh://me@box:2201/srv".parse().unwrap();
        assert_eq!(again.add("box", other).unwrap(), Some(address));
        again.remove("box").unwrap();
        assert!(Book::read(&path).unwrap().remotes().is_empty());
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let mut book = Book::read(&folder.path().join("r.toml")).unwrap();
        book.add("box", "ssh://box/srv".parse().unwrap()).unwrap();
        assert!(book.find("bx").unwrap_err().to_string().contains("`box`"));
        assert!(book.add("-x", "ssh://box/srv".parse().unwrap()).is_err());
        assert!(book.add("a/b", "ssh://box/srv".parse().unwrap()).is_err());
    }

    #[test]
    fn a_book_that_somebody_wrote_a_password_into_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.toml");
        fs_err::write(&path, "[remote.box]\nurl = \"ssh://me:secret@box/srv\"\n").unwrap();
        let error = Book::read(&path).unwrap_err().to_string();
        assert!(error.contains("`box`") && error.contains("password") && !error.contains("secret"), "{error}");
        fs_err::write(&path, "[remote.box]\nurl = \"ssh://box/srv\"\npassword = \"x\"\n").unwrap();
        assert!(Book::read(&path).is_err());
    }
}
