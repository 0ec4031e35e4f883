//! The starts of somebody else's trainer: each with what it was started as, how it ended and what was done about it.

use plimsoll_launch::failure::Failure;
use plimsoll_recover::cause::Source;
use plimsoll_watch::Event;

use super::command;
use crate::doctor::attempts::{Attempt, End};
use crate::doctor::case::{Case, Life, Place};
use crate::doctor::diagnosis::{Finding, FoundBy, Ground, Start};
use crate::doctor::ending::by_supervisor;
use crate::doctor::sanitize::clean;
use crate::doctor::timeline::decision_word;

/// All of them; `unseen` is what the last one died of where no supervisor was left.
pub fn starts(case: &Case, all: &[Attempt<'_>], unseen: Option<&Failure>) -> Vec<Start> {
    let launched = |attempt: &&Attempt<'_>| attempt.find(|event| matches!(event, Event::Launched { .. })).is_some();
    let count = all.len();
    let one = |(at, attempt): (usize, &Attempt<'_>)| start(case, attempt, at + 1 == count, unseen);
    all.iter().enumerate().filter(|(_, attempt)| launched(attempt)).filter_map(one).collect()
}

fn start(case: &Case, attempt: &Attempt<'_>, last: bool, unseen: Option<&Failure>) -> Option<Start> {
    let launched = attempt.find(|event| matches!(event, Event::Launched { .. }))?;
    let Event::Launched { attempt: number, words, env, changes, from, .. } = launched else { return None };
    let began = attempt.records.iter().find(|record| matches!(record.event, Event::Launched { .. }))?.unix_ms;
    let alive = last && case.now.life != Life::Dead;
    let until = if alive { case.now.unix_ms.max(began) } else { attempt.worked_until() };
    let step = attempt.records.iter().rev().find_map(|record| match record.event {
        Event::Progress { step, .. } | Event::Incident { step, .. } => Some(step),
        Event::Finished { steps, .. } => Some(steps),
        _ => None,
    });
    let from_step = attempt.records.iter().find_map(|record| match record.event {
        Event::Resumed { step, .. } => Some(step),
        _ => None,
    });
    let limit = match attempt.worker() {
        Some(Event::WorkerStarted { cap, .. }) => *cap,
        _ => None,
    };
    let decided = attempt.find(|event| matches!(event, Event::Decided { .. }));
    let then = decided.and_then(|event| match event {
        Event::Decided { decision, why, cap, .. } => Some(clean(&format!("{}: {why}", decision_word(decision, *cap)))),
        _ => None,
    });
    let warnings = attempt.records.iter().filter_map(|record| match &record.event {
        Event::Warning { message, .. } => Some(clean(message)),
        Event::Verified { asked, seen, fine: false, .. } => {
            Some(clean(&format!("not as asked: {asked} was asked for, but: {seen}")))
        }
        _ => None,
    });
    let (end, cause) = match attempt.end {
        End::Finished => ("finished", None),
        End::Stopped { .. } => ("stopped", None),
        End::Incident(Event::Incident { kind, .. }) if kind == "stopped" => ("stopped", None),
        End::Incident(incident) => ("died", cause(case, *number, incident)),
        End::Open if alive => ("running", None),
        End::Open if matches!(decided, Some(Event::Decided { decision, .. }) if decision == "step_up") => {
            ("gave_way", None)
        }
        End::Open => {
            let found = unseen.filter(|_| last).map(|failure| finding(case, *number, failure, Some(End::Open)));
            (if found.is_some() { "died" } else { "unseen" }, found)
        }
    };
    Some(Start {
        attempt: *number,
        unix_ms: began,
        seconds: until.saturating_sub(began) as f64 / 1000.0,
        step,
        command: clean(&command(words)),
        env: env.iter().map(|(name, value)| (clean(name), clean(value))).collect(),
        changes: changes.iter().map(|change| clean(change)).collect(),
        from: from.clone(),
        from_step: from_step.filter(|_| from.is_some()),
        limit_bytes: limit,
        end,
        cause,
        then,
        warnings: warnings.collect(),
    })
}

/// What the supervisor held an end for.
pub fn failed(incident: &Event) -> Option<Failure> {
    let Event::Incident { evidence, .. } = incident else { return None };
    serde_json::from_value(evidence.clone()).ok()
}

fn cause(case: &Case, attempt: u64, incident: &Event) -> Option<Finding> {
    match failed(incident) {
        Some(failure) => Some(finding(case, attempt, &failure, Some(End::Incident(incident)))),
        // A journal of another version: its words are left.
        None => by_supervisor(incident).map(|judged| judged.finding),
    }
}

/// A failure as it is told.
pub fn finding(case: &Case, attempt: u64, failure: &Failure, end: Option<End<'_>>) -> Finding {
    let by_supervisor = matches!(end, Some(End::Incident(_)));
    let whose = failure.culprit.as_ref().map_or(String::new(), |culprit| format!(": {culprit}"));
    // What says nothing to people: an empty last event, and that no supervisor was left.
    let says = |text: &str| !text.starts_with("last event at step") && !text.starts_with("nobody was left to see");
    let kept = failure.because.iter().filter(|ground| says(&ground.text));
    let because = kept.map(|ground| {
        let places = case.launch.as_ref().map(|launch| &launch.places);
        let place = ground.line.map(|line| Place { attempt, line, text: ground.text.clone() });
        let file = places.zip(place).and_then(|(places, place)| places.get(&place).cloned());
        let line = ground.line.and_then(|line| usize::try_from(line).ok());
        let text = match (&file, ground.log) {
            (None, Some(log)) => format!("log of {log}: {}", ground.text),
            _ => ground.text.clone(),
        };
        Ground { source: Some(ground.source), file, line, text: clean(&text) }
    });
    let mut because: Vec<Ground> = because.collect();
    if because.is_empty() {
        let text = "nobody was left to see how it ended".to_string();
        because.push(Ground { source: Some(Source::ExitStatus), file: None, line: None, text });
    }
    Finding {
        kind: failure.kind.name().to_string(),
        told: clean(&format!("{}{whose}", failure.kind)),
        confidence: failure.confidence,
        found_by: if by_supervisor { FoundBy::Supervisor } else { FoundBy::Doctor },
        culprit: failure.culprit.as_ref().map(|culprit| clean(&culprit.to_string())),
        detail: Some(failure.kind.clone()),
        because,
        missing: Vec::new(),
    }
}
