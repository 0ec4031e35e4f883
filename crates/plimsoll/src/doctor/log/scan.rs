//! One pass over a log: the lines that a parser finds telling, the gist for the weighing of trainers' words, and the last
//! few, with their numbers.
//!
//! Memory is bounded whatever the log: lines are cut, and of very many telling lines the first and the newest are kept.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead};

use plimsoll_launch::failure::{Gist, Log, LogSource, tells};
use plimsoll_recover::cause::{KernelStory, child_killed, parse_daemon_log, parse_kernel_log, parse_last_words};

/// Bytes of a line that are looked at. `docker inspect` on one line is longer than a screen.
const LONGEST: usize = 64 << 10;
/// Bytes of telling lines that are kept from the front, and as many from the end.
const KEPT: usize = 4 << 20;
/// Lines of one traceback that are kept.
const TRACEBACK: usize = 400;
/// Last lines that are kept.
const LAST: usize = 40;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number, from 1, as an editor counts.
    pub number: usize,
    /// Its text, without line end.
    pub text: String,
    /// What it is telling for.
    pub telling: Telling,
}

/// Which parser found a line telling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telling {
    /// The kernel's.
    pub kernel: bool,
    /// That of daemons and managers.
    pub daemon: bool,
    /// That of a program's last words, tracebacks included.
    pub words: bool,
    /// That of a parent whose child was killed.
    pub child: bool,
    /// A status that a shell or a manager reports for `SIGKILL`.
    pub sigkill: bool,
    /// What trainers, launchers and cards say.
    pub trainer: bool,
}

/// What one pass found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Lines in all.
    pub lines: u64,
    /// The telling ones, in order.
    pub telling: Vec<Line>,
    /// The last lines.
    pub last_lines: VecDeque<Line>,
    /// Telling lines that there was no room for.
    pub left_out: u64,
    /// What the weighing of a trainer's words needs.
    pub gist: Vec<Log>,
}

/// Reads a log of `source` to its end.
pub fn scan(mut from: impl BufRead, source: LogSource) -> io::Result<Scan> {
    let (mut reading, mut gist, mut whole) = (Reading::default(), Gist::new(source), Overwritten::default());
    let (mut text, mut number) = (Vec::new(), 1);
    loop {
        let block = from.fill_buf()?;
        if block.is_empty() {
            break;
        }
        let end = block.iter().position(|&byte| byte == b'\n' || byte == b'\r');
        let part = &block[..end.unwrap_or(block.len())];
        text.extend_from_slice(&part[..part.len().min(LONGEST - text.len())]);
        let (used, line_end) = (part.len() + usize::from(end.is_some()), end.map(|end| block[end]));
        from.consume(used);
        let Some(byte) = line_end else { continue };
        let told = reading.take(number, &text);
        // A progress bar writes over its own line; an editor counts that as one.
        whole.push(told, std::mem::take(&mut text));
        if byte == b'\n' {
            gist.take(&String::from_utf8_lossy(&whole.take()));
            number += 1;
        }
    }
    let told = reading.take(number, &text);
    let lines = if text.is_empty() && whole.parts.is_empty() { number - 1 } else { number };
    whole.push(told, text);
    if lines == number {
        gist.take(&String::from_utf8_lossy(&whole.take()));
    }
    let left_out = gist.left_out();
    let mut scan = reading.close(lines as u64, gist.close());
    scan.left_out = scan.left_out.max(left_out);
    Ok(scan)
}

/// A line that is written over: its parts that tell something, and the last few, which show whether it went on.
#[derive(Default)]
struct Overwritten {
    parts: VecDeque<(bool, Vec<u8>)>,
    dull: usize,
    bytes: usize,
}

impl Overwritten {
    /// Parts that are kept although they tell nothing.
    const FEW: usize = 16;

    fn push(&mut self, told: bool, part: Vec<u8>) {
        if part.is_empty() || (told && self.bytes > LONGEST) {
            return;
        }
        self.bytes += part.len();
        self.dull += usize::from(!told);
        self.parts.push_back((told, part));
        if self.dull > Self::FEW
            && let Some(first) = self.parts.iter().position(|(told, _)| !told)
            && let Some((_, gone)) = self.parts.remove(first)
        {
            (self.dull, self.bytes) = (self.dull - 1, self.bytes - gone.len());
        }
    }

    /// The line, and a new one begins.
    fn take(&mut self) -> Vec<u8> {
        let parts: Vec<Vec<u8>> = std::mem::take(self).parts.into_iter().map(|(_, part)| part).collect();
        parts.join(&b'\r')
    }
}

/// Lines that were found to tell nothing, so that the next of their like need not be asked. Most of a log is a few
/// lines over and over with other numbers: asking all parsers costs 11 us a line, this less than one.
#[derive(Default)]
struct Dull(HashSet<u64>);

impl Dull {
    /// Most kinds of lines that are remembered.
    const MOST: usize = 100_000;

    /// A line's kind: its text without long numbers and digits behind a point. No parser asks for the value of those;
    /// short numbers (`status 137`, `os error 28`) stay.
    fn kind(text: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut at = 0;
        while at < text.len() {
            let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let behind_a_point = at > 0 && text[at - 1] == b'.';
            match digits {
                0 => {
                    let word = text[at..].iter().take_while(|byte| !byte.is_ascii_digit()).count();
                    hasher.write(&text[at..at + word]);
                    at += word;
                }
                1..=3 if !behind_a_point => {
                    hasher.write(&text[at..at + digits]);
                    at += digits;
                }
                _ => {
                    hasher.write_u8(b'#');
                    at += digits;
                }
            }
        }
        hasher.finish()
    }
}

#[derive(Default)]
struct Reading {
    dull: Dull,
    front: Vec<Line>,
    front_bytes: usize,
    newest: VecDeque<Line>,
    newest_bytes: usize,
    left_out: u64,
    last: VecDeque<Line>,
    /// Lines left of a traceback that has begun.
    traceback: usize,
}

impl Reading {
    /// Takes a line, or a part of one; whether it tells something.
    fn take(&mut self, number: usize, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let text = String::from_utf8_lossy(bytes).into_owned();
        let kind = Dull::kind(bytes);
        let mut telling = if self.dull.0.contains(&kind) { Telling::default() } else { telling(&text) };
        if telling == Telling::default() && self.dull.0.len() < Dull::MOST {
            self.dull.0.insert(kind);
        }
        if text.contains("Traceback (most recent call last):") {
            self.traceback = TRACEBACK;
            telling.words = true;
        } else if self.traceback > 0 {
            telling.words = true;
            // The first line that is not indented is the error itself.
            let inside = text.starts_with([' ', '\t']) || text.contains("File \"");
            self.traceback = if inside { self.traceback - 1 } else { 0 };
        }
        let (line, told) = (Line { number, text, telling }, telling != Telling::default());
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        if told {
            self.keep(line.clone());
        }
        self.last.push_back(line);
        told
    }

    fn keep(&mut self, line: Line) {
        if self.front_bytes < KEPT {
            self.front_bytes += line.text.len();
            self.front.push(line);
            return;
        }
        self.newest_bytes += line.text.len();
        self.newest.push_back(line);
        while self.newest_bytes > KEPT
            && let Some(gone) = self.newest.pop_front()
        {
            self.newest_bytes -= gone.text.len();
            self.left_out += 1;
        }
    }

    fn close(mut self, lines: u64, gist: Vec<Log>) -> Scan {
        self.front.extend(self.newest);
        Scan { lines, telling: self.front, last_lines: self.last, left_out: self.left_out, gist }
    }
}

fn telling(text: &str) -> Telling {
    let one = [text.to_string()];
    Telling {
        kernel: parse_kernel_log(text) != KernelStory::default() || text.contains("memory: usage "),
        daemon: !parse_daemon_log(text).is_empty(),
        words: parse_last_words(&one).is_some(),
        child: child_killed(&one).is_some(),
        sigkill: tells_of_sigkill(text),
        trainer: tells(text),
    }
}

/// How shells, systemd, Docker and batch systems write a `SIGKILL`; none of them says why.
fn tells_of_sigkill(text: &str) -> bool {
    let numbered = ["exit code 137", "exit code: 137", "exit status 137", "exited with code 137", "exitcode 137"];
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    numbered.iter().any(|mark| lower.contains(mark))
        || text.contains("\"ExitCode\": 137")
        || text.contains("\"ExitCode\":137")
        || text.contains("code=killed, status=9/KILL")
        || text == "Killed"
        // `train.sh: line 3: 4242 Killed   python train.py`
        || text.split_once(": line ").is_some_and(|(_, rest)| rest.split_whitespace().nth(2) == Some("Killed"))
}
