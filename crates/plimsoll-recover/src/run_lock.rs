//! One run, one trainer: a lock on the run folder for as long as any process of the run lives.
//!
//! The lock is the kernel's (`flock`), so a kill releases it. It is handed down to the worker and to nobody else: one
//! that still saves after its supervisor was killed keeps a hasty `resume` waiting. While the holder itself lives,
//! nothing is worth waiting for.

use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::RecoverError;
use crate::checkpoint::lives_elsewhere;

const NAME: &str = ".lock";
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The right to write into a run folder.
#[derive(Debug)]
pub struct RunLock {
    file: fs::File,
}

impl RunLock {
    /// Takes the lock of the run folder `run`. Where only processes that a dead holder left behind still have it, waits
    /// up to `patience` for them to end; a holder that lives is an error at once.
    pub fn take(run: &Path, patience: Duration) -> Result<RunLock, RecoverError> {
        RunLock::wait(run, patience, lives_elsewhere)
    }

    /// The same, but waits for a holder that lives as well: whoever starts a run again and again comes after the one before, which
    /// may be on another machine, where its number says nothing here.
    pub fn take_in_turn(run: &Path, patience: Duration) -> Result<RunLock, RecoverError> {
        RunLock::wait(run, patience, |_| false)
    }

    fn wait(run: &Path, patience: Duration, in_vain: impl Fn(u32) -> bool) -> Result<RunLock, RecoverError> {
        let path = run.join(NAME);
        let mut file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let process = holder(&mut file);
                    if process.is_some_and(&in_vain) || began.elapsed() >= patience {
                        return Err(RecoverError::RunInUse { path: run.to_path_buf(), process });
                    }
                    std::thread::sleep(BETWEEN_TRIES);
                }
                Err(error) => return Err(failed("flock", &path, error)),
            }
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}", std::process::id())?;
        Ok(RunLock { file })
    }

    /// Whether somebody holds the lock of the run folder `run`. It is tried, shared and for an instant; nothing is made.
    pub fn is_held(run: &Path) -> std::io::Result<bool> {
        let path = run.join(NAME);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        // Closing the file gives back what was taken.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => {
                let error = std::io::Error::from(error);
                Err(std::io::Error::new(error.kind(), format!("cannot try the lock `{}`: {error}", path.display())))
            }
        }
    }

    /// Its descriptor, for the one child that shall hold the lock for as long as it lives.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

/// Who wrote the lock's file. A holder that has just taken the lock may not have said so yet.
fn holder(file: &mut fs::File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(20).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

fn failed(call: &'static str, path: &Path, error: Errno) -> RecoverError {
    RecoverError::Call { call, place: path.display().to_string(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
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
    fn a_holder_that_lives_is_an_error_at_once_however_patient_the_asker() {
        let run = tempfile::tempdir().unwrap();
        let file = fs::File::create(run.path().join(NAME)).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut holder = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        fs::write(run.path().join(NAME), holder.id().to_string()).unwrap();
        // With a day's patience, only the rule about living holders lets this end.
        let refused = RunLock::take(run.path(), Duration::from_secs(86_400)).unwrap_err();
        assert!(
            matches!(refused, RecoverError::RunInUse { process: Some(pid), .. } if pid == holder.id()),
            "{refused}"
        );
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }

    #[test]
    fn whoever_comes_in_turn_waits_for_a_holder_that_lives() {
        let run = tempfile::tempdir().unwrap();
        let file = fs::File::create(run.path().join(NAME)).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut holder = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        fs::write(run.path().join(NAME), holder.id().to_string()).unwrap();
        let refused = RunLock::take_in_turn(run.path(), Duration::ZERO).unwrap_err();
        assert!(matches!(refused, RecoverError::RunInUse { .. }), "{refused}");
        std::thread::scope(|scope| {
            let turn = scope.spawn(|| RunLock::take_in_turn(run.path(), Duration::from_secs(86_400)));
            // The holder lives on; only the lock is given back.
            drop(file);
            turn.join().unwrap().unwrap();
        });
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }

    #[test]
    fn the_one_process_that_was_given_the_lock_holds_it_until_it_ends_and_others_do_not() {
        let run = tempfile::tempdir().unwrap();
        for given in [true, false] {
            let lock = RunLock::take(run.path(), Duration::from_secs(60)).unwrap();
            let number = lock.number();
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            if given {
                // SAFETY: one system call between fork and exec, on a descriptor that is open in both.
                unsafe {
                    command.pre_exec(move || {
                        let file = std::os::fd::BorrowedFd::borrow_raw(number);
                        Ok(rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?)
                    })
                };
            }
            let mut child = command.spawn().unwrap();
            drop(lock);
            let taken = RunLock::take(run.path(), Duration::ZERO);
            assert_eq!(matches!(taken, Err(RecoverError::RunInUse { .. })), given);
            drop((taken, child.stdin.take()));
            child.wait().unwrap();
        }
    }
}
