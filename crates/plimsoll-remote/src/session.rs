//! A far folder, and the way there: connects, brings the program where it is missing, and tries again where a connection
//! breaks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_machine::Bytes;

use crate::link::Opened;
use crate::{Digest, Link, RemoteError, Ssh, bootstrap, digest_of_file};

/// Connections in a row that may break without anything having been done.
const PATIENCE: u32 = 5;
/// A connection that stood for so long broke by chance, whatever was done over it: half of that is the silence in which one is
/// left.
const LONG: Duration = Duration::from_secs(120);

/// What is told meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The program is being copied.
    Program {
        /// Bytes there.
        sent: Bytes,
        /// Of so many.
        total: Bytes,
    },
    /// The connection broke; it is tried again after a while.
    Again {
        /// Why.
        why: String,
        /// When.
        after: Duration,
    },
}

/// A far folder that can be connected to.
#[derive(Clone, Debug)]
pub struct Session {
    ssh: Ssh,
    program: PathBuf,
    digest: Digest,
}

impl Session {
    /// With `program` on the far side, which must be this one.
    pub fn new(ssh: Ssh, program: &Path) -> Result<Session, RemoteError> {
        Ok(Session { ssh, program: program.to_path_buf(), digest: digest_of_file(program)? })
    }

    /// The way there.
    pub fn ssh(&self) -> &Ssh {
        &self.ssh
    }

    /// The far program, as a word of a shell.
    pub fn far_program(&self) -> String {
        format!("{}/bin/plimsoll-{}", self.ssh.address().dir_word(), self.digest)
    }

    /// A connection, with the program brought there first where it is not.
    pub fn open(&self, note: &mut dyn FnMut(Note)) -> Result<Link, RemoteError> {
        let host = || self.ssh.address().host().to_string();
        let script = bootstrap::opening(self.ssh.address(), &self.digest);
        let facts = match Link::open(&self.ssh, &script)? {
            Opened::Link(link) => return Ok(*link),
            Opened::Absent(facts) => facts,
        };
        let mut told = |sent, total| note(Note::Program { sent, total });
        match self.bring(&facts, &mut told) {
            // What came before was not what it should be, or somebody took it away: once more from the beginning.
            Err(RemoteError::Damaged { .. }) => match Link::open(&self.ssh, &script)? {
                Opened::Link(link) => return Ok(*link),
                Opened::Absent(facts) => self.bring(&facts, &mut told)?,
            },
            other => other?,
        }
        match Link::open(&self.ssh, &script)? {
            Opened::Link(link) => Ok(*link),
            Opened::Absent(facts) => Err(RemoteError::Junk { host: host(), found: crate::ssh::last_lines(&facts) }),
        }
    }

    fn bring(&self, facts: &str, told: &mut dyn FnMut(Bytes, Bytes)) -> Result<(), RemoteError> {
        let found = bootstrap::facts(facts).ok_or_else(|| RemoteError::Junk {
            host: self.ssh.address().host().to_string(),
            found: crate::ssh::last_lines(facts),
        })?;
        bootstrap::install(&self.ssh, &self.program, &self.digest, &found, told)
    }

    /// Does `deed` over a connection, and again over the next one where that breaks: as long as each gets further, which
    /// `done` counts, or stands for long, and a few times more. A host that cannot be reached at the first try is told at once.
    pub fn patiently<T>(
        &self,
        note: &mut dyn FnMut(Note),
        mut deed: impl FnMut(&Link) -> Result<T, RemoteError>,
        mut done: impl FnMut() -> u64,
    ) -> Result<T, RemoteError> {
        let (mut tries, mut before, mut stood) = (0, 0, false);
        loop {
            let mut sent = 0;
            let opened = self.open(&mut |told| {
                if let Note::Program { sent: now, .. } = &told {
                    sent = now.0;
                }
                note(told);
            });
            stood |= opened.is_ok() || sent > 0;
            let began = Instant::now();
            let error = match opened.and_then(|link| deed(&link)) {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            // One that stood before may be away for a moment.
            let away = matches!(error, RemoteError::Unreachable { .. } | RemoteError::Silent { .. });
            let again = error.is_cut() || (stood && away);
            let now = done().saturating_add(sent);
            tries = in_a_row(tries, now > before, began.elapsed());
            before = before.max(now);
            if !again || tries >= PATIENCE {
                return Err(error);
            }
            let after = Duration::from_millis(500) * 2u32.pow(tries);
            note(Note::Again { why: error.to_string(), after });
            std::thread::sleep(after);
        }
    }
}

/// Connections that broke in a row, this one too: one that got further or stood for long begins a new row.
fn in_a_row(before: u32, further: bool, stood: Duration) -> u32 {
    if further || stood >= LONG { 0 } else { before + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_breaks_without_progress_in_a_row_are_counted() {
        assert_eq!(in_a_row(4, false, Duration::from_secs(60)), 5);
        assert_eq!(in_a_row(4, true, Duration::ZERO), 0);
        // It was followed for hours, and nothing was said meanwhile.
        assert_eq!(in_a_row(4, false, Duration::from_secs(120)), 0);
    }
}
