//! What is said when the host's memory, shared memory, files or data fail a trainer.

use plimsoll_recover::cause::Confidence;

use super::super::kind::FailureKind;
use super::{Sign, Weight, Who, is_raised, number_behind};

/// Endings of files that hold samples.
const SAMPLES: [&str; 12] =
    [".wav", ".flac", ".mp3", ".ogg", ".csv", ".json", ".jsonl", ".parquet", ".arrow", ".txt", ".png", ".jpg"];

/// `/dev/shm`. Before the words of disks: the kernel calls both `No space left on device`.
pub(super) fn shared_memory(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    let loader = has("Unexpected bus error encountered in worker")
        || has("insufficient shared memory (shm)")
        || has("out of shared memory")
        || has("unable to allocate shared memory(shm)")
        || has("killed by signal: Bus error");
    let file = (has("</torch_") || has("/dev/shm/")) && (has("unable to ") || has("No space left") || has("rror"));
    let nccl = has("rror while creating shared memory segment");
    if !(loader || file || nccl) {
        return None;
    }
    let pid = number_behind(text, "DataLoader worker (pid").and_then(|pid| u32::try_from(pid).ok());
    let sign = Sign::root(FailureKind::SharedMemoryFull)?;
    Some(Sign { who: Who { pid, loader, ..Who::default() }, ..sign })
}

/// Loader processes and compilers that died.
pub(super) fn killed(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    let compiler = (has("illed signal terminated program") || has("nternal compiler error: Killed"))
        || (has("died due to signal 9") && (has("cicc") || has("ptxas") || has("cudafe") || has("nvcc")));
    if compiler {
        return Sign::of(Weight::Killed, FailureKind::CompilerKilled, Who::default());
    }
    if is_reported(text) {
        return Sign::of(Weight::Killed, FailureKind::KilledUnproven { signal: 9 }, Who::default());
    }
    if !has("DataLoader worker (pid") {
        let timed = has("DataLoader timed out after");
        return timed.then(|| Sign::likely(FailureKind::Stalled { rank: None })).flatten();
    }
    let pid =
        number_behind(text, "DataLoader worker (pid(s)").or_else(|| number_behind(text, "DataLoader worker (pid"));
    let who = Who { pid: pid.and_then(|pid| u32::try_from(pid).ok()), loader: true, rank: None };
    let said = text.split_once("is killed by signal: ").map(|(_, said)| said.trim().trim_end_matches('.'));
    let signal = said.and_then(signal_of);
    // Without a signal the parent does not know how it ended; a later line never says more than an earlier one.
    let sure = if signal.is_some_and(|signal| signal != 9) { Confidence::Proven } else { Confidence::Unproven };
    let known = said.is_some() || has("exited unexpectedly");
    known.then_some(Sign { weight: Weight::Killed, kind: FailureKind::LoaderWorkerDied { signal }, sure, who })
}

/// How shells, systemd, Docker and batch systems write a `SIGKILL`; none of them says why.
fn is_reported(text: &str) -> bool {
    let bare = text.trim();
    let shell = bare.split_once(": line ").is_some_and(|(_, rest)| rest.split_whitespace().nth(2) == Some("Killed"));
    let numbered = ["exit code 137", "exit code: 137", "exit status 137", "exited with code 137", "ExitCode\": 137"];
    bare == "Killed" || shell || bare.contains("status=9/KILL") || numbered.iter().any(|mark| bare.contains(mark))
}

/// The signal that glibc describes so.
fn signal_of(said: &str) -> Option<i32> {
    let names = [
        ("Killed", 9),
        ("Segmentation fault", 11),
        ("Bus error", 7),
        ("Aborted", 6),
        ("Terminated", 15),
        ("Illegal instruction", 4),
        ("Floating point exception", 8),
        ("Hangup", 1),
        ("Interrupt", 2),
    ];
    names.iter().find(|(name, _)| said.starts_with(name)).map(|(_, signal)| *signal)
}

/// What else hosts do to trainers.
pub(super) fn read(text: &str) -> Option<Sign> {
    let has = |mark: &str| text.contains(mark);
    if has("Too many open files") || has("received 0 items of ancdata") {
        return Sign::root(FailureKind::TooManyFiles);
    }
    // Windows promises memory against RAM and paging file together.
    if has("The paging file is too small") || has("[WinError 1455]") || has("[WinError 8]") {
        return Sign::root(FailureKind::AllocationRefused);
    }
    // torch's zip writer does not pass the system's error on; a full disk is by far the most common one.
    if has("PytorchStreamWriter failed writing") || (has("inline_container.cc") && has("unexpected pos")) {
        return Sign::likely(FailureKind::DiskFull);
    }
    let numbers = (has("Function '") && has("returned nan values"))
        || has("Current loss scale already at minimum")
        || has("is not finite")
        || has("The loss returned in `training_step` is")
        || has("probability tensor contains either `inf`, `nan`")
        || (is_raised(text) && (has("loss is nan") || has("Loss is nan") || has("NaN loss") || has("nan loss")))
        || has("Loss is nan, stopping training");
    if numbers {
        return Sign::root(FailureKind::NotFinite);
    }
    let broken = has("LibsndfileError") || has("Error opening '") || has("UnidentifiedImageError");
    let absent = has("No such file or directory: '")
        && SAMPLES.iter().any(|ending| text.trim_end().ends_with(&format!("{ending}'")));
    let table = is_raised(text) && (has("ParserError: Error tokenizing data") || has("EmptyDataError"));
    if is_raised(text) && (broken || absent) || table {
        return Sign::likely(FailureKind::BadData);
    }
    None
}
