//! The diagnosis for people: the headline first, then why, then what to do, then the rest. For three in the morning.

mod training;

use std::fmt::Write;
use std::io::IsTerminal;

use plimsoll_recover::cause::Confidence;

use super::diagnosis::{Advice, Diagnosis, Finding, Ground, Happening, Pace, Status};
use super::sanitize::shell_word;
use super::story::is_slow;
use super::when::{Span, When};

/// Entries of the timeline that are printed; `--json` has all.
const SHOWN: usize = 24;
/// A label that is longer than this does not push the others aside.
const WIDE: usize = 40;

/// Whether to paint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// For a terminal.
    On,
    /// For everything else.
    Off,
}

impl Colour {
    /// Colour only on a terminal whose user has not set NO_COLOR.
    pub fn of_stdout() -> Colour {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() { Colour::On } else { Colour::Off }
    }

    fn paint(self, text: &str, code: &str) -> String {
        match self {
            Colour::On => format!("\x1b[1;{code}m{text}\x1b[0m"),
            Colour::Off => text.to_string(),
        }
    }
}

/// The whole text.
pub fn text(diagnosis: &Diagnosis, colour: Colour) -> String {
    let mut out = String::new();
    let code = match diagnosis.status {
        Status::Finished | Status::LogWithoutADeath => "32",
        Status::Running => "36",
        Status::Stopped | Status::NotStarted => "33",
        Status::Died | Status::DeadWithoutAWitness | Status::LogOfADeath => "31",
    };
    line(&mut out, &colour.paint(&diagnosis.headline, code));
    if let (Some(asked), Some(last)) = (diagnosis.asked_unix_ms, diagnosis.progress.and_then(|p| p.last_unix_ms)) {
        line(&mut out, &format!("last sign: {} UTC, {} ago", When(last), Span::between(last, asked)));
    }
    if let Some(trainer) = &diagnosis.trainer {
        training::who(&mut out, trainer, colour);
    }
    if let Some(cause) = &diagnosis.cause {
        why(&mut out, cause, colour);
    }
    if let Some(lost) = &diagnosis.lost {
        let from = if lost.after_step == 0 {
            "nothing was saved".to_string()
        } else {
            format!("the last checkpoint is of step {}", lost.after_step)
        };
        let steps = if lost.steps == 1 { "1 step".to_string() } else { format!("{} steps", lost.steps) };
        head(&mut out, "lost", colour);
        line(&mut out, &format!("  {steps}, {} of work: {from}", Span(lost.seconds)));
    }
    if !diagnosis.advice.is_empty() {
        head(&mut out, "what to do", colour);
        let foreign = diagnosis.trainer.is_some();
        diagnosis.advice.iter().for_each(|advice| line(&mut out, &format!("  - {}", advised(advice, diagnosis))));
        if diagnosis.advice.iter().any(|advice| advice.key.is_some()) && diagnosis.progress.is_some() {
            let job = shell_word(&diagnosis.subject.join("job.toml"));
            line(
                &mut out,
                &match foreign {
                    true => "  (`--set` stands before the `--` of `plimsoll run`; a resume keeps the run's settings)"
                        .to_string(),
                    false => format!("  (`table.key = value` stands in {job}, which a resume reads)"),
                },
            );
        }
    }
    if let Some(swap) = &diagnosis.swap {
        head(&mut out, "swap", colour);
        swap.to_string().lines().for_each(|text| line(&mut out, &format!("  {text}")));
    }
    if let Some(pace) = &diagnosis.pace {
        time(&mut out, pace, colour);
    }
    match &diagnosis.trainer {
        Some(trainer) => training::what_happened(&mut out, trainer, colour),
        None => {
            list(&mut out, "what was done", &diagnosis.done, colour);
            story(&mut out, &diagnosis.timeline, colour);
        }
    }
    list(&mut out, "also", &diagnosis.remarks, colour);
    if let Some(next) = &diagnosis.next {
        let how = match diagnosis.status {
            Status::Running => "look on",
            Status::Finished => "next",
            _ => "go on",
        };
        line(&mut out, &format!("\n{} {next}", colour.paint(&format!("{how}:"), "36")));
    }
    out
}

fn why(out: &mut String, cause: &Finding, colour: Colour) {
    head(out, "why", colour);
    let sure = match cause.confidence {
        Confidence::Proven => "proven: a witness names this death",
        Confidence::Likely => "likely: the evidence points there, and another reading is possible",
        Confidence::Unproven => "unproven: nothing that was seen tells why",
    };
    line(out, &format!("  {sure}"));
    // Which file needs no word where there is but one.
    let mut files = cause.because.iter().filter_map(|ground| ground.file.as_ref());
    let first = files.next();
    let files = found_in_a_run(cause) || files.any(|file| Some(file) != first);
    let wide = cause.because.iter().map(|ground| label(ground, files).len()).max().unwrap_or(0).min(WIDE);
    for ground in &cause.because {
        line(out, &format!("  {:wide$}  {}", label(ground, files), ground.text));
    }
    if !cause.missing.is_empty() {
        line(out, "  not proven, because:");
        cause.missing.iter().for_each(|missing| line(out, &format!("    {missing}")));
    }
}

pub(super) fn label(ground: &Ground, files: bool) -> String {
    match (ground.line, ground.source) {
        (Some(number), _) => match ground.file.as_ref().filter(|_| files) {
            Some(file) => format!("{} line {number}", file.display()),
            None => format!("line {number}"),
        },
        (None, Some(source)) => source.told().to_string(),
        (None, None) => String::new(),
    }
}

fn found_in_a_run(cause: &Finding) -> bool {
    cause.found_by != super::diagnosis::FoundBy::Log
}

fn time(out: &mut String, pace: &Pace, colour: Colour) {
    head(out, if is_slow(pace) { "why it is slow" } else { "pace" }, colour);
    let shares = pace.shares;
    let parts = [
        ("compute", shares.compute),
        ("waiting for data", shares.data),
        ("saves", shares.save),
        ("evaluations", shares.eval),
        ("start", shares.start),
        ("between", shares.between),
    ];
    let told: Vec<String> = parts
        .iter()
        .filter(|(name, share)| *name == "compute" || *share >= 0.005)
        .map(|(name, share)| format!("{name} {:.0} %", share * 100.0))
        .collect();
    line(out, &format!("  {} steps in {}: {}", pace.steps, Span(pace.wall_seconds), told.join(", ")));
    line(out, &format!("  a step takes {}, {:.0} tokens/s", Span(pace.median_step_seconds), pace.tokens_per_second));
    pace.verdicts.iter().for_each(|verdict| line(out, &format!("  {}", verdict.text)));
}

fn advised(advice: &Advice, diagnosis: &Diagnosis) -> String {
    match (&advice.key, &advice.value) {
        // Whose log it is, and what its trainer calls it, is not known.
        (Some(_), Some(_)) if diagnosis.progress.is_none() => advice.text.clone(),
        (Some(key), Some(value)) if diagnosis.trainer.is_some() => format!("{}: `--set {key}={value}`", advice.text),
        (Some(key), Some(value)) => format!("{}: `{key} = {value}`", advice.text),
        _ => advice.text.clone(),
    }
}

fn story(out: &mut String, timeline: &[Happening], colour: Colour) {
    let (Some(first), false) = (timeline.first(), timeline.len() < 2) else { return };
    head(out, "what happened (UTC)", colour);
    let half = SHOWN / 2;
    for (at, happening) in timeline.iter().enumerate() {
        if timeline.len() > SHOWN && at == half {
            line(out, &format!("  ... {} more (`--json` has all)", timeline.len() - SHOWN));
        }
        if timeline.len() > SHOWN && (half..timeline.len() - half).contains(&at) {
            continue;
        }
        let times = if happening.times > 1 { format!(" ({} times)", happening.times) } else { String::new() };
        let day = When(happening.unix_ms).to_string();
        // The date once is enough for a run of one day.
        let same_day = at > 0 && day[..10] == When(first.unix_ms).to_string()[..10];
        let when = if same_day { format!("          {}", &day[10..]) } else { day };
        line(out, &format!("  {when}  {}{times}", happening.text));
    }
}

pub(super) fn list(out: &mut String, name: &str, lines: &[String], colour: Colour) {
    if !lines.is_empty() {
        head(out, name, colour);
        lines.iter().for_each(|text| line(out, &format!("  {text}")));
    }
}

pub(super) fn head(out: &mut String, name: &str, colour: Colour) {
    line(out, &format!("\n{}", colour.paint(name, "1")));
}

pub(super) fn line(out: &mut String, text: &str) {
    // Writing into a string cannot fail.
    let _ = writeln!(out, "{}", text.trim_end());
}
