//! The free-space guard: a save that cannot fit is not started, so that the last good one is never at risk.

use std::path::Path;

use plimsoll_machine::{Bytes, space_of};

use crate::RecoverError;

/// Whether `needed` bytes fit on the file system of `dir`, as an unprivileged process may use it. A folder that is not
/// there yet counts as its nearest ancestor that is.
pub fn room_for(dir: &Path, needed: Bytes) -> Result<(), RecoverError> {
    let there = dir.ancestors().find(|place| place.exists()).unwrap_or(Path::new("."));
    let free = space_of(there)?.available;
    if needed > free {
        return Err(RecoverError::DiskTooFull { needed, free, path: there.to_path_buf() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_disk_holds_is_refused_with_its_numbers_and_what_is_small_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let later = folder.path().join("run/checkpoints");
        room_for(&later, Bytes(1)).unwrap();
        match room_for(&later, Bytes(u64::MAX)).unwrap_err() {
            RecoverError::DiskTooFull { needed, free, path } => {
                assert_eq!(needed, Bytes(u64::MAX));
                assert!(free > Bytes::ZERO);
                assert_eq!(path, folder.path());
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_relative_folder_that_is_not_there_is_measured_where_it_would_be() {
        room_for(Path::new("not-there-yet"), Bytes(1)).unwrap();
    }
}
