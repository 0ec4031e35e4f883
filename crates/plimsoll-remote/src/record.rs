//! What is written down of a run that was started from afar.
//!
//! Invariant: a process is believed to be the one that was started only where its number means the same as when it was
//! written down, and if it was born when that one was. A run has ended when that is written down, or when neither its process
//! nor its keeper is there to do so. What has to be written last, how it ended, has its room beforehand.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_machine::{Root, boot_id};
use plimsoll_recover::{RunLock, atomic_write};
use serde::{Deserialize, Serialize};

use crate::Digest;
use crate::keep::{LOGS, RUNS};
use crate::keeping::Keeping;
use crate::wire::Ending;

/// Most bytes of a record.
const MOST: u64 = 4 << 20;
/// Room for a process and an ending behind what is known at the start.
const KEPT: usize = 512;
/// A record that is written over itself may be read in the middle of it.
const READINGS: u32 = 5;

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
    /// The start that it came from.
    pub token: String,
    /// Where its output begins in the log.
    pub log_from: u64,
    /// When, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// None while it is being started.
    pub process: Option<Process>,
    /// How it ended.
    pub ending: Option<Ending>,
}

/// A process, so that it is not taken for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When the kernel says it was born.
    pub born: u64,
    /// The machine's name, for people.
    pub host: String,
    /// Where the number means this process: a boot of a machine, and a namespace in it.
    pub place: String,
}

impl Process {
    /// One of this machine, and of ours.
    pub fn of(pid: i32) -> Process {
        Process { pid, born: born_at(pid).unwrap_or(0), host: host(), place: place() }
    }

    /// Whether its number means the same here.
    pub fn is_here(&self) -> bool {
        self.place == place()
    }

    /// Whether it is there, as far as can be seen from here.
    pub fn is_there(&self) -> bool {
        self.is_here() && born_at(self.pid) == Some(self.born)
    }
}

impl Record {
    /// Of a run in `dir`; `None` where nobody started it from afar.
    pub fn read(dir: &Path, run: &str) -> Option<Record> {
        let path = path(dir, run);
        let fair = fs_err::metadata(&path).ok()?.len() <= MOST;
        for _ in 0..READINGS {
            let text = fs_err::read(&path).ok().filter(|_| fair)?;
            match serde_json::from_slice(&text) {
                Ok(record) => return Some(record),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        None
    }

    /// Writes it beside the logs; over itself where the disk is full.
    pub fn write(&self, dir: &Path, run: &str) -> Result<(), String> {
        let path = path(dir, run);
        let text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let Err(error) = atomic_write(&path, &padded(&text, text.len() + KEPT)) else { return Ok(()) };
        write_over(&path, &text).map_err(|_| error.to_string())
    }

    /// Whether the process is there, or the keeper, who has yet to write down how it ended. One of another machine that shares
    /// the folder is, as long as the run's lock is held.
    fn is_alive(&self, dir: &Path, run: &str) -> bool {
        let works = |process: &Process| match process.is_here() {
            true => process.is_there(),
            false => RunLock::is_held(&dir.join(RUNS).join(run)).unwrap_or(false),
        };
        self.ending.is_none() && (self.process.as_ref().is_some_and(works) || Keeping::is_held(dir, run))
    }

    /// The machine that it runs on, where that is not this one.
    pub fn elsewhere(&self) -> Option<&str> {
        self.process.as_ref().filter(|process| !process.is_here()).map(|process| process.host.as_str())
    }
}

/// A run at one moment: what is written down of it, and whether it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What is written down.
    pub record: Record,
    /// Whether its process or its keeper is there.
    pub alive: bool,
    /// How it ended, where it did: also where nobody saw it.
    pub ending: Option<Ending>,
}

impl Standing {
    /// Of a run in `dir`; `None` where nobody started it from afar.
    pub fn of(dir: &Path, run: &str) -> Option<Standing> {
        let mut record = Record::read(dir, run)?;
        loop {
            let alive = record.is_alive(dir, run);
            if alive || record.ending.is_some() {
                return Some(Standing { alive, ending: record.ending, record });
            }
            // It may have ended since it was read, or have been started again.
            let now = Record::read(dir, run)?;
            if now == record {
                return Some(Standing { alive, ending: Some(Ending::Unseen), record });
            }
            record = now;
        }
    }

    /// Whether its process is gone, and its keeper about to write down how it ended.
    pub fn is_ending(&self) -> bool {
        let gone = |process: &Process| process.is_here() && !process.is_there();
        self.alive && self.record.process.as_ref().is_some_and(gone)
    }
}

fn path(dir: &Path, run: &str) -> PathBuf {
    dir.join(LOGS).join(format!("{run}.json"))
}

/// Blanks behind it say nothing in JSON.
fn padded(text: &[u8], length: usize) -> Vec<u8> {
    let mut padded = text.to_vec();
    padded.resize(length, b' ');
    padded
}

/// In the bytes that the file has already.
fn write_over(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let file = fs_err::OpenOptions::new().write(true).open(path)?;
    let there = file.metadata()?.len() as usize;
    if text.len() > there {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    file.file().write_all_at(&padded(text, there), 0)?;
    file.sync_data()
}

/// This machine's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn place() -> String {
    let boot = boot_id(&Root::system()).ok().flatten().unwrap_or_default();
    let space = fs_err::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{boot} {}", space.display())
}

/// When a process was born, in ticks since the machine was; none where there is none, or only what waits to be reaped.
pub fn born_at(pid: i32) -> Option<u64> {
    let text = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, brackets too.
    let (_, behind) = text.rsplit_once(')')?;
    let fields: Vec<&str> = behind.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn record(process: Option<Process>) -> Record {
        let words = vec!["train".to_string()];
        let (asked, token) = (Digest([1; 32]), "t".to_string());
        Record { words, folder: "/".into(), asked, token, log_from: 0, began_unix_ms: 5, process, ending: None }
    }

    /// How a run with this process stands.
    fn standing(dir: &Path, process: Option<Process>) -> (bool, Option<Ending>) {
        fs_err::create_dir_all(dir.join(LOGS)).unwrap();
        record(process).write(dir, "a-1").unwrap();
        let found = Standing::of(dir, "a-1").unwrap();
        (found.alive, found.ending)
    }

    #[test]
    fn a_process_is_believed_only_by_its_birth() {
        let dir = tempfile::tempdir().unwrap();
        let own = Process::of(std::process::id() as i32);
        assert_eq!(standing(dir.path(), Some(own.clone())), (true, None));
        let other = Process { born: own.born + 1, ..own };
        assert_eq!(standing(dir.path(), Some(other)), (false, Some(Ending::Unseen)));
        assert_eq!(standing(dir.path(), None), (false, Some(Ending::Unseen)));
    }

    #[test]
    fn a_run_whose_keeper_has_yet_to_say_how_it_ended_lives() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        let own = Process::of(std::process::id() as i32);
        let gone = Process { born: own.born + 1, ..own };
        let keeping = Keeping::take(dir.path(), "a-1", Duration::ZERO).unwrap();
        assert_eq!(standing(dir.path(), None), (true, None));
        assert!(!Standing::of(dir.path(), "a-1").unwrap().is_ending());
        assert_eq!(standing(dir.path(), Some(gone.clone())), (true, None));
        assert!(Standing::of(dir.path(), "a-1").unwrap().is_ending());
        let last = Record { ending: Some(Ending::Code(4)), ..record(Some(gone)) };
        last.write(dir.path(), "a-1").unwrap();
        let found = Standing::of(dir.path(), "a-1").unwrap();
        assert_eq!((found.alive, found.ending), (false, Some(Ending::Code(4))));
        drop(keeping);
    }

    #[test]
    fn a_run_of_another_machine_lives_while_its_lock_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join(RUNS).join("a-1");
        fs_err::create_dir_all(&run).unwrap();
        let own = Process::of(std::process::id() as i32);
        // The number and the birth are those of a process here, and are not asked for.
        let other = Process { host: "node2".to_string(), place: "another boot".to_string(), ..own };
        assert_eq!(record(Some(other.clone())).elsewhere(), Some("node2"));
        assert_eq!(standing(dir.path(), Some(other.clone())), (false, Some(Ending::Unseen)));
        let lock = RunLock::take(&run, Duration::ZERO).unwrap();
        assert_eq!(standing(dir.path(), Some(other.clone())), (true, None));
        drop(lock);
        assert_eq!(standing(dir.path(), Some(other)), (false, Some(Ending::Unseen)));
    }

    #[test]
    fn an_ending_finds_its_room_in_what_was_written_before() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join(LOGS)).unwrap();
        record(None).write(dir.path(), "a-1").unwrap();
        let at = path(dir.path(), "a-1");
        let length = fs_err::metadata(&at).unwrap().len();
        let longest = Process { pid: i32::MAX, born: u64::MAX, host: "h".repeat(64), place: "p".repeat(80) };
        let last = Record { ending: Some(Ending::Unseen), ..record(Some(longest)) };
        write_over(&at, &serde_json::to_vec_pretty(&last).unwrap()).unwrap();
        assert_eq!(Record::read(dir.path(), "a-1").unwrap(), last);
        assert_eq!(fs_err::metadata(&at).unwrap().len(), length);
        let too_long = Record { words: vec!["x".repeat(2000)], ..last };
        assert!(write_over(&at, &serde_json::to_vec_pretty(&too_long).unwrap()).is_err());
    }
}
