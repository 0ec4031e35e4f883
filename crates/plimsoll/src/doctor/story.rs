//! The story of a run: everything that was read becomes one diagnosis. Pure.

use plimsoll_recover::cause::{Confidence, Evidence, Kind};
use plimsoll_watch::{Event, SaveReason};

use super::advice::advice;
use super::attempts::{Attempt, Course, End, attempts, course};
use super::case::{Case, Life};
use super::diagnosis::{Diagnosis, Finding, FoundBy, Lost, Pace, Progress, Slow, Status};
use super::ending::{Judged, judge};
use super::foreign;
use super::numbers::Numbers;
use super::pace::pace;
use super::sanitize::{clean, shell_word};
use super::timeline::{decision_word, timeline};
use super::when::Span;

/// What happened to a run, why, and what to do.
pub fn story(case: &Case) -> Diagnosis {
    if foreign::is_foreign(case) {
        return foreign::story(case);
    }
    let all = attempts(&case.records);
    let course = course(&case.records);
    let last = all.last();
    let judged = last.filter(|_| case.now.life == Life::Dead).and_then(|a| judge(a, &case.now));
    let status = status(case, last, judged.as_ref());
    let progress = Progress {
        step: course.step,
        total_steps: course.total,
        saved_step: saved_step(case, &course),
        last_unix_ms: case.records.last().map(|record| record.unix_ms),
    };
    let lost = lost(status, &progress, &course);
    let (pace, pace_advice) = match pace(case, &all) {
        Some((pace, advice)) => (Some(pace), advice),
        None => (None, Vec::new()),
    };
    let mut advice = match (&judged, last) {
        (Some(judged), Some(last)) => {
            let numbers = Numbers::read(case, last, &course, &judged.evidence);
            advice(judged, &numbers, case.job.as_ref(), lost.as_ref(), &case.folder)
        }
        (None, Some(last)) if status == Status::Stopped && pressed(last).is_some() => {
            let numbers = Numbers::read(case, last, &course, &Evidence::default());
            super::advice::under_pressure(&numbers)
        }
        _ => Vec::new(),
    };
    advice.extend(pace_advice);
    let swap = judged.as_ref().and_then(|judged| {
        let planned = last.and_then(|last| Numbers::read(case, last, &course, &judged.evidence).planned);
        super::swap::after_native(&judged.kind, planned, case.now.swap.as_ref())
    });
    let cause = judged.map(|judged| judged.finding);
    let headline = headline(case, status, &progress, &course, last, cause.as_ref(), pace.as_ref());
    Diagnosis {
        subject: case.folder.clone(),
        asked_unix_ms: Some(case.now.unix_ms),
        status,
        headline,
        progress: Some(progress),
        cause,
        timeline: timeline(&case.records),
        lost,
        done: done(case, &course),
        pace,
        advice,
        swap,
        trainer: None,
        next: next(case, status),
        remarks: remarks(case, &progress, &course),
    }
}

fn status(case: &Case, last: Option<&Attempt<'_>>, judged: Option<&Judged>) -> Status {
    match (last.map(|attempt| attempt.end), judged) {
        (Some(End::Finished), _) => Status::Finished,
        _ if case.now.life != Life::Dead => Status::Running,
        (None, _) => Status::NotStarted,
        (_, Some(judged)) if judged.finding.found_by == FoundBy::Doctor && judged.kind == Kind::Unknown => {
            Status::DeadWithoutAWitness
        }
        (_, Some(_)) => Status::Died,
        (Some(End::Stopped { .. }), None) => Status::Stopped,
        (Some(_), None) => Status::DeadWithoutAWitness,
    }
}

/// The newest checkpoint that is whole. The disk knows better than the journal.
pub fn saved_step(case: &Case, course: &Course) -> u64 {
    let whole = case.checkpoints.iter().filter(|checkpoint| checkpoint.trouble.is_none()).map(|c| c.step).max();
    match case.checkpoints.is_empty() {
        true => course.saved.unwrap_or(0),
        false => whole.unwrap_or(0),
    }
}

pub fn lost(status: Status, progress: &Progress, course: &Course) -> Option<Lost> {
    if matches!(status, Status::Running | Status::Finished | Status::NotStarted) || progress.step <= progress.saved_step
    {
        return None;
    }
    let seconds = course.seconds.range(progress.saved_step + 1..).map(|(_, seconds)| seconds).sum();
    Some(Lost { steps: progress.step - progress.saved_step, after_step: progress.saved_step, seconds })
}

fn headline(
    case: &Case,
    status: Status,
    progress: &Progress,
    course: &Course,
    last: Option<&Attempt<'_>>,
    cause: Option<&Finding>,
    pace: Option<&Pace>,
) -> String {
    let place = place(progress);
    match (status, cause) {
        (Status::Finished, _) => finished(last, course, pace),
        (Status::Running, _) => running(case, progress, course, pace),
        (Status::Stopped, _) => {
            let reason = match (last.and_then(pressed), last.map(|attempt| attempt.end)) {
                (Some(why), _) => clean(&format!("memory or disk was short: {why}")),
                (None, Some(End::Stopped { reason })) => clean(reason),
                _ => "asked to stop".to_string(),
            };
            format!("stopped {place}: {reason}; it can go on")
        }
        (Status::Died, Some(cause)) => {
            // The words for what is unproven say so themselves.
            let sure = match cause.confidence {
                Confidence::Unproven => String::new(),
                sure => format!(" ({})", sure.name()),
            };
            format!("died {place}: {}{sure}", cause.told)
        }
        (Status::NotStarted, _) => "nothing was recorded: it ended before its worker began".to_string(),
        _ => format!(
            "dead {place}, cause unproven: nobody was left to see it, and nothing that can be read now tells why"
        ),
    }
}

/// Why the pressure on an attempt made it stop, if it did.
fn pressed<'a>(attempt: &Attempt<'a>) -> Option<&'a str> {
    match attempt.find(|event| matches!(event, Event::Pressure { .. }))? {
        Event::Pressure { answer, why, .. } if answer == "stop" => Some(why),
        _ => None,
    }
}

pub fn place(progress: &Progress) -> String {
    match (progress.step, progress.total_steps) {
        (0, _) => "before its first step".to_string(),
        (step, Some(total)) => format!("after step {step} of {total}"),
        (step, None) => format!("after step {step}"),
    }
}

fn finished(last: Option<&Attempt<'_>>, course: &Course, pace: Option<&Pace>) -> String {
    let found = last.and_then(|attempt| attempt.find(|event| matches!(event, Event::Finished { .. })));
    let Some(Event::Finished { steps, final_loss, seconds, peak_ram_bytes, early }) = found else {
        return format!("finished: {} steps", course.step);
    };
    let planned = pace.and_then(|pace| pace.ram_planned_bytes);
    let planned = planned.map_or(String::new(), |planned| format!(" of {planned} planned"));
    let early = early.as_ref().map_or(String::new(), |why| format!("; it ended early: {why}"));
    let spent = Span(*seconds);
    format!("finished: {steps} steps in {spent}, loss {final_loss:.4}, peak RAM {peak_ram_bytes}{planned}{early}")
}

fn running(case: &Case, progress: &Progress, course: &Course, pace: Option<&Pace>) -> String {
    let who = match case.now.life {
        Life::Alive { supervisor } => format!("process {supervisor}"),
        _ => "its supervisor is gone; a process that it left behind is at work".to_string(),
    };
    if progress.step == 0 {
        return format!("running ({who}): no step is done yet");
    }
    let loss = course.finite.map_or(String::new(), |finite| format!(", loss {:.4}", finite.loss));
    let left = progress.total_steps.map_or(0, |total| total.saturating_sub(progress.step));
    let to_go = match pace.filter(|pace| pace.steps > 0 && left > 0) {
        Some(pace) => {
            // What saves, evaluations and the rest cost a step so far, they will cost on.
            let per_step = (pace.wall_seconds - pace.seconds.start) / pace.steps as f64;
            format!(", about {} to go", Span(per_step * left as f64))
        }
        None => String::new(),
    };
    let total = progress.total_steps.map_or(String::new(), |total| format!(" of {total}"));
    format!("running ({who}): step {}{total}{loss}{to_go}", progress.step)
}

/// What was done about what happened.
fn done(case: &Case, course: &Course) -> Vec<String> {
    let mut done = Vec::new();
    let (mut skipped, mut pressed, mut exits) = (0_u64, 0_u64, 0_u64);
    for record in &case.records {
        match &record.event {
            Event::Decided { decision, why, cap, .. } => {
                let limit = cap.map_or(String::new(), |cap| format!(", with at most {cap} of RAM"));
                done.push(clean(&format!("{}{limit}: {why}", decision_word(decision, *cap))));
            }
            Event::Skipped { .. } => skipped += 1,
            Event::Saved { reason: SaveReason::Pressure, .. } => pressed += 1,
            Event::Saved { reason: SaveReason::Exit, .. } => exits += 1,
            _ => {}
        }
    }
    let count = |n: u64, what: &str, many: &str| match n {
        0 => None,
        1 => Some(format!("1 {what}")),
        n => Some(format!("{n} {many}")),
    };
    done.extend(count(
        pressed,
        "save because memory or disk was running out",
        "saves because memory or disk was running out",
    ));
    done.extend(count(exits, "save on the way out", "saves on the way out"));
    done.extend(count(skipped, "step skipped, weights left as they were", "steps skipped, weights left as they were"));
    if course.resumes > 0 {
        let again =
            if course.repeated == 1 { "1 step was".to_string() } else { format!("{} steps were", course.repeated) };
        let times = if course.resumes == 1 { "once".to_string() } else { format!("{} times", course.resumes) };
        done.push(format!("went on from a checkpoint {times}; {again} done again"));
    }
    done
}

fn next(case: &Case, status: Status) -> Option<String> {
    let run = shell_word(&case.folder);
    match status {
        Status::Running => Some(format!("plimsoll watch {run}")),
        Status::Finished if case.now.model_is_there => Some(format!("plimsoll generate {run} --prompt ...")),
        Status::Finished | Status::Stopped | Status::Died | Status::DeadWithoutAWitness | Status::NotStarted => {
            Some(format!("plimsoll resume {run}"))
        }
        Status::LogOfADeath | Status::LogWithoutADeath => None,
    }
}

pub fn remarks(case: &Case, progress: &Progress, course: &Course) -> Vec<String> {
    let mut out = Vec::new();
    for broken in case.checkpoints.iter().filter_map(|c| c.trouble.as_ref().map(|trouble| (c.step, trouble))) {
        out.push(clean(&format!("the checkpoint of step {} cannot be used: {}", broken.0, broken.1)));
    }
    let told = course.saved.unwrap_or(0);
    if told > progress.saved_step && progress.step >= told {
        out.push(format!("the journal tells of a checkpoint of step {told} that is not there as a whole"));
    }
    if progress.saved_step == 0 && case.now.life == Life::Dead && progress.step > 0 {
        out.push("there is no checkpoint: a resume begins at step 1".to_string());
    }
    match case.damaged.as_slice() {
        [] => {}
        [line] => out.push(format!("line {line} of the journal is damaged and was passed over")),
        lines => out.push(format!("{} lines of the journal are damaged, the first is line {}", lines.len(), lines[0])),
    }
    if case.now.life == Life::Orphaned {
        out.push("the supervisor is dead; what it left behind still holds the run".to_string());
    }
    out
}

/// Whether a diagnosis tells of a slow run.
pub fn is_slow(pace: &Pace) -> bool {
    pace.verdicts.iter().any(|verdict| !matches!(verdict.name, Slow::Fine | Slow::TooShort))
}
