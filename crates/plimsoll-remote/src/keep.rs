//! Runs that outlive the connection that started them.
//!
//! A run is started by a *keeper*: this program again, in a session of its own, with the log as its output. It starts the
//! verb, writes down which process that is, waits for it and writes down how it ended. Invariant: what is on the disk says
//! who was started and what was asked for; whom it does not name, nobody can stop, so nothing begins before it is named. The
//! keeper has the run from before it is started until its ending is written, so that no two write down what becomes of it.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::keeping::Keeping;
use crate::record::{Process, Record, Standing, host};
use crate::wire::{Echo, Ending, MOST_TEXT, Word};
use crate::{Digest, FarPath, own_folder};

/// Where runs are.
pub const RUNS: &str = "runs";
/// Where it is written down what was started, with the logs.
pub const LOGS: &str = "logs";
/// Files by which a run says what it understood.
const ECHOES: [&str; 2] = ["launch.json", "job.toml"];
/// How long a keeper may take to start what it keeps, and to write down how it ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Order {
    /// Name of the run: without its number if it is a fresh one.
    pub name: String,
    /// Whether it is a new run.
    pub fresh: bool,
    /// Verb and flags.
    pub words: Vec<Word>,
    /// Where to start, below the far folder.
    pub folder: Option<FarPath>,
    /// What was asked for, in short.
    pub asked: Digest,
    /// Even if the same runs already.
    pub beside: bool,
    /// The start that it comes from: one that is asked for again is not done again.
    pub token: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Started {
    /// The run's name.
    pub run: String,
    /// Where its output begins in the log.
    pub log_from: u64,
    /// Whether the same was running before.
    pub already: bool,
}

/// What came of asking a run to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// It was asked.
    Asked,
    /// Nobody works on it.
    Nobody,
    /// Somebody does, on the machine of that name.
    Elsewhere(String),
}

/// The log of a run.
pub fn log_path(run: &str) -> Result<FarPath, crate::RemoteError> {
    FarPath::new(format!("{LOGS}/{run}.log"))
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

/// Starts a run. What it understands of that it says later, in its folder.
pub fn start(dir: &Path, program: &Path, order: &Order) -> Result<Started, String> {
    if !is_run_name(&order.name) {
        return Err(format!("`{}` is no name of a run", order.name.escape_debug()));
    }
    let all: Vec<(String, Record)> =
        known(dir).into_iter().filter_map(|run| Record::read(dir, &run).map(|record| (run, record))).collect();
    // Asked again after a connection broke: it may have ended since.
    if let Some((run, record)) = all.iter().find(|(_, record)| record.token == order.token) {
        return Ok(Started { run: run.clone(), log_from: record.log_from, already: false });
    }
    let same = |(run, record): &&(String, Record)| {
        let wanted = match order.fresh {
            true => !order.beside && record.asked == order.asked,
            false => *run == order.name,
        };
        wanted && settled(dir, run).is_some_and(|standing| standing.alive)
    };
    // By somebody who does not know: one is enough.
    if let Some((run, _)) = all.iter().find(same) {
        return Ok(Started { run: run.clone(), log_from: 0, already: true });
    }
    for folder in [LOGS, RUNS] {
        own_folder::make(dir, folder).map_err(told)?;
    }
    let run = if order.fresh { claim(dir, &order.name)? } else { again(dir, &order.name)? };
    let keeping = Keeping::take(dir, &run, PATIENCE)?;
    // A run that goes on is still the one that was asked for.
    let before = all.iter().find(|(name, _)| *name == run);
    let asked = before.map_or(order.asked, |(_, before)| before.asked);
    let folder = dir.join(RUNS).join(&run);
    let said = folder.to_str().ok_or("the run folder is not UTF-8")?;
    let words = order.words.iter().map(|word| match word {
        Word::Said(word) => word.clone(),
        Word::Run => said.to_string(),
    });
    let log = dir.join(LOGS).join(format!("{run}.log"));
    let log = fs_err::OpenOptions::new().create(true).append(true).open(&log).map_err(told)?;
    let log_from = log.metadata().map_err(told)?.len();
    let record = Record {
        words: words.collect(),
        folder: order.folder.as_ref().map_or(dir.to_path_buf(), |below| below.in_folder(dir)),
        asked,
        token: order.token.clone(),
        log_from,
        began_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
        process: None,
        ending: None,
    };
    record.write(dir, &run)?;
    let mut keeper = Command::new(program);
    keeper.arg("remote-agent").arg("keep").arg(dir).arg(&run).arg(program);
    keeper
        .stdin(keeping.handed_down().map_err(told)?)
        .stdout(log.file().try_clone().map_err(told)?)
        .stderr(log.into_file());
    let keeper = keeper.spawn().map_err(|error| format!("cannot start `{}`: {error}", program.display()))?;
    wait(dir, &run, keeper)?;
    Ok(Started { run, log_from, already: false })
}

/// How a run stands once it does not just end.
fn settled(dir: &Path, run: &str) -> Option<Standing> {
    let by = Instant::now() + PATIENCE;
    loop {
        let standing = Standing::of(dir, run)?;
        if !standing.is_ending() || Instant::now() > by {
            return Some(standing);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Until it is written down whom the keeper has started, or how that ended.
fn wait(dir: &Path, run: &str, mut keeper: Child) -> Result<(), String> {
    let by = Instant::now() + PATIENCE;
    loop {
        let gone = keeper.try_wait().map_err(told)?;
        let mut record = Record::read(dir, run).ok_or("what was started is not written down")?;
        if record.process.is_some() || record.ending.is_some() {
            return Ok(());
        }
        if gone.is_some() {
            record.ending = Some(Ending::Unseen);
            return record.write(dir, run);
        }
        if Instant::now() > by {
            // It would begin later, when nobody compares what it understood. What it has started begins only by its word.
            let _ = keeper.kill();
            keeper.wait().map_err(told)?;
            let mut record = Record::read(dir, run).ok_or("what was started is not written down")?;
            if record.process.is_some() || record.ending.is_some() {
                return Ok(());
            }
            record.ending = Some(Ending::Unseen);
            record.write(dir, run)?;
            return Err(format!("nothing is started for `{run}` for {} seconds", PATIENCE.as_secs()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a run says that it understood; none as long as it has not.
pub fn echo(dir: &Path, run: &str) -> Option<Echo> {
    ECHOES.iter().find_map(|file| {
        let path = dir.join(RUNS).join(run).join(file);
        let fair = path.metadata().ok()?.len() <= MOST_TEXT as u64;
        let text = fs_err::read_to_string(path).ok().filter(|_| fair)?;
        Some(Echo { file: file.to_string(), text })
    })
}

/// A number that is nobody else's: whoever makes the log has it.
fn claim(dir: &Path, name: &str) -> Result<String, String> {
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
    Ok(run.to_string())
}

/// The keeper's whole life: starts what the record of `run` says, and writes down how it ended.
pub fn keep(dir: &Path, run: &str, program: &Path) -> Result<(), String> {
    // Nothing that ends the connection or its session reaches us from here on.
    rustix::process::setsid().map_err(|error| format!("cannot leave the session: {error}"))?;
    let mut record = Record::read(dir, run).ok_or_else(|| format!("nothing is written down of `{run}`"))?;
    let mut command = Command::new(program);
    command.args(["remote-agent", "begin"]).arg(program).arg("--").args(&record.words);
    let started = command.current_dir(&record.folder).stdin(Stdio::piped()).spawn();
    let mut child = match started.map_err(|error| format!("cannot start `{}`: {error}", program.display())) {
        Ok(child) => child,
        Err(fact) => {
            record.ending = Some(Ending::Code(127));
            write_down(dir, run, &record)?;
            return Err(fact);
        }
    };
    record.process = Some(Process::of(child.id() as i32));
    let go = child.stdin.take();
    let overtaken = || Err(format!("`{run}` was started by somebody else meanwhile"));
    if let Err(fact) = write_down(dir, run, &record).and_then(|written| if written { Ok(()) } else { overtaken() }) {
        // Nobody would know whom to stop.
        let _ = child.kill();
        let _ = child.wait();
        return Err(fact);
    }
    // One that was stopped already does not hear it, and that is how it ended.
    let _ = go.map(|mut go| go.write_all(b"\n"));
    let status = child.wait().map_err(told)?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    record.ending = Some(match (status.code(), signal) {
        (Some(code), _) => Ending::Code(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Unseen,
    });
    write_down(dir, run, &record).map(drop)
}

/// Becomes `program` with `words`, once it is said on stdin that it is written down who does so. Where nobody says it, the
/// keeper is gone, and nothing begins.
pub fn begin(program: &Path, words: &[String]) -> Result<(), String> {
    match std::io::stdin().read(&mut [0]) {
        Ok(1) => {}
        _ => return Err("whoever was to keep it is gone, so it does not begin".to_string()),
    }
    let error = Command::new(program).args(words).stdin(Stdio::null()).exec();
    Err(format!("cannot start `{}`: {error}", program.display()))
}

/// What becomes of the start that `record` is of; of one that came after it that says nothing, and nothing is written. Whether it is.
fn write_down(dir: &Path, run: &str, record: &Record) -> Result<bool, String> {
    match Record::read(dir, run) {
        Some(now) if now.token != record.token => Ok(false),
        _ => record.write(dir, run).map(|()| true),
    }
}

/// Asks a run to stop.
pub fn stop(dir: &Path, run: &str) -> Result<Stopping, String> {
    let by = Instant::now() + PATIENCE;
    let process = loop {
        let Some(Standing { record, .. }) = Standing::of(dir, run).filter(|standing| standing.alive) else {
            return Ok(Stopping::Nobody);
        };
        if let Some(host) = record.elsewhere() {
            return Ok(Stopping::Elsewhere(host.to_string()));
        }
        match record.process.filter(Process::is_there) {
            Some(process) => break process,
            // Its keeper is about to say whom it starts, or how that ended.
            None if Instant::now() < by => std::thread::sleep(PAUSE),
            None => {
                return Err(format!("who works on `{run}` is not written down for {} seconds", PATIENCE.as_secs()));
            }
        }
    };
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(Stopping::Nobody) };
    // The descriptor holds the process, so that what is signalled is what was looked at.
    let held = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(held) => held,
        Err(rustix::io::Errno::SRCH) => return Ok(Stopping::Nobody),
        Err(error) => return Err(format!("cannot look at process {pid:?}: {error}")),
    };
    if !process.is_there() {
        return Ok(Stopping::Nobody);
    }
    match pidfd_send_signal(&held, Signal::TERM) {
        Ok(()) => Ok(Stopping::Asked),
        Err(rustix::io::Errno::SRCH) => Ok(Stopping::Nobody),
        Err(error) => Err(format!("cannot signal process {pid:?}: {error}")),
    }
}

/// Says where a run is that cannot be reached from here.
pub fn out_of_reach(run: &str, there: &str) -> String {
    format!("`{}` works on `{}`, and this is `{}`", run.escape_debug(), there.escape_debug(), host())
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn each_fresh_run_gets_a_name_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("runs/chat-2")).unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        let names: Vec<String> = (0..3).map(|_| claim(dir.path(), "chat").unwrap()).collect();
        assert_eq!(names, ["chat-1", "chat-3", "chat-4"]);
    }

    #[test]
    fn nobody_is_signalled_who_is_not_the_one_that_was_started() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(Stopping::Nobody));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id() as i32);
        record(Some(Process { born: process.born + 7, ..process.clone() })).write(dir.path(), "chat-1").unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(Stopping::Nobody));
        assert!(child.try_wait().unwrap().is_none());
        // The same number on another machine, whose run's lock is held.
        let run = dir.path().join(RUNS).join("chat-1");
        fs_err::create_dir_all(&run).unwrap();
        let lock = plimsoll_recover::RunLock::take(&run, Duration::ZERO).unwrap();
        let other = Process { host: "node2".to_string(), place: "another boot".to_string(), ..process.clone() };
        record(Some(other)).write(dir.path(), "chat-1").unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(Stopping::Elsewhere("node2".to_string())));
        assert!(child.try_wait().unwrap().is_none());
        drop(lock);
        record(Some(process)).write(dir.path(), "chat-1").unwrap();
        assert_eq!(stop(dir.path(), "chat-1"), Ok(Stopping::Asked));
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }

    #[test]
    fn nothing_is_written_down_over_a_start_that_came_after() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        let before = record(None);
        let after = Record { token: "after".to_string(), ..before.clone() };
        before.write(dir.path(), "chat-1").unwrap();
        let ended = Record { ending: Some(Ending::Code(4)), ..before };
        assert!(write_down(dir.path(), "chat-1", &ended).unwrap());
        assert_eq!(Record::read(dir.path(), "chat-1").unwrap(), ended);
        after.write(dir.path(), "chat-1").unwrap();
        assert!(!write_down(dir.path(), "chat-1", &ended).unwrap());
        assert_eq!(Record::read(dir.path(), "chat-1").unwrap(), after);
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert!(is_run_name("chat-1") && is_run_name("My run"));
        assert!(["", "a/b", "..", "-x", ".hidden", "a\nb"].iter().all(|name| !is_run_name(name)));
    }
}
