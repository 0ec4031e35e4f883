//! Giving a finished folder its good name, and taking a good name from a folder that leaves.
//!
//! Invariant: between any two system calls there is a whole checkpoint of the step, under `step-N` or (only where the
//! file system cannot exchange two names) under `.aside-step-N-PID`, which `list` knows.

use std::path::{Path, PathBuf};

use fs_err as fs;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::folder::Folder;
use crate::RecoverError;
use crate::durable::sync_folder;

/// Moves the finished folder `temporary` to `step-N`; what had that name before is deleted afterwards.
pub(super) fn put_in_place(parent: &Path, temporary: &Path, step: u64) -> Result<PathBuf, RecoverError> {
    let target = parent.join(Folder::Step(step).name());
    match renameat_with(CWD, temporary, CWD, &target, RenameFlags::NOREPLACE) {
        Ok(()) => {
            sync_folder(parent)?;
            return Ok(target);
        }
        Err(Errno::EXIST | Errno::NOTEMPTY) => {}
        // A file system without the flag (NFS): plain rename refuses a folder that is not empty, which is as good.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if !target.exists() => {
            fs::rename(temporary, &target)?;
            sync_folder(parent)?;
            return Ok(target);
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(not_renamed(temporary, error)),
    }
    match renameat_with(CWD, temporary, CWD, &target, RenameFlags::EXCHANGE) {
        Ok(()) => {
            sync_folder(parent)?;
            discard(parent, temporary, step)?;
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => step_aside(parent, temporary, &target, step)?,
        Err(error) => return Err(not_renamed(temporary, error)),
    }
    Ok(target)
}

/// Replacement where two names cannot be exchanged.
fn step_aside(parent: &Path, temporary: &Path, target: &Path, step: u64) -> Result<(), RecoverError> {
    let aside = parent.join(Folder::Aside(step, std::process::id()).name());
    remove_if_there(&aside)?;
    fs::rename(target, &aside)?;
    fs::rename(temporary, target)?;
    sync_folder(parent)?;
    discard(parent, &aside, step)
}

/// Deletes a folder, under a name that nobody takes for a checkpoint.
pub(super) fn discard(parent: &Path, folder: &Path, step: u64) -> Result<(), RecoverError> {
    let old = parent.join(Folder::Old(step, std::process::id()).name());
    remove_if_there(&old)?;
    fs::rename(folder, &old)?;
    // Without this a power cut could bring the good name back over files that are already deleted.
    sync_folder(parent)?;
    Ok(fs::remove_dir_all(&old)?)
}

pub(super) fn remove_if_there(folder: &Path) -> Result<(), RecoverError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => Ok(done?),
    }
}

fn not_renamed(from: &Path, error: Errno) -> RecoverError {
    RecoverError::Call { call: "renameat2", place: from.display().to_string(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepping_aside_replaces_and_leaves_nothing_behind() {
        let parent = tempfile::tempdir().unwrap();
        let (temporary, target) = (parent.path().join(".tmp-step-3-1"), parent.path().join("step-3"));
        for (folder, content) in [(&temporary, "new"), (&target, "old")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("weights"), content).unwrap();
        }
        step_aside(parent.path(), &temporary, &target, 3).unwrap();
        assert_eq!(fs::read_to_string(target.join("weights")).unwrap(), "new");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
