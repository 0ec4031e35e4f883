//! Python's tracebacks in a log, plain or in Rich's boxes: the innermost frame and the error it ends with.
//!
//! The lines of source that a traceback quotes (`raise RuntimeError('DataLoader worker (pid ...`) are no words of the
//! program, and are told apart here.
//!
//! A traceback whose error is an echo, a request to stop or a wrapper (`Caught ValueError in DataLoader worker`,
//! `ChildFailedError`) is none of a bug; neither is one of a logger that lost its network.

use std::collections::{HashMap, HashSet};

use super::lines::Line;
use super::scene::LogSource;

/// A traceback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traceback {
    /// The index of the line with its error, or of its last frame where the log ends before.
    pub error: usize,
    /// The innermost frame, `file:line`.
    pub place: String,
    /// Whether it passes through a reporter of figures (wandb and its like) and not through training.
    pub of_a_reporter: bool,
}

/// Whether a line begins a traceback.
pub(super) fn begins(text: &str) -> bool {
    text.contains("Traceback (most recent call last):")
        || (text.contains("Traceback (most recent call last)") && is_box(text))
}

/// Whether a line is part of a box that Rich draws.
fn is_box(text: &str) -> bool {
    text.trim_start().starts_with(['│', '╭', '╰'])
}

/// `│ /path/a.py:9 in f    │`, or the same with the function on the next line.
fn boxed_frame(text: &str) -> Option<String> {
    let word = text.trim_start().strip_prefix('│')?.split_whitespace().next()?;
    let (file, line) = word.rsplit_once(':')?;
    let numbered = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    (file.ends_with(".py") && numbered).then(|| format!("{}:{line}", short(file)))
}

/// `  File "a.py", line 9, in f`.
pub(super) fn frame(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    (digits > 0).then(|| format!("{}:{}", short(file), &rest[..digits]))
}

/// A file as people know it: what stands behind `site-packages`, or the path as it is.
fn short(file: &str) -> &str {
    file.rsplit_once("site-packages/").map_or(file, |(_, file)| file)
}

struct Open {
    last: usize,
    place: Option<String>,
    reporter: bool,
}

/// All tracebacks, in the order of their errors, and the indices of the lines that stand in them; those of several
/// ranks may be interleaved.
pub(super) fn all(lines: &[Line]) -> (Vec<Traceback>, HashSet<usize>) {
    let mut quoted = HashSet::new();
    let mut open: HashMap<(LogSource, Option<u32>), Open> = HashMap::new();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let key = (line.source, line.rank);
        if begins(&line.text) {
            // The start of the next one ends what had no error.
            found.extend(open.remove(&key).and_then(|cut| close(cut, None)));
            open.insert(key, Open { last: at, place: None, reporter: false });
            continue;
        }
        let Some(now) = open.get_mut(&key) else { continue };
        if let Some(place) = frame(&line.text).or_else(|| boxed_frame(&line.text)) {
            quoted.insert(at);
            now.reporter |= ["wandb/", "tensorboard/", "mlflow/", "comet_ml/"].iter().any(|part| place.contains(part));
            now.place = Some(place);
            now.last = at;
        } else if line.text.starts_with([' ', '\t', '|', '+']) || is_box(&line.text) {
            quoted.insert(at);
        } else {
            found.extend(open.remove(&key).and_then(|whole| close(whole, Some(at))));
        }
    }
    let cut: Vec<Traceback> = open.into_values().filter_map(|cut| close(cut, None)).collect();
    found.extend(cut);
    found.sort_by_key(|traceback| traceback.error);
    (found, quoted)
}

fn close(open: Open, error: Option<usize>) -> Option<Traceback> {
    Some(Traceback { error: error.unwrap_or(open.last), place: open.place?, of_a_reporter: open.reporter })
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::super::scene::Log;
    use super::*;

    #[test]
    fn interleaved_ranks_keep_their_own_frames() {
        let text = "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n\
                    [rank0]:   File \"a.py\", line 1, in f\n[rank1]:   File \"b.py\", line 2, in g\n\
                    [rank1]: KeyError: 'x'\n[rank0]: ValueError: y\n";
        let log = Log { source: LogSource::Main, first_line: 1, text: text.into() };
        let lines = lines::read(&[log]);
        let (found, quoted) = all(&lines);
        let told: Vec<(&str, &str)> =
            found.iter().map(|one| (one.place.as_str(), lines[one.error].text.as_str())).collect();
        assert_eq!(told, [("b.py:2", "KeyError: 'x'"), ("a.py:1", "ValueError: y")]);
        assert_eq!(quoted, [2, 3].into());
    }

    #[test]
    fn a_traceback_that_the_log_cuts_still_has_its_place() {
        let text = "Traceback (most recent call last):\n  File \"x/site-packages/torch/a.py\", line 7, in f";
        let log = Log { source: LogSource::Main, first_line: 90, text: text.into() };
        let lines = lines::read(&[log]);
        assert_eq!(all(&lines).0, [Traceback { error: 1, place: "torch/a.py:7".into(), of_a_reporter: false }]);
    }

    #[test]
    fn a_traceback_in_a_box_has_its_place_and_its_source_says_nothing() {
        let text = "╭───── Traceback (most recent call last) ─────╮\n│ /home/a/train.py:9 in main                   │\n\
                    │ /x/site-packages/torch/utils/data/dataloader.py:1024 │\n\
                    │ ❱ 1024 │ raise RuntimeError('DataLoader worker (pid(s) {}) exited unexpectedly' │\n\
                    ╰──────────────────╯\nValueError: no";
        let log = Log { source: LogSource::Main, first_line: 1, text: text.into() };
        let lines = lines::read(&[log]);
        let (found, quoted) = all(&lines);
        let place = "torch/utils/data/dataloader.py:1024".to_string();
        assert_eq!(found, [Traceback { error: 5, place, of_a_reporter: false }]);
        assert_eq!(quoted, [1, 2, 3, 4].into());
    }
}
