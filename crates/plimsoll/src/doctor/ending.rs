//! Why the last attempt ended: by the supervisor's incident, else by the worker's last words, else by what the machine
//! shows now.

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::{Cause, Confidence, Evidence, Kind, Source, cause, parse_last_words};
use plimsoll_watch::Event;

use super::after::is_numbered;
use super::attempts::{Attempt, End};
use super::case::Now;
use super::diagnosis::{Finding, FoundBy, Ground};
use super::{sanitize, words};

/// A cause, with the evidence that the advice takes its numbers from.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What.
    pub kind: Kind,
    /// For people and programs.
    pub finding: Finding,
    /// All that was seen; empty where only words are left.
    pub evidence: Evidence,
}

/// Why `attempt` ended badly; `None` where it did not. `now` is asked only where the journal is silent.
pub fn judge(attempt: &Attempt<'_>, now: &Now) -> Option<Judged> {
    match attempt.end {
        End::Finished => None,
        End::Incident(incident) => by_supervisor(incident),
        End::Stopped { reason } => own_words(attempt).or_else(|| stopped_by_an_error(reason)),
        End::Open => own_words(attempt).or_else(|| {
            let found = after_the_fact(now.evidence.clone()?);
            let full = (found.kind == Kind::Unknown).then(|| disk_was_full(attempt, now)).flatten();
            Some(full.unwrap_or(found))
        }),
    }
}

/// The supervisor's account.
pub fn by_supervisor(incident: &Event) -> Option<Judged> {
    let Event::Incident { kind, told, confidence, because, evidence, .. } = incident else { return None };
    let kept: Option<Evidence> = serde_json::from_value(evidence.clone()).ok();
    let (whole, evidence) = (kept.is_some(), kept.unwrap_or_default());
    let again = cause(&evidence);
    // The verdict is the one of then; its evidence gives the details that a name cannot hold.
    let same = whole && again.kind.name() == kind;
    let known = if same { again.kind.clone() } else { words::named(kind) };
    let because = match same {
        true => grounds(&again),
        false => because.iter().map(|text| ground(None, short(text))).collect(),
    };
    let told = if same || told.is_empty() { known.to_string() } else { told.clone() };
    let finding = Finding {
        culprit: None,
        detail: None,
        kind: sanitize::clean(kind),
        told: sanitize::clean(&told),
        confidence: words::confidence(confidence),
        found_by: FoundBy::Supervisor,
        because,
        missing: if whole { missing(&known, &evidence) } else { Vec::new() },
    };
    Some(Judged { kind: known, finding, evidence })
}

/// The worker's `Failed`.
fn own_words(attempt: &Attempt<'_>) -> Option<Judged> {
    let Some(Event::Failed { message, place, .. }) = attempt.failed() else { return None };
    let lines: Vec<String> = message.lines().map(str::to_string).collect();
    let (kind, confidence) = match (parse_last_words(&lines), place) {
        (Some(words), _) => (words.kind, if words.plain { Confidence::Proven } else { Confidence::Likely }),
        (None, Some(place)) => (Kind::Bug { place: place.clone() }, Confidence::Proven),
        (None, None) => (Kind::Unknown, Confidence::Unproven),
    };
    let mut because = vec![ground(Some(Source::Journal), message)];
    because.extend(place.iter().map(|place| ground(Some(Source::Journal), &format!("it panicked at {place}"))));
    Some(from_words(kind, confidence, because, lines))
}

/// Journals of before there were incidents note an error as the reason of a stop.
fn stopped_by_an_error(reason: &str) -> Option<Judged> {
    let lines = vec![reason.to_string()];
    let words = parse_last_words(&lines)?;
    let confidence = if words.plain { Confidence::Proven } else { Confidence::Likely };
    Some(from_words(words.kind, confidence, vec![ground(Some(Source::Journal), reason)], lines))
}

fn from_words(kind: Kind, confidence: Confidence, because: Vec<Ground>, stderr_tail: Vec<String>) -> Judged {
    let (name, told, found_by) = (kind.name().to_string(), sanitize::clean(&kind.to_string()), FoundBy::Journal);
    let finding =
        Finding { kind: name, told, confidence, found_by, culprit: None, detail: None, because, missing: Vec::new() };
    Judged { kind, finding, evidence: Evidence { stderr_tail, ..Evidence::default() } }
}

/// A death that nobody was left to see.
fn after_the_fact(evidence: Evidence) -> Judged {
    let found = cause(&evidence);
    let finding = Finding {
        kind: found.kind.name().to_string(),
        told: sanitize::clean(&found.kind.to_string()),
        confidence: found.confidence,
        found_by: FoundBy::Doctor,
        culprit: None,
        detail: None,
        because: grounds(&found),
        missing: missing(&found.kind, &evidence),
    };
    Judged { kind: found.kind, finding, evidence }
}

/// A disk that was too full for a checkpoint, and still is, was too full for the journal's last lines as well.
fn disk_was_full(attempt: &Attempt<'_>, now: &Now) -> Option<Judged> {
    let Some(Event::NotSaved { reason, .. }) = attempt.find(|event| matches!(event, Event::NotSaved { .. })) else {
        return None;
    };
    let words = parse_last_words(std::slice::from_ref(reason)).filter(|words| words.kind == Kind::DiskFull)?;
    let needed = match attempt.find(|event| matches!(event, Event::Saved { .. })) {
        Some(Event::Saved { bytes, .. }) => *bytes,
        _ => Bytes::mib(1),
    };
    let free = now.disk_free.filter(|free| *free < needed)?;
    let because = vec![
        ground(Some(Source::Journal), reason),
        ground(Some(Source::Disk), &format!("{free} are free there now, so that the journal may end too early")),
    ];
    let judged = from_words(words.kind, Confidence::Likely, because, Vec::new());
    Some(Judged { finding: Finding { found_by: FoundBy::Doctor, ..judged.finding }, ..judged })
}

/// For a death without a proof: what was looked at in vain, and what could not be looked at.
fn missing(kind: &Kind, evidence: &Evidence) -> Vec<String> {
    if !matches!(kind, Kind::KilledUnproven { .. } | Kind::Unknown) {
        return Vec::new();
    }
    let mut missing = Vec::new();
    let numbered = is_numbered(evidence) || evidence.kernel_log.is_some();
    missing.push(match &evidence.kernel_log {
        None if !numbered => "the journal does not say which process it was, so that no log can be asked".to_string(),
        None => "the kernel's log could not be read (`kernel.dmesg_restrict`)".to_string(),
        Some(_) => "the kernel's log names no kill of this run's processes".to_string(),
    });
    match &evidence.cgroup {
        None => missing.push("the OOM counters of its cgroup could not be read".to_string()),
        Some(_) => missing.push("the OOM counters of its cgroup prove nothing".to_string()),
    }
    missing.push(match &evidence.vmstat_oom_kill {
        None => "the machine's count of OOM kills is not known".to_string(),
        Some(change) if change.rise() == 0 => "the machine counts no OOM kill since its start".to_string(),
        Some(change) => {
            format!("the machine counts {} OOM kills since its start, and nothing says whose", change.rise())
        }
    });
    match &evidence.daemon_log {
        None if !numbered => {}
        None => missing.push("no log of systemd-oomd, earlyoom or the like could be read".to_string()),
        Some(_) => missing.push("no log of systemd-oomd, earlyoom or the like names it".to_string()),
    }
    if let Some(boot) = &evidence.boot_id
        && boot.before == boot.after
    {
        missing.push("the machine has not booted since".to_string());
    }
    missing
}

fn grounds(cause: &Cause) -> Vec<Ground> {
    cause.because.iter().map(|fact| ground(Some(fact.source), short(&fact.text))).collect()
}

/// `last event at step 7: {...}` without the line itself, which says nothing to people that its step does not.
fn short(text: &str) -> &str {
    match text.split_once(": {") {
        Some((head, _)) if head.starts_with("last event at step ") => head,
        _ => text,
    }
}

fn ground(source: Option<Source>, text: &str) -> Ground {
    Ground { source, file: None, line: None, text: sanitize::clean(text) }
}
