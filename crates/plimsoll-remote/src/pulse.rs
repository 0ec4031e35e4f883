//! Whether somebody is there still: when something was last heard, and who is ended when nothing comes any more.
//!
//! Invariant: nothing waits for ever for the other side. Who is busy here, and therefore does not listen, calls nobody gone.

use std::io::Read;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long each side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until the far side speaks at all: it logs in and starts.
    pub greeting: Duration,
    /// Without a byte, once it has. Both sides say something several times in that.
    pub silence: Duration,
    /// Between two signs of life.
    pub beat: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { greeting: Duration::from_secs(60), silence: Duration::from_secs(60), beat: Duration::from_secs(10) }
    }
}

/// When something was last heard.
#[derive(Clone, Debug)]
pub(crate) struct Pulse(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
enum State {
    /// The first word is awaited, whatever else is said before it.
    Awaited { by: Instant },
    /// Something is said again and again.
    Heard { last: Instant, limit: Duration },
    /// We do not listen.
    Busy { limit: Duration },
}

impl Pulse {
    /// Of somebody whose first word takes so long at most.
    pub fn awaited(within: Duration) -> Pulse {
        Pulse(Arc::new(Mutex::new(State::Awaited { by: Instant::now() + within })))
    }

    /// Of somebody who is there, and says something this often at least.
    pub fn heard(limit: Duration) -> Pulse {
        Pulse(Arc::new(Mutex::new(State::Heard { last: Instant::now(), limit })))
    }

    /// The first word has come; from here on nobody is silent for longer than `limit`.
    pub fn began(&self, limit: Duration) {
        self.set(|_| State::Heard { last: Instant::now(), limit });
    }

    /// Something has come.
    pub fn beat(&self) {
        self.set(|state| match state {
            State::Heard { limit, .. } | State::Busy { limit } => State::Heard { last: Instant::now(), limit },
            awaited => awaited,
        });
    }

    /// Nobody listens until the next beat.
    pub fn busy(&self) {
        self.set(|state| match state {
            State::Heard { limit, .. } => State::Busy { limit },
            other => other,
        });
    }

    /// Whether nothing has come for so long that nobody is there.
    pub fn is_gone(&self) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Awaited { by } => Instant::now() >= by,
            State::Heard { last, limit } => last.elapsed() >= limit,
            State::Busy { .. } => false,
        }
    }

    fn set(&self, next: impl FnOnce(State) -> State) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = next(*state);
    }
}

/// An input that notes when something comes.
pub(crate) struct Heard<R> {
    pub input: R,
    pub pulse: Pulse,
}

impl<R: Read> Read for Heard<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(into)?;
        self.pulse.beat();
        Ok(read)
    }
}

/// Between two looks at a pulse.
const LOOK: Duration = Duration::from_millis(100);

/// Kills a process of ours behind which nobody is any more, so that whoever reads from it or writes to it goes on.
pub(crate) struct Watchdog {
    bit: Arc<AtomicBool>,
    _stop: Sender<()>,
}

impl Watchdog {
    /// Over `child`, until dropped.
    pub fn over(child: &Child, pulse: Pulse) -> Watchdog {
        let (stop, stopped) = channel::<()>();
        let bit = Arc::new(AtomicBool::new(false));
        // Opened while nobody has reaped it, so the descriptor is this process whatever becomes of its number.
        let held = Pid::from_raw(child.id() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let biting = Arc::clone(&bit);
        std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if pulse.is_gone() {
                    biting.store(true, Ordering::SeqCst);
                    held.as_ref().map(|held| pidfd_send_signal(held, Signal::KILL));
                    return;
                }
            }
        });
        Watchdog { bit, _stop: stop }
    }

    /// Whether it had to.
    pub fn has_bitten(&self) -> bool {
        self.bit.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_before_the_first_word_wins_no_time_and_who_is_busy_calls_nobody_gone() {
        let pulse = Pulse::awaited(Duration::ZERO);
        pulse.beat();
        pulse.busy();
        assert!(pulse.is_gone());
        pulse.began(Duration::from_secs(3600));
        assert!(!pulse.is_gone());
        pulse.began(Duration::ZERO);
        assert!(pulse.is_gone());
        pulse.busy();
        assert!(!pulse.is_gone());
        pulse.beat();
        assert!(pulse.is_gone());
    }

    #[test]
    fn a_process_behind_which_nobody_is_ends() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let dog = Watchdog::over(&child, Pulse::awaited(Duration::ZERO));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(dog.has_bitten());
    }
}
