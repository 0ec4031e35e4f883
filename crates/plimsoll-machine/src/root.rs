//! `Root`: the folder under which `/proc`, `/sys` and `/dev` are looked for.
//!
//! On a real machine it is `/`; in tests it is a recorded tree. Paths are passed around as the machine names them
//! (`/proc/meminfo`) and joined to the root only here, so that reports and limits name the machine's own paths.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::MachineError;

/// Where the machine's files are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    base: PathBuf,
}

impl Root {
    /// This machine.
    pub fn system() -> Root {
        Root { base: PathBuf::from("/") }
    }

    /// A recorded tree.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root { base: path.into() }
    }

    /// Whether this is the running machine, which can also be asked by system calls and libraries.
    pub fn is_system(&self) -> bool {
        self.base == Path::new("/")
    }

    /// The real place of a path that the machine names `path`.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.base.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether the machine has this file or folder.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.join(path).exists()
    }

    /// The whole text of a file; bytes that are not UTF-8 are replaced, since the kernel's own words are ASCII.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<String, MachineError> {
        let real = self.join(path);
        match fs_err::read(&real) {
            Ok(bytes) => {
                Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
            }
            Err(source) => Err(unread(real, source)),
        }
    }

    /// The text of a file that a kernel may lack: `None` where it does not exist.
    pub(crate) fn read_if_there(&self, path: impl AsRef<Path>) -> Result<Option<String>, MachineError> {
        match self.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(MachineError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The start of a file, as much of it as `buffer` holds.
    pub(crate) fn read_into<'b>(&self, path: &Path, buffer: &'b mut [u8]) -> Result<&'b [u8], MachineError> {
        let real = self.join(path);
        let mut filled = 0;
        let mut fill = || -> io::Result<()> {
            let mut file = fs_err::File::open(&real)?;
            while filled < buffer.len() {
                match file.read(&mut buffer[filled..]) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        };
        match fill() {
            Ok(()) => Ok(&buffer[..filled]),
            Err(source) => Err(unread(real, source)),
        }
    }
}

fn unread(path: PathBuf, source: io::Error) -> MachineError {
    // A cgroup or process that is removed while its file is open answers ENODEV or ESRCH: it is gone all the same.
    let gone = [rustix::io::Errno::NODEV, rustix::io::Errno::SRCH].map(|e| Some(e.raw_os_error()));
    if source.kind() == io::ErrorKind::NotFound || gone.contains(&source.raw_os_error()) {
        MachineError::Missing { path }
    } else {
        MachineError::Unreadable { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_hang_under_the_root() {
        assert_eq!(Root::at("/tmp/tree").join("/proc/meminfo"), Path::new("/tmp/tree/proc/meminfo"));
        assert_eq!(Root::system().join("/proc/meminfo"), Path::new("/proc/meminfo"));
    }

    #[test]
    fn a_fixed_buffer_takes_the_start_of_a_long_file() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("long"), "0123456789").unwrap();
        let mut buffer = [0; 4];
        assert_eq!(Root::at(dir.path()).read_into(Path::new("/long"), &mut buffer).unwrap(), b"0123");
    }

    #[test]
    fn a_folder_in_the_place_of_a_file_is_unreadable_not_missing() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("meminfo")).unwrap();
        let error = Root::at(dir.path()).read("/meminfo").unwrap_err();
        assert!(matches!(error, MachineError::Unreadable { .. }), "{error}");
        assert!(error.to_string().contains("meminfo"), "{error}");
    }
}
