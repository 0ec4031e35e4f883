//! A log of any length in bounded memory: what tells of a failure, tracebacks, a little progress behind each, the end.
//!
//! A line that is left out can change no verdict: `failure` asks of the rest only whether the training went on behind a
//! telling line, and so much progress is kept.

use std::collections::VecDeque;

use super::lines::{is_progress, tells};
use super::scene::{Log, LogSource};
use super::traceback::begins;
use super::weigh::SURVIVED;

/// Bytes that are kept of the telling lines, once from the front and once from the end.
const KEPT: usize = 1 << 20;
/// Lines of one traceback that are kept.
const TRACEBACK: usize = 120;
/// Last lines that are kept whatever they say.
const LAST: usize = 200;
/// Bytes of a line that are kept.
const LONGEST: usize = 16 << 10;

/// Reads a log line by line and keeps its gist.
#[derive(Debug)]
pub struct Gist {
    source: LogSource,
    number: u64,
    front: Vec<(u64, String)>,
    front_bytes: usize,
    newest: VecDeque<(u64, String)>,
    newest_bytes: usize,
    last: VecDeque<(u64, String)>,
    traceback: usize,
    progress: usize,
    left_out: u64,
}

impl Gist {
    /// Of a log that begins.
    pub fn new(source: LogSource) -> Gist {
        Gist {
            source,
            number: 0,
            front: Vec::new(),
            front_bytes: 0,
            newest: VecDeque::new(),
            newest_bytes: 0,
            last: VecDeque::new(),
            traceback: 0,
            progress: usize::MAX,
            left_out: 0,
        }
    }

    /// The next line, without its end.
    pub fn take(&mut self, line: &str) {
        self.number += 1;
        // What an overwritten line shows last is what counts, unless an earlier part tells something. So many parts are
        // kept that a bar which is drawn over itself still shows that the training went on.
        let telling = tells(line);
        let shown = if telling { line } else { last_parts(line) };
        let mut end = shown.len().min(LONGEST);
        while !shown.is_char_boundary(end) {
            end -= 1;
        }
        let kept = (self.number, shown[..end].to_string());
        if begins(shown) {
            self.traceback = TRACEBACK;
        }
        let inside = self.traceback > 0;
        if inside {
            let frames = shown.contains("File \"") || shown.contains("  ") || begins(shown);
            self.traceback = if frames { self.traceback - 1 } else { 0 };
        }
        let behind = !telling && !inside && self.progress < SURVIVED && is_progress(shown);
        if telling || inside {
            self.progress = 0;
        } else if behind {
            self.progress += 1;
        }
        if telling || inside || behind {
            self.keep(kept.clone());
        }
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(kept);
    }

    fn keep(&mut self, line: (u64, String)) {
        if self.front_bytes < KEPT {
            self.front_bytes += line.1.len();
            self.front.push(line);
            return;
        }
        self.newest_bytes += line.1.len();
        self.newest.push_back(line);
        while self.newest_bytes > KEPT
            && let Some(gone) = self.newest.pop_front()
        {
            self.newest_bytes -= gone.1.len();
            self.left_out += 1;
        }
    }

    /// Lines that were read.
    pub fn lines(&self) -> u64 {
        self.number
    }

    /// Telling lines that there was no room for.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// What was kept, as pieces of lines that stood together.
    pub fn close(self) -> Vec<Log> {
        let from = self.last.front().map_or(u64::MAX, |(number, _)| *number);
        let before = self.front.into_iter().chain(self.newest).filter(|(number, _)| *number < from);
        let mut pieces: Vec<Log> = Vec::new();
        let mut next = 0;
        for (number, text) in before.chain(self.last) {
            match pieces.last_mut() {
                Some(piece) if number == next => {
                    piece.text.push('\n');
                    piece.text.push_str(&text);
                }
                _ => pieces.push(Log { source: self.source, first_line: number, text }),
            }
            next = number + 1;
        }
        pieces
    }
}

/// The last parts of a line that was written over.
fn last_parts(line: &str) -> &str {
    let line = line.trim_end_matches('\r');
    match line.rmatch_indices('\r').nth(SURVIVED - 1) {
        Some((at, _)) => &line[at + 1..],
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FailureKind, Scene, failure};
    use super::*;

    #[test]
    fn a_bar_that_is_drawn_over_itself_behind_an_error_shows_that_the_training_went_on() {
        let judged = |bars: usize| {
            let mut gist = Gist::new(LogSource::Main);
            gist.take("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.");
            let bar: Vec<String> =
                (0..bars).map(|step| format!("{step}%|   | {step}/900 [00:01<00:09, 1.1it/s]")).collect();
            gist.take(&bar.join("\r"));
            failure(&Scene::of_log(gist.close(), None)).kind
        };
        assert_eq!((judged(2), judged(900)), (FailureKind::CardOom, FailureKind::Unknown));
    }

    #[test]
    fn the_gist_of_a_long_log_keeps_numbers_tracebacks_and_the_end() {
        let mut gist = Gist::new(LogSource::Main);
        for step in 0..50_000 {
            gist.take(&format!("step {step} loss 0.4"));
        }
        for line in ["Traceback (most recent call last):", "  File \"a.py\", line 3, in f", "KeyError: 'x'"] {
            gist.take(line);
        }
        for _ in 0..50_000 {
            gist.take("frame #1: something + 0x2");
        }
        assert_eq!((gist.lines(), gist.left_out()), (100_003, 0));
        let pieces = gist.close();
        let traceback = pieces.iter().find(|piece| piece.text.contains("KeyError")).unwrap();
        assert_eq!(traceback.first_line, 50_001);
        assert!(pieces.iter().map(|piece| piece.text.len()).sum::<usize>() < 20_000, "{}", pieces.len());
        assert_eq!(pieces.last().unwrap().first_line, 100_003 - LAST as u64 + 1);
    }

    #[test]
    fn a_log_of_nothing_but_telling_lines_is_bounded() {
        let mut gist = Gist::new(LogSource::Rank(1));
        for _ in 0..30_000 {
            gist.take(&format!("RuntimeError: CUDA error: out of memory {}", "x".repeat(200)));
        }
        assert!(gist.left_out() > 0);
        assert!(gist.close().iter().map(|piece| piece.text.len()).sum::<usize>() < 3 * KEPT);
    }
}
