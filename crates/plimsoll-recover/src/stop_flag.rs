//! The worker's side of a stop: a flag that signals set and the training loop reads between steps.
//!
//! A signal that was being ignored when the process started (`nohup`, `&` in a script) stays ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::RecoverError;

/// Whether somebody has asked this process to save and stop.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Takes over `SIGTERM`, `SIGINT` and `SIGHUP` for the rest of the process's life.
    pub fn install() -> Result<StopFlag, RecoverError> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            if signal != SIGTERM && is_ignored(signal) {
                continue;
            }
            signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(|source| not_taken(signal, source))?;
        }
        Ok(StopFlag(flag))
    }

    /// Whether a stop was asked for.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks for a stop from inside the process.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn not_taken(signal: i32, source: std::io::Error) -> RecoverError {
    RecoverError::Call { call: "sigaction", place: format!("signal {signal}"), source }
}

/// Whether the process was started with this signal ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut current = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action `sigaction` only writes the present one, for which there is room.
    let done = unsafe { libc::sigaction(signal, std::ptr::null(), current.as_mut_ptr()) };
    // SAFETY: an all-zero `sigaction` is a valid value, and the call has filled it in if it succeeded.
    done == 0 && unsafe { current.assume_init() }.sa_sigaction == libc::SIG_IGN
}
