//! A foreign trainer's checkpoints: which there are, and which are whole.
//!
//! Invariant: a checkpoint is called whole only where every file that a resume needs is there and ends where it says
//! that it ends. Trainers do not check this: a missing `optimizer.pt` or `latest` makes some of them begin anew without a
//! word. A file is never read whole, and nothing is changed.

mod forms;
mod torch_file;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use crate::Command;
use crate::trainer::Form;

/// A checkpoint that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Where.
    pub path: PathBuf,
    /// Its form.
    pub form: Form,
    /// Its step, as its name or its files tell.
    pub step: Option<u64>,
    /// When it was last written to.
    pub written: SystemTime,
    /// What is wrong with it; `None` for a whole one.
    pub torn: Option<String>,
}

/// All checkpoints of a command that runs in `folder`, the oldest first.
pub fn find(command: &Command, folder: &Path) -> Vec<Found> {
    let mut seen = BTreeSet::new();
    let mut found: Vec<Found> = Vec::new();
    for layer in command.layers() {
        let Some(form) = layer.checkpoints.form else { continue };
        for root in command.checkpoint_roots(layer) {
            for path in layer.checkpoints.paths.iter().flat_map(|pattern| paths(&folder.join(&root), pattern)) {
                if !seen.contains(&path)
                    && let Some(one) = forms::look(form, &path)
                {
                    seen.insert(path);
                    found.push(one);
                }
            }
        }
    }
    found.sort_by(|a, b| (a.written, a.step, &a.path).cmp(&(b.written, b.step, &b.path)));
    found
}

/// What a checkpoint takes on disk, a file or a folder.
pub fn size(path: &Path) -> Bytes {
    let Ok(entries) = fs_err::read_dir(path) else {
        return Bytes(fs_err::metadata(path).map(|found| found.len()).unwrap_or(0));
    };
    entries.filter_map(|entry| Some(size(&entry.ok()?.path()))).sum()
}

/// The newest whole one.
pub fn latest_whole(found: &[Found]) -> Option<&Found> {
    found.iter().rev().find(|one| one.torn.is_none())
}

fn paths(root: &Path, pattern: &str) -> Vec<PathBuf> {
    // The folder is the user's word for word; only what we append is a pattern.
    let whole = match Path::new(pattern).is_absolute() {
        true => pattern.to_string(),
        false => format!("{}/{pattern}", glob::Pattern::escape(&root.display().to_string())),
    };
    glob::glob(&whole).map(|found| found.filter_map(Result::ok).collect()).unwrap_or_default()
}

#[cfg(test)]
#[path = "checkpoints/checkpoints_test.rs"]
mod tests;
