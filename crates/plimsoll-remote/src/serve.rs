//! The far side: one folder, one connection, one thing at a time, in the order in which it was asked for.
//!
//! Invariant: it writes nothing outside its folder, writes only while it has the folder's lock, ends when its input ends or
//! falls silent, and whatever it cannot do is an answer.

mod exec;

use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fs_err::File;
use plimsoll_machine::space_of;
use plimsoll_recover::RunLock;
use rustix::fs::{FlockOperation, flock};

use crate::digest::DIGEST_BYTES;
use crate::file_blocks::{Receiver as BlockReceiver, digests, read_block};
use crate::keep::{self, Order, RUNS, Stopping};
use crate::own_folder;
use crate::pulse::{Heard, Pulse};
use crate::record::Standing;
use crate::select::{Excludes, files};
use crate::wire::{
    Answer, Ask, BLOCK, GREETING, Listed, MOST_DIGESTS, RunSeen, WireError, pack, read_message, unpack, write_message,
};
use crate::{FarPath, Patience, Refusal, RemoteError, digest_of};

/// Between two looks at whether anybody is there.
const LOOK: Duration = Duration::from_millis(500);
/// Files of a listing that go into one answer.
const LISTED: usize = 500;
/// What is shown of a log's end.
const TAIL: u64 = 64 << 10;

/// What only the program knows.
pub trait Deeds {
    /// How a run stands; none where the folder holds none yet.
    fn look(&self, run: &Path) -> Option<Progress>;
    /// The settings of a job file, as a run folder would hold them; or why it has none.
    fn resolve(&self, job: &Path) -> Result<String, Refusal>;
}

/// How a run stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// In a word.
    pub status: String,
    /// Steps done.
    pub step: u64,
    /// Steps to do.
    pub total_steps: u64,
    /// The last loss.
    pub loss: Option<f64>,
    /// Time left.
    pub eta_seconds: Option<f64>,
    /// Why it stopped or died.
    pub why: Option<String>,
    /// When it last said something of itself, in milliseconds since 1970.
    pub last_unix_ms: u64,
}

/// What can happen.
pub(crate) enum Event {
    /// Somebody asks.
    Asked(Ask, Vec<u8>),
    /// Nobody will ask any more.
    Closed(Option<WireError>),
    /// What is being executed said something.
    Said { talk: bool, bytes: Vec<u8> },
    /// One of its two outputs has ended; all that came out of it came before.
    Hushed,
}

type Done = Result<(Answer, Vec<u8>), Refusal>;

struct Server<'a, W> {
    dir: PathBuf,
    program: PathBuf,
    output: Arc<Mutex<W>>,
    deeds: &'a dyn Deeds,
    receiver: BlockReceiver,
    lock: Option<File>,
    /// What is listed page by page.
    listing: Option<Listing>,
    patience: Patience,
}

/// The files of a folder as they were when the first page of them was asked for.
struct Listing {
    path: FarPath,
    exclude: Vec<String>,
    files: Vec<Listed>,
}

/// Serves `dir` to whoever is at the other end, until that ends. `program` is this one, by the name
/// under which runs are started. Whoever is silent for longer than `patience` has is gone.
pub fn serve(
    dir: &Path,
    program: &Path,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    deeds: &dyn Deeds,
    patience: Patience,
) -> Result<(), RemoteError> {
    let dir = fs_err::canonicalize(dir)?;
    let said = dir.to_str().ok_or_else(|| RemoteError::FarPath { path: dir.display().to_string() })?.to_string();
    let receiver = BlockReceiver::into_folder(&dir);
    // Absolute, since verbs are started elsewhere too.
    let program = std::path::absolute(program)?;
    let output = Arc::new(Mutex::new(output));
    let mut server =
        Server { dir, program, output: Arc::clone(&output), deeds, receiver, lock: None, listing: None, patience };
    server.output().write_all(GREETING).map_err(WireError::Pipe)?;
    server.say(&Answer::Hello { version: env!("CARGO_PKG_VERSION").to_string(), dir: said }, &[])?;
    let (to, events) = sync_channel(8);
    let (asks, pulse) = (to.clone(), Pulse::heard(patience.silence));
    let input = Heard { input, pulse: pulse.clone() };
    std::thread::spawn(move || listen(BufReader::with_capacity(256 << 10, input), &asks));
    let (_heart, stop) = channel();
    std::thread::spawn(move || beat(&output, patience.beat, &stop));
    loop {
        match events.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) if !pulse.is_gone() => {}
            Ok(Event::Asked(Ask::Ping {}, _)) => {}
            Ok(Event::Asked(Ask::Exec { words, folder }, _)) => {
                let folder = folder.map_or(server.dir.clone(), |below| below.in_folder(&server.dir));
                match exec::exec(&mut server, &words, &folder, &to, &events, &pulse)? {
                    exec::Then::GoOn => {}
                    exec::Then::End => return Ok(()),
                }
            }
            Ok(Event::Asked(ask, body)) => {
                let (answer, body) = server.answer(ask, body).unwrap_or_else(|refusal| {
                    let Refusal { fact, full, fault } = refusal;
                    (Answer::Failed { fact, full, fault }, Vec::new())
                });
                server.say(&answer, &body)?;
            }
            Ok(Event::Said { .. } | Event::Hushed) => {}
            Ok(Event::Closed(None)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Event::Closed(Some(error))) => return Err(error.into()),
        }
    }
}

/// Shows the near side that we are there, however long an answer takes.
fn beat(output: &Mutex<impl Write>, every: Duration, stop: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(every) {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        if write_message(&mut *output, &Answer::Pong {}, &[]).is_err() {
            return;
        }
    }
}

fn listen(mut input: impl Read, to: &SyncSender<Event>) {
    loop {
        let (event, last) = match read_message(&mut input) {
            Ok(Some((ask, body))) => (Event::Asked(ask, body), false),
            Ok(None) | Err(WireError::Cut | WireError::Pipe(_)) => (Event::Closed(None), true),
            Err(error) => (Event::Closed(Some(error)), true),
        };
        if to.send(event).is_err() || last {
            return;
        }
    }
}

impl<W: Write> Server<'_, W> {
    fn say(&mut self, answer: &Answer, body: &[u8]) -> Result<(), WireError> {
        write_message(&mut *self.output(), answer, body)
    }

    fn output(&self) -> MutexGuard<'_, W> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&mut self, ask: Ask, body: Vec<u8>) -> Done {
        let done = || Ok((Answer::Done {}, Vec::new()));
        let only = |answer: Answer| Ok((answer, Vec::new()));
        match ask {
            Ask::Ping {} | Ask::Exec { .. } => done(),
            Ask::Lock {} => self.take_lock().and_then(|()| done()),
            Ask::Room {} => only(Answer::Room { free: space_of(&self.dir)?.available.0 }),
            Ask::Look { paths } => {
                only(Answer::Seen { files: paths.iter().map(|path| self.receiver.there(path)).collect() })
            }
            Ask::Write { path, stamp, digest, packed } => {
                self.locked()?;
                let bytes = unpack(&path, body, packed, &digest)?;
                own_folder::make_for(&self.dir, &path).map_err(|error| at(&path, &error))?;
                self.receiver.write(&path, &stamp, &bytes).map_err(|error| at(&path, &error))?;
                done()
            }
            Ask::Begin { path, private } => {
                self.locked()?;
                own_folder::make_for(&self.dir, &path).map_err(|error| at(&path, &error))?;
                let length = self.receiver.begin(&path, private).map_err(|error| at(&path, &error))?;
                only(Answer::Begun { length })
            }
            Ask::Put { path, block, digest, packed } => {
                self.locked()?;
                let bytes = unpack(&path, body, packed, &digest)?;
                self.receiver.put(&path, block, &bytes).map_err(|error| at(&path, &error))?;
                done()
            }
            Ask::Finish { path, stamp } => {
                self.locked()?;
                self.receiver.finish(&path, &stamp).map_err(|error| at(&path, &error))?;
                done()
            }
            Ask::Digests { path, part, from, count } => {
                let file = if part { self.receiver.part(&path) } else { path.in_folder(&self.dir) };
                let found = gone_is_empty(digests(&file, from, count.min(MOST_DIGESTS)))?;
                Ok((Answer::Digests { count: (found.len() / DIGEST_BYTES) as u32 }, found))
            }
            Ask::Remove { paths } => {
                self.locked()?;
                for path in &paths {
                    gone_is_empty(fs_err::remove_file(path.in_folder(&self.dir)).map(|()| Vec::new()))
                        .map_err(|error| at(path, &error))?;
                }
                done()
            }
            Ask::List { path, exclude, after } => self.list(path, exclude, after.as_ref()),
            Ask::Get { path, block } => {
                let mut bytes = Vec::new();
                let opened = File::open(path.in_folder(&self.dir));
                gone_is_empty(opened.and_then(|file| read_block(&file, block, &mut bytes).map(|()| Vec::<u8>::new())))?;
                let (packed, body) = pack(&bytes);
                let body = body.into_owned();
                Ok((Answer::Block { digest: digest_of(&bytes), packed }, body))
            }
            Ask::Tail { path, from } => self.tail(&path, from),
            Ask::Resolve { path } => only(Answer::Resolved { text: self.deeds.resolve(&path.in_folder(&self.dir))? }),
            Ask::Start { name, fresh, words, folder, asked, beside, token } => {
                self.locked()?;
                if !keep::is_run_name(&name) {
                    return Err(Refusal::of_asked(format!("`{}` is no name of a run", name.escape_debug())));
                }
                if !fresh && !self.dir.join(RUNS).join(&name).is_dir() {
                    return Err(no_run(&name));
                }
                let order = Order { name, fresh, words, folder, asked, beside, token };
                let started = keep::start(&self.dir, &self.program, &order).map_err(Refusal::of_machine)?;
                // However long it is planned and followed: others may push meanwhile.
                self.lock = None;
                let keep::Started { run, log_from, already } = started;
                only(Answer::Started { run, log_from, already })
            }
            Ask::Echo { run } => {
                let echo = keep::is_run_name(&run).then(|| keep::echo(&self.dir, &run)).flatten();
                only(Answer::Echoed { echo })
            }
            Ask::Runs {} => only(Answer::Runs { runs: self.runs() }),
            Ask::Run { run } => match self.run(&run) {
                Some(seen) => only(Answer::Runs { runs: vec![seen] }),
                None => Err(no_run(&run)),
            },
            // Whoever asks sees by itself how it ended, where it has.
            Ask::Stop { run } => match keep::stop(&self.dir, &run).map_err(Refusal::of_machine)? {
                Stopping::Asked | Stopping::Nobody => done(),
                Stopping::Elsewhere(host) => Err(Refusal::of_asked(keep::out_of_reach(&run, &host))),
            },
        }
    }

    /// One connection writes at a time. Another one that is really a broken one ends after a silence, which is waited for.
    fn take_lock(&mut self) -> Result<(), Refusal> {
        if self.lock.is_some() {
            return Ok(());
        }
        let path = self.dir.join(".remote-lock");
        let file = fs_err::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| at(&name(".remote-lock"), &error))?;
        let by = Instant::now() + self.patience.silence * 5 / 4;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < by => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(Refusal::of_machine(format!("another push to `{}` is under way", self.dir.display())));
                }
                Err(error) => return Err(Refusal::of_machine(format!("cannot lock `{}`: {error}", path.display()))),
            }
        }
        self.lock = Some(file);
        Ok(())
    }

    fn locked(&self) -> Result<(), Refusal> {
        if self.lock.is_some() { Ok(()) } else { Err(Refusal::of_machine("nothing is written without the lock")) }
    }

    fn list(&mut self, path: FarPath, exclude: Vec<String>, after: Option<&FarPath>) -> Done {
        let known =
            self.listing.take().filter(|known| after.is_some() && known.path == path && known.exclude == exclude);
        let listing = match known {
            Some(known) => known,
            None => {
                let folder = path.in_folder(&self.dir);
                if !folder.is_dir() {
                    return Err(Refusal::of_asked(format!("there is no folder `{path}`")));
                }
                let excludes = Excludes::new(&exclude).map_err(|error| Refusal::of_asked(error.to_string()))?;
                let files = files(&folder, &excludes)?;
                Listing { path, exclude, files }
            }
        };
        let from = listing.files.partition_point(|file| after.is_some_and(|after| file.path <= *after));
        let page = listing.files[from..].iter().take(LISTED).cloned().collect();
        let more = listing.files.len() > from + LISTED;
        self.listing = more.then_some(listing);
        Ok((Answer::Files { files: page, more }, Vec::new()))
    }

    fn tail(&self, path: &FarPath, from: Option<u64>) -> Done {
        let mut file = match File::open(path.in_folder(&self.dir)) {
            Ok(file) => file,
            // Nobody has said anything yet.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Answer::Text { from: 0 }, Vec::new())),
            Err(error) => return Err(error.into()),
        };
        let length = file.metadata()?.len();
        // A log that was made anew is shown from its beginning.
        let from = from.filter(|from| *from <= length).unwrap_or(length.saturating_sub(TAIL));
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(BLOCK as u64).read_to_end(&mut bytes)?;
        Ok((Answer::Text { from }, bytes))
    }

    fn runs(&self) -> Vec<RunSeen> {
        let folders = fs_err::read_dir(self.dir.join(RUNS)).into_iter().flatten().flatten();
        let folders = folders.filter_map(|entry| entry.file_name().into_string().ok());
        let names: std::collections::BTreeSet<String> = folders.chain(keep::known(&self.dir)).collect();
        let mut runs: Vec<RunSeen> = names.iter().filter_map(|name| self.run(name)).collect();
        runs.sort_by_key(|run| run.began_unix_ms);
        runs
    }

    fn run(&self, name: &str) -> Option<RunSeen> {
        if !keep::is_run_name(name) {
            return None;
        }
        let folder = self.dir.join(RUNS).join(name);
        // Before its journal is read, so that the journal of a run that has ended is read to its end.
        let standing = Standing::of(&self.dir, name);
        let alive = standing.as_ref().is_some_and(|standing| standing.alive);
        let by_hand = !alive && RunLock::is_held(&folder).unwrap_or(false);
        let ending = standing.as_ref().and_then(|standing| standing.ending);
        let record = standing.map(|standing| standing.record);
        let host = record.as_ref().filter(|_| alive).and_then(|record| record.elsewhere()).map(str::to_string);
        let began_unix_ms = record.as_ref().map_or(0, |record| record.began_unix_ms);
        let status = if alive || by_hand { "planning" } else { "refused" };
        let mut progress = match self.deeds.look(&folder) {
            Some(progress) => progress,
            None if record.is_some() || by_hand => Progress { status: status.to_string(), ..Progress::default() },
            None => return None,
        };
        // What it said of itself before it was started again says nothing about now.
        if alive && progress.last_unix_ms < began_unix_ms {
            progress.status = "planning".to_string();
        }
        let Progress { status, step, total_steps, loss, eta_seconds, why, last_unix_ms: _ } = progress;
        let run = name.to_string();
        Some(RunSeen {
            run,
            status,
            step,
            total_steps,
            loss,
            eta_seconds,
            why,
            alive,
            by_hand,
            ending,
            began_unix_ms,
            host,
        })
    }
}

fn no_run(run: &str) -> Refusal {
    Refusal::of_asked(format!("there is no run `{}`", run.escape_debug()))
}

fn name(text: &str) -> FarPath {
    FarPath::new(text).expect("a constant that is a path")
}

/// An error at a file; a full disk is told from others.
fn at(path: &FarPath, error: &std::io::Error) -> Refusal {
    let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded).then(|| path.clone());
    Refusal { full, ..Refusal::of_machine(format!("`{path}`: {error}")) }
}

/// A file that went away since it was listed has no blocks; whoever asked looks again.
fn gone_is_empty(read: std::io::Result<Vec<u8>>) -> std::io::Result<Vec<u8>> {
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}
