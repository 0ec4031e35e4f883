//! After a death: the evidence, the cause, the incident, and what the journal and the user are told.

use std::path::Path;

use plimsoll_machine::{Bytes, Headroom, Root, space_of};
use plimsoll_recover::cause::{self, Cause, DiskAtDeath, Evidence, LastEvent, Worker};
use plimsoll_recover::checkpoint::{self, State};
use plimsoll_recover::policy::{Decision, Incident, Memory, Room, TRIES};
use plimsoll_recover::witness::Death;
use plimsoll_recover::{Outcome, StopSignal};
use plimsoll_watch::{Event, Journal, Record};

use super::watcher::Watcher;
use crate::render;

/// What is read of the journal's end.
const TAIL: Bytes = Bytes::kib(64);
/// Lines of a log that are kept as evidence.
const MOST_LINES: usize = 40;

/// What killed the worker, as an incident; noted in the journal.
pub(super) fn inquire(
    folder: &Path,
    root: &Root,
    outcome: &Outcome,
    mut watcher: Watcher,
) -> (Incident, Option<Journal>) {
    let path = folder.join("journal.jsonl");
    let records = plimsoll_watch::last(&path, TAIL).unwrap_or_default();
    watcher.open_journal();
    // The leaf is held until its counters have been read.
    let Watcher { leaf: _leaf, mut witness, last, planned, failing, refused, .. } = watcher;
    let mut last_words: Vec<String> = last_words(&records);
    last_words.extend(refused.map(|bytes| format!("memory allocation of {bytes} bytes failed")));
    let disk = space_of(folder).ok().map(|space| DiskAtDeath { free: space.available, needed: None, error: None });
    let evidence = witness.testify(Death {
        worker: Worker::Native,
        exit: Some(outcome.exit),
        stop_signal: outcome.stopped_by.map(StopSignal::number),
        told: failing,
        last_words,
        last_sample: last.map(|look| look.last()),
        last_event: last_event(&records),
        disk,
    });
    let Cause { kind, confidence, because } = cause::cause(&evidence);
    let available = Headroom::find(root).and_then(|headroom| headroom.read()).unwrap_or_default();
    let ram = Room {
        // Without a plan there is nothing to cut but what the machine has.
        cap: planned.map_or(available, |planned| planned.ram),
        peak: outcome.peak + outcome.own_peak,
        available,
        smallest: planned.map_or(Bytes::ZERO, |planned| planned.smallest),
    };
    let saved_step = saved_step(folder);
    let step = last_step(&records).max(saved_step);
    let because: Vec<String> = because.iter().map(ToString::to_string).collect();
    render::talk(format!("the worker ended after step {step}: {kind} ({})", confidence.name()));
    because.iter().for_each(|fact| render::talk(format!("  {fact}")));
    // A journal that cannot be written stops nobody.
    let mut journal = Journal::append(&path).ok();
    note(
        journal.as_mut(),
        &Event::Incident {
            step,
            saved_step,
            kind: kind.name().to_string(),
            told: kind.to_string(),
            confidence: confidence.name().to_string(),
            because,
            evidence: serde_json::to_value(telling(evidence)).unwrap_or_default(),
        },
    );
    (Incident { kind, confidence, step, saved_step, ram, vram: None }, journal)
}

fn note(journal: Option<&mut Journal>, event: &Event) {
    if let Some(journal) = journal {
        let _ = journal.record(event).and_then(|()| journal.sync());
    }
}

/// Notes that the worker was ended because somebody insisted.
pub(super) fn note_stop(folder: &Path, how: &str) {
    let path = folder.join("journal.jsonl");
    if path.exists() {
        let step = last_step(&plimsoll_watch::last(&path, TAIL).unwrap_or_default());
        note(Journal::append(&path).ok().as_mut(), &Event::Stopped { step, reason: how.to_string() });
    }
}

/// The evidence without what other people's programs wrote into the same logs: the journal goes to mirrors.
fn telling(mut evidence: Evidence) -> Evidence {
    const WORDS: [&str; 7] = ["oom", "ut of memory", "emory cgroup", "illed", "I/O error", "segfault", "traps:"];
    let few = |log: String| {
        let lines: Vec<&str> = log.lines().filter(|line| WORDS.iter().any(|word| line.contains(word))).collect();
        lines[lines.len().saturating_sub(MOST_LINES)..].join("\n")
    };
    evidence.kernel_log = evidence.kernel_log.map(few);
    evidence.daemon_log = evidence.daemon_log.map(few);
    evidence
}

/// Notes and says what is done; `None` is a new plan with whole gradients.
pub(super) fn announce(
    folder: &Path,
    decision: Option<&Decision>,
    incidents: &[Incident],
    journal: Option<&mut Journal>,
) {
    let from = incidents.last().map_or(0, |incident| incident.saved_step);
    let from = if from > 0 { format!("going on after step {from}") } else { "beginning again at step 1".to_string() };
    let (name, why, cap) = match decision {
        None => ("replan", "a plan that keeps whole gradients can leave the step out".to_string(), None),
        Some(Decision::Restart) => ("restart", "nothing says that the same would happen again".to_string(), None),
        Some(Decision::Replan { of, cap }) => {
            let of = if *of == Memory::Ram { "RAM" } else { "VRAM" };
            ("replan", format!("a plan of at most {cap} of {of}, with the same effective batch"), Some(*cap))
        }
        Some(Decision::GiveUp { why }) => ("give_up", why.to_string(), None),
    };
    let inputs = serde_json::json!({ "incidents": &incidents[incidents.len().saturating_sub(TRIES)..] });
    note(journal, &Event::Decided { decision: name.to_string(), why: why.clone(), cap, inputs });
    match name {
        "give_up" => {
            render::talk(format!("giving up: {why}"));
            render::talk(format!("what happened, and what to change: plimsoll doctor {}", folder.display()));
        }
        _ => render::talk(format!("{from}: {why}")),
    }
}

/// The words of the worker's last life.
fn last_words(records: &[Record]) -> Vec<String> {
    // A worker that dies early says its words before the supervisor has noted its start.
    let earlier = |record: &Record| matches!(record.event, Event::WorkerStarted { .. } | Event::Decided { .. });
    let life = records.iter().rposition(earlier);
    let said = records[life.unwrap_or(0)..].iter().filter_map(|record| match &record.event {
        Event::Failed { message, place: Some(place), .. } => Some(format!("thread panicked at {place}:\n{message}")),
        Event::Failed { message, place: None, .. } => Some(message.clone()),
        _ => None,
    });
    said.flat_map(|text| text.lines().map(str::to_string).collect::<Vec<_>>()).collect()
}

fn last_event(records: &[Record]) -> Option<LastEvent> {
    let record = records.last()?;
    Some(LastEvent { step: last_step(records), line: serde_json::to_string(record).ok()? })
}

/// The last step that was done, as the journal's end tells.
fn last_step(records: &[Record]) -> u64 {
    let step = records.iter().rev().find_map(|record| match record.event {
        Event::Step { step, .. } | Event::Resumed { step, .. } => Some(step),
        Event::RunStarted { .. } => Some(0),
        _ => None,
    });
    step.unwrap_or(0)
}

/// The step of the newest complete checkpoint; 0 for none.
fn saved_step(folder: &Path) -> u64 {
    let found = checkpoint::list(&folder.join("checkpoints")).unwrap_or_default();
    found.iter().rev().find(|found| found.state == State::Complete).map_or(0, |found| found.step)
}

/// Whether anything was saved.
pub(super) fn has_checkpoint(folder: &Path) -> bool {
    saved_step(folder) > 0
}
