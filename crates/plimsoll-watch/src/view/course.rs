//! A run's own clock: it goes while a worker is there and stands while none is. On it, where the time went and how
//! fast the steps come.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{Event, Record};

/// How many steps count as the latest ones.
const LATELY: usize = 100;

/// Seconds of wall time, by what they were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Split {
    /// Steps that waited for data.
    pub data: f64,
    /// Steps that computed.
    pub compute: f64,
    /// Saves for which the steps stood still.
    pub save: f64,
    /// Evaluations.
    pub eval: f64,
    /// Planning, loading, and whatever the journal does not name.
    pub other: f64,
}

impl Split {
    /// All of it.
    pub fn wall(&self) -> f64 {
        self.data + self.compute + self.save + self.eval + self.other
    }

    /// Names and seconds, in the order in which they are shown.
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("compute", self.compute),
            ("data wait", self.data),
            ("save", self.save),
            ("evaluation", self.eval),
            ("other", self.other),
        ]
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    clock_ms: u64,
    spent: Split,
    tokens: u64,
}

/// A step and when it was done on the run's clock.
#[derive(Clone, Copy, Debug)]
struct Done {
    step: u64,
    clock_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    here: Mark,
    last_unix_ms: Option<u64>,
    /// No worker is there: time does not count.
    stands: bool,
    /// A worker has started and not yet said what it does.
    opened: bool,
    marks: VecDeque<Mark>,
    first: Option<Done>,
    newest: Option<Done>,
}

impl Course {
    pub fn take(&mut self, record: &Record) {
        match record.event {
            // Written by whoever copies, maybe days after the worker's end.
            Event::Mirrored { .. } | Event::MirrorTrouble { .. } => return,
            Event::WorkerStarted { .. } => self.begin(true),
            Event::RunStarted { .. } | Event::Resumed { .. } if !self.opened => self.begin(false),
            Event::RunStarted { .. } | Event::Resumed { .. } => self.opened = false,
            _ => {}
        }
        let passed = self.last_unix_ms.map_or(0, |last| record.unix_ms.saturating_sub(last));
        self.here.clock_ms += if self.stands { 0 } else { passed };
        self.last_unix_ms = Some(record.unix_ms);
        match record.event {
            Event::Step { step, tokens, seconds, data_seconds, .. } => {
                self.here.spent.data += counted(data_seconds);
                self.here.spent.compute += counted(seconds - data_seconds);
                self.here.tokens += tokens;
                self.step(step);
            }
            Event::Skipped { step, .. } | Event::Progress { step, .. } => self.step(step),
            Event::Saved { waited_seconds, .. } => self.here.spent.save += counted(waited_seconds),
            Event::Eval { seconds, .. } => self.here.spent.eval += counted(seconds),
            Event::Stopped { .. } | Event::Finished { .. } | Event::Incident { .. } => self.stands = true,
            _ => {}
        }
    }

    fn begin(&mut self, opened: bool) {
        self.last_unix_ms = None;
        (self.stands, self.opened) = (false, opened);
        (self.first, self.newest) = (None, None);
        self.marks.clear();
    }

    fn step(&mut self, step: u64) {
        let done = Done { step, clock_ms: self.here.clock_ms };
        self.first.get_or_insert(done);
        self.newest = Some(done);
        if self.marks.len() > LATELY {
            self.marks.pop_front();
        }
        self.marks.push_back(self.here);
    }

    /// Seconds on the run's clock.
    pub fn seconds(&self) -> f64 {
        self.here.clock_ms as f64 / 1e3
    }

    /// Where the time went since the run began.
    pub fn whole(&self) -> Split {
        between(&Mark::default(), &self.here)
    }

    /// Where the time of the latest steps went.
    pub fn lately(&self) -> Split {
        self.marks.front().map_or(Split::default(), |from| between(from, &self.here))
    }

    /// Tokens per second of step time over the latest steps; over all of them where there are no two of this worker.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let zero = Mark::default();
        let from = if self.marks.len() > 1 { &self.marks[0] } else { &zero };
        let seconds = self.here.spent.data + self.here.spent.compute - from.spent.data - from.spent.compute;
        (seconds > 0.0).then(|| (self.here.tokens - from.tokens) as f64 / seconds)
    }

    /// Seconds a step at this worker's pace.
    pub fn pace(&self) -> Option<f64> {
        let (first, newest) = (self.first?, self.newest?);
        let steps = newest.step.checked_sub(first.step).filter(|&steps| steps > 0)?;
        Some((newest.clock_ms - first.clock_ms) as f64 / 1e3 / steps as f64)
    }

    /// Seconds to step `total` at this worker's pace, when the journal has been silent for `silent` seconds. However
    /// long nothing came, that is at most the step that is being done.
    pub fn left(&self, total: u64, silent: f64) -> Option<f64> {
        let (newest, pace) = (self.newest?, self.pace()?);
        let since = (self.here.clock_ms - newest.clock_ms) as f64 / 1e3 + silent;
        Some((pace * total.saturating_sub(newest.step) as f64 - since.min(pace)).max(0.0))
    }
}

fn between(from: &Mark, to: &Mark) -> Split {
    let (a, b) = (&from.spent, &to.spent);
    let split = Split {
        data: b.data - a.data,
        compute: b.compute - a.compute,
        save: b.save - a.save,
        eval: b.eval - a.eval,
        other: 0.0,
    };
    let wall = (to.clock_ms - from.clock_ms) as f64 / 1e3;
    Split { other: (wall - split.wall()).max(0.0), ..split }
}

/// Seconds that can be added up.
fn counted(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}
