//! Writing so that a kill or a power cut leaves the old bytes or the new ones, never a mixture.
//!
//! Invariant: a name is only ever moved onto content that is already on the disk, and the folder that holds the name is
//! synced after the move.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fs_err as fs;

use crate::RecoverError;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Replaces the file `path` by `bytes`: temporary file in the same folder, sync, rename, sync of the folder.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), RecoverError> {
    let folder = folder_of(path);
    let name = path.file_name().ok_or_else(|| RecoverError::FileName { name: path.display().to_string() })?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".{}.tmp-{}-{serial}", name.to_string_lossy(), std::process::id()));
    let moved = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = moved {
        let _ = fs::remove_file(&temporary);
        return Err(error.into());
    }
    sync_folder(&folder)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), RecoverError> {
    Ok(fs::File::open(folder)?.sync_all()?)
}

/// The folder that holds `path`; `.` for a bare name.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        atomic_write(&path, b"first, and long").unwrap();
        atomic_write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_content_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), b"kept").unwrap();
        let error = atomic_write(&path, b"new").unwrap_err();
        assert!(error.to_string().contains("taken"), "{error}");
        assert_eq!(fs::read(path.join("inside")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_bare_name_lies_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("summary.json")), Path::new("."));
        assert_eq!(folder_of(Path::new("run/summary.json")), Path::new("run"));
    }
}
