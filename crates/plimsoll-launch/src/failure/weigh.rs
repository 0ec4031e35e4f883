//! The weighing: completion, witnesses, first causes, kills, what the watcher saw, echoes; the order is the whole rule.
//!
//! A sign behind which the training went on was survived and counts for nothing. A log may hold the same words for
//! another cause (torchrun writes one text for an OOM kill and for `kill -9`): there the counters decide, and where
//! they could not be read the kill stays unproven.

mod asked;
mod grounds;
mod steps;
mod watched;

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{
    Cause, CgroupCounters, Confidence, Evidence, KernelStory, Worker, cause, parse_kernel_log,
};

use super::cuda::CudaReport;
use super::kind::FailureKind;
use super::lines::{self, Line};
use super::scene::{Log, LogSource, Scene};
use super::signs::{self, Sign, Weight};
use super::traceback::{self, Traceback};
use super::{Culprit, Failure, Ground};

/// Lines of progress behind a sign from which on the training has survived it. Ranks that wait for a dead one write
/// none, or the few of a step that was under way.
pub(super) const SURVIVED: usize = 10;
/// Lines that are given to `plimsoll_recover` as the program's last words.
const TAIL: usize = 400;

/// What the end was.
pub fn failure(scene: &Scene) -> Failure {
    let case = Case::open(scene);
    let verdict = steps::judge(&case);
    case.close(verdict)
}

/// A verdict under way.
struct Verdict {
    kind: FailureKind,
    confidence: Confidence,
    culprit: Option<Culprit>,
    card: Option<CudaReport>,
    because: Vec<Ground>,
}

/// A sign and where it stands.
struct Found {
    at: usize,
    sign: Sign,
}

/// An end, its logs read once.
struct Case<'a> {
    scene: &'a Scene,
    lines: Vec<Line>,
    /// Signs that were not survived, in order.
    found: Vec<Found>,
    /// Tracebacks that were not survived.
    tracebacks: Vec<Traceback>,
    kernel: KernelStory,
    cause: Cause,
}

impl<'a> Case<'a> {
    fn open(scene: &'a Scene) -> Case<'a> {
        let lines = if scene.logs.is_empty() {
            let text = scene.evidence.stderr_tail.join("\n");
            lines::read(&[Log { source: LogSource::Main, first_line: 1, text }])
        } else {
            lines::read(&scene.logs)
        };
        let (all, quoted) = traceback::all(&lines);
        let went_on = progress_behind(&lines);
        let survived = |at: usize| went_on[at] >= SURVIVED;
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            if quoted.contains(&at) {
                continue;
            }
            // The word of a complete run is survived by its very nature: bars are drawn to the end behind it.
            if let Some(mut sign) = signs::read(&line.text)
                && (sign.weight == Weight::Done || sign.weight == Weight::Restart || !survived(at))
            {
                sign.who.rank = sign.who.rank.or(line.rank);
                found.push(Found { at, sign });
            }
        }
        for (at, line) in
            lines.iter().enumerate().filter(|(_, line)| line.text.starts_with("Root Cause (first observed"))
        {
            let behind =
                lines[at + 1..].iter().filter(|other| other.source == line.source).map(|other| other.text.as_str());
            if let Some((by, sign)) = signs::root_cause(behind).filter(|_| !survived(at)) {
                found.push(Found { at: (at + 1 + by).min(lines.len() - 1), sign });
            }
        }
        let tracebacks = all.into_iter().filter(|one| !survived(one.error)).collect();
        let kernel = parse_kernel_log(scene.evidence.kernel_log.as_deref().unwrap_or_default());
        let evidence = evidence(scene, &lines, &survived);
        Case { scene, lines, found, tracebacks, kernel, cause: cause(&evidence) }
    }

    fn close(&self, verdict: Verdict) -> Failure {
        let Verdict { kind, confidence, culprit, card, mut because } = verdict;
        because.extend(self.system_says(&because));
        Failure { kind, confidence, culprit, card, because, cause: self.cause.clone() }
    }

    /// Signs of one weight, in order.
    fn of(&self, weight: Weight) -> impl Iterator<Item = &Found> {
        self.found.iter().filter(move |found| found.sign.weight == weight)
    }

    fn exit(&self) -> Option<Exit> {
        self.scene.evidence.exit
    }

    /// Whether the counters could be read and count no kill.
    fn kernel_is_cleared(&self) -> bool {
        let rise = match self.scene.evidence.cgroup {
            Some(CgroupCounters::V1 { oom_kill, .. } | CgroupCounters::V2 { oom_kill, .. }) => oom_kill,
            None => None,
        };
        rise.is_some_and(|change| change.rise() == 0)
    }
}

/// For each line, how many lines of progress its source has behind it.
fn progress_behind(lines: &[Line]) -> Vec<usize> {
    let mut counts: Vec<(LogSource, usize)> = Vec::new();
    let mut behind = vec![0; lines.len()];
    for (at, line) in lines.iter().enumerate().rev() {
        let entry = counts.iter().position(|(source, _)| *source == line.source).unwrap_or_else(|| {
            counts.push((line.source, 0));
            counts.len() - 1
        });
        behind[at] = counts[entry].1;
        counts[entry].1 += usize::from(lines::is_progress(&line.text));
    }
    behind
}

/// The evidence for `plimsoll_recover`: foreign, and with the words that were not survived.
fn evidence(scene: &Scene, lines: &[Line], survived: &dyn Fn(usize) -> bool) -> Evidence {
    let telling = |at: usize, line: &Line| lines.len() - at <= TAIL || signs::read(&line.text).is_some();
    let words = lines.iter().enumerate().filter(|(at, line)| !survived(*at) && telling(*at, line));
    let stop_signal = scene.evidence.stop_signal.or(scene.stop_asked.then_some(15));
    Evidence {
        worker: Worker::Foreign,
        stderr_tail: words.map(|(_, line)| line.text.clone()).collect(),
        stop_signal,
        ..scene.evidence.clone()
    }
}
