//! The two ways in which cgroup files are handled: a word is written, a list of processes is read.

use std::io::{self, Write};
use std::path::Path;

use fs_err as fs;

/// Writes a word in one system call; the file must be there already.
pub(super) fn write(path: &Path, word: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(word.as_bytes())
}

/// The processes of a cgroup; 0 stands for one outside of our PID namespace.
pub(super) fn processes(dir: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(dir.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}
