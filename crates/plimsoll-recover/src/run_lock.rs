//! One run, one trainer: a lock on the run folder for as long as any process of the run lives.
//!
//! The lock is the kernel's (`flock`), so a kill releases it. It is handed down to the processes that the holder starts:
//! a worker that still saves after its supervisor was killed keeps a hasty `resume` waiting.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use crate::RecoverError;

const NAME: &str = ".lock";
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The right to write into a run folder.
#[derive(Debug)]
pub struct RunLock {
    _file: fs::File,
}

impl RunLock {
    /// Takes the lock of the run folder `run`, waiting up to `patience` for its present holder to end.
    pub fn take(run: &Path, patience: Duration) -> Result<RunLock, RecoverError> {
        let path = run.join(NAME);
        let mut file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if began.elapsed() < patience => std::thread::sleep(BETWEEN_TRIES),
                Err(Errno::WOULDBLOCK) => return Err(in_use(run.to_path_buf(), &mut file)),
                Err(error) => return Err(failed("flock", &path, error)),
            }
        }
        fcntl_setfd(&file, FdFlags::empty()).map_err(|error| failed("fcntl", &path, error))?;
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}", std::process::id())?;
        Ok(RunLock { _file: file })
    }
}

fn in_use(path: PathBuf, file: &mut fs::File) -> RecoverError {
    let mut holder = String::new();
    let read = file.take(20).read_to_string(&mut holder);
    RecoverError::RunInUse { path, process: read.ok().and_then(|_| holder.parse().ok()) }
}

fn failed(call: &'static str, path: &Path, error: Errno) -> RecoverError {
    RecoverError::Call { call, place: path.display().to_string(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_run_has_one_writer_and_the_second_learns_who_it_is() {
        let run = tempfile::tempdir().unwrap();
        let lock = RunLock::take(run.path(), Duration::ZERO).unwrap();
        match RunLock::take(run.path(), Duration::ZERO).unwrap_err() {
            RecoverError::RunInUse { path, process } => {
                assert_eq!((path.as_path(), process), (run.path(), Some(std::process::id())));
            }
            other => panic!("{other}"),
        }
        drop(lock);
    }

    #[test]
    fn a_process_that_was_started_under_the_lock_holds_it_until_it_ends() {
        let run = tempfile::tempdir().unwrap();
        let lock = RunLock::take(run.path(), Duration::ZERO).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(lock);
        assert!(matches!(RunLock::take(run.path(), Duration::ZERO), Err(RecoverError::RunInUse { .. })));
        drop(child.stdin.take());
        child.wait().unwrap();
        RunLock::take(run.path(), Duration::from_secs(60)).unwrap();
    }
}
