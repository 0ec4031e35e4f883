//! When checkpoints are written, and by whom: by the loop itself, which waits, or by a thread from a planned snapshot.
//!
//! Invariants: memory that is being changed is never written out; one checkpoint is written at a time; a periodic save
//! that fails is noted and the run goes on, since older checkpoints stand and the next save may find room.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_engine::Snapshot;
use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Kind;
use plimsoll_recover::{News, checkpoint};
use plimsoll_watch::{Event, SaveReason};

use super::last_words;
use super::run::Run;
use super::save::Content;
use crate::render::{self, Fail};

/// Stack of the writing thread; the plan has a line for it.
const STACK: usize = 256 << 10;
/// Between two looks at a disk that is full.
const PATIENCE: Duration = Duration::from_secs(1);

/// What decides whether a checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub step: u64,
    pub every: Option<u64>,
    pub minutes: Option<u64>,
    /// Since the last checkpoint, or the start.
    pub since: Duration,
    pub asked: bool,
    pub before_eval: bool,
}

/// Why a checkpoint is due, if it is.
pub(super) fn due(now: Due) -> Option<SaveReason> {
    if now.asked {
        Some(SaveReason::Pressure)
    } else if now.every.is_some_and(|n| n > 0 && now.step.is_multiple_of(n)) {
        Some(SaveReason::Steps)
    } else if now.before_eval {
        Some(SaveReason::BeforeEval)
    } else if now.minutes.is_some_and(|minutes| now.since >= Duration::from_secs(minutes * 60)) {
        Some(SaveReason::Time)
    } else {
        None
    }
}

/// Who writes.
pub(super) struct Saver {
    /// Where the plan has one and nobody writes from it.
    snapshot: Option<Snapshot>,
    writing: Option<Writing>,
    /// When the last save was begun.
    pub began: Instant,
    /// Why the last save failed, if it did.
    trouble: Option<String>,
}

/// Where a checkpoint is, and its length.
type Written = (PathBuf, Bytes);

struct Writing {
    thread: JoinHandle<(Snapshot, Result<Written, Fail>)>,
    step: u64,
    reason: SaveReason,
    began: Instant,
    waited: Duration,
}

impl Saver {
    pub fn new(snapshot: Option<Snapshot>) -> Saver {
        Saver { snapshot, writing: None, began: Instant::now(), trouble: None }
    }
}

impl Run<'_> {
    /// Saves if it is time to.
    pub(super) fn save_if_due(&mut self) -> Result<(), Fail> {
        self.collect(false);
        // What came up since the card was sent on waits for the step that it is at.
        if self.ahead.is_launched() {
            return Ok(());
        }
        let asked = self.stop.take_save();
        if !self.unsaved {
            return Ok(());
        }
        match self.save_due(self.step, asked, self.eval_due) {
            Some(reason) => self.save(reason).or_else(|fail| self.not_saved(fail)),
            None => Ok(()),
        }
    }

    /// Why a checkpoint is due after a step, as far as that is known now.
    pub(super) fn save_due(&self, step: u64, asked: bool, before_eval: bool) -> Option<SaveReason> {
        due(Due {
            step,
            every: self.settings.save_every,
            minutes: self.settings.save_minutes,
            since: self.saver.began.elapsed(),
            asked,
            before_eval,
        })
    }

    /// Saves after the current step, unless there is nothing that is not saved.
    pub(super) fn save_unless_saved(&mut self, reason: SaveReason) -> Result<(), Fail> {
        self.collect(true);
        if self.unsaved { self.save(reason) } else { Ok(()) }
    }

    fn save(&mut self, reason: SaveReason) -> Result<(), Fail> {
        if !self.engine.weights_are_finite()? {
            let fact = format!("the weights after step {} are not all finite numbers; they are not saved", self.step);
            return Err(self.not_finite(fact));
        }
        let began = Instant::now();
        self.collect(true);
        self.between_phases();
        self.saver.began = began;
        let content = Content::of(self, reason)?;
        let waiting = self.not_mirrored();
        let background = matches!(reason, SaveReason::Steps | SaveReason::Time | SaveReason::BeforeEval);
        if background && let Some(mut snapshot) = self.saver.snapshot.take() {
            self.engine.copy_to(&mut snapshot)?;
            let step = content.step;
            let write = move || {
                let written = content.write(&snapshot, &waiting);
                (snapshot, written)
            };
            let thread = std::thread::Builder::new().name("saver".into()).stack_size(STACK).spawn(write)?;
            self.unsaved = false;
            self.saver.writing = Some(Writing { thread, step, reason, began, waited: began.elapsed() });
            return Ok(());
        }
        let (path, bytes) = content.write(&self.engine, &waiting)?;
        self.unsaved = false;
        self.saved(content.step, reason, (path, bytes), began.elapsed(), began.elapsed());
        Ok(())
    }

    /// Takes the snapshot back from a thread that has written, or waits for one that still does.
    pub(super) fn collect(&mut self, wait: bool) {
        if !self.saver.writing.as_ref().is_some_and(|writing| wait || writing.thread.is_finished()) {
            return;
        }
        let Some(Writing { thread, step, reason, began, waited }) = self.saver.writing.take() else { return };
        match thread.join() {
            Ok((snapshot, written)) => {
                self.saver.snapshot = Some(snapshot);
                match written {
                    Ok(written) => self.saved(step, reason, written, began.elapsed(), waited),
                    Err(fail) => {
                        self.unsaved = true;
                        self.note_not_saved(step, &fail);
                    }
                }
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn saved(&mut self, step: u64, reason: SaveReason, what: Written, took: Duration, waited: Duration) {
        let (path, bytes) = what;
        (self.saved_at, self.saver.trouble) = (Some(step), None);
        if reason == SaveReason::Exit {
            self.exit_step = Some(step);
        }
        let (seconds, waited_seconds) = (took.as_secs_f64(), waited.as_secs_f64());
        self.note(&Event::Saved { step, path, bytes, seconds, waited_seconds, reason });
        self.tell(&News::Saved { step, seconds });
        self.sample(plimsoll_watch::Moment::Save);
    }

    /// A periodic save that failed: noted, and the run goes on. Weights that are not finite end it.
    fn not_saved(&mut self, fail: Fail) -> Result<(), Fail> {
        if self.poisoned {
            return Err(fail);
        }
        self.note_not_saved(self.step, &fail);
        Ok(())
    }

    pub(super) fn note_not_saved(&mut self, step: u64, fail: &Fail) {
        let reason = fail.fact.as_ref().map_or("unknown".to_string(), |fact| format!("{fact:#}"));
        let left = match self.saved_at {
            Some(step) => format!("the checkpoint of step {step} stands"),
            None => "there is no checkpoint yet".to_string(),
        };
        // The same trouble at every save is said once; the journal has them all.
        if self.saver.trouble.as_ref() != Some(&reason) {
            self.progress.note(&format!("step {step} is not saved: {reason}; {left}; the run goes on"));
            self.saver.trouble = Some(reason.clone());
        }
        self.note(&Event::NotSaved { step, reason });
    }

    /// Does `deed`; where a disk is full or fails, waits until it can be done or somebody asks us to stop: what this run
    /// holds in memory is lost otherwise.
    pub(super) fn with_patience(&mut self, mut deed: impl FnMut(&mut Self) -> Result<(), Fail>) -> Result<(), Fail> {
        let mut told = false;
        loop {
            match deed(self) {
                Err(fail) if worth_waiting(&fail) && !self.poisoned && !self.stop.requested() => {
                    if !std::mem::replace(&mut told, true) {
                        self.note_not_saved(self.step, &fail);
                        render::talk("waiting until it can be written; Ctrl-C gives up what is not saved");
                    }
                    std::thread::sleep(PATIENCE);
                }
                other => return other,
            }
        }
    }

    /// Steps that the mirror still lacks.
    fn not_mirrored(&self) -> Vec<u64> {
        if self.settings.mirror.is_none() {
            return Vec::new();
        }
        let state = plimsoll_mirror::state::read(self.folder).unwrap_or_default();
        let found = checkpoint::list(&self.folder.join("checkpoints")).unwrap_or_default();
        found.iter().map(|found| found.step).filter(|step| !state.lets_go(*step)).collect()
    }
}

/// Whether the same may succeed a little later.
pub(super) fn worth_waiting(fail: &Fail) -> bool {
    matches!(last_words::kind_of(fail), Some(Kind::DiskFull | Kind::IoError))
}

/// What to do about numbers that got out of hand.
pub(super) fn out_of_hand(saved_at: Option<u64>) -> String {
    let left = match saved_at {
        Some(step) => format!("the last checkpoint, of step {step}, is good"),
        None => "there is no checkpoint".to_string(),
    };
    format!("lower the learning rate, or clip gradients with clip_norm; {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Due = Due {
        step: 7,
        every: Some(5),
        minutes: Some(2),
        since: Duration::from_secs(60),
        asked: false,
        before_eval: false,
    };

    #[test]
    fn a_checkpoint_is_due_by_steps_by_time_before_an_evaluation_and_when_asked() {
        assert_eq!(due(QUIET), None);
        assert_eq!(due(Due { step: 10, ..QUIET }), Some(SaveReason::Steps));
        assert_eq!(due(Due { since: Duration::from_secs(120), ..QUIET }), Some(SaveReason::Time));
        assert_eq!(due(Due { before_eval: true, ..QUIET }), Some(SaveReason::BeforeEval));
        assert_eq!(due(Due { asked: true, step: 10, ..QUIET }), Some(SaveReason::Pressure));
        let never = Due { every: None, minutes: None, since: Duration::from_secs(1 << 30), ..QUIET };
        assert_eq!(due(never), None);
    }
}
