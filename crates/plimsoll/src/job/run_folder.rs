//! Where a run goes. A folder that holds anything is never written over.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::render::{Exit, Fail, OrFail};

/// Where runs go whose folder nobody named.
const RUNS: &str = "runs";
/// The job of a run.
const JOB: &str = "job.toml";
/// The run's own copy of its model's description, where the model has one.
pub const DESCRIPTION: &str = "model.toml";
/// The lock that says who trains there.
const LOCK: &str = ".lock";

/// Files by which a folder is known as a run.
const MARKS: &[&str] = &["plan.json", "journal.jsonl", "checkpoints", "summary.json", "launch.json"];

/// Whether `folder` holds a run.
pub fn holds_run(folder: &Path) -> bool {
    MARKS.iter().any(|mark| folder.join(mark).exists())
}

/// Whether a run has begun in `folder`: it holds one, or one was stopped while it was being planned.
pub fn has_begun(folder: &Path) -> bool {
    holds_run(folder) || [JOB, LOCK].iter().all(|name| folder.join(name).exists())
}

/// The folder that a new run would get: `out` if it is free, otherwise `runs/<name>-<n>` with the first free n. Nothing
/// is made.
pub fn choose(out: Option<&Path>, name: &str) -> Result<PathBuf, Fail> {
    let Some(out) = out else {
        let free = numbered(Path::new(RUNS), name).find(|folder| folder.symlink_metadata().is_err());
        return Ok(free.unwrap_or_else(|| Path::new(RUNS).join(name)));
    };
    if out.is_dir() {
        is_unused(out)?;
    } else if out.symlink_metadata().is_ok() {
        return Err(Fail::usage(format!("`{}` is not a folder", out.display())).hint("name another `--out`"));
    }
    Ok(out.to_path_buf())
}

/// Refuses a folder that holds anything but a lock.
pub fn is_unused(folder: &Path) -> Result<(), Fail> {
    if holds_run(folder) {
        let fail = Fail::usage(format!("`{}` holds a run already", folder.display()));
        let go_on = format!("go on with it: plimsoll resume {}; or name another `--out`", folder.display());
        return Err(fail.hint(go_on));
    }
    for entry in fs_err::read_dir(folder).or_usage()? {
        let name = entry.or_usage()?.file_name();
        // A start that was killed before anything was whole left its lock, or a file that never got its name.
        let unfinished = [".job.toml.tmp-", ".model.toml.tmp-", ".launch.json.tmp-"];
        let left = name.to_str().is_some_and(|name| unfinished.iter().any(|start| name.starts_with(start)));
        if name != LOCK && !left {
            return Err(Fail::usage(format!("`{}` is not empty", folder.display())).hint("name another `--out`"));
        }
    }
    Ok(())
}

/// The folder of a run that begins, and what was made for it.
#[derive(Debug)]
pub struct Fresh {
    folder: PathBuf,
    /// Innermost first.
    made: Vec<PathBuf>,
}

/// Makes the folder that [`choose`] speaks of. A folder without `out` is nobody else's, however many are made at once;
/// one that was found empty may be wanted by others too, and its lock decides.
pub fn make(out: Option<&Path>, name: &str) -> Result<Fresh, Fail> {
    match out {
        Some(_) => {
            let folder = choose(out, name)?;
            let made = missing(&folder);
            fs_err::create_dir_all(&folder).or_usage()?;
            Ok(Fresh { folder, made })
        }
        None => make_numbered(Path::new(RUNS), name),
    }
}

fn make_numbered(parent: &Path, name: &str) -> Result<Fresh, Fail> {
    let mut made = missing(parent);
    fs_err::create_dir_all(parent).or_usage()?;
    for folder in numbered(parent, name) {
        match fs_err::create_dir(&folder) {
            Ok(()) => {
                made.insert(0, folder.clone());
                return Ok(Fresh { folder, made });
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Fail::new(Exit::BadInput, error)),
        }
    }
    Err(Fail::usage(format!("`{}` has no number left for `{name}`", parent.display())))
}

fn numbered(parent: &Path, name: &str) -> impl Iterator<Item = PathBuf> {
    (1..=u64::MAX).map(move |n| parent.join(format!("{name}-{n}")))
}

/// The folders on the way to `folder` that are not there, innermost first; the empty path is the current folder.
fn missing(folder: &Path) -> Vec<PathBuf> {
    let is_there = |place: &Path| place.as_os_str().is_empty() || place.symlink_metadata().is_ok();
    folder.ancestors().take_while(|place| !is_there(place)).map(Path::to_path_buf).collect()
}

impl Fresh {
    /// Where.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A refused job leaves nothing behind: only what we made goes, and only if it is still as we made it. To be called
    /// while the lock is held.
    pub fn forget(&self) {
        let ours = [JOB, DESCRIPTION, LOCK];
        let Ok(entries) = fs_err::read_dir(&self.folder) else { return };
        let names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        if names.iter().all(|n| ours.iter().any(|o| n == o)) {
            names.iter().for_each(|n| drop(fs_err::remove_file(self.folder.join(n))));
            // One that holds something else by now stays, and so do those around it.
            self.made.iter().for_each(|place| drop(fs_err::remove_dir(place)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_that_does_not_exist_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("chat-1")).unwrap();
        fs_err::create_dir(dir.path().join("chat-3")).unwrap();
        assert_eq!(make_numbered(dir.path(), "chat").unwrap().folder(), dir.path().join("chat-2"));
    }

    #[test]
    fn runs_that_begin_at_once_share_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let start = std::sync::Barrier::new(8);
        let make = || {
            start.wait();
            (0..20).map(|_| make_numbered(&runs, "chat").unwrap().folder).collect::<Vec<_>>()
        };
        let made: std::collections::BTreeSet<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 160);
    }

    #[test]
    fn what_is_forgotten_is_what_was_made_and_is_still_ours() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = make(Some(&dir.path().join("deep/er")), "x").unwrap();
        fs_err::write(fresh.folder().join(JOB), "").unwrap();
        fs_err::write(dir.path().join("deep/notes.txt"), "mine").unwrap();
        fresh.forget();
        assert!(!fresh.folder().exists());
        assert!(dir.path().join("deep/notes.txt").exists());
        let fresh = make(Some(&dir.path().join("other")), "x").unwrap();
        fs_err::write(fresh.folder().join("journal.jsonl"), "").unwrap();
        fresh.forget();
        assert!(fresh.folder().join("journal.jsonl").exists());
    }

    #[test]
    fn a_run_a_full_folder_and_a_file_are_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        assert_eq!(choose(Some(&out), "x").unwrap(), out);
        fs_err::create_dir(&out).unwrap();
        assert_eq!(choose(Some(&out), "x").unwrap(), out);
        fs_err::write(out.join(".job.toml.tmp-7-1"), "half of a jo").unwrap();
        assert_eq!(choose(Some(&out), "x").unwrap(), out);
        fs_err::write(out.join("notes.txt"), "mine").unwrap();
        let full = choose(Some(&out), "x").unwrap_err();
        assert!(full.fact.unwrap().to_string().ends_with("is not empty"));
        fs_err::write(out.join("journal.jsonl"), "").unwrap();
        let run = choose(Some(&out), "x").unwrap_err();
        assert!(run.hint.unwrap().contains("plimsoll resume"));
        assert!(choose(Some(&out.join("notes.txt")), "x").is_err());
    }
}
