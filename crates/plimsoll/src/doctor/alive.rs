//! Whether a process of a run lives: the kernel's lock on the run folder says so, whatever became of numbers.

use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::case::Life;

/// Looks at the lock of `run`. It is asked for shared and given back at once: whoever wants it in that moment waits for
/// a dead holder anyway.
pub fn life(run: &Path) -> Life {
    let path = run.join(".lock");
    let Ok(file) = fs_err::File::open(&path) else { return Life::Dead };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return Life::Dead,
    }
    let holder = fs_err::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    match holder.filter(|pid| is_a_process(*pid)) {
        Some(supervisor) => Life::Alive { supervisor },
        None => Life::Orphaned,
    }
}

/// Whether `pid` runs; one that is dead and not yet reaped does not.
fn is_a_process(pid: u32) -> bool {
    let Ok(stat) = fs_err::read(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
    !matches!(state, Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_lives_while_its_lock_is_held_and_looking_takes_nothing() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(life(run.path()), Life::Dead);
        let lock = plimsoll_recover::RunLock::take(run.path(), std::time::Duration::ZERO).unwrap();
        assert_eq!(life(run.path()), Life::Alive { supervisor: std::process::id() });
        fs_err::write(run.path().join(".lock"), "4194304").unwrap();
        assert_eq!(life(run.path()), Life::Orphaned);
        drop(lock);
        assert_eq!(life(run.path()), Life::Dead);
        plimsoll_recover::RunLock::take(run.path(), std::time::Duration::ZERO).unwrap();
    }
}
