//! What logs tell of a death. Pure; never a cause without a line.
//!
//! Trainer, kernel and daemon are weighed together by `plimsoll_launch::failure`. What leaves that open is settled by what
//! a manager says of the job whose log it is, then by words that any program says, then by faults and errors in a kernel
//! log; a `SIGKILL` in somebody's words comes last.

use std::path::Path;

use plimsoll_launch::failure::{self, Failure, FailureKind, Killer, LogSource, Scene, Victim, failure};
use plimsoll_recover::cause::{
    Cause, Confidence, Deed, KernelKill, KernelStory, Kind, Notice, Source, Target, parse_daemon_log, parse_kernel_log,
    parse_last_words,
};

use super::scan::{Line, Telling};
use super::{Of, Read};
use crate::doctor::diagnosis::{Finding, FoundBy, Ground};
use crate::doctor::sanitize::clean;

/// Grounds that are shown of one sort.
const SHOWN: usize = 5;

/// A cause from logs.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What.
    pub failure: Failure,
    /// For people and programs.
    pub finding: Finding,
    /// The kernel's kill, where that is the cause.
    pub kill: Option<KernelKill>,
}

/// What the logs tell; `None` where they tell of no death.
pub fn judge(reads: &[Read]) -> Option<Judged> {
    let kernel = parse_kernel_log(&kernel_text(reads));
    let found = failure(&scene(reads));
    if found.kind == FailureKind::Completed {
        return None;
    }
    let found = match found {
        found if is_open(&found) => manager(reads, &found).or_else(|| {
            if found.kind != FailureKind::Unknown {
                return Some(found);
            }
            last_words(reads).or_else(|| fault_or_disk(&kernel)).or_else(|| signal(reads))
        })?,
        found => found,
    };
    let kill = kill_of(&found, &kernel).cloned();
    let finding = finding(reads, &found, kill.as_ref(), &kernel);
    (!finding.because.is_empty()).then_some(Judged { failure: found, finding, kill })
}

/// The scene that logs alone give.
fn scene(reads: &[Read]) -> Scene {
    let programs = reads.iter().filter(|read| read.of != Of::Kernel);
    let logs = programs.flat_map(|read| read.scan.gist.iter().cloned()).collect();
    let kernel = kernel_text(reads);
    let mut scene = Scene::of_log(logs, (!kernel.is_empty()).then_some(kernel));
    let daemons = joined(reads, |_, telling| telling.daemon);
    scene.evidence.daemon_log = (!daemons.is_empty()).then_some(daemons);
    scene
}

/// The kernel's lines, wherever they stand; a card's errors are known by what trainers are known by.
fn kernel_text(reads: &[Read]) -> String {
    joined(reads, |of, telling| telling.kernel || (of == Of::Kernel && telling.trainer))
}

fn joined(reads: &[Read], wanted: impl Fn(Of, Telling) -> bool) -> String {
    let lines = reads.iter().flat_map(|read| read.scan.telling.iter().map(|line| (read.of, line)));
    let wanted = lines.filter(|(of, line)| wanted(*of, line.telling)).map(|(_, line)| line.text.as_str());
    wanted.collect::<Vec<_>>().join("\n")
}

/// The kill that a failure speaks of.
fn kill_of<'k>(found: &Failure, kernel: &'k KernelStory) -> Option<&'k KernelKill> {
    if !matches!(found.kind, FailureKind::HostOom { by: Killer::Cgroup | Killer::Host, .. }) {
        return None;
    }
    let said = |kill: &&KernelKill| found.because.iter().any(|ground| ground.text == kill.line);
    kernel.kills.iter().find(said).or(kernel.kills.last())
}

fn finding(reads: &[Read], found: &Failure, kill: Option<&KernelKill>, kernel: &KernelStory) -> Finding {
    let mut because: Vec<Ground> =
        found.because.iter().filter(|ground| is_told(ground)).map(|g| place(reads, g)).collect();
    // The witness first: what the kernel wrote of this very process.
    because.sort_by_key(|ground| kill.is_none_or(|kill| ground.text != clean(&kill.line)));
    let others = kernel.kills.iter().rev().filter(|other| kill.is_some_and(|kill| kill.line != other.line));
    for other in others.take(SHOWN) {
        if because.iter().all(|ground| ground.text != clean(&other.line)) {
            because.push(locate(reads, Source::KernelLog, &other.line));
        }
    }
    let whose = found.culprit.as_ref().map_or(String::new(), |culprit| format!(": {culprit}"));
    Finding {
        kind: found.kind.name().to_string(),
        told: clean(&format!("{}{whose}", found.kind)),
        confidence: found.confidence,
        found_by: FoundBy::Log,
        culprit: found.culprit.as_ref().map(|culprit| clean(&culprit.to_string())),
        detail: Some(found.kind.clone()),
        because,
        missing: missing(found, kill),
    }
}

/// That nobody saw an exit is true of every log, and tells nothing.
fn is_told(ground: &failure::Ground) -> bool {
    !(ground.source == Source::ExitStatus && ground.text.starts_with("nobody was left to see"))
}

fn missing(found: &Failure, kill: Option<&KernelKill>) -> Vec<String> {
    let mut missing = Vec::new();
    if let Some(kill) = kill.filter(|_| found.confidence != Confidence::Proven) {
        missing.push(format!("the log does not say that process {} was yours", kill.pid));
    }
    let killed = matches!(
        found.kind,
        FailureKind::KilledUnproven { .. } | FailureKind::LoaderWorkerDied { signal: Some(9) | None }
    ) || matches!(found.kind, FailureKind::CompilerKilled | FailureKind::RankDied { .. });
    if killed && found.confidence == Confidence::Unproven {
        missing.push("no line of the kernel's OOM killer is in this log".to_string());
        missing
            .push("no line of systemd-oomd, earlyoom, Slurm, Docker or Kubernetes about memory is in it".to_string());
    }
    if found.kind == FailureKind::PeerLost {
        missing.push("why the rank that they waited for did not answer; its own log would tell".to_string());
    }
    missing
}

/// A ground of the weighing, with its file and line.
fn place(reads: &[Read], ground: &failure::Ground) -> Ground {
    let text = clean(&ground.text);
    let Some((log, line)) = ground.log.zip(ground.line) else { return locate(reads, ground.source, &ground.text) };
    let of = reads.iter().filter(|read| read.of == Of::Program(log));
    // Two files of one source are told apart by what stands there.
    let bare = ground.text.strip_prefix("an echo of it: ").unwrap_or(&ground.text);
    let bare = bare.split_once("echoes of it, the first: ").map_or(bare, |(_, bare)| bare);
    let holds = |read: &&Read| line_at(read, log, line).is_some_and(|text| text.contains(bare.trim()));
    let file = of.clone().find(holds).or(of.clone().next()).map(|read| read.path.clone());
    Ground { source: Some(ground.source), file, line: usize::try_from(line).ok(), text }
}

fn line_at(read: &Read, source: LogSource, line: u64) -> Option<&str> {
    let piece = read.scan.gist.iter().rev().find(|piece| piece.source == source && piece.first_line <= line)?;
    piece.text.split('\n').nth((line - piece.first_line) as usize)
}

/// A line that a parser gave back, with its place.
fn locate(reads: &[Read], source: Source, text: &str) -> Ground {
    let is = |line: &&Line| line.text.trim_end() == text.trim_end();
    let found = reads.iter().find_map(|read| Some((&read.path, read.scan.telling.iter().rev().find(is)?)));
    let (file, line) = found.map_or((None, None), |(path, line)| (Some(path.clone()), Some(line.number)));
    Ground { source: Some(source), file, line, text: clean(text) }
}

/// Whether somebody else may know better what an end was: it is not known, or a kill or a stop that nobody explains.
fn is_open(found: &Failure) -> bool {
    use FailureKind as Kind;
    let unexplained = matches!(
        found.kind,
        Kind::Unknown
            | Kind::KilledUnproven { .. }
            | Kind::LoaderWorkerDied { signal: Some(9) | None }
            | Kind::CompilerKilled
            | Kind::RankDied { .. }
            | Kind::PeerLost
    );
    unexplained || (found.kind == Kind::Stopped && found.confidence != Confidence::Proven)
}

/// What Slurm, Docker, Kubernetes or an OOM daemon says of this job, before what the job said itself.
fn manager(reads: &[Read], found: &Failure) -> Option<Failure> {
    let lines = reads.iter().flat_map(|read| &read.scan.telling).filter(|line| line.telling.daemon);
    let notices: Vec<(&Line, Notice)> =
        lines.filter_map(|line| Some((line, parse_daemon_log(&line.text).pop()?))).collect();
    let rank = |deed: &Deed| match deed {
        Deed::KilledBy(_) => 0,
        Deed::KernelKilled => 1,
        Deed::StoppedByScheduler | Deed::NodeLost => 2,
    };
    let (line, notice) = notices.iter().min_by_key(|(_, notice)| rank(&notice.deed))?;
    let victim = match &found.kind {
        FailureKind::LoaderWorkerDied { .. } => Victim::Loader,
        FailureKind::CompilerKilled => Victim::Compiler,
        FailureKind::RankDied { .. } => Victim::Rank,
        _ => Victim::Unknown,
    };
    let ours = if notice.target == Target::ThisJob { Confidence::Proven } else { Confidence::Likely };
    let (kind, confidence) = match notice.deed {
        Deed::KilledBy(name) => (FailureKind::HostOom { by: Killer::Daemon { name: name.to_string() }, victim }, ours),
        // Slurm, Docker, Kubernetes and systemd limit by cgroups.
        Deed::KernelKilled => (FailureKind::HostOom { by: Killer::Cgroup, victim }, Confidence::Likely),
        Deed::StoppedByScheduler => (FailureKind::Stopped, ours),
        Deed::NodeLost => (FailureKind::MachineLost, Confidence::Likely),
    };
    let said = failure::Ground { source: Source::DaemonLog, log: None, line: None, text: line.text.clone() };
    let before = found.because.iter().filter(|ground| ground.log.is_some() && ground.text != line.text.trim());
    let because = std::iter::once(said).chain(before.cloned()).collect();
    Some(Failure { culprit: found.culprit.clone(), ..alone(kind, confidence, because) })
}

/// The panic of a program that is no trainer of Python.
fn last_words(reads: &[Read]) -> Option<Failure> {
    let lines: Vec<&Line> =
        reads.iter().flat_map(|read| &read.scan.telling).filter(|line| line.telling.words).collect();
    let texts: Vec<String> = lines.iter().map(|line| line.text.clone()).collect();
    let words = parse_last_words(&texts)?;
    // Of what else it says, a training that went on has survived it; else the weighing has it.
    let Kind::Bug { place } = words.kind else { return None };
    let at = lines.iter().position(|line| line.text == words.line)?;
    let says = |line: &Line| failure::Ground { source: Source::Stderr, log: None, line: None, text: line.text.clone() };
    let mut because = vec![says(lines[at])];
    // A panic's message stands on the line after its place.
    because.extend(lines.get(at + 1).filter(|line| line.number == lines[at].number + 1).map(|line| says(line)));
    let sure = if words.plain { Confidence::Proven } else { Confidence::Likely };
    Some(alone(FailureKind::Bug { place }, sure, because))
}

/// A fault or a failing disk that only the kernel tells of.
fn fault_or_disk(kernel: &KernelStory) -> Option<Failure> {
    let says =
        |text: &str| failure::Ground { source: Source::KernelLog, log: None, line: None, text: text.to_string() };
    if let Some((_, line)) = kernel.faults.last() {
        let told = line.split_once(" likely on CPU").map_or(line.as_str(), |(told, _)| told);
        let place = told.rsplit_once(" in ").map_or("a fault", |(_, place)| place);
        return Some(alone(FailureKind::Bug { place: clean(place) }, Confidence::Likely, vec![says(line)]));
    }
    let because: Vec<failure::Ground> = kernel.disk_errors.iter().take(SHOWN).map(|line| says(line)).collect();
    (!because.is_empty()).then(|| alone(FailureKind::IoError, Confidence::Likely, because))
}

/// A `SIGKILL` without a witness, in the words of a manager.
fn signal(reads: &[Read]) -> Option<Failure> {
    let lines =
        reads.iter().flat_map(|read| &read.scan.telling).filter(|line| line.telling.sigkill || line.telling.child);
    let says = |line: &Line| failure::Ground { source: Source::Stderr, log: None, line: None, text: line.text.clone() };
    let mut because: Vec<failure::Ground> = lines.take(SHOWN).map(says).collect();
    because.first()?;
    let text = "that is how `SIGKILL` is reported, whoever sent it".to_string();
    because.push(failure::Ground { source: Source::ExitStatus, log: None, line: None, text });
    Some(alone(FailureKind::KilledUnproven { signal: 9 }, Confidence::Unproven, because))
}

fn alone(kind: FailureKind, confidence: Confidence, because: Vec<failure::Ground>) -> Failure {
    let cause = Cause { kind: Kind::Unknown, confidence: Confidence::Unproven, because: Vec::new() };
    Failure { kind, confidence, culprit: None, card: None, because, cause }
}

/// What logs without a death tell of trouble that was survived.
pub fn survived(reads: &[Read]) -> Option<String> {
    let told = |read: &Read| {
        let line = read.scan.telling.iter().find(|line| line.telling.words && !line.text.starts_with([' ', '\t']))?;
        Some((read.path.clone(), line.number, clean(&line.text)))
    };
    let (path, number, text) = reads.iter().filter(|read| read.of != Of::Kernel).find_map(told)?;
    let file = if reads.len() > 1 { format!("{} ", short(&path)) } else { String::new() };
    Some(format!("{file}line {number} tells of trouble, and the training went on after it: {text}"))
}

fn short(path: &Path) -> String {
    path.display().to_string()
}
