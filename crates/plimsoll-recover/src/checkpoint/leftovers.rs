//! What a kill left behind: temporary folders, half deletions, a checkpoint that stood aside.
//!
//! Invariant: what belongs to another living process is left alone. Called when a run starts or resumes, while this
//! process has no [`super::Writer`].

use std::path::{Path, PathBuf};

use fs_err as fs;

use super::folder::Folder;
use super::place::{discard, remove_if_there};
use super::shelf::folders;
use crate::RecoverError;
use crate::durable::sync_folder;

/// Cleans `dir` of the leftovers of dead processes (and of earlier ones that had our pid), and gives a checkpoint that
/// stood aside its name back. Returns what it removed.
pub fn clean_leftovers(dir: &Path) -> Result<Vec<PathBuf>, RecoverError> {
    let mut removed = Vec::new();
    for (folder, path) in folders(dir)? {
        match folder {
            Folder::Step(_) => {}
            Folder::Temporary(_, pid) | Folder::Old(_, pid) | Folder::Aside(_, pid) if lives_elsewhere(pid) => {}
            Folder::Temporary(..) | Folder::Old(..) => {
                remove_if_there(&path)?;
                removed.push(path);
            }
            Folder::Aside(step, _) => {
                let target = dir.join(Folder::Step(step).name());
                if target.exists() {
                    discard(dir, &path, step)?;
                    removed.push(path);
                } else {
                    fs::rename(&path, &target)?;
                    sync_folder(dir)?;
                }
            }
        }
    }
    Ok(removed)
}

/// Whether `pid` is another process that still runs. A zombie writes no more: containers without an init keep them.
pub(crate) fn lives_elsewhere(pid: u32) -> bool {
    if pid == std::process::id() {
        return false;
    }
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The program's name, in brackets, may hold anything; the state's letter follows the last bracket.
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
    !matches!(state, Some(b'Z' | b'X'))
}
