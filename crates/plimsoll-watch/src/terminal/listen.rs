//! What the viewer's end says: keys, a changed size, or that it is over. One place waits for all of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::isatty;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::low_level::{pipe, unregister};

use super::keys::{Key, is_cut, keys};

/// A sequence that does not go on for so long has ended.
const WITHIN_A_KEY: Duration = Duration::from_millis(50);

/// What happened while waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Keys were pressed.
    Keys(Vec<Key>),
    /// It is time, or the size has changed.
    Woken,
    /// The process shall end, or the terminal is gone.
    Ended,
}

/// The terminal's input, and the signals of this process while it lives.
#[derive(Debug)]
pub(super) struct Listener {
    input: OwnedFd,
    signals: UnixStream,
    ended: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Listener {
    pub fn new() -> io::Result<Listener> {
        let stdin = rustix::stdio::stdin();
        let input = match isatty(stdin) {
            true => rustix::io::fcntl_dupfd_cloexec(stdin, 3)?,
            false => fs_err::File::open("/dev/tty")?.into_parts().0.into(),
        };
        let (signals, wake) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        let mut listener = Listener { input, signals, ended: Arc::default(), ids: Vec::new() };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // Before the waking, so that who wakes sees it.
            listener.ids.push(signal_hook::flag::register(signal, Arc::clone(&listener.ended))?);
        }
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGWINCH] {
            listener.ids.push(pipe::register(signal, wake.try_clone()?)?);
        }
        Ok(listener)
    }

    /// Waits until `until` for something to happen.
    pub fn wait(&mut self, until: Instant) -> io::Result<News> {
        let (input, woken) = self.ready(until.saturating_duration_since(Instant::now()))?;
        if woken {
            let mut drained = [0; 64];
            while matches!(rustix::io::read(&self.signals, &mut drained), Ok(1..)) {}
        }
        if self.ended.load(Ordering::SeqCst) {
            return Ok(News::Ended);
        }
        if !input {
            return Ok(News::Woken);
        }
        let mut bytes = Vec::new();
        if !self.read(&mut bytes) {
            return Ok(News::Ended);
        }
        while is_cut(&bytes) && self.ready(WITHIN_A_KEY)?.0 {
            if !self.read(&mut bytes) {
                return Ok(News::Ended);
            }
        }
        Ok(News::Keys(keys(&bytes)))
    }

    /// Whether input and signals have something to say within `time`.
    fn ready(&self, time: Duration) -> io::Result<(bool, bool)> {
        let mut waited =
            [self.input.as_fd(), self.signals.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut waited, Some(&time)) {
            // What interrupted it has written into the pipe.
            Ok(_) | Err(Errno::INTR) => Ok((!waited[0].revents().is_empty(), !waited[1].revents().is_empty())),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what was typed; false where nobody can type any more.
    fn read(&self, into: &mut Vec<u8>) -> bool {
        let mut block = [0; 256];
        match rustix::io::read(&self.input, &mut block) {
            Ok(0) => false,
            Ok(got) => {
                into.extend_from_slice(&block[..got]);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            unregister(id);
        }
    }
}
