//! Who keeps a run: a lock from before it is started until it is written down how it ended.
//!
//! Invariant: while somebody has it, nobody else writes what is written down of that run, and what is missing of it will come;
//! once nobody has it, what is written down is all that there will be. The kernel's (`flock`), so a kill gives it back, and
//! machines that share the folder see it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fs_err::File;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::keep::LOGS;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// The right to start a run and to write down what becomes of it.
#[derive(Debug)]
pub struct Keeping(File);

impl Keeping {
    /// Of a run in `dir`. Who has it is waited for: for as long as he works on it, so whoever asks looks first.
    pub fn take(dir: &Path, run: &str, patience: Duration) -> Result<Keeping, String> {
        let path = path(dir, run);
        let file = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| error.to_string())?;
        let by = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Keeping(file)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < by => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(format!("somebody keeps `{run}` already")),
                Err(error) => return Err(format!("cannot lock `{}`: {error}", path.display())),
            }
        }
    }

    /// Whether somebody has it.
    pub fn is_held(dir: &Path, run: &str) -> bool {
        let Ok(file) = File::open(path(dir, run)) else { return false };
        // Closing the file gives back what was taken.
        matches!(flock(&file, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
    }

    /// For the stdin of a process that shall have it too, for as long as it lives.
    pub fn handed_down(&self) -> std::io::Result<Stdio> {
        Ok(self.0.file().try_clone()?.into())
    }
}

fn path(dir: &Path, run: &str) -> PathBuf {
    dir.join(LOGS).join(format!("{run}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_had_by_one_and_by_whom_it_was_handed_down_to() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        assert!(!Keeping::is_held(dir.path(), "a-1"));
        let own = Keeping::take(dir.path(), "a-1", Duration::ZERO).unwrap();
        assert!(Keeping::is_held(dir.path(), "a-1") && !Keeping::is_held(dir.path(), "a-2"));
        assert!(Keeping::take(dir.path(), "a-1", Duration::ZERO).unwrap_err().contains("somebody keeps `a-1`"));
        let sleep = |stdin| std::process::Command::new("sleep").arg("1000").stdin(stdin).spawn().unwrap();
        let mut child = sleep(own.handed_down().unwrap());
        drop(own);
        assert!(Keeping::is_held(dir.path(), "a-1"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!Keeping::is_held(dir.path(), "a-1"));
    }
}
