//! Who we are to a far side: what keeps apart the folders of two users, or of two machines, that have the same path.
//!
//! Invariant: drawn once and kept in the user's configuration, whoever asks first; the far side sees digests with it only.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::{RemoteError, digest_of};

/// Its file, beside the book of names.
const NAME: &str = "origin";
/// A copied home is another origin on another machine. Containers often have no such file.
const MACHINE: &str = "/etc/machine-id";
/// Hexadecimal digits of a key.
const KEY: usize = 12;

/// This user on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    /// The one that is kept in `folder`; it is drawn where there is none yet.
    pub fn of(folder: &Path) -> Result<Origin, RemoteError> {
        let path = folder.join(NAME);
        if !path.exists() {
            fs_err::create_dir_all(folder)?;
            // Of two that draw at once the first to give it its name wins, and is read by both.
            let drawn = folder.join(format!(".{NAME}-{}", token()?));
            fs_err::write(&drawn, token()?)?;
            let named = fs_err::hard_link(&drawn, &path);
            fs_err::remove_file(&drawn)?;
            named.or_else(|error| if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
        }
        let machine = fs_err::read_to_string(MACHINE).unwrap_or_default();
        Ok(Origin(format!("{}\n{}", fs_err::read_to_string(&path)?.trim(), machine.trim())))
    }

    /// Stands for a local path over there, together with whatever else makes it another one.
    pub fn key(&self, path: &Path, more: &[String]) -> String {
        let text =
            [self.0.as_bytes(), path.as_os_str().as_encoded_bytes(), format!("{more:?}").as_bytes()].join(&b'\n');
        digest_of(&text).to_string()[..KEY].to_string()
    }
}

/// A word that nobody else draws.
pub fn token() -> Result<String, RemoteError> {
    let mut bytes = [0; 32];
    fs_err::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(digest_of(&bytes).to_string()[..32].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_drawn_once_and_another_user_has_another() {
        let (mine, yours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = mine.path().join("deep/plimsoll");
        let drawn: Vec<Origin> = std::thread::scope(|scope| {
            let draw = |_| scope.spawn(|| Origin::of(&folder).unwrap());
            let all: Vec<_> = (0..8).map(draw).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(drawn.iter().all(|one| *one == drawn[0]), "{drawn:?}");
        assert_eq!(fs_err::read_dir(&folder).unwrap().count(), 1);
        let (path, other) = (Path::new("/home/me/data"), Origin::of(yours.path()).unwrap());
        assert_eq!(drawn[0].key(path, &[]), drawn[3].key(path, &[]));
        assert_ne!(drawn[0].key(path, &[]), other.key(path, &[]));
        assert_ne!(drawn[0].key(path, &[]), drawn[0].key(Path::new("/home/me"), &[]));
        assert_ne!(drawn[0].key(path, &[]), drawn[0].key(path, &["*.bin".to_string()]));
    }
}
