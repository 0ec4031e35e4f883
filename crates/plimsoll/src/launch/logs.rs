//! A trainer's output: written by itself into files of the run folder, and read behind it.
//!
//! Files, not pipes: a trainer whose supervisor dies goes on writing, and nothing is lost that was written just before a
//! kill. What is new is shown to the user as it is, and listened to.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use plimsoll_launch::failure::{Log, LogSource};
use plimsoll_launch::telling::Listener;

use crate::doctor::gist;
use crate::render::{Fail, OrFail};

/// Bytes of one file that are taken at a look.
const AT_ONCE: usize = 256 << 10;

/// The files of one start.
#[derive(Debug)]
pub struct Logs {
    out: Tail,
    err: Tail,
    show: bool,
}

#[derive(Debug)]
struct Tail {
    file: fs_err::File,
}

/// Where the logs of a start are.
pub fn paths(run: &Path, attempt: u64) -> [PathBuf; 2] {
    let folder = run.join("logs");
    [folder.join(format!("start-{attempt}.out")), folder.join(format!("start-{attempt}.err"))]
}

/// The folder of the logs of single ranks.
pub fn rank_folder(run: &Path, attempt: u64) -> PathBuf {
    run.join("logs").join(format!("start-{attempt}.ranks"))
}

/// The first number from which on no start has written here.
pub fn next_attempt(run: &Path) -> u64 {
    (1..).find(|attempt| paths(run, *attempt).iter().all(|path| !path.exists())).unwrap_or(u64::MAX)
}

impl Logs {
    /// Makes the files of a start; returns what the trainer writes to.
    pub fn make(run: &Path, attempt: u64, show: bool) -> Result<(Logs, [fs_err::File; 2]), Fail> {
        fs_err::create_dir_all(run.join("logs")).or_failed()?;
        let [out, err] = paths(run, attempt);
        let open = |path: &Path| fs_err::OpenOptions::new().append(true).create(true).open(path).or_failed();
        let theirs = [open(&out)?, open(&err)?];
        let tail = |path: PathBuf| -> Result<Tail, Fail> { Ok(Tail { file: fs_err::File::open(path).or_failed()? }) };
        Ok((Logs { out: tail(out)?, err: tail(err)?, show }, theirs))
    }

    /// Takes what is new, up to a bound; whether there was anything.
    pub fn read(&mut self, listener: &mut Listener) -> bool {
        let show = self.show;
        let out = self.out.read(listener, |bytes| {
            if show {
                let mut stdout = std::io::stdout().lock();
                let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
            }
        });
        let err = self.err.read(listener, |bytes| {
            if show {
                let _ = std::io::stderr().lock().write_all(bytes);
            }
        });
        out || err
    }

    /// Takes all that is left.
    pub fn drain(&mut self, listener: &mut Listener) {
        while self.read(listener) {}
        listener.hear(b"\n");
    }
}

impl Tail {
    fn read(&mut self, listener: &mut Listener, show: impl FnOnce(&[u8])) -> bool {
        let mut bytes = Vec::new();
        let mut part = std::io::Read::by_ref(&mut self.file).take(AT_ONCE as u64);
        if part.read_to_end(&mut bytes).is_err() || bytes.is_empty() {
            return false;
        }
        listener.hear(&bytes);
        show(&bytes);
        true
    }
}

/// A log of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Which start.
    pub attempt: u64,
    /// Which rank, where it is of one.
    pub rank: Option<u32>,
    /// Where.
    pub path: PathBuf,
}

/// What the logs of a start hold that its end is judged by.
pub fn gists(run: &Path, attempt: u64) -> Vec<Log> {
    let files = list(run).into_iter().filter(|file| file.attempt == attempt);
    files.flat_map(|file| gist(&file.path, file.rank.map_or(LogSource::Main, LogSource::Rank))).collect()
}

/// All logs of a run, in order.
pub fn list(run: &Path) -> Vec<LogFile> {
    let mut found = Vec::new();
    for attempt in 1.. {
        let folder = rank_folder(run, attempt);
        let main: Vec<PathBuf> = paths(run, attempt).into_iter().filter(|path| path.exists()).collect();
        if main.is_empty() && !folder.exists() {
            break;
        }
        found.extend(main.into_iter().map(|path| LogFile { attempt, rank: None, path }));
        let mut ranks: Vec<LogFile> =
            files(&folder).into_iter().map(|path| LogFile { attempt, rank: rank_of(&path), path }).collect();
        ranks.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
        found.extend(ranks);
    }
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// The rank that a log is of, by its name: torchrun names folders by ranks (`0/stderr.log`), others write `rank1` somewhere.
pub fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let behind = name.rsplit_once("rank").map(|(_, rest)| rest.trim_start_matches(['_', '-', '.', '=']));
    let digits = behind.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    let by_folder = || {
        let folder = path.parent()?.file_name()?.to_string_lossy().into_owned();
        let streams = ["stdout.log", "stderr.log", "stdout", "stderr"];
        streams.contains(&name.as_str()).then(|| folder.parse().ok()).flatten()
    };
    digits.and_then(|digits| digits.parse().ok()).or_else(by_folder)
}
