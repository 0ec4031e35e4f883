//! A run folder that is looked at again and again: its journal, its plan's lines, and whether anybody works on it.
//!
//! Invariant: nothing is written, and the run's lock is touched as little as can be. A journal that has just grown
//! proves that somebody is there; only where it is silent is the lock tried, shared and for an instant; and once
//! nobody was found, not again until the journal grows. A trainer that takes the lock in that instant tries again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_machine::Bytes;
use plimsoll_recover::RunLock;
use plimsoll_watch::{Tail, View, WatchError};

/// A journal that grew so lately has somebody who writes it.
const FRESH: Duration = Duration::from_secs(2);

/// A run folder that is followed.
#[derive(Debug)]
pub struct Following {
    run: PathBuf,
    tail: Tail,
    /// When the journal was seen to grow.
    grew: Option<Instant>,
    pulse: Pulse,
}

/// What is known of who holds the lock.
#[derive(Clone, Copy, Debug)]
enum Pulse {
    /// Somebody did, when it was tried.
    Held(Instant),
    /// Nobody.
    Gone,
    /// It has not been tried since the journal grew.
    Unknown,
}

impl Following {
    /// Follows the run in `run`.
    pub fn of(run: &Path) -> Following {
        let tail = Tail::new(&run.join("journal.jsonl"), Vec::new());
        Following { run: run.to_path_buf(), tail, grew: None, pulse: Pulse::Unknown }
    }

    /// Whether the journal was there at the last look.
    pub fn has_journal(&self) -> bool {
        self.tail.found()
    }

    /// The run as it is now.
    pub fn look(&mut self) -> Result<View, WatchError> {
        let first = !self.tail.found();
        if self.tail.advance()? {
            self.tail.set_plan(plan_lines(&self.run));
            // What was there before the first look says nothing about now.
            self.grew = (!first).then(Instant::now);
            self.pulse = Pulse::Unknown;
        }
        let alive = self.alive()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        Ok(self.tail.view(now, alive))
    }

    fn alive(&mut self) -> Result<bool, WatchError> {
        if self.grew.is_some_and(|grew| grew.elapsed() < FRESH) {
            return Ok(true);
        }
        // Without a journal nothing can grow: the lock is all there is.
        let ask = match self.pulse {
            Pulse::Held(at) => at.elapsed() >= FRESH,
            Pulse::Gone => !self.tail.found(),
            Pulse::Unknown => true,
        };
        if ask {
            self.pulse = if RunLock::is_held(&self.run)? { Pulse::Held(Instant::now()) } else { Pulse::Gone };
        }
        Ok(matches!(self.pulse, Pulse::Held(_)))
    }
}

/// The lines of the run's plan, in its order. The journal has them too, by name, so a plan that cannot be read costs
/// the order and nothing else.
fn plan_lines(run: &Path) -> Vec<(String, Bytes)> {
    let plan = fs_err::read(run.join("plan.json")).ok();
    let plan = plan.and_then(|text| serde_json::from_slice::<plimsoll_plan::choose::Plan>(&text).ok());
    plan.map_or_else(Vec::new, |plan| plan.ram.parts.into_iter().map(|part| (part.name, part.bytes)).collect())
}

#[cfg(test)]
mod tests {
    use plimsoll_watch::view::Status;
    use plimsoll_watch::{Event, Journal};

    use super::*;

    #[test]
    fn a_run_lives_while_its_lock_is_held_or_its_journal_has_just_grown() {
        let run = tempfile::tempdir().unwrap();
        let lock = RunLock::take(run.path(), Duration::ZERO).unwrap();
        let mut following = Following::of(run.path());
        assert_eq!(following.look().unwrap().status, Status::Running, "no journal yet, but somebody is there");
        let mut journal = Journal::create(&run.path().join("journal.jsonl")).unwrap();
        let mut warn = || journal.record(&Event::Warning { step: 1, message: "x".into() }).unwrap();
        warn();
        assert_eq!(following.look().unwrap().status, Status::Running);
        drop(lock);
        assert_eq!(Following::of(run.path()).look().unwrap().status, Status::Dead);
        // To see it grow is to see somebody, without asking the lock.
        warn();
        assert_eq!(following.look().unwrap().status, Status::Running);
    }

    #[test]
    fn looking_leaves_the_lock_to_others_and_makes_none() {
        let run = tempfile::tempdir().unwrap();
        assert!(!RunLock::is_held(run.path()).unwrap());
        assert!(!run.path().join(".lock").exists());
        drop(RunLock::take(run.path(), Duration::ZERO).unwrap());
        assert!(!RunLock::is_held(run.path()).unwrap());
        let lock = RunLock::take(run.path(), Duration::ZERO).unwrap();
        assert!(RunLock::is_held(run.path()).unwrap());
        drop(lock);
    }
}
