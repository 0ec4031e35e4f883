//! Watching one worker: a look a second, what it tells, and what is wished of it.
//!
//! The journal is opened when the worker is ready: a run that is refused leaves none behind, and none changed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::cause::Kind;
use plimsoll_recover::leaf::Leaf;
use plimsoll_recover::pressure::{self, Limits, Pressure, Sample, Why};
use plimsoll_recover::sampler::{Look, Sampler};
use plimsoll_recover::witness::Witness;
use plimsoll_recover::{Beat, News, Wish};
use plimsoll_watch::{Event, Journal, Moment, Seen};

use super::growth;
use crate::render;

/// What the worker's cgroup allows above the plan: a sixteenth, and at least this.
const MARGIN: Bytes = Bytes::mib(16);
/// Program and heap are measured anew at every start, some 100 KiB apart: a cap of the smallest plan has this on top.
const APART: Bytes = Bytes::mib(1);
/// Samples that are kept: five minutes.
const KEPT: usize = 300;
/// Beats between two samples in the journal.
const NOTED: u64 = 30;
/// A save of a run that has not saved yet is taken to last so long.
const FIRST_SAVE: Duration = Duration::from_secs(5);

/// Why the worker was asked to make room for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HandOver {
    /// For one with a smaller plan.
    Shrink { to: Bytes },
    /// For one with the plan that the run began with.
    Grow,
    /// For none: no smaller plan helps.
    Stop { why: Why },
}

/// What the worker is planned to take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub ram: Bytes,
    pub smallest: Bytes,
    pub checkpoint: Bytes,
}

/// One worker, watched.
pub(super) struct Watcher {
    folder: PathBuf,
    pub leaf: Option<Leaf>,
    pub witness: Witness,
    pub journal: Option<Journal>,
    sampler: Option<Sampler>,
    samples: Vec<Sample>,
    pub last: Option<Look>,
    began: Instant,
    beats: u64,
    pid: u32,
    attempt: u64,
    cap: Option<Bytes>,
    /// The plan to grow back to, and after how long a calm.
    grow: Option<(Bytes, Duration)>,
    /// Since when there has been room for it.
    room_since: Option<Duration>,
    pub planned: Option<Planned>,
    /// Whether the worker has found everything as it should be.
    pub ready: bool,
    /// The headroom when all memory was taken.
    reserve: Option<Bytes>,
    save_time: Duration,
    /// Steps done, as far as the worker told.
    step: u64,
    level: &'static str,
    pub hand_over: Option<HandOver>,
    /// What it says that it ends itself for.
    pub failing: Option<Kind>,
    pub torn: bool,
    pub refused: Option<u64>,
}

/// What a watcher is given of the run so far.
pub(super) struct Before {
    pub attempt: u64,
    pub cap: Option<Bytes>,
    pub grow: Option<(Bytes, Duration)>,
}

impl Watcher {
    pub fn new(folder: &Path, root: &Root, leaf: Option<Leaf>, witness: Witness, before: Before) -> Watcher {
        let Before { attempt, cap, grow } = before;
        Watcher {
            folder: folder.to_path_buf(),
            sampler: Sampler::new(root, folder).ok(),
            leaf,
            witness,
            journal: None,
            samples: Vec::with_capacity(KEPT),
            last: None,
            began: Instant::now(),
            beats: 0,
            pid: 0,
            attempt,
            cap,
            grow,
            room_since: None,
            planned: None,
            ready: false,
            reserve: None,
            save_time: FIRST_SAVE,
            step: 0,
            level: "fine",
            hand_over: None,
            failing: None,
            torn: false,
            refused: None,
        }
    }

    pub fn beat(&mut self, beat: Beat) -> Wish {
        match beat {
            Beat::Started(pid) => {
                self.pid = pid;
                self.witness.saw("worker", pid);
                Wish::GoOn
            }
            Beat::Told(news) => {
                self.told(news);
                Wish::GoOn
            }
            Beat::Tick => self.tick(),
        }
    }

    fn told(&mut self, news: News) {
        match news {
            News::Planned { ram, smallest, checkpoint } => {
                let smallest = smallest + APART;
                self.planned = Some(Planned { ram, smallest, checkpoint });
                self.limit(ram);
            }
            News::Ready => {
                self.ready = true;
                self.open_journal();
            }
            News::Stepping { step } => {
                self.step = step;
                self.look();
                self.reserve = self.last.map(|look| look.sample.headroom);
            }
            News::Saved { step, seconds } => {
                self.step = step;
                self.save_time = Duration::try_from_secs_f64(seconds).unwrap_or(FIRST_SAVE);
            }
            News::Failing { kind } => self.failing = Some(kind),
            News::Torn { .. } => self.torn = true,
            News::Refused { bytes } => self.refused = Some(bytes),
        }
    }

    /// Puts the guard rail around the worker.
    fn limit(&mut self, plan: Bytes) {
        let margin = MARGIN.max(Bytes(plan.0 / 16));
        let Some(leaf) = &mut self.leaf else { return };
        match leaf.limit(plan, margin) {
            Ok(()) => render::talk(format!("the worker's cgroup is limited to the plan of {plan} and {margin}")),
            Err(error) => render::talk(format!("the worker's cgroup has no limit: {error}")),
        }
    }

    /// Notes the start of the worker, once.
    pub fn open_journal(&mut self) {
        if self.journal.is_some() {
            return;
        }
        self.journal = Journal::append(&self.folder.join("journal.jsonl")).ok();
        let started = self.witness.started();
        let event = Event::WorkerStarted {
            pid: self.pid,
            nspid: started.processes.first().map(|process| process.nspid.clone()).unwrap_or_default(),
            attempt: self.attempt,
            cap: self.cap,
            cgroup: started.cgroup.clone(),
            boot_id: started.boot_id.clone().unwrap_or_default(),
            vmstat_oom_kill: started.vmstat_oom_kill,
        };
        self.note(&event);
    }

    /// A journal that cannot be written stops nobody.
    fn note(&mut self, event: &Event) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.record(event);
        }
    }

    fn look(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        // A worker that has just ended cannot be looked at.
        let Ok(look) = sampler.look(self.pid, self.began.elapsed(), self.leaf.as_ref()) else { return };
        self.last = Some(look);
    }

    fn tick(&mut self) -> Wish {
        self.beats += 1;
        self.look();
        let Some(look) = self.last else { return Wish::GoOn };
        if self.beats.is_multiple_of(NOTED) {
            self.note_sample(&look);
        }
        // Before all memory is taken, what is left says nothing.
        let (Some(planned), Some(reserve)) = (self.planned, self.reserve) else { return Wish::GoOn };
        if self.samples.len() == KEPT {
            self.samples.remove(0);
        }
        self.samples.push(look.sample);
        let limits = Limits {
            plan: planned.ram,
            smallest: planned.smallest,
            reserve,
            save_time: self.save_time,
            checkpoint: planned.checkpoint,
        };
        let answer = pressure::pressure(&self.samples, &limits);
        if let Some((to, calm)) = self.grow
            && self.hand_over.is_none()
            && self.has_been_calm(&look.sample, &limits, to, answer) >= Some(calm)
        {
            self.hand_over = Some(HandOver::Grow);
            self.report("grow", format!("there is room again for the plan of {to}"), &look.sample, &limits);
            return Wish::HandOver;
        }
        self.act(answer, &look.sample, &limits)
    }

    /// For how long there has been room for a plan of `to` with nothing pressing; none where there is not.
    fn has_been_calm(&mut self, now: &Sample, limits: &Limits, to: Bytes, answer: Pressure) -> Option<Duration> {
        if answer != Pressure::Fine || !growth::has_room(now, limits, to) {
            self.room_since = None;
            return None;
        }
        Some(now.at.saturating_sub(*self.room_since.get_or_insert(now.at)))
    }

    /// Acts when the answer changes.
    fn act(&mut self, answer: Pressure, sample: &Sample, limits: &Limits) -> Wish {
        let (level, why, wish) = match answer {
            Pressure::Fine => ("fine", "the pressure is gone".to_string(), Wish::GoOn),
            Pressure::SaveNow { why } => ("save_now", why.to_string(), Wish::Save),
            Pressure::Shrink { to } => ("shrink", format!("a plan of at most {to} is needed"), Wish::HandOver),
            Pressure::Stop { why } => ("stop", format!("{why}, and no smaller plan helps"), Wish::HandOver),
        };
        if level == self.level || self.hand_over.is_some() {
            return Wish::GoOn;
        }
        self.level = level;
        self.hand_over = match answer {
            Pressure::Shrink { to } => Some(HandOver::Shrink { to }),
            Pressure::Stop { why } => Some(HandOver::Stop { why }),
            Pressure::Fine | Pressure::SaveNow { .. } => None,
        };
        self.report(level, why, sample, limits);
        wish
    }

    fn report(&mut self, answer: &str, why: String, sample: &Sample, limits: &Limits) {
        let done = match answer {
            "save_now" => "saving",
            "shrink" | "grow" => "saving, to go on under another plan",
            "stop" => "saving, to stop",
            _ => "going on",
        };
        render::talk(format!("pressure: {why}; {done}"));
        let inputs = serde_json::json!({ "sample": sample, "limits": limits });
        self.note(&Event::Pressure { step: self.step, answer: answer.to_string(), why, inputs });
    }

    fn note_sample(&mut self, look: &Look) {
        let (step, ram_bytes, seen) = (self.step, look.worker.rss, seen(&look.sample));
        self.note(&Event::Sample { at: Moment::Tick, step, ram_bytes, seen });
    }
}

/// A sample as the journal keeps it.
pub fn seen(sample: &Sample) -> Seen {
    let Sample { headroom, swap_used, swap_in, swap_out, stall_some, stall_full, disk_free, .. } = *sample;
    Seen {
        headroom_bytes: Some(headroom),
        swap_bytes: Some(swap_used),
        swapping_bytes_per_second: Some(swap_in.saturating_add(swap_out)),
        stall_some,
        stall_full,
        disk_free_bytes: Some(disk_free),
        ..Seen::default()
    }
}
