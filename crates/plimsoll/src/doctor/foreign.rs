//! The story of somebody else's trainer: who it is, its starts, why each ended, what was changed, where it stands. Pure.
//!
//! What a death was is the supervisor's word of then, with the evidence that the journal keeps. Where the supervisor died
//! too, [`super::gather`] has asked the machine and the logs.

mod starts;

use plimsoll_launch::Settings;
use plimsoll_launch::failure::{self, Abilities, Failure, FailureKind};
use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Confidence;
use plimsoll_watch::{Event, Record};

use super::advice::say;
use super::attempts::{Attempt, Course, End, attempts, course};
use super::case::{Case, Life};
use super::diagnosis::{Advice, Diagnosis, Finding, Progress, Start, Status, TrainerStory};
use super::sanitize::{clean, shell_word};
use super::story::{lost, place, remarks, saved_step};
use super::swap;
use super::timeline::timeline;
use super::when::Span;
use starts::{failed, finding, starts};

/// Whether the run is of somebody else's trainer.
pub fn is_foreign(case: &Case) -> bool {
    case.launch.is_some() || case.records.iter().any(|record| matches!(record.event, Event::Launched { .. }))
}

/// What happened to it, why, and what to do.
pub fn story(case: &Case) -> Diagnosis {
    let (all, course) = (attempts(&case.records), course(&case.records));
    let last = all.last();
    let failure = last.and_then(|attempt| match attempt.end {
        End::Incident(incident) => failed(incident),
        End::Open if case.now.life == Life::Dead => case.now.failure.clone(),
        _ => None,
    });
    let trainer = trainer(case, starts(case, &all, failure.as_ref()));
    let status = status(case, last, failure.as_ref());
    let progress = Progress {
        step: course.step,
        total_steps: course.total,
        saved_step: saved_step(case, &course),
        last_unix_ms: case.records.last().map(|record| record.unix_ms),
    };
    let died = matches!(status, Status::Died | Status::DeadWithoutAWitness);
    let failure = failure.filter(|_| died);
    let limit = trainer.starts.last().and_then(|start| start.limit_bytes);
    let swap = failure
        .as_ref()
        .and_then(|failure| swap::after_foreign(&failure.kind, trainer.peak_ram_bytes, limit, case.now.swap.as_ref()));
    let attempt = trainer.starts.last().map_or(0, |start| start.attempt);
    let cause = failure.as_ref().map(|failure| finding(case, attempt, failure, last.map(|last| last.end)));
    // Evidence of another version cannot be read; its words are kept with the start.
    let cause = cause.or_else(|| trainer.starts.last().filter(|_| died)?.cause.clone());
    Diagnosis {
        subject: case.folder.clone(),
        asked_unix_ms: Some(case.now.unix_ms),
        status,
        headline: headline(case, status, &progress, &course, &trainer, cause.as_ref()),
        progress: Some(progress),
        cause,
        timeline: timeline(&case.records),
        lost: lost(status, &progress, &course),
        done: trainer.starts.iter().filter_map(|start| start.then.clone()).collect(),
        pace: None,
        advice: advice(case, status, failure.as_ref(), &trainer),
        swap,
        next: next(case, status),
        remarks: remarks(case, &progress, &course),
        trainer: Some(trainer),
    }
}

fn status(case: &Case, last: Option<&Attempt<'_>>, failure: Option<&Failure>) -> Status {
    let Some(last) = last else {
        return if case.now.life == Life::Dead { Status::NotStarted } else { Status::Running };
    };
    let stopped = failure.is_some_and(|failure| failure.kind == FailureKind::Stopped);
    match last.end {
        End::Finished => Status::Finished,
        _ if case.now.life != Life::Dead => Status::Running,
        End::Stopped { .. } => Status::Stopped,
        End::Incident(Event::Incident { kind, .. }) if kind == "stopped" => Status::Stopped,
        End::Incident(_) => Status::Died,
        End::Open if stopped => Status::Stopped,
        End::Open if last.find(|event| matches!(event, Event::Launched { .. })).is_none() => Status::NotStarted,
        End::Open => match failure.map(|failure| &failure.kind) {
            None | Some(FailureKind::Unknown) => Status::DeadWithoutAWitness,
            Some(_) => Status::Died,
        },
    }
}

/// Everything but the causes of its end.
fn trainer(case: &Case, starts: Vec<Start>) -> TrainerStory {
    let latest = |wanted: fn(&Event) -> bool| case.records.iter().rev().map(|record| &record.event).find(|e| wanted(e));
    let launched = latest(|event| matches!(event, Event::Launched { .. }));
    let (name, settings) = match launched {
        Some(Event::Launched { trainer, settings, .. }) => (trainer.clone(), settings.clone()),
        _ => (began_as(&case.records).unwrap_or_else(|| "a trainer".to_string()), Default::default()),
    };
    let (ram_bytes, processes) = match latest(|event| matches!(event, Event::Tree { .. })) {
        Some(Event::Tree { ram_bytes, processes }) => (Some(*ram_bytes), processes.clone()),
        _ => (None, Vec::new()),
    };
    let seen = case.records.iter().filter_map(|record| match &record.event {
        Event::Tree { ram_bytes, .. } | Event::Sample { ram_bytes, .. } => Some(*ram_bytes),
        Event::Finished { peak_ram_bytes, .. } => Some(*peak_ram_bytes),
        _ => None,
    });
    let given_up = match latest(|event| matches!(event, Event::Decided { .. })) {
        Some(Event::Decided { decision, why, .. }) if decision == "give_up" => Some(clean(why)),
        _ => None,
    };
    let mut not_as_asked = Vec::new();
    for record in &case.records {
        if let Event::Verified { asked, seen, fine: false, .. } = &record.event {
            let text = clean(&format!("{asked} was asked for, but: {seen}"));
            if !not_as_asked.contains(&text) {
                not_as_asked.push(text);
            }
        }
    }
    let words = case.launch.as_ref().map(|launch| launch.words.clone()).or_else(|| typed(&case.records));
    TrainerStory {
        name: clean(&name),
        command: clean(&command(words.as_deref().unwrap_or_default())),
        folder: case
            .launch
            .as_ref()
            .map(|launch| launch.folder.clone())
            .filter(|folder| !folder.as_os_str().is_empty()),
        starts,
        not_as_asked,
        settings,
        processes,
        ram_bytes,
        peak_ram_bytes: seen.max().filter(|peak| *peak > Bytes::ZERO),
        given_up,
    }
}

fn began_as(records: &[Record]) -> Option<String> {
    records.iter().find_map(|record| match &record.event {
        Event::RunStarted { plan, .. } => Some(plan.clone()),
        _ => None,
    })
}

/// The user's command, as the run's first line has it.
fn typed(records: &[Record]) -> Option<Vec<String>> {
    records.iter().find_map(|record| match &record.event {
        Event::RunStarted { facts, .. } => serde_json::from_value(facts.get("command")?.clone()).ok(),
        _ => None,
    })
}

/// Words as a shell takes them.
fn command(words: &[String]) -> String {
    let word = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn headline(
    case: &Case,
    status: Status,
    progress: &Progress,
    course: &Course,
    trainer: &TrainerStory,
    cause: Option<&Finding>,
) -> String {
    let deaths = trainer.starts.iter().filter(|start| start.end == "died").count();
    let times = |n: usize| if n == 1 { "1 death".to_string() } else { format!("{n} deaths") };
    let place = place(progress);
    match status {
        Status::Finished => {
            let on_the_way = if deaths > 0 { format!(", after {}", times(deaths)) } else { String::new() };
            finished(case, course, on_the_way)
        }
        Status::Running => running(case, progress, course, trainer),
        Status::Stopped => format!("stopped {place} as it was asked to; it can go on"),
        Status::NotStarted => "nothing was recorded: it ended before the trainer was started".to_string(),
        _ => {
            let told = match cause {
                Some(cause) if cause.confidence == Confidence::Unproven => cause.told.clone(),
                Some(cause) => format!("{} ({})", cause.told, cause.confidence.name()),
                None => "cause unproven".to_string(),
            };
            match (&trainer.given_up, status) {
                (Some(_), _) if deaths > 1 => format!("given up after {}, {place}: {told}", times(deaths)),
                (Some(_), _) => format!("given up {place}: {told}"),
                (None, Status::Died) => format!("died {place}, and its supervisor too: {told}"),
                _ => format!("dead {place}, its supervisor too, and nothing that can be read now tells why"),
            }
        }
    }
}

fn finished(case: &Case, course: &Course, on_the_way: String) -> String {
    let found = case.records.iter().rev().find(|record| matches!(record.event, Event::Finished { .. }));
    let Some(Event::Finished { steps, final_loss, seconds, peak_ram_bytes, .. }) = found.map(|record| &record.event)
    else {
        return format!("finished{on_the_way}");
    };
    let steps = (*steps).max(course.step);
    let steps = if steps > 0 { format!("{steps} steps in ") } else { "in ".to_string() };
    let loss = if final_loss.is_finite() { format!(", loss {final_loss:.4}") } else { String::new() };
    format!("finished{on_the_way}: {steps}{}{loss}, peak RAM {peak_ram_bytes}", Span(*seconds))
}

fn running(case: &Case, progress: &Progress, course: &Course, trainer: &TrainerStory) -> String {
    let who = match case.now.life {
        Life::Alive { supervisor } => format!("process {supervisor}"),
        _ => "its supervisor is gone; what it left behind is at work".to_string(),
    };
    let start = trainer.starts.last().filter(|start| start.attempt > 1);
    let start = start.map_or(String::new(), |start| format!(", start {}", start.attempt));
    if progress.step == 0 {
        return format!("running ({who}{start}): no step is told yet");
    }
    let loss = course.finite.map_or(String::new(), |finite| format!(", loss {:.4}", finite.loss));
    let total = progress.total_steps.map_or(String::new(), |total| format!(" of {total}"));
    format!("running ({who}{start}): step {}{total}{loss}", progress.step)
}

fn advice(case: &Case, status: Status, failure: Option<&Failure>, trainer: &TrainerStory) -> Vec<Advice> {
    let mut out = Vec::new();
    if let Some(failure) = failure {
        let settings: Option<Settings> =
            serde_json::to_value(&trainer.settings).ok().and_then(|value| serde_json::from_value(value).ok());
        let can = case
            .launch
            .as_ref()
            .and_then(|launch| launch.can)
            .unwrap_or(Abilities { resume: true, ..Abilities::default() });
        let told = failure::advice(failure, settings.as_ref().filter(|settings| !settings.is_empty()), &can);
        out.extend(told.into_iter().map(|advice| Advice {
            text: clean(&advice.text),
            key: advice.knob.as_ref().map(|(knob, _)| knob.name()),
            value: advice.knob.map(|(_, value)| value.to_string()),
        }));
    }
    let last = trainer.starts.last();
    if let (Status::Finished, Some(start)) = (status, last.filter(|start| !start.changes.is_empty())) {
        let sets: Vec<String> = start.changes.iter().filter_map(|change| as_set(change)).collect();
        let sets = if sets.is_empty() { String::new() } else { format!(": {}", sets.join(" ")) };
        out.push(say(format!("next time begin with what it ended with{sets}")));
    }
    out.extend(trainer.not_as_asked.iter().map(|asked| say(format!("look into what is not as asked: {asked}"))));
    out
}

/// `batch 16 instead of 32` as `--set batch=16`.
fn as_set(change: &str) -> Option<String> {
    let mut words = change.split(' ');
    let (knob, value) = (words.next()?, words.next()?);
    plimsoll_launch::Knob::ALL.iter().any(|known| known.name() == knob).then(|| format!("--set {knob}={value}"))
}

fn next(case: &Case, status: Status) -> Option<String> {
    let run = shell_word(&case.folder);
    match status {
        Status::Finished | Status::LogOfADeath | Status::LogWithoutADeath => None,
        Status::Running => Some(format!("plimsoll watch {run}")),
        _ => Some(format!("plimsoll resume {run}")),
    }
}

#[cfg(test)]
#[path = "foreign/foreign_test.rs"]
mod tests;
