//! Where a run goes. A folder that holds anything is never written over.

use std::path::{Path, PathBuf};

use crate::render::{Fail, OrFail};

/// Files by which a folder is known as a run.
const MARKS: &[&str] = &["plan.json", "journal.jsonl", "checkpoints", "summary.json"];

/// Whether `folder` holds a run.
pub fn holds_run(folder: &Path) -> bool {
    MARKS.iter().any(|mark| folder.join(mark).exists())
}

/// The folder of a new run: `out` if it is free, otherwise `runs/<name>-<n>` with the first free n.
pub fn choose(out: Option<&Path>, name: &str) -> Result<PathBuf, Fail> {
    let Some(out) = out else {
        return Ok(numbered(Path::new("runs"), name));
    };
    if holds_run(out) {
        let fail = Fail::usage(format!("`{}` holds a run already", out.display()));
        return Err(fail.hint(format!("go on with it: plimsoll resume {}; or name another `--out`", out.display())));
    }
    if out.is_dir() {
        if fs_err::read_dir(out).or_usage()?.next().is_some() {
            return Err(Fail::usage(format!("`{}` is not empty", out.display())).hint("name another `--out`"));
        }
    } else if out.symlink_metadata().is_ok() {
        return Err(Fail::usage(format!("`{}` is not a folder", out.display())).hint("name another `--out`"));
    }
    Ok(out.to_path_buf())
}

fn numbered(parent: &Path, name: &str) -> PathBuf {
    (1u64..)
        .map(|n| parent.join(format!("{name}-{n}")))
        .find(|folder| folder.symlink_metadata().is_err())
        .unwrap_or_else(|| parent.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_that_does_not_exist_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("chat-1")).unwrap();
        fs_err::create_dir(dir.path().join("chat-3")).unwrap();
        assert_eq!(numbered(dir.path(), "chat"), dir.path().join("chat-2"));
    }

    #[test]
    fn a_run_a_full_folder_and_a_file_are_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        assert_eq!(choose(Some(&out), "x").unwrap(), out);
        fs_err::create_dir(&out).unwrap();
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
