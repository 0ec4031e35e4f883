//! What the two sides say to each other: frames of a head (JSON) and a body (bytes).
//!
//! Invariant: nothing that arrives is believed. Lengths are bounded before memory is taken, heads are read by types that
//! refuse what they do not know, and every damaged frame is an error, never a panic. Answers come in the order of what was
//! asked, one each, so that many can be under way at once.

use std::io::{ErrorKind, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::harmless::harmless_line;
use crate::{Digest, FarPath};

/// How the far side begins to speak; whatever a login shell printed before it is passed over.
pub const GREETING: &[u8] = b"\n\x02plimsoll-remote 1\n";
/// How the script begins to speak where the program is not there yet.
pub const ABSENT: &[u8] = b"\n\x02plimsoll-absent\n";
/// Files are compared and sent in blocks of so many bytes.
pub const BLOCK: usize = 1 << 20;
/// Most digests that are asked for at once: of four GiB.
pub const MOST_DIGESTS: u32 = 4096;
/// Most bytes of a text that is one thing: a job, or what a run says that it understood of it.
pub const MOST_TEXT: usize = 8 << 20;
/// Most bytes of a head: such a text in JSON, where line ends and quotes are two.
const MOST_HEAD: usize = 2 * MOST_TEXT;
/// Most bytes of a body. zstd may add a little to a block that it cannot make smaller; such a block is sent as it is.
pub const MOST_BODY: usize = BLOCK;

/// Why a frame cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side is gone.
    #[error("the connection ended in the middle of a message")]
    Cut,
    /// A length that nobody would send.
    #[error("a message announces {found} bytes of {what}, more than {most}")]
    TooLong {
        /// Head or body.
        what: &'static str,
        /// As announced.
        found: usize,
        /// As allowed.
        most: usize,
    },
    /// A head that is not one.
    #[error("a message cannot be understood: {}", harmless_line(why))]
    Head {
        /// What the reader said.
        why: String,
    },
    /// An answer to another question.
    #[error("expected {expected} as an answer, found `{}`", harmless_line(found))]
    Unexpected {
        /// What would have been one.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// A body that is not what its head says.
    #[error("a block of `{path}` arrived damaged")]
    Damaged {
        /// Of which file.
        path: String,
    },
    /// The pipe.
    #[error("the connection broke: {0}")]
    Pipe(#[source] std::io::Error),
}

impl WireError {
    /// Whether the connection is at fault.
    pub fn is_cut(&self) -> bool {
        matches!(self, WireError::Cut | WireError::Pipe(_))
    }
}

/// What identifies a version of a file, as far as names of dates go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamp {
    /// Bytes.
    pub length: u64,
    /// Last change: seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanos: u32,
    /// Whether its owner may run it.
    pub executable: bool,
    /// Whether nobody but its owner may do anything with it.
    pub private: bool,
}

impl Stamp {
    /// Whether a file that is `there` is this one as it is. One that nobody else may read there, by that machine's habit, is as
    /// good as one that others may.
    pub fn is_met_by(&self, there: &Stamp) -> bool {
        there.private >= self.private && Stamp { private: self.private, ..*there } == *self
    }
}

/// A file of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Below the folder that was listed.
    pub path: FarPath,
    /// Which version.
    pub stamp: Stamp,
}

/// What is there of a file that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct There {
    /// The file, where there is one.
    pub stamp: Option<Stamp>,
    /// Bytes of it that came before a connection broke.
    pub part: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ending {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Nobody saw it: the machine, or the process that waited for it, went down first.
    Unseen,
}

/// What is at fault where something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// What was asked for: it will not be done the next time either.
    Asked,
    /// The machine, its disk, or who else is at work there.
    Machine,
}

/// A run on the far side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSeen {
    /// Its name: the folder below `runs`.
    pub run: String,
    /// `running`, `planning`, `stopped`, `finished`, `dead` or `refused`.
    pub status: String,
    /// Steps done.
    pub step: u64,
    /// Steps to do; 0 while nobody has said.
    pub total_steps: u64,
    /// The last loss.
    pub loss: Option<f64>,
    /// Time left.
    pub eta_seconds: Option<f64>,
    /// Why it stopped or died.
    pub why: Option<String>,
    /// Whether the process that was started is there, or has yet to be said how it ended.
    pub alive: bool,
    /// Whether somebody else works on it: by hand over there, or a process that outlived the one that was started.
    pub by_hand: bool,
    /// How it ended, where it did.
    pub ending: Option<Ending>,
    /// When it was last started, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// The machine that works on it, where that is another one than the one that says so.
    pub host: Option<String>,
}

impl RunSeen {
    /// Whether anybody works on it.
    pub fn is_worked_on(&self) -> bool {
        self.alive || self.by_hand
    }
}

/// A word of a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    /// As it was said.
    Said(String),
    /// The run's folder, which is known when it has a name.
    Run,
}

impl Word {
    /// Words as they were said.
    pub fn all<T: Into<String>>(said: impl IntoIterator<Item = T>) -> Vec<Word> {
        said.into_iter().map(|word| Word::Said(word.into())).collect()
    }
}

/// The settings as the started process wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Echo {
    /// `job.toml` or `launch.json`.
    pub file: String,
    /// What is in it.
    pub text: String,
}

/// What is asked of the far side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Nothing; somebody is still there. Has no answer.
    Ping {},
    /// The right to write, which one connection has at a time.
    Lock {},
    /// How much room is there.
    Room {},
    /// What is there of these files.
    Look {
        /// At most a few hundred.
        paths: Vec<FarPath>,
    },
    /// A whole file, at most a block; in the body.
    Write {
        /// Which.
        path: FarPath,
        /// How it shall look.
        stamp: Stamp,
        /// Of its bytes.
        digest: Digest,
        /// Whether the body is packed.
        packed: bool,
    },
    /// A file that comes in blocks.
    Begin {
        /// Which.
        path: FarPath,
        /// Whether it is its owner's alone, from its first byte on.
        private: bool,
    },
    /// Digests of its blocks, as far as they are there.
    Digests {
        /// Which.
        path: FarPath,
        /// Of what has come so far, or of the file.
        part: bool,
        /// First block.
        from: u64,
        /// How many, at most [`MOST_DIGESTS`].
        count: u32,
    },
    /// One block; in the body.
    Put {
        /// Of which file.
        path: FarPath,
        /// Which block.
        block: u64,
        /// Of its bytes.
        digest: Digest,
        /// Whether the body is packed.
        packed: bool,
    },
    /// All blocks of a file are there.
    Finish {
        /// Which.
        path: FarPath,
        /// How it shall look.
        stamp: Stamp,
    },
    /// These files shall not be there.
    Remove {
        /// At most a few hundred.
        paths: Vec<FarPath>,
    },
    /// The files below a folder, in the order of their names.
    List {
        /// Which.
        path: FarPath,
        /// Patterns of what is left out.
        exclude: Vec<String>,
        /// Go on behind this one.
        after: Option<FarPath>,
    },
    /// One block of a file.
    Get {
        /// Which.
        path: FarPath,
        /// Which block.
        block: u64,
    },
    /// Bytes of a file, from a place on; at most a block.
    Tail {
        /// Which.
        path: FarPath,
        /// First byte; `None`: of the last 64 KiB.
        from: Option<u64>,
    },
    /// The settings of a job file, as the far side understands them.
    Resolve {
        /// The job file.
        path: FarPath,
    },
    /// Starts one of our verbs so that it outlives the connection, and gives the right to write back: nothing is written after
    /// it.
    Start {
        /// How the run shall be called, without its number; or the whole name of one that goes on.
        name: String,
        /// Whether it is a new one.
        fresh: bool,
        /// Verb and flags.
        words: Vec<Word>,
        /// Folder to start in, below the far folder.
        folder: Option<FarPath>,
        /// What was asked for, in short. What runs already is not started again, so that asking twice does no harm.
        asked: Digest,
        /// Even if it runs already.
        beside: bool,
        /// Drawn for this start. Asked for again after a connection broke, it is told what came of it, also where that has
        /// ended.
        token: String,
    },
    /// The settings of a run, as it wrote them.
    Echo {
        /// Its name.
        run: String,
    },
    /// All runs.
    Runs {},
    /// One run.
    Run {
        /// Its name.
        run: String,
    },
    /// Asks a run to save and stop.
    Stop {
        /// Its name.
        run: String,
    },
    /// Runs one of our verbs to its end, or to that of the connection.
    Exec {
        /// Verb and flags.
        words: Vec<String>,
        /// Folder to start in, below the far folder.
        folder: Option<FarPath>,
    },
}

/// What the far side answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To nothing: somebody is still there, however long it takes to answer.
    Pong {},
    /// The first message: who speaks.
    Hello {
        /// Its version.
        version: String,
        /// The folder, absolute.
        dir: String,
    },
    /// It is done.
    Done {},
    /// Room for an unprivileged process.
    Room {
        /// Bytes.
        free: u64,
    },
    /// To `look`, in its order.
    Seen {
        /// One for each path.
        files: Vec<There>,
    },
    /// To `begin`.
    Begun {
        /// Bytes that are there to compare with.
        length: u64,
    },
    /// Digests, one behind the other in the body.
    Digests {
        /// How many.
        count: u32,
    },
    /// To `list`.
    Files {
        /// Some of them.
        files: Vec<Listed>,
        /// Whether there are more.
        more: bool,
    },
    /// To `get`; in the body.
    Block {
        /// Of its bytes.
        digest: Digest,
        /// Whether the body is packed.
        packed: bool,
    },
    /// To `tail`; in the body.
    Text {
        /// First byte of it.
        from: u64,
    },
    /// To `resolve`.
    Resolved {
        /// As a run folder would hold it.
        text: String,
    },
    /// To `start`.
    Started {
        /// The run's name.
        run: String,
        /// Where its output begins in the log.
        log_from: u64,
        /// Whether the same was running before it was asked for.
        already: bool,
    },
    /// To `echo`.
    Echoed {
        /// None as long as it has not said so.
        echo: Option<Echo>,
    },
    /// To `runs` and `run`.
    Runs {
        /// In the order in which they were started.
        runs: Vec<RunSeen>,
    },
    /// Of `exec`; in the body. More follow.
    Output {
        /// Whether it is stderr.
        talk: bool,
    },
    /// Of `exec`; the last.
    Exited {
        /// How.
        ending: Ending,
    },
    /// It was not done.
    Failed {
        /// The fact.
        fact: String,
        /// The file whose disk is full, where that is why.
        full: Option<FarPath>,
        /// What is at fault.
        fault: Fault,
    },
}

/// Writes one message.
pub fn write_message(to: &mut impl Write, head: &impl Serialize, body: &[u8]) -> Result<(), WireError> {
    let head = serde_json::to_vec(head).map_err(|error| WireError::Head { why: error.to_string() })?;
    bounded("head", head.len(), MOST_HEAD)?;
    bounded("body", body.len(), MOST_BODY)?;
    let lengths = [(head.len() as u32).to_le_bytes(), (body.len() as u32).to_le_bytes()];
    let first = [&lengths.concat(), &head[..]].concat();
    let written = to.write_all(&first).and_then(|()| to.write_all(body));
    written.and_then(|()| to.flush()).map_err(WireError::Pipe)
}

/// Reads one message; `None` where the other side has ended between two.
pub fn read_message<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<(T, Vec<u8>)>, WireError> {
    let mut lengths = [0; 8];
    match read_or_end(from, &mut lengths)? {
        0 => return Ok(None),
        8 => {}
        _ => return Err(WireError::Cut),
    }
    let length =
        |at: usize| u32::from_le_bytes([lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]]) as usize;
    bounded("head", length(0), MOST_HEAD)?;
    bounded("body", length(4), MOST_BODY)?;
    let head = exactly(from, length(0))?;
    let body = exactly(from, length(4))?;
    let head = serde_json::from_slice(&head).map_err(|error| WireError::Head { why: error.to_string() })?;
    Ok(Some((head, body)))
}

/// A body, packed where that makes it smaller.
pub fn pack(bytes: &[u8]) -> (bool, std::borrow::Cow<'_, [u8]>) {
    match zstd::bulk::compress(bytes, 1) {
        Ok(packed) if packed.len() < bytes.len() - bytes.len() / 16 => (true, packed.into()),
        _ => (false, bytes.into()),
    }
}

/// The bytes of a body, which must be those of `digest`.
pub fn unpack(path: &FarPath, body: Vec<u8>, packed: bool, digest: &Digest) -> Result<Vec<u8>, WireError> {
    let damaged = || WireError::Damaged { path: path.to_string() };
    let bytes = if packed { zstd::bulk::decompress(&body, BLOCK).map_err(|_| damaged())? } else { body };
    if crate::digest_of(&bytes) == *digest { Ok(bytes) } else { Err(damaged()) }
}

fn bounded(what: &'static str, found: usize, most: usize) -> Result<(), WireError> {
    if found > most { Err(WireError::TooLong { what, found, most }) } else { Ok(()) }
}

fn exactly(from: &mut impl Read, length: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = vec![0; length];
    match read_or_end(from, &mut bytes)? == length {
        true => Ok(bytes),
        false => Err(WireError::Cut),
    }
}

/// Fills `into` unless the input ends before; how far it came.
fn read_or_end(from: &mut impl Read, into: &mut [u8]) -> Result<usize, WireError> {
    let mut there = 0;
    while there < into.len() {
        match from.read(&mut into[there..]) {
            Ok(0) => break,
            Ok(read) => there += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(WireError::Pipe(error)),
        }
    }
    Ok(there)
}

#[cfg(test)]
#[path = "wire_test.rs"]
mod tests;
