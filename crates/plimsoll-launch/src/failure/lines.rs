//! A log as lines: colours and overwritten progress bars undone, the rank that wrote each known where the log says it.
//!
//! torch puts `[rank1]: ` before each line of a traceback, torchrun's tee `[default1]:`, srun `1: `, docker compose
//! `name-1  | `. Interleaved ranks are told apart by that, so that the traceback of one is not cut by another's lines.

use std::sync::LazyLock;

use regex::Regex;

use super::kind::FailureKind;
use super::scene::{Log, LogSource};
use super::{signs, traceback};
use crate::telling::bare;

/// Bytes of a line that are looked at.
const LONGEST: usize = 16 << 10;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Whose log.
    pub source: LogSource,
    /// Its number, as an editor counts; the parts of an overwritten line have one number.
    pub number: u64,
    /// The rank that wrote it, where that is known.
    pub rank: Option<u32>,
    /// Its text, without colours and prefix.
    pub text: String,
}

static PREFIX: LazyLock<Regex> = LazyLock::new(|| {
    let text =
        r"^(?:\[(?:rank|default)?(\d{1,5})\]: ?|(\d{1,5}): |[\w.-]{1,64} +\| |[\w./-]{1,128} \[std(?:out|err)\] )";
    Regex::new(text).expect("a pattern that is a constant")
});
static STAMP: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"^\d{4}-\d\d-\d\dT[0-9:.]{8,18}(?:Z|[+-]\d\d:\d\d)? (?:std(?:out|err) [FP] )?";
    Regex::new(text).expect("a pattern that is a constant")
});
static PROGRESS: LazyLock<Regex> = LazyLock::new(|| {
    let text =
        r"\d(?:it/s|s/it|batch/s)|\d%\||\b(?:[Ss]tep|[Ee]poch|iter(?:ation)?)\b[ :=\[]*\d|'loss': |\bloss[ :=]+-?\d";
    Regex::new(text).expect("a pattern that is a constant")
});

/// The lines of all logs, in the order given.
pub(super) fn read(logs: &[Log]) -> Vec<Line> {
    let mut lines = Vec::new();
    for log in logs {
        for (at, whole) in log.text.split('\n').enumerate() {
            let number = log.first_line.saturating_add(at as u64);
            lines.extend(parts(whole).map(|part| line(log.source, number, part)));
        }
    }
    lines
}

/// What a line shows: each part that a carriage return begins anew.
fn parts(whole: &str) -> impl Iterator<Item = &str> {
    // A loader process that crashes writes a zero byte behind its last words (torch 2.15).
    whole.split(['\r', '\0']).filter(|part| !part.trim().is_empty())
}

fn line(source: LogSource, number: u64, raw: &str) -> Line {
    let mut end = raw.len().min(LONGEST);
    while !raw.is_char_boundary(end) {
        end -= 1;
    }
    let bare = bare(&raw[..end]);
    let mut text: &str = &bare;
    let mut rank = match source {
        LogSource::Rank(rank) => Some(rank),
        LogSource::Main => None,
    };
    // At most a manager's time, a container's name and a rank stand before the words themselves.
    for _ in 0..3 {
        let stamp = STAMP.find(text).map_or(0, |found| found.end());
        text = &text[stamp..];
        let Some(found) = PREFIX.captures(text) else { break };
        rank = rank.or_else(|| found.get(1).or(found.get(2)).and_then(|digits| digits.as_str().parse().ok()));
        text = &text[found.get(0).map_or(0, |all| all.end())..];
    }
    Line { source, number, rank, text: text.trim_end().to_string() }
}

/// Whether a line shows that the training goes on.
pub(super) fn is_progress(text: &str) -> bool {
    PROGRESS.is_match(text)
}

/// Whether a raw line of a log tells anything of a failure; what reads long logs keeps such lines.
pub fn tells(raw: &str) -> bool {
    parts(raw).any(|part| {
        let line = line(LogSource::Main, 1, part);
        traceback::begins(&line.text) || signs::read(&line.text).is_some()
    })
}

/// What a raw line says that ends the training, before the process itself has ended: a supervisor that reads it need
/// not wait for the timeouts of the other ranks. It may be survived; that the rank is gone settles it.
pub fn first_cause(raw: &str) -> Option<FailureKind> {
    parts(raw).find_map(|part| {
        let sign = signs::read(&line(LogSource::Main, 1, part).text)?;
        matches!(sign.weight, signs::Weight::Root | signs::Weight::Killed).then_some(sign.kind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(u64, Option<u32>, String)> {
        let log = Log { source: LogSource::Main, first_line: 1, text: text.to_string() };
        read(&[log]).into_iter().map(|line| (line.number, line.rank, line.text)).collect()
    }

    #[test]
    fn a_progress_bar_is_one_line_of_several_parts_and_colours_are_gone() {
        let lines = of("\x1b[32mstep 1\x1b[0m\rstep 2\r\n\x1b]0;title\x07\x1b[31mValueError\x1b[0m: x\n");
        let expected = [(1, None, "step 1".into()), (1, None, "step 2".into()), (2, None, "ValueError: x".into())];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_rank_is_read_from_every_launchers_prefix() {
        for raw in [
            "[rank3]: boom",
            "[default3]:boom",
            "3: boom",
            "trainer-1  | [rank3]: boom",
            "n1.nolog [stderr] [rank3]: boom",
        ] {
            assert_eq!(of(raw), [(1, Some(3), "boom".to_string())], "{raw}");
        }
        let stamped = "2026-11-15T01:02:03.000000000Z stderr F [rank3]:   File \"a.py\", line 1, in f";
        assert_eq!(of(stamped), [(1, Some(3), "  File \"a.py\", line 1, in f".to_string())]);
    }

    #[test]
    fn a_first_cause_is_told_from_its_echoes_line_by_line() {
        let oom = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        assert_eq!(first_cause(oom), Some(FailureKind::CardOom));
        assert_eq!(first_cause("[rank0]: RuntimeError: [pair.cc:561] Connection closed by peer"), None);
        assert_eq!(first_cause("step 3 loss 0.2"), None);
    }

    #[test]
    fn progress_is_known_by_its_form() {
        for line in [
            "Epoch 7/-2 ━━╸   4/16 0:00:02 • 0:00:07 1.99it/s",
            " 12%|█▏        | 120/1000 [00:10<01:13, 12.0it/s]",
            "{'loss': 2.1, 'grad_norm': 0.2}",
            "step 120 loss 0.41",
        ] {
            assert!(is_progress(line), "{line}");
        }
        for line in ["frame #3: c10d::ProcessGroupNCCL::run() + 0x1", "RuntimeError: boom", "Total params: 5"] {
            assert!(!is_progress(line), "{line}");
        }
    }
}
