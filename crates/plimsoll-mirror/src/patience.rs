//! Trying again: how long to wait, when to stop, and what to tell of it.
//!
//! Invariant: beside a run it never gives up; a trouble is told when it begins and when it changes, not at each try.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plimsoll_machine::Bytes;
use tokio::sync::watch;

use crate::report::{Mode, Report};
use crate::trouble::{Nature, Trouble, trouble};
use crate::{MirrorError, source};

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);
/// The longest one.
const LONGEST: Duration = Duration::from_secs(30);
/// The wait where only a person can help.
pub(crate) const SLOW: Duration = Duration::from_secs(60);
/// Tries in a row, for somebody who waits.
const TRIES: u32 = 10;

/// How long to wait after `tries` failures in a row, or `None` to give up. `chance` is from 0 to 1: two that failed
/// together do not come back together.
pub(crate) fn wait(nature: Nature, tries: u32, mode: Mode, chance: f64) -> Option<Duration> {
    match (nature, mode) {
        (Nature::Lasting, Mode::Following) => Some(SLOW),
        (Nature::Lasting, _) => None,
        (_, Mode::Once) if tries >= TRIES => None,
        _ => {
            let doubled = FIRST.saturating_mul(1 << tries.saturating_sub(1).min(10));
            Some(doubled.min(LONGEST).mul_f64(0.5 + 0.5 * chance))
        }
    }
}

/// Who is told.
type Listener<'a> = Rc<RefCell<&'a mut dyn FnMut(Report)>>;

/// Who tells, and who waits. A clone has the same listener and remembers the same trouble.
#[derive(Clone)]
pub(crate) struct Patience<'a> {
    url: String,
    mode: watch::Receiver<Mode>,
    report: Listener<'a>,
    told: Rc<RefCell<Option<String>>>,
    tries: Rc<Cell<u32>>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(url: &str, mode: watch::Receiver<Mode>, report: &'a mut dyn FnMut(Report)) -> Patience<'a> {
        let (url, report) = (url.trim_end_matches('/').to_string(), Rc::new(RefCell::new(report)));
        Patience { url, mode, report, told: Rc::default(), tries: Rc::default() }
    }

    pub(crate) fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// Waits for a time, or until the mode changes.
    pub(crate) async fn rest(&self, time: Duration) {
        let mut mode = self.mode.clone();
        mode.mark_unchanged();
        let changed = async {
            // Where nobody can change the mode any more, the time alone counts.
            if mode.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = changed => {}
        }
    }

    pub(crate) fn tell(&self, report: Report) {
        (self.report.borrow_mut())(report);
    }

    pub(crate) fn progress(&self, step: Option<u64>, done: Bytes, total: Bytes) {
        self.tell(Report::Progress { step, done, total });
    }

    /// Tells a trouble, unless it was told last.
    pub(crate) fn trouble(&self, message: String) {
        if self.told.borrow().as_ref() != Some(&message) {
            *self.told.borrow_mut() = Some(message.clone());
            self.tell(Report::Trouble { message });
        }
    }

    /// Something worked.
    pub(crate) fn well(&self) {
        self.tries.set(0);
        if self.told.take().is_some() {
            self.tell(Report::Recovered);
        }
    }

    /// Something failed: tells it and waits; or gives up.
    pub(crate) async fn weather(&self, trouble: Trouble) -> Result<(), MirrorError> {
        let tries = self.tries.get() + 1;
        self.tries.set(tries);
        let (url, problem) = (self.url.clone(), trouble.problem);
        match wait(trouble.nature, tries, self.mode(), source::chance()) {
            Some(time) => {
                self.trouble(format!("`{url}` {problem}"));
                self.rest(time).await;
                Ok(())
            }
            None if trouble.nature == Nature::Passing => Err(MirrorError::Unreachable { url, problem }),
            None => Err(MirrorError::Refused { url, problem }),
        }
    }

    /// Does `deed` until it is done; `None` where the answer is that something is not there.
    pub(crate) async fn persist<T>(
        &self,
        deed: impl AsyncFnMut() -> object_store::Result<T>,
    ) -> Result<Option<T>, MirrorError> {
        self.persist_unless(deed, |_| false).await
    }

    /// The same; what `over` says of is an answer, too.
    pub(crate) async fn persist_unless<T>(
        &self,
        mut deed: impl AsyncFnMut() -> object_store::Result<T>,
        over: impl Fn(Nature) -> bool,
    ) -> Result<Option<T>, MirrorError> {
        loop {
            let failed = match deed().await {
                Ok(value) => {
                    self.well();
                    return Ok(Some(value));
                }
                Err(error) => trouble(&error),
            };
            match failed.nature {
                Nature::Absent | Nature::Gone => return Ok(None),
                nature if over(nature) => return Ok(None),
                Nature::Lasting | Nature::Passing => self.weather(failed).await?,
            }
        }
    }

    /// The same, where nothing to be found is a failure, too.
    pub(crate) async fn insist<T>(
        &self,
        mut deed: impl AsyncFnMut() -> object_store::Result<T>,
    ) -> Result<T, MirrorError> {
        loop {
            if let Some(value) = self.persist(&mut deed).await? {
                return Ok(value);
            }
            let problem = "answers that what was just written is not there".to_string();
            self.weather(Trouble { nature: Nature::Passing, problem }).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute_and_scatter() {
        let at = |tries, chance| wait(Nature::Passing, tries, Mode::Following, chance).unwrap();
        assert_eq!(at(1, 1.0), FIRST);
        assert_eq!(at(1, 0.0), FIRST / 2);
        assert_eq!(at(3, 1.0), FIRST * 4);
        assert_eq!(at(500, 1.0), LONGEST);
    }

    #[test]
    fn beside_a_run_nothing_is_given_up_and_what_only_a_person_cures_is_tried_slowly() {
        assert_eq!(wait(Nature::Lasting, 1000, Mode::Following, 0.3), Some(SLOW));
        assert!(wait(Nature::Passing, u32::MAX, Mode::Following, 0.3).is_some());
        assert!(wait(Nature::Passing, u32::MAX, Mode::Finishing, 0.3).is_some());
    }

    #[test]
    fn whoever_waits_is_not_kept_waiting_for_what_lasts() {
        assert_eq!(wait(Nature::Lasting, 1, Mode::Once, 0.5), None);
        assert_eq!(wait(Nature::Lasting, 1, Mode::Finishing, 0.5), None);
        assert!(wait(Nature::Passing, TRIES - 1, Mode::Once, 0.5).is_some());
        assert_eq!(wait(Nature::Passing, TRIES, Mode::Once, 0.5), None);
    }

    #[test]
    fn a_trouble_is_told_once_until_it_changes_or_ends() {
        let mut told = Vec::new();
        let (_keep, mode) = watch::channel(Mode::Following);
        let mut tell = |report| told.push(report);
        let patience = Patience::new("s3://b", mode, &mut tell);
        for message in ["a", "a", "b", "b"] {
            patience.trouble(message.to_string());
        }
        patience.well();
        patience.well();
        patience.trouble("b".to_string());
        drop(patience);
        let trouble = |message: &str| Report::Trouble { message: message.to_string() };
        assert_eq!(told, [trouble("a"), trouble("b"), Report::Recovered, trouble("b")]);
    }
}
