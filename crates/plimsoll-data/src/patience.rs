//! Waiting for a batch, with somebody who may end it.
//!
//! Invariant: whoever is asked is asked without the lock, so that the threads that make the batch go on meanwhile.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::DataError;
use crate::pairs::lock;

/// Asked now and then while a batch is waited for; true: do not wait longer.
pub type GiveUp = Arc<dyn Fn() -> bool + Send + Sync>;

/// Seldom enough to cost nothing, often enough for somebody at a keyboard.
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// Who is asked, if anybody.
#[derive(Default)]
pub(crate) struct Patience(OnceLock<GiveUp>);

impl Patience {
    pub fn ends_when(&self, asked: GiveUp) {
        // Only the first counts, as is said where it is offered.
        let _ = self.0.set(asked);
    }

    /// Waits for `bell`; whether what is waited for is there, the caller looks again.
    pub fn wait<'a, T>(
        &self,
        bell: &Condvar,
        mutex: &'a Mutex<T>,
        held: MutexGuard<'a, T>,
    ) -> Result<MutexGuard<'a, T>, DataError> {
        let Some(give_up) = self.0.get() else {
            return Ok(bell.wait(held).unwrap_or_else(PoisonError::into_inner));
        };
        let (held, waited) = bell.wait_timeout(held, ASKED_EVERY).unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return Ok(held);
        }
        drop(held);
        if give_up() { Err(DataError::Stopped) } else { Ok(lock(mutex)) }
    }
}
