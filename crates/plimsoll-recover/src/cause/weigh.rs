//! The weighing: witnesses that name this death first, then the program's own words, then counters, then the signal.
//!
//! Each witness is a function that either settles the cause or adds its facts and passes on, so the order in
//! [`cause`] is the whole rule.

mod counters;
mod witness;

use super::program_log::{child_killed, parse_last_words};
use super::{Cause, Confidence, Evidence, Fact, Kind, Source, Worker, parse_daemon_log, parse_kernel_log};
use crate::{Exit, ExitCode};

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// `SIGILL`, `SIGABRT`, `SIGBUS`, `SIGFPE`, `SIGSEGV`: the program's own doing.
const FAULTS: [i32; 5] = [4, 6, 7, 8, 11];

/// What killed the run.
pub fn cause(evidence: &Evidence) -> Cause {
    let mut case = Case::open(evidence);
    let verdict = witness::kernel(&mut case)
        .or_else(|| witness::daemon(&mut case))
        .or_else(|| reboot(&mut case))
        .or_else(|| own_status(&mut case))
        .or_else(|| own_verdict(&mut case))
        .or_else(|| own_words(&mut case))
        .or_else(|| killed(&mut case))
        .unwrap_or((Kind::Unknown, Confidence::Unproven));
    case.close(verdict)
}

type Verdict = (Kind, Confidence);

/// A death, its logs read once, and the facts so far.
struct Case<'a> {
    evidence: &'a Evidence,
    kernel: super::KernelStory,
    notices: Vec<super::Notice>,
    facts: Vec<Fact>,
}

impl<'a> Case<'a> {
    fn open(evidence: &'a Evidence) -> Case<'a> {
        // slurmstepd, Ray and others write into the job's own standard error.
        let log = evidence.daemon_log.iter().flat_map(|log| log.lines());
        let all: Vec<&str> = log.chain(evidence.stderr_tail.iter().map(String::as_str)).collect();
        let kernel = parse_kernel_log(evidence.kernel_log.as_deref().unwrap_or_default());
        let mut case = Case { evidence, kernel, notices: parse_daemon_log(&all.join("\n")), facts: Vec::new() };
        let said = match evidence.exit {
            None => "nobody was left to see how it ended".to_string(),
            Some(Exit::Killed(signal)) => format!("ended by signal {signal}"),
            Some(Exit::Exited(status)) => match by_shell(status) {
                Some(signal) => format!("status {status}, as a shell reports signal {signal}"),
                None => format!("ended itself with status {status}"),
            },
        };
        case.add(Source::ExitStatus, said);
        case
    }

    fn add(&mut self, source: Source, text: impl Into<String>) {
        self.facts.push(Fact { source, text: text.into() });
    }

    /// The signal that ended the worker, also where a shell between us made a status of it.
    fn signal(&self) -> Option<i32> {
        match self.evidence.exit? {
            Exit::Killed(signal) => Some(signal),
            Exit::Exited(status) => by_shell(status),
        }
    }

    fn close(mut self, (kind, confidence): Verdict) -> Cause {
        if let Some(event) = &self.evidence.last_event {
            let text = format!("last event at step {}: {}", event.step, event.line);
            self.add(Source::Journal, text);
        }
        Cause { kind, confidence, because: self.facts }
    }
}

/// The signal in a shell's status `128 + signal`.
fn by_shell(status: i32) -> Option<i32> {
    (129..=159).contains(&status).then(|| status - 128)
}

/// A machine that booted again while nobody saw the worker end.
fn reboot(case: &mut Case<'_>) -> Option<Verdict> {
    let boot = case.evidence.boot_id.as_ref()?;
    let (before, after) = (boot.before.trim(), boot.after.trim());
    if case.evidence.exit.is_some() || before.is_empty() || after.is_empty() || before == after {
        return None;
    }
    case.add(Source::BootId, format!("the machine booted again: boot `{before}` then, `{after}` now"));
    if let Some(line) = case.kernel.oom_panic.clone() {
        case.add(Source::KernelLog, line);
        return Some((Kind::KernelOomOfTheHost, Confidence::Proven));
    }
    Some((Kind::PowerOrReboot, Confidence::Proven))
}

/// What our own worker knows of the failure that it ended itself for.
fn own_verdict(case: &mut Case<'_>) -> Option<Verdict> {
    let (Some(Exit::Exited(_)), Some(kind)) = (case.evidence.exit, case.evidence.told.clone()) else { return None };
    case.evidence.stderr_tail.clone().into_iter().for_each(|line| case.add(Source::Stderr, line));
    add_disk(case, &kind);
    Some((kind, Confidence::Proven))
}

/// The exit codes of our own worker, which mean one thing each.
fn own_status(case: &mut Case<'_>) -> Option<Verdict> {
    let Some(Exit::Exited(status)) = case.evidence.exit else { return None };
    if case.evidence.worker == Worker::Foreign {
        return None;
    }
    let last = case.evidence.stderr_tail.iter().rev().find(|line| !line.trim().is_empty()).cloned();
    let code = ExitCode::ALL.into_iter().find(|code| i32::from(code.code()) == status)?;
    match code {
        ExitCode::Stopped => {
            let sure = case.evidence.stop_signal.is_some();
            add_stop(case);
            Some((Kind::StoppedByUser, if sure { Confidence::Proven } else { Confidence::Likely }))
        }
        ExitCode::BadInput | ExitCode::DoesNotFit => {
            let sure = if last.is_some() { Confidence::Proven } else { Confidence::Likely };
            last.into_iter().for_each(|line| case.add(Source::Stderr, line));
            Some((if code == ExitCode::BadInput { Kind::BadData } else { Kind::DoesNotFit }, sure))
        }
        ExitCode::Done | ExitCode::Failed => None,
    }
}

/// What a program that ended by its own doing said, or what the kernel says of its fault.
fn own_words(case: &mut Case<'_>) -> Option<Verdict> {
    let evidence = case.evidence;
    let signal = case.signal();
    if evidence.exit.is_none() || signal.is_some_and(|signal| !FAULTS.contains(&signal)) {
        return None;
    }
    if evidence.exit == Some(Exit::Exited(0)) || child_killed(&evidence.stderr_tail).is_some() {
        return None;
    }
    let words = parse_last_words(&evidence.stderr_tail).map(|words| (Source::Stderr, words)).or_else(|| {
        let error = evidence.disk.as_ref()?.error.clone()?;
        Some((Source::Disk, parse_last_words(&[error])?))
    });
    if let Some((source, words)) = words {
        // A traceback may be the echo of a killed child (torch 2.15 tells a killed loader now as such, now as a
        // connection reset or as `exited unexpectedly`); where kills were counted it settles nothing.
        if !words.plain && matches!(words.kind, Kind::Bug { .. }) && counters::kills(case).is_some_and(|n| n > 0) {
            case.add(source, words.line);
            return None;
        }
        case.add(source, words.line);
        add_disk(case, &words.kind);
        return Some((words.kind, if words.plain { Confidence::Proven } else { Confidence::Likely }));
    }
    if let Some(event) = &evidence.last_event
        && ["\"loss\":\"NaN\"", "\"loss\":\"inf\"", "\"loss\":\"-inf\""].iter().any(|mark| event.line.contains(mark))
    {
        return Some((Kind::NonFinite, Confidence::Likely));
    }
    if let Some(disk) = &evidence.disk
        && disk.needed.is_some_and(|needed| needed > disk.free)
    {
        add_disk(case, &Kind::DiskFull);
        return Some((Kind::DiskFull, Confidence::Likely));
    }
    fault(case, signal?)
}

fn fault(case: &mut Case<'_>, signal: i32) -> Option<Verdict> {
    const SIGBUS: i32 = 7;
    if signal == SIGBUS {
        if let Some(line) = case.kernel.disk_errors.first().cloned() {
            case.add(Source::KernelLog, line);
            return Some((Kind::IoError, Confidence::Likely));
        }
        if case.evidence.disk.as_ref().is_some_and(|disk| disk.free.0 == 0) {
            add_disk(case, &Kind::DiskFull);
            return Some((Kind::DiskFull, Confidence::Likely));
        }
    }
    let evidence = case.evidence;
    let ours = |pid: u32| super::whose::process(evidence, pid, None, None) == super::whose::Whose::Ours;
    if let Some((_, line)) = case.kernel.faults.iter().find(|(pid, _)| ours(*pid)).cloned() {
        // Newer kernels (seen: 6.18) name the CPU behind the place.
        let told = line.split_once(" likely on CPU").map_or(line.as_str(), |(told, _)| told);
        let place = told.rsplit_once(" in ").map_or_else(|| format!("signal {signal}"), |(_, at)| at.to_string());
        case.add(Source::KernelLog, line);
        return Some((Kind::Bug { place }, Confidence::Proven));
    }
    Some((Kind::Bug { place: format!("signal {signal}") }, Confidence::Likely))
}

/// A signal from outside: counters, then a stop that was asked for, then nothing.
fn killed(case: &mut Case<'_>) -> Option<Verdict> {
    let child = child_killed(&case.evidence.stderr_tail).cloned();
    let signal = match (child, case.signal()) {
        (Some(line), _) => {
            case.add(Source::Stderr, line);
            SIGKILL
        }
        (None, Some(signal)) => signal,
        // It failed by itself, and said nothing plain: a child that the kernel killed explains it, if one was counted.
        (None, None) => {
            let failed = matches!(case.evidence.exit, Some(Exit::Exited(status)) if status != 0);
            let counted = counters::kills(case).is_some_and(|kills| kills > 0);
            return if failed && counted { counters::weigh(case) } else { None };
        }
    };
    if signal == SIGKILL
        && let Some(verdict) = counters::weigh(case)
    {
        return Some(verdict);
    }
    if [SIGKILL, SIGTERM, SIGINT, SIGHUP].contains(&signal) {
        if let Some(verdict) = witness::scheduler(case) {
            return Some(verdict);
        }
        if case.evidence.stop_signal.is_some() {
            add_stop(case);
            return Some((Kind::StoppedByUser, Confidence::Proven));
        }
    }
    case.add(Source::ExitStatus, format!("nothing that was seen says who sent signal {signal}, or why"));
    Some((Kind::KilledUnproven { signal }, Confidence::Unproven))
}

fn add_stop(case: &mut Case<'_>) {
    let said = match case.evidence.stop_signal {
        Some(signal) => format!("the supervisor was asked to stop by signal {signal}"),
        None => "the worker stopped as if asked to; the supervisor was not asked".to_string(),
    };
    case.add(Source::StopSignal, said);
}

/// The state of the disk, where the cause is one of disks.
fn add_disk(case: &mut Case<'_>, kind: &Kind) {
    if *kind == Kind::IoError {
        for line in case.kernel.disk_errors.clone().into_iter().take(3) {
            case.add(Source::KernelLog, line);
        }
    }
    if let (Kind::DiskFull, Some(disk)) = (kind, &case.evidence.disk) {
        let needed = disk.needed.map_or(String::new(), |needed| format!(", {needed} were needed"));
        let text = format!("{} were free at the death{needed}", disk.free);
        case.add(Source::Disk, text);
    }
}
