//! The folders right below the far one, which hold people's data, and words of commands that may be secrets.
//!
//! Invariant: whichever of them is made here is its owner's alone, unless the far folder itself is one that a group writes to.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use crate::FarPath;

/// What a far folder's mode has that is shared by a group.
const SHARED: u32 = 0o020;

/// Makes the folder `name` in `dir`, unless it is there.
pub fn make(dir: &Path, name: &str) -> std::io::Result<()> {
    let path = dir.join(name);
    let mode = if fs_err::metadata(dir)?.mode() & SHARED == 0 { 0o700 } else { 0o777 };
    match std::fs::DirBuilder::new().mode(mode).create(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(std::io::Error::new(error.kind(), format!("cannot make `{}`: {error}", path.display()))),
        Ok(()) => Ok(()),
    }
}

/// Makes the one that `path` is in.
pub fn make_for(dir: &Path, path: &FarPath) -> std::io::Result<()> {
    path.as_str().split_once('/').map_or(Ok(()), |(name, _)| make(dir, name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn others_see_only_what_is_in_a_folder_that_is_shared() {
        let dir = tempfile::tempdir().unwrap();
        let open = |mode| fs_err::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let mode = |name: &str| fs_err::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        open(0o755);
        make_for(dir.path(), &FarPath::new("work/a/b").unwrap()).unwrap();
        make_for(dir.path(), &FarPath::new("file").unwrap()).unwrap();
        assert_eq!(mode("work"), 0o700);
        assert!(!dir.path().join("file").exists());
        open(0o775);
        make(dir.path(), "logs").unwrap();
        make(dir.path(), "work").unwrap();
        fs_err::create_dir(dir.path().join("usual")).unwrap();
        assert_eq!((mode("logs"), mode("work")), (mode("usual"), 0o700));
    }
}
