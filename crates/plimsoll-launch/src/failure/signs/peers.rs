//! What launchers and the other ranks say of a rank that is gone, and what is said when a stop was asked for.

use std::sync::LazyLock;

use plimsoll_recover::cause::Confidence;
use regex::Regex;

use super::super::kind::FailureKind;
use super::{Sign, Weight, Who, number_behind};

/// Faults: `SIGILL`, `SIGABRT`, `SIGBUS`, `SIGFPE`, `SIGSEGV`.
const FAULTS: [i32; 5] = [4, 6, 7, 8, 11];
const SIGABRT: i32 = 6;

static TORCHRUN: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"failed \(exitcode: (-?\d+)\)(?: local_rank: (\d+))? \(pid: (\d+)\)";
    Regex::new(text).expect("a pattern that is a constant")
});
static SPAWNED: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"process (\d+) terminated with (?:signal (SIG[A-Z]+)|exit code (\d+))";
    Regex::new(text).expect("a pattern that is a constant")
});
static MPI: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"process rank (\d+) with PID (\d+) on node \S+ exited on signal (\d+)";
    Regex::new(text).expect("a pattern that is a constant")
});

/// Signs that hold words of other signs and must be read before them.
pub(super) fn first(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    if has("EADDRINUSE") || (has("ddress already in use") && !has("TensorBoard")) {
        return Sign::root(FailureKind::PortInUse);
    }
    if has("Unable to find latest file at") {
        return Sign::of(Weight::Restart, FailureKind::NotRestored, Who::default());
    }
    let done = (has("`Trainer.fit` stopped: `max_") && has("reached")) || has("'train_runtime': ");
    done.then(|| Sign::of(Weight::Done, FailureKind::Completed, Who::default())).flatten()
}

/// A launcher that tells how a rank ended.
pub(super) fn launcher(text: &str) -> Option<Sign> {
    if let Some(found) = TORCHRUN.captures(text) {
        let number = |at: usize| found.get(at).and_then(|part| part.as_str().parse().ok());
        let who = Who { rank: number(2), pid: number(3), loader: false };
        return ended(found.get(1)?.as_str().parse().ok()?, who);
    }
    if let Some((_, code)) = text.split_once("exits with return code = ") {
        let rank = number_behind(text, "--local_rank=").and_then(|rank| u32::try_from(rank).ok());
        return ended(code.trim().parse().ok()?, Who { rank, ..Who::default() });
    }
    if let Some(found) = SPAWNED.captures(text) {
        let who = Who { rank: found.get(1)?.as_str().parse().ok(), ..Who::default() };
        return match (found.get(2).map(|name| name.as_str()), found.get(3)) {
            (Some(name), _) => ended(-signal_named(name)?, who),
            (None, code) => ended(code?.as_str().parse().ok()?, who),
        };
    }
    if let Some(found) = MPI.captures(text) {
        let number = |at: usize| found.get(at).and_then(|part| part.as_str().parse::<u32>().ok());
        let who = Who { rank: number(1), pid: number(2), loader: false };
        return ended(-i32::try_from(number(3)?).ok()?, who);
    }
    let (_, signal) = text.split_once("died with <Signals.")?;
    let signal = number_behind(signal, ":").and_then(|signal| i32::try_from(signal).ok())?;
    ended(-signal, Who::default())
}

fn signal_named(name: &str) -> Option<i32> {
    let names = [("SIGKILL", 9), ("SIGTERM", 15), ("SIGSEGV", 11), ("SIGABRT", 6), ("SIGBUS", 7), ("SIGINT", 2)];
    names.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
}

/// How the rank ended that torchrun saw fail first, from the lines behind `Root Cause (first observed failure)`. The
/// table's other ranks ended because of it, by whatever signal.
pub(in super::super) fn root_cause<'a>(lines: impl Iterator<Item = &'a str>) -> Option<(usize, Sign)> {
    let mut who = Who::default();
    for (at, text) in lines.enumerate().take(8) {
        let Some((key, value)) = text.split_once(':') else { continue };
        match key.trim() {
            "rank" => who.rank = value.split_whitespace().next().and_then(|rank| rank.parse().ok()),
            "exitcode" => {
                who.pid = number_behind(value, "(pid:").and_then(|pid| u32::try_from(pid).ok());
                let code = value.split_whitespace().next()?.parse().ok()?;
                return ended(code, who).map(|sign| (at, sign));
            }
            _ => {}
        }
    }
    None
}

/// What a rank's code is a sign of; a negative one is a signal. `SIGTERM` is what siblings get, `SIGABRT` what NCCL's
/// watchdog gives its own process: echoes both.
fn ended(code: i32, who: Who) -> Option<Sign> {
    let signal = code.checked_neg().filter(|signal| *signal > 0);
    match signal {
        Some(9) => Sign::of(Weight::Killed, FailureKind::KilledUnproven { signal: 9 }, who),
        Some(signal) if FAULTS.contains(&signal) && signal != SIGABRT => {
            let kind = FailureKind::Bug { place: format!("signal {signal}") };
            Some(Sign { weight: Weight::Root, kind, sure: Confidence::Likely, who })
        }
        Some(_) => Sign::of(Weight::Echo, FailureKind::PeerLost, who),
        None if code == 0 => None,
        None => {
            let kind = who.rank.map_or(FailureKind::Unknown, |rank| FailureKind::RankDied { rank });
            Sign::of(Weight::Ended, kind, who)
        }
    }
}

/// What is said by those that are left.
pub(super) fn echo(text: &str) -> Option<Sign> {
    const MARKS: [&str; 22] = [
        "Watchdog caught collective operation timeout",
        "taking the entire process down",
        "NCCL communicator was aborted",
        "ncclRemoteError",
        "ncclSystemError",
        "remote process exited or there was a network error",
        "Connection closed by peer",
        "Connection reset by peer",
        "ChildFailedError",
        "closing signal SIGTERM",
        "recvValue failed",
        "failed to recv, got 0 bytes",
        "Broken pipe",
        "Socket Timeout",
        "for recv operation to complete",
        "for send operation to complete",
        "Application timeout caused pair closure",
        "Signal 15 (SIGTERM) received by PID",
        "returned non-zero exit status",
        "Killing subprocess",
        "ProcessRaisedException",
        "instance of 'c10::DistBackendError'",
    ];
    MARKS
        .iter()
        .any(|mark| text.contains(mark))
        .then(|| Sign::of(Weight::Echo, FailureKind::PeerLost, Who::default()))
        .flatten()
}

/// A program that tells that it was asked to stop.
pub(super) fn stop(text: &str) -> Option<Sign> {
    const MARKS: [&str; 7] = [
        "Received SIGTERM: 15",
        "SIGTERMException",
        "death signal, shutting down workers",
        "got signal: 15",
        "got signal: 2",
        "Main process received SIG",
        "Detected KeyboardInterrupt",
    ];
    let told = MARKS.iter().any(|mark| text.contains(mark)) || text.trim() == "KeyboardInterrupt" || text == "^C";
    told.then(|| Sign::of(Weight::Stop, FailureKind::Stopped, Who::default())).flatten()
}
