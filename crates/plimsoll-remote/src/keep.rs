//! Runs that outlive the connection that started them.
//!
//! A run is started by a *keeper*: this program again, in a session of its own, with the log as its output. It starts the
//! verb, writes down which process that is, waits for it and writes down how it ended. Invariant: what is on the disk says
//! who was started and what was asked for; a process is believed to be that one only if it was born when that one was.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_recover::atomic_write;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::wire::{Echo, Ending};
use crate::{Digest, FarPath};

/// Where runs are.
pub const RUNS: &str = "runs";
/// Where it is written down what was started, with the logs.
pub const LOGS: &str = "logs";
/// Stands for the run folder in the words of a verb.
pub const RUN_WORD: &str = "{run}";
/// Files by which a run says what it understood.
const ECHOES: [&str; 2] = ["launch.json", "job.toml"];
/// How long a start may take until it says so.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// Most bytes of a record or an echo.
const MOST: u64 = 1 << 20;

/// What is written down of a run that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Verb and flags.
    pub words: Vec<String>,
    /// Where it was started.
    pub folder: PathBuf,
    /// What was asked for, in short.
    pub asked: Digest,
    /// When, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The process and when the kernel says it was born; none while it is being started.
    pub process: Option<(i32, u64)>,
    /// How it ended.
    pub ending: Option<Ending>,
}

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Order {
    /// Name of the run: without its number if it is a fresh one.
    pub name: String,
    /// Whether it is a new run.
    pub fresh: bool,
    /// Verb and flags.
    pub words: Vec<String>,
    /// Where to start, below the far folder.
    pub folder: Option<FarPath>,
    /// What was asked for, in short.
    pub asked: Digest,
    /// Even if the same runs already.
    pub beside: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Started {
    /// The run's name.
    pub run: String,
    /// What it said that it understood.
    pub echo: Option<Echo>,
    /// How it ended already.
    pub ending: Option<Ending>,
    /// Where its output begins in the log.
    pub log_from: u64,
    /// Whether the same was running before.
    pub already: bool,
}

impl Record {
    /// Of a run in `dir`; `None` where nobody started it from afar.
    pub fn read(dir: &Path, run: &str) -> Option<Record> {
        let path = record_path(dir, run);
        let fair = fs_err::metadata(&path).ok()?.len() <= MOST;
        serde_json::from_slice(&fs_err::read(path).ok().filter(|_| fair)?).ok()
    }

    fn write(&self, dir: &Path, run: &str) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(self).map_err(told)?;
        atomic_write(&record_path(dir, run), &text).map_err(told)
    }

    /// Whether the process is there.
    pub fn alive(&self) -> bool {
        self.ending.is_none() && self.process.is_some_and(|(pid, born)| born_at(pid) == Some(born))
    }

    /// How it ended, where it did: also where nobody saw it.
    pub fn ended(&self) -> Option<Ending> {
        self.ending.or_else(|| (self.process.is_some() && !self.alive()).then_some(Ending::Unseen))
    }
}

/// The log of a run.
pub fn log_path(run: &str) -> Result<FarPath, crate::RemoteError> {
    FarPath::new(format!("{LOGS}/{run}.log"))
}

fn record_path(dir: &Path, run: &str) -> PathBuf {
    dir.join(LOGS).join(format!("{run}.json"))
}

/// The names of all runs that were started from afar.
pub fn known(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir.join(LOGS)).into_iter().flatten().flatten();
    let name = |entry: fs_err::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_string());
    entries.filter_map(name).filter(|name| !name.starts_with('.')).collect()
}

/// Whether a text can be the name of a run: one part of a path, and no option.
pub fn is_run_name(name: &str) -> bool {
    FarPath::new(name).is_ok() && !name.contains('/') && !name.starts_with(['-', '.'])
}

/// Starts a run and waits until it says what it understood, or ended.
pub fn start(dir: &Path, program: &Path, order: &Order) -> Result<Started, String> {
    if !is_run_name(&order.name) {
        return Err(format!("`{}` is no name of a run", order.name.escape_debug()));
    }
    let alive = |run: &String| Record::read(dir, run).filter(Record::alive);
    let same = |run: &String| match order.fresh {
        true => !order.beside && alive(run).is_some_and(|record| record.asked == order.asked),
        false => *run == order.name && alive(run).is_some(),
    };
    // Asked again after a connection broke, or by somebody who does not know: one is enough.
    if let Some(run) = known(dir).into_iter().find(same) {
        let echo = echo(&dir.join(RUNS).join(&run));
        return Ok(Started { run, echo, ending: None, log_from: 0, already: true });
    }
    let run = if order.fresh { claim(dir, &order.name)? } else { again(dir, &order.name)? };
    // A run that goes on is still the one that was asked for.
    let asked = Record::read(dir, &run).map_or(order.asked, |before| before.asked);
    let folder = dir.join(RUNS).join(&run);
    let said = folder.to_str().ok_or("the run folder is not UTF-8")?;
    let words = order.words.iter().map(|word| word.replace(RUN_WORD, said)).collect();
    let start_in = order.folder.as_ref().map_or(dir.to_path_buf(), |below| below.in_folder(dir));
    let record = Record {
        words,
        folder: start_in,
        asked,
        began_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
        process: None,
        ending: None,
    };
    record.write(dir, &run)?;
    let log = dir.join(LOGS).join(format!("{run}.log"));
    let log = fs_err::OpenOptions::new().create(true).append(true).open(&log).map_err(told)?;
    let log_from = log.metadata().map_err(told)?.len();
    let mut keeper = Command::new(program);
    keeper.arg("remote-agent").arg("keep").arg(dir).arg(&run).arg(program);
    keeper.stdin(Stdio::null()).stdout(log.file().try_clone().map_err(told)?).stderr(log.into_file());
    let keeper = keeper.spawn().map_err(|error| format!("cannot start `{}`: {error}", program.display()))?;
    wait(dir, &run, &folder, keeper, log_from)
}

fn wait(dir: &Path, run: &str, folder: &Path, mut keeper: Child, log_from: u64) -> Result<Started, String> {
    let by = Instant::now() + PATIENCE;
    loop {
        let gone = keeper.try_wait().map_err(told)?;
        let record = Record::read(dir, run).ok_or("what was started is not written down")?;
        let echo = record.process.and_then(|_| echo(folder));
        let mut ending = record.ended();
        if gone.is_some() && ending.is_none() {
            ending = Record::read(dir, run).and_then(|record| record.ended()).or(Some(Ending::Unseen));
        }
        if ending.is_some() || echo.is_some() {
            return Ok(Started { run: run.to_string(), echo, ending, log_from, already: false });
        }
        if Instant::now() > by {
            return Err(format!("`{run}` was started and says nothing for {} seconds", PATIENCE.as_secs()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a run says that it understood.
fn echo(folder: &Path) -> Option<Echo> {
    ECHOES.iter().find_map(|file| {
        let path = folder.join(file);
        let fair = path.metadata().ok()?.len() <= MOST;
        let text = fs_err::read_to_string(path).ok().filter(|_| fair)?;
        Some(Echo { file: file.to_string(), text })
    })
}

/// A number that is nobody else's: whoever makes the log has it.
fn claim(dir: &Path, name: &str) -> Result<String, String> {
    fs_err::create_dir_all(dir.join(LOGS)).map_err(told)?;
    for number in 1..=u32::MAX {
        let run = format!("{name}-{number}");
        let log = dir.join(LOGS).join(format!("{run}.log"));
        if dir.join(RUNS).join(&run).symlink_metadata().is_ok() {
            continue;
        }
        match fs_err::OpenOptions::new().create_new(true).append(true).open(&log) {
            Ok(_) => return Ok(run),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(told(error)),
        }
    }
    Err(format!("no number is left for `{name}`"))
}

/// A run that is there.
fn again(dir: &Path, run: &str) -> Result<String, String> {
    if !dir.join(RUNS).join(run).is_dir() {
        return Err(format!("there is no run `{run}`"));
    }
    fs_err::create_dir_all(dir.join(LOGS)).map_err(told)?;
    Ok(run.to_string())
}

/// The keeper's whole life: starts what the record of `run` says, and writes down how it ended.
pub fn keep(dir: &Path, run: &str, program: &Path) -> Result<(), String> {
    // Nothing that ends the connection or its session reaches us from here on.
    rustix::process::setsid().map_err(|error| format!("cannot leave the session: {error}"))?;
    let mut record = Record::read(dir, run).ok_or_else(|| format!("nothing is written down of `{run}`"))?;
    let mut command = Command::new(program);
    command.args(&record.words).current_dir(&record.folder).stdin(Stdio::null());
    let started = command.spawn().map_err(|error| format!("cannot start `{}`: {error}", program.display()));
    let mut child = match started {
        Ok(child) => child,
        Err(fact) => {
            record.ending = Some(Ending::Code(127));
            record.write(dir, run)?;
            return Err(fact);
        }
    };
    let pid = child.id() as i32;
    record.process = Some((pid, born_at(pid).unwrap_or(0)));
    record.write(dir, run)?;
    let status = child.wait().map_err(told)?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    record.ending = Some(match (status.code(), signal) {
        (Some(code), _) => Ending::Code(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Unseen,
    });
    record.write(dir, run)
}

/// Asks a run to stop; whether there was one to ask.
pub fn stop(dir: &Path, run: &str) -> Result<bool, String> {
    let Some((pid, born)) = Record::read(dir, run).filter(Record::alive).and_then(|record| record.process) else {
        return Ok(false);
    };
    let Some(pid) = Pid::from_raw(pid) else { return Ok(false) };
    // The descriptor holds the process, so that what is signalled is what was looked at.
    let held = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(held) => held,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(error) => return Err(format!("cannot look at process {pid:?}: {error}")),
    };
    if born_at(pid.as_raw_nonzero().get()) != Some(born) {
        return Ok(false);
    }
    match pidfd_send_signal(&held, Signal::TERM) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(error) => Err(format!("cannot signal process {pid:?}: {error}")),
    }
}

/// When a process was born, in ticks since the machine was; none where there is none, or only what waits to be reaped.
fn born_at(pid: i32) -> Option<u64> {
    let text = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, brackets too.
    let (_, behind) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(process: Option<(i32, u64)>) -> Record {
        let words = vec!["train".to_string()];
        Record { words, folder: "/".into(), asked: Digest([1; 32]), began_unix_ms: 5, process, ending: None }
    }

    #[test]
    fn a_process_is_believed_only_by_its_birth() {
        let own = std::process::id() as i32;
        let born = born_at(own).unwrap();
        assert!(record(Some((own, born))).alive());
        let other = record(Some((own, born + 1)));
        assert!(!other.alive());
        assert_eq!(other.ended(), Some(Ending::Unseen));
        assert_eq!(record(None).ended(), None);
    }

    #[test]
    fn each_fresh_run_gets_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("runs/chat-2")).unwrap();
        let names: Vec<String> = (0..3).map(|_| claim(dir.path(), "chat").unwrap()).collect();
        assert_eq!(names, ["chat-1", "chat-3", "chat-4"]);
    }

    #[test]
    fn nobody_is_signalled_who_is_not_the_one_that_was_started() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(false));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let born = born_at(pid).unwrap();
        record(Some((pid, born + 7))).write(dir.path(), "chat-1").unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(false));
        assert!(child.try_wait().unwrap().is_none());
        record(Some((pid, born))).write(dir.path(), "chat-1").unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(true));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert!(is_run_name("chat-1") && is_run_name("My run"));
        assert!(["", "a/b", "..", "-x", ".hidden", "a\nb"].iter().all(|name| !is_run_name(name)));
    }
}
