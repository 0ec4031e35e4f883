//! A journal that is followed while it grows: only what was appended is read.
//!
//! Invariant: what is kept does not grow with the journal. A half line is left alone until it is whole, a line that is
//! no record is counted and passed over, and a journal that shrank or was replaced is read anew. It opens for reading
//! and nothing else.

use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;

use super::fold::Fold;
use super::{View, line};
use crate::WatchError;

/// How much is read at once.
const BLOCK: usize = 256 << 10;
/// No record is longer, whatever evidence it holds.
const LONGEST_LINE: u64 = 64 << 20;
/// So much of a line that is no record is told.
const FOUND: usize = 60;

/// A journal that is followed.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<fs::File>,
    /// Behind the last whole line that was taken in.
    at: u64,
    lines: u64,
    fold: Fold,
    plan: Vec<(String, Bytes)>,
}

impl Tail {
    /// Follows the journal at `path`, which need not be there yet. `plan` has the plan's lines in their order.
    pub fn new(path: &Path, plan: Vec<(String, Bytes)>) -> Tail {
        Tail { path: path.to_path_buf(), file: None, at: 0, lines: 0, fold: Fold::default(), plan }
    }

    /// Whether the journal was there when last looked at.
    pub fn found(&self) -> bool {
        self.file.is_some()
    }

    /// Sets the plan's lines, in their order.
    pub fn set_plan(&mut self, plan: Vec<(String, Bytes)>) {
        self.plan = plan;
    }

    /// Takes in what was appended; whether that was anything.
    pub fn advance(&mut self) -> Result<bool, WatchError> {
        let there = match fs::metadata(&self.path) {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let was = self.file.is_some();
                self.restart(None);
                return Ok(was);
            }
            Err(error) => return Err(error.into()),
        };
        let same = match &self.file {
            // The open file keeps its number from being given to another.
            Some(file) => {
                let ours = file.metadata()?;
                (ours.dev(), ours.ino()) == (there.dev(), there.ino()) && there.len() >= self.at
            }
            None => false,
        };
        if !same {
            self.restart(Some(fs::File::open(&self.path)?));
        }
        let before = self.lines;
        if there.len() > self.at || !same {
            self.read()?;
        }
        Ok(!same || self.lines > before)
    }

    fn restart(&mut self, file: Option<fs::File>) {
        let plan = std::mem::take(&mut self.plan);
        *self = Tail { file, ..Tail::new(&self.path, plan) };
    }

    fn read(&mut self) -> Result<(), WatchError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.seek(SeekFrom::Start(self.at))?;
        let mut from = BufReader::with_capacity(BLOCK, file);
        let mut text = Vec::new();
        loop {
            text.clear();
            let length = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)? as u64;
            if text.last() != Some(&b'\n') {
                if length < LONGEST_LINE {
                    return Ok(());
                }
                return Err(self.not_a_journal(&text));
            }
            self.at += length;
            self.lines += 1;
            match line::record(&text) {
                Ok(record) => self.fold.take(&record),
                Err(_) => self.fold.unreadable(self.lines, &start(&text)),
            }
        }
    }

    fn not_a_journal(&self, text: &[u8]) -> WatchError {
        let problem = format!("a line of more than {}", Bytes(LONGEST_LINE));
        WatchError::NotARecord { path: self.path.clone(), line: self.lines as usize + 1, found: start(text), problem }
    }

    /// The view of what was taken in so far.
    pub fn view(&self, now_unix_ms: u64, alive: bool) -> View {
        self.fold.view(&self.plan, now_unix_ms, alive)
    }
}

fn start(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(FOUND)]).trim_end().escape_debug().to_string()
}
