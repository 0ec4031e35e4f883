//! What a log tells of a death. Pure; never a cause without a line.

use plimsoll_recover::cause::{
    Confidence, Deed, KernelKill, KernelStory, Kind, Scope, Source, Target, parse_daemon_log, parse_kernel_log,
    parse_last_words,
};

use super::scan::{Line, Scan, Telling};
use crate::doctor::diagnosis::{Finding, FoundBy, Ground};
use crate::doctor::sanitize::clean;

/// Grounds that are shown of one sort.
const SHOWN: usize = 5;

/// A cause from a log.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What.
    pub kind: Kind,
    /// For people and programs.
    pub finding: Finding,
    /// Whether a program's own words say so, which it may have survived.
    pub by_words: bool,
    /// The kernel's kill, where that is the cause.
    pub kill: Option<KernelKill>,
}

/// What the log tells; `None` where it tells of no death.
pub fn judge(scan: &Scan) -> Option<Judged> {
    let lines = &scan.telling;
    let of =
        |wanted: fn(&Telling) -> bool| -> Vec<&Line> { lines.iter().filter(|line| wanted(&line.telling)).collect() };
    let kernel = parse_kernel_log(&joined(&of(|telling| telling.kernel)));
    let words = own_words(&of(|telling| telling.words));
    let child = of(|telling| telling.child);
    kernel_kill(lines, &kernel, &child)
        .or_else(|| daemon(lines))
        .or_else(|| words.clone().filter(|judged| judged.finding.confidence == Confidence::Proven && !is_bug(judged)))
        .or_else(|| signal(&child, "its parent tells that it was killed"))
        .or_else(|| scheduler(lines))
        .or(words)
        .or_else(|| disk_or_fault(lines, &kernel))
        .or_else(|| signal(&of(|telling| telling.sigkill), "that is how `SIGKILL` is reported, whoever sent it"))
        .or_else(|| echo(&of(|telling| telling.echo)))
}

fn is_bug(judged: &Judged) -> bool {
    matches!(judged.kind, Kind::Bug { .. })
}

fn found(kind: Kind, confidence: Confidence, because: Vec<Ground>, missing: Vec<String>) -> Judged {
    let (name, told) = (kind.name().to_string(), clean(&kind.to_string()));
    let finding = Finding { kind: name, told, confidence, found_by: FoundBy::Log, because, missing };
    Judged { kind, finding, by_words: false, kill: None }
}

fn kernel_kill(lines: &[Line], kernel: &KernelStory, child: &[&Line]) -> Option<Judged> {
    if kernel.kills.is_empty() {
        let line = kernel.oom_panic.as_ref()?;
        let because = vec![ground(lines, line, Source::KernelLog)];
        return Some(found(Kind::KernelOomOfTheHost, Confidence::Proven, because, Vec::new()));
    }
    // A parent that names the very number makes it certain whose death it was.
    let named = |kill: &&KernelKill| child.iter().any(|line| numbers(&line.text).any(|number| number == kill.pid));
    let by_parent = kernel.kills.iter().rev().find(named);
    let kill = by_parent.or(kernel.kills.last())?;
    let at_a_limit = kill.scope == Scope::Cgroup || (kill.scope == Scope::Unsaid && kill.oom_memcg.is_some());
    let kind = if at_a_limit { Kind::KernelOomInOurCgroup } else { Kind::KernelOomOfTheHost };
    let sure = if by_parent.is_some() { Confidence::Proven } else { Confidence::Likely };
    let mut because = vec![ground(lines, &kill.line, Source::KernelLog)];
    if let Some(resident) = kill.resident {
        let shmem = resident.shmem.map_or(String::new(), |shmem| format!(", {shmem} shared or pinned"));
        let text = format!("`{}` held {} of heap, {} of mapped files{shmem}", kill.comm, resident.anon, resident.file);
        because.push(Ground { source: Some(Source::KernelLog), line: None, text: clean(&text) });
    }
    because.extend(kill.oom_memcg.iter().map(|of| Ground {
        source: Some(Source::KernelLog),
        line: None,
        text: clean(&format!("the limit was that of the cgroup `{of}`")),
    }));
    because.extend(child.iter().take(SHOWN).map(|line| as_ground(line, Source::Stderr)));
    let others = kernel.kills.iter().rev().filter(|other| *other != kill);
    because.extend(others.take(SHOWN).map(|other| ground(lines, &other.line, Source::KernelLog)));
    let missing = match by_parent {
        Some(_) => Vec::new(),
        None => vec![format!("the log does not say that process {} was yours", kill.pid)],
    };
    Some(Judged { kill: Some(kill.clone()), ..found(kind, sure, because, missing) })
}

/// OOM daemons, and managers that count the kernel's kills.
fn daemon(lines: &[Line]) -> Option<Judged> {
    let notices = notices(lines);
    let killed = notices.iter().find(|(_, deed, _)| matches!(deed, Deed::KilledBy(_)));
    let (line, deed, target) = killed.or_else(|| notices.iter().find(|(_, deed, _)| *deed == Deed::KernelKilled))?;
    let because = vec![as_ground(line, Source::DaemonLog)];
    Some(match deed {
        Deed::KilledBy(name) => {
            let sure = if *target == Target::ThisJob { Confidence::Proven } else { Confidence::Likely };
            found(Kind::OomDaemon { name: name.to_string() }, sure, because, Vec::new())
        }
        // Slurm, Docker, Kubernetes and systemd limit by cgroups.
        _ => found(Kind::KernelOomInOurCgroup, Confidence::Likely, because, Vec::new()),
    })
}

fn scheduler(lines: &[Line]) -> Option<Judged> {
    let notices = notices(lines);
    let stopped = |deed: &Deed| matches!(deed, Deed::StoppedByScheduler | Deed::NodeLost);
    let (line, deed, _) = notices.iter().find(|(_, deed, _)| stopped(deed))?;
    let because = vec![as_ground(line, Source::DaemonLog)];
    Some(match deed {
        Deed::NodeLost => found(Kind::PowerOrReboot, Confidence::Likely, because, Vec::new()),
        _ => found(Kind::StoppedByUser, Confidence::Proven, because, Vec::new()),
    })
}

fn notices(lines: &[Line]) -> Vec<(&Line, Deed, Target)> {
    let daemon = lines.iter().filter(|line| line.telling.daemon);
    daemon
        .filter_map(|line| parse_daemon_log(&line.text).pop().map(|notice| (line, notice.deed, notice.target)))
        .collect()
}

fn own_words(lines: &[&Line]) -> Option<Judged> {
    let texts: Vec<String> = lines.iter().map(|line| line.text.clone()).collect();
    let words = parse_last_words(&texts)?;
    let sure = if words.plain { Confidence::Proven } else { Confidence::Likely };
    let first = lines.iter().position(|line| line.text == words.line)?;
    let mut because = vec![as_ground(lines[first], Source::Stderr)];
    // A panic's message stands on the line after its place.
    because.extend(
        lines
            .iter()
            .skip(first + 1)
            .find(|line| line.number == lines[first].number + 1)
            .and_then(|line| matches!(words.kind, Kind::Bug { .. }).then(|| as_ground(line, Source::Stderr))),
    );
    Some(Judged { by_words: true, ..found(words.kind, sure, because, Vec::new()) })
}

fn disk_or_fault(lines: &[Line], kernel: &KernelStory) -> Option<Judged> {
    if let Some((_, line)) = kernel.faults.last() {
        let told = line.split_once(" likely on CPU").map_or(line.as_str(), |(told, _)| told);
        let place = told.rsplit_once(" in ").map_or("a fault", |(_, place)| place).to_string();
        let because = vec![ground(lines, line, Source::KernelLog)];
        return Some(found(Kind::Bug { place: clean(&place) }, Confidence::Likely, because, Vec::new()));
    }
    let errors = kernel.disk_errors.iter().take(SHOWN);
    let because: Vec<Ground> = errors.map(|line| ground(lines, line, Source::KernelLog)).collect();
    (!because.is_empty()).then(|| found(Kind::IoError, Confidence::Likely, because, Vec::new()))
}

/// A `SIGKILL` without a witness.
fn signal(lines: &[&Line], says: &str) -> Option<Judged> {
    lines.first()?;
    let mut because: Vec<Ground> = lines.iter().take(SHOWN).map(|line| as_ground(line, Source::Stderr)).collect();
    because.push(Ground { source: Some(Source::ExitStatus), line: None, text: says.to_string() });
    let missing = vec![
        "no line of the kernel's OOM killer is in this log".to_string(),
        "no line of systemd-oomd, earlyoom, Slurm, Docker or Kubernetes about memory is in it".to_string(),
    ];
    Some(found(Kind::KilledUnproven { signal: 9 }, Confidence::Unproven, because, missing))
}

/// Ranks that waited for one that was gone.
fn echo(lines: &[&Line]) -> Option<Judged> {
    let because = vec![as_ground(lines.first()?, Source::Stderr)];
    let missing = vec!["why the rank that they waited for did not answer; its own log would tell".to_string()];
    Some(found(Kind::Unknown, Confidence::Unproven, because, missing))
}

fn as_ground(line: &Line, source: Source) -> Ground {
    Ground { source: Some(source), line: Some(line.number), text: clean(&line.text) }
}

/// A line that a parser gave back, with its number.
fn ground(lines: &[Line], text: &str, source: Source) -> Ground {
    let number = lines.iter().rev().find(|line| line.text.trim_end() == text.trim_end()).map(|line| line.number);
    Ground { source: Some(source), line: number, text: clean(text) }
}

fn joined(lines: &[&Line]) -> String {
    lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The numbers in a text.
fn numbers(text: &str) -> impl Iterator<Item = u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok())
}
