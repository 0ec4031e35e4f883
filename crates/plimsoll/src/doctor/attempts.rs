//! A journal cut into attempts, one worker process each, and what is left of them. Pure.
//!
//! An attempt begins with the first of the lines about a start: the supervisor's, the plan's, the run's. Two processes
//! write them, so their order is not fixed. What mirror and supervisor add after an end belongs to what ended.

use std::collections::BTreeMap;

use plimsoll_watch::{Event, Record};

/// One worker's life.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Its lines; never empty.
    pub records: &'a [Record],
    /// How it ended.
    pub end: End<'a>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End<'a> {
    /// The journal does not say.
    Open,
    /// All steps are done.
    Finished,
    /// The worker stopped and could be resumed.
    Stopped {
        /// Why.
        reason: &'a str,
    },
    /// The supervisor saw it die.
    Incident(&'a Event),
}

/// The supervisor's line about a worker's start may come a little after the worker's own first lines.
const LATE_MS: u64 = 10_000;

/// What an attempt has told so far.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    opened_at: u64,
    worker: bool,
    planned: bool,
    begun: bool,
    working: bool,
    ended: bool,
}

impl Told {
    /// Whether `record` begins the next attempt.
    fn is_over(&self, record: &Record) -> bool {
        match &record.event {
            Event::WorkerStarted { .. } => {
                self.worker || self.ended || record.unix_ms.saturating_sub(self.opened_at) > LATE_MS
            }
            Event::Planned { .. } => self.planned || self.working || self.ended,
            Event::RunStarted { .. } | Event::Resumed { .. } => self.begun || self.working || self.ended,
            _ => false,
        }
    }

    fn note(&mut self, record: &Record) {
        match &record.event {
            Event::WorkerStarted { .. } => self.worker = true,
            Event::Planned { .. } => self.planned = true,
            Event::RunStarted { .. } | Event::Resumed { .. } => self.begun = true,
            Event::Finished { .. } | Event::Stopped { .. } | Event::Incident { .. } => self.ended = true,
            Event::Step { .. } | Event::Skipped { .. } | Event::Eval { .. } | Event::Saved { .. } => {
                self.working = true
            }
            _ => {}
        }
    }
}

/// The attempts of a journal, in order.
pub fn attempts(records: &[Record]) -> Vec<Attempt<'_>> {
    let mut starts = Vec::new();
    let mut told = Told::default();
    for (at, record) in records.iter().enumerate() {
        if at == 0 || told.is_over(record) {
            starts.push(at);
            told = Told { opened_at: record.unix_ms, ..Told::default() };
        }
        told.note(record);
    }
    let ends = starts.iter().skip(1).copied().chain([records.len()]);
    let cut = starts.iter().copied().zip(ends);
    cut.map(|(from, to)| Attempt { records: &records[from..to], end: end(&records[from..to]) }).collect()
}

fn end(records: &[Record]) -> End<'_> {
    let mut end = End::Open;
    for record in records {
        match &record.event {
            Event::Finished { .. } => end = End::Finished,
            // The supervisor's word weighs more than the worker's: it writes after it, and with evidence.
            Event::Stopped { reason, .. } if !matches!(end, End::Incident(_) | End::Finished) => {
                end = End::Stopped { reason }
            }
            Event::Incident { kind, .. } if kind == "stopped_by_user" && end != End::Open => {}
            Event::Incident { kind, .. } if kind == "stopped_by_user" => end = End::Stopped { reason: "asked to stop" },
            incident @ Event::Incident { .. } => end = End::Incident(incident),
            _ => {}
        }
    }
    end
}

impl<'a> Attempt<'a> {
    /// When its first line was written.
    pub fn began(&self) -> u64 {
        self.records.first().map_or(0, |record| record.unix_ms)
    }

    /// When its last line of work was written; what mirror and supervisor add later does not count.
    pub fn worked_until(&self) -> u64 {
        let work = |record: &&Record| !matches!(record.event, Event::Mirrored { .. } | Event::MirrorTrouble { .. });
        let until = self.records.iter().rev().find(work).map_or(0, |record| record.unix_ms);
        until.max(self.began())
    }

    /// The supervisor's line about its start.
    pub fn worker(&self) -> Option<&'a Event> {
        self.find(|event| matches!(event, Event::WorkerStarted { .. }))
    }

    /// Its last plan.
    pub fn planned(&self) -> Option<&'a Event> {
        self.find(|event| matches!(event, Event::Planned { .. }))
    }

    /// Its last words.
    pub fn failed(&self) -> Option<&'a Event> {
        self.find(|event| matches!(event, Event::Failed { .. }))
    }

    /// The last line that `wanted` holds for.
    pub fn find(&self, wanted: impl Fn(&Event) -> bool) -> Option<&'a Event> {
        self.records.iter().rev().map(|record| &record.event).find(|event| wanted(event))
    }
}

/// The steps that count: a resume voids what came after its checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// The last step that was done.
    pub step: u64,
    /// Steps to do.
    pub total: Option<u64>,
    /// Seconds of each step that counts.
    pub seconds: BTreeMap<u64, f64>,
    /// Steps that a resume threw away, over the whole run.
    pub repeated: u64,
    /// Resumes.
    pub resumes: u64,
    /// The newest checkpoint that the journal tells of.
    pub saved: Option<u64>,
    /// The last step with a finite loss that was not skipped.
    pub finite: Option<Finite>,
    /// The one before it.
    finite_before: Option<Finite>,
}

/// A step whose loss was a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finite {
    /// Which.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// Its learning rate; 0 where the optimizer takes its own.
    pub lr: f64,
    /// Its gradient's norm.
    pub grad_norm: Option<f64>,
}

/// Walks a journal.
pub fn course(records: &[Record]) -> Course {
    let mut course = Course::default();
    // Of somebody else's trainer: when its last step was told.
    let mut told: Option<u64> = None;
    for record in records {
        match &record.event {
            Event::Launched { .. } => told = Some(record.unix_ms),
            Event::Progress { step, total, loss } => {
                let since = told.replace(record.unix_ms).unwrap_or(record.unix_ms);
                let seconds = record.unix_ms.saturating_sub(since) as f64 / 1000.0;
                (course.step, course.total) = (*step, total.or(course.total));
                course.seconds.insert(*step, seconds);
                if let Some(loss) = loss.filter(|loss| loss.is_finite()) {
                    course.finite = Some(Finite { step: *step, loss, lr: 0.0, grad_norm: None });
                }
            }
            // What it did since is told by its end alone.
            Event::Incident { step, .. } if told.is_some() => course.step = course.step.max(*step),
            Event::RunStarted { total_steps, .. } => {
                let total = Some(*total_steps).filter(|total| *total > 0);
                course = Course { total, repeated: course.repeated, resumes: course.resumes, ..Course::default() };
            }
            Event::Resumed { step, .. } => {
                course.repeated += course.step.saturating_sub(*step);
                course.resumes += 1;
                course.step = *step;
                course.seconds.retain(|&done, _| done <= *step);
                course.finite = course.finite.filter(|finite| finite.step <= *step);
            }
            Event::Step { step, loss, lr, grad_norm, seconds, .. } => {
                course.step = *step;
                course.seconds.insert(*step, if seconds.is_finite() { seconds.max(0.0) } else { 0.0 });
                if loss.is_finite() {
                    let finite = Finite { step: *step, loss: *loss, lr: *lr, grad_norm: *grad_norm };
                    course.finite_before = course.finite.replace(finite);
                }
            }
            Event::Skipped { step, .. } => {
                course.step = course.step.max(*step);
                // A finite loss whose gradient is not.
                if course.finite.is_some_and(|finite| finite.step == *step) {
                    course.finite = course.finite_before;
                }
            }
            Event::Saved { step, .. } => course.saved = course.saved.max(Some(*step)),
            Event::Finished { steps, .. } => course.step = course.step.max(*steps),
            _ => {}
        }
    }
    course
}
