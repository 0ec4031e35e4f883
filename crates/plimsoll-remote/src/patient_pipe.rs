//! A pipe to or from ssh, on which nobody waits for longer than the pulse behind it lasts.
//!
//! Invariant: this holds whoever has the other end. A process that is killed may have left it to one of its own: a wrapper to the
//! ssh that it started.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};

use crate::pulse::Pulse;

/// Between two looks at the pulse.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// An end of a pipe, and the pulse of whoever is at the other one.
pub(crate) struct PatientPipe<P> {
    pipe: P,
    pulse: Pulse,
}

impl<P: AsFd> PatientPipe<P> {
    /// Of an end that nobody else has.
    pub fn new(pipe: P, pulse: Pulse) -> std::io::Result<PatientPipe<P>> {
        ioctl_fionbio(&pipe, true)?;
        Ok(PatientPipe { pipe, pulse })
    }

    /// Does `deed` as soon as the pipe is ready for it.
    fn once<T>(&mut self, ready: PollFlags, mut deed: impl FnMut(&mut P) -> std::io::Result<T>) -> std::io::Result<T> {
        loop {
            match deed(&mut self.pipe) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                done => return done,
            }
            if self.pulse.is_gone() {
                return Err(ErrorKind::TimedOut.into());
            }
            match poll(&mut [PollFd::new(&self.pipe, ready)], Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<P: AsFd + Read> Read for PatientPipe<P> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.once(PollFlags::IN, |pipe| pipe.read(into))?;
        self.pulse.beat();
        Ok(read)
    }
}

impl<P: AsFd + Write> Write for PatientPipe<P> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.once(PollFlags::OUT, |pipe| pipe.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.pipe.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_waits_for_who_is_gone_and_what_goes_through_goes_through() {
        let (from, to) = std::io::pipe().unwrap();
        let hour = || Pulse::heard(Duration::from_secs(3600));
        let mut to = PatientPipe::new(to, hour()).unwrap();
        let mut from = PatientPipe::new(from, hour()).unwrap();
        let all: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| to.write_all(&all).unwrap());
            let mut came = vec![0; all.len()];
            from.read_exact(&mut came).unwrap();
            assert!(came == all);
        });
        // Both ends stay open.
        from.pulse = Pulse::awaited(Duration::ZERO);
        assert_eq!(from.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        to.pulse = Pulse::awaited(Duration::ZERO);
        assert_eq!(to.write_all(&all).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
