//! Programs: where a word of a command leads to.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The program that `word` names in `folder`, as a shell finds it.
pub fn find(word: &str, folder: &Path) -> Option<PathBuf> {
    if word.contains('/') {
        return Some(folder.join(word)).filter(|path| can_run(path));
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&places).map(|dir| dir.join(word)).find(|path| can_run(path))
}

/// Whether one of `words` is a program, on the path or beside `python`.
pub fn any(words: &[&str], python: Option<&Path>, folder: &Path) -> bool {
    let beside = |word: &str| python.and_then(Path::parent).is_some_and(|dir| can_run(&dir.join(word)));
    words.iter().any(|word| find(word, folder).is_some() || beside(word))
}

fn can_run(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_path_and_a_file_that_cannot_run_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(find("sh", dir.path()).is_some());
        assert_eq!(find("no-such-program-here", dir.path()), None);
        fs_err::write(dir.path().join("train.py"), "x").unwrap();
        assert_eq!(find("./train.py", dir.path()), None);
    }
}
