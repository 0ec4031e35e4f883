//! A journal's times, added up.
//!
//! Clocks jump and workers are killed inside a step, so the wall time is never less than the parts that were measured
//! with a monotonic clock; what is left over is "between".

use plimsoll_machine::Bytes;
use plimsoll_watch::Event;

use crate::doctor::attempts::Attempt;
use crate::doctor::diagnosis::Split;

/// The times of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Every step that was done, repeated ones too.
    pub steps: Vec<StepTime>,
    /// Wall time of all attempts.
    pub wall: f64,
    /// By what it was spent on.
    pub split: Split,
    /// Saves.
    pub saves: u64,
    /// Evaluations.
    pub evals: u64,
    /// The highest RAM under the last plan.
    pub ram: Bytes,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Its wall time.
    pub seconds: f64,
    /// Of it, waiting for data.
    pub data: f64,
    /// Its tokens.
    pub tokens: u64,
    /// The first of its process.
    pub first: bool,
}

impl StepTime {
    /// The time that it computed.
    pub fn compute(&self) -> f64 {
        self.seconds - self.data
    }

    /// Reads a step; one that is no sane time is none.
    pub fn of(event: &Event, first: bool) -> Option<StepTime> {
        let Event::Step { seconds, data_seconds, tokens, .. } = *event else { return None };
        let sane = |time: f64| (0.0..1e9).contains(&time);
        (sane(seconds) && sane(data_seconds)).then(|| StepTime {
            seconds,
            data: data_seconds.min(seconds),
            tokens,
            first,
        })
    }
}

/// Adds up.
pub fn measure(attempts: &[Attempt<'_>]) -> Measured {
    let mut all = Measured::default();
    for (nth, attempt) in attempts.iter().enumerate() {
        let mut split = Split::default();
        let mut started: Option<u64> = None;
        let sane = |time: f64| if (0.0..1e9).contains(&time) { time } else { 0.0 };
        for record in attempt.records {
            match &record.event {
                step @ Event::Step { ram_bytes, .. } => {
                    let Some(step) = StepTime::of(step, started.is_none()) else { continue };
                    started.get_or_insert(record.unix_ms.saturating_sub((step.seconds * 1000.0) as u64));
                    split.data += step.data;
                    split.compute += step.compute();
                    all.steps.push(step);
                    see(&mut all.ram, nth + 1 == attempts.len(), *ram_bytes);
                }
                Event::Sample { ram_bytes, .. } => see(&mut all.ram, nth + 1 == attempts.len(), *ram_bytes),
                Event::Saved { waited_seconds, .. } => {
                    split.save += sane(*waited_seconds);
                    all.saves += 1;
                }
                Event::Eval { seconds, .. } => {
                    split.eval += sane(*seconds);
                    all.evals += 1;
                }
                _ => {}
            }
        }
        let wall = attempt.worked_until().saturating_sub(attempt.began()) as f64 / 1000.0;
        let start = started.unwrap_or(attempt.worked_until()).saturating_sub(attempt.began()) as f64 / 1000.0;
        split.start = start.min(wall);
        let parts = split.start + split.data + split.compute + split.save + split.eval;
        split.between = (wall - parts).max(0.0);
        all.wall += parts + split.between;
        all.split = add(all.split, split);
    }
    all
}

/// The peak under the last plan: earlier attempts may have had another.
fn see(peak: &mut Bytes, last: bool, seen: Bytes) {
    if last {
        *peak = (*peak).max(seen);
    }
}

fn add(a: Split, b: Split) -> Split {
    Split {
        start: a.start + b.start,
        data: a.data + b.data,
        compute: a.compute + b.compute,
        save: a.save + b.save,
        eval: a.eval + b.eval,
        between: a.between + b.between,
    }
}

/// The middle; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
