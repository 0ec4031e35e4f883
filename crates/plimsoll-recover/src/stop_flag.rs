//! The worker's side of what it is asked by signal: flags that the training loop reads between steps.
//!
//! A signal that was being ignored when the process started (`nohup`, `&` in a script) stays ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::RecoverError;

/// What somebody has asked this process to do.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    stop: Arc<AtomicBool>,
    hand_over: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
}

impl StopFlag {
    /// Takes over `SIGTERM`, `SIGINT` and `SIGHUP` (stop), `SIGUSR2` (hand over to another worker) and `SIGUSR1` (save)
    /// for the rest of the process's life.
    pub fn install() -> Result<StopFlag, RecoverError> {
        let asked = Asked::default();
        let flags = [SIGTERM, SIGINT, SIGHUP].map(|signal| (signal, &asked.stop));
        for (signal, flag) in flags.into_iter().chain([(SIGUSR2, &asked.hand_over), (SIGUSR1, &asked.save)]) {
            if [SIGINT, SIGHUP].contains(&signal) && is_ignored(signal) {
                continue;
            }
            signal_hook::flag::register(signal, Arc::clone(flag)).map_err(|source| not_taken(signal, source))?;
        }
        Ok(StopFlag(Arc::new(asked)))
    }

    /// Whether to save and end, for whatever reason.
    pub fn requested(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed) || self.0.hand_over.load(Ordering::Relaxed)
    }

    /// Whether the reason is that another worker goes on.
    pub fn handing_over(&self) -> bool {
        self.0.hand_over.load(Ordering::Relaxed) && !self.0.stop.load(Ordering::Relaxed)
    }

    /// Goes on training instead of handing over.
    pub fn decline_to_hand_over(&self) {
        self.0.hand_over.store(false, Ordering::Relaxed);
    }

    /// Whether to save and go on; asked once for each time.
    pub fn take_save(&self) -> bool {
        self.0.save.swap(false, Ordering::Relaxed)
    }

    /// Whether anything is asked for that is done between two steps.
    pub fn asks_anything(&self) -> bool {
        self.requested() || self.0.save.load(Ordering::Relaxed)
    }

    /// Asks for a stop from inside the process.
    pub fn request(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
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
