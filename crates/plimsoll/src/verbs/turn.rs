//! The right to train in a run folder, and what becomes of a start that does not get it.
//!
//! Somebody who asks for it is told at once that it is taken. A guard that starts a run again (`--go-on`) often comes while the last
//! start still ends, here or on a machine that was lost: it waits for its turn, and is then told that it may come back.

use std::path::Path;
use std::time::Duration;

use plimsoll_recover::{RecoverError, RunLock};

use crate::render::{self, Exit, Fail};

/// How long processes that their supervisor left behind may still save.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a start that comes by itself waits for anybody: longer than a file server holds the lock of a machine that is gone, which is
/// a minute and a half.
const TURN: Duration = Duration::from_secs(120);

/// Who starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Somebody, once.
    Asked,
    /// A guard, again and again.
    Guarded,
}

impl Start {
    /// By `--go-on`.
    pub fn of(go_on: bool) -> Start {
        if go_on { Start::Guarded } else { Start::Asked }
    }
}

/// The right to train in `folder`.
pub fn take(folder: &Path, start: Start) -> Result<RunLock, Fail> {
    let taken = match RunLock::take(folder, PATIENCE) {
        Err(error @ RecoverError::RunInUse { .. }) if start == Start::Guarded => {
            render::talk(format!("{error}; waiting for it, for {} s at most", TURN.as_secs()));
            RunLock::take_in_turn(folder, TURN)
        }
        taken => taken,
    };
    taken.map_err(|error| refused(error, start))
}

/// What is in use now is not a wrong job: a guard may start it again.
fn refused(error: RecoverError, start: Start) -> Fail {
    let in_use = matches!(error, RecoverError::RunInUse { .. });
    match (in_use, start) {
        (true, Start::Guarded) => Fail::new(Exit::Stopped, error)
            .hint("one process trains a run; once that one has ended, a start with the same words goes on"),
        (true, Start::Asked) => {
            Fail::new(Exit::BadInput, error).hint("one process trains a run; wait for it to end, or stop it")
        }
        (false, _) => Fail::new(Exit::BadInput, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_final_for_somebody_and_not_for_a_guard() {
        let in_use = || RecoverError::RunInUse { path: "run".into(), process: Some(7) };
        assert_eq!(refused(in_use(), Start::Asked).exit, Exit::BadInput);
        assert_eq!(refused(in_use(), Start::Guarded).exit, Exit::Stopped);
        let broken = || RecoverError::File(std::io::Error::other("broken"));
        assert_eq!(refused(broken(), Start::Guarded).exit, Exit::BadInput);
    }
}
