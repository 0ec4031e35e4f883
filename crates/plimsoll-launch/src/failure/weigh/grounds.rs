//! Grounds: lines of logs with their numbers, and what the system's evidence adds to them.

use plimsoll_recover::cause::Source;

use super::super::signs::Weight;
use super::{Case, Ground};

/// Bytes of a line that are shown.
const SHOWN: usize = 600;
/// Facts of the system that are added.
const FACTS: usize = 8;

impl Case<'_> {
    /// A line of a log.
    pub(super) fn line(&self, at: usize) -> Ground {
        let line = &self.lines[at];
        let mut end = line.text.len().min(SHOWN);
        while !line.text.is_char_boundary(end) {
            end -= 1;
        }
        Ground {
            source: Source::Stderr,
            log: Some(line.source),
            line: Some(line.number),
            text: line.text[..end].trim().to_string(),
        }
    }

    /// What the watcher or a counter says.
    pub(super) fn says(&self, source: Source, text: impl Into<String>) -> Ground {
        Ground { source, log: None, line: None, text: text.into() }
    }

    /// The echoes, in one ground.
    pub(super) fn echoes(&self) -> Option<Ground> {
        let all: Vec<usize> = self.of(Weight::Echo).map(|found| found.at).collect();
        let first = self.line(*all.first()?);
        let text = match all.len() {
            1 => format!("an echo of it: {}", first.text),
            many => format!("{many} lines are echoes of it, the first: {}", first.text),
        };
        Some(Ground { text, ..first })
    }

    /// What the system's evidence says, without what is among the grounds already.
    pub(super) fn system_says(&self, because: &[Ground]) -> Vec<Ground> {
        let known = |text: &str| because.iter().any(|ground| ground.text.trim() == text.trim());
        let facts = self.cause.because.iter().filter(|fact| !known(&fact.text) && fact.source != Source::Stderr);
        facts.take(FACTS).map(|fact| self.says(fact.source, fact.text.clone())).collect()
    }
}
