//! What happened, one line each, the latest kept. When there is no room, routine goes before news.

use std::collections::VecDeque;

use serde::Serialize;

use super::told::Told;

/// How many lines are kept.
const KEPT: usize = 200;
/// How many of them may be routine when others need the room.
const ROUTINE: usize = 100;

/// Something that happened, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventLine {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// After which step, where that says something.
    pub step: Option<u64>,
    /// How much it matters.
    pub tone: Tone,
    /// What, in one plain line.
    pub text: String,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// As expected.
    Routine,
    /// Worth knowing.
    Note,
    /// Worth a look.
    Warning,
    /// Something broke.
    Trouble,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Chronicle {
    lines: VecDeque<EventLine>,
    routine: usize,
}

impl Chronicle {
    pub fn add(&mut self, unix_ms: u64, told: Told) {
        let Told { step, tone, text } = told;
        self.routine += usize::from(tone == Tone::Routine);
        self.lines.push_back(EventLine { unix_ms, step, tone, text });
        if self.lines.len() > KEPT {
            let oldest_routine = self.lines.iter().position(|line| line.tone == Tone::Routine);
            let goes = oldest_routine.filter(|_| self.routine > ROUTINE).unwrap_or(0);
            let gone = self.lines.remove(goes);
            self.routine -= usize::from(gone.is_some_and(|line| line.tone == Tone::Routine));
        }
    }

    pub fn lines(&self) -> Vec<EventLine> {
        self.lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incident_outlives_a_thousand_saves() {
        let mut chronicle = Chronicle::default();
        let told = |tone, text: String| Told { step: None, tone, text };
        chronicle.add(0, told(Tone::Trouble, "died".into()));
        for n in 1..=1000 {
            chronicle.add(n, told(Tone::Routine, format!("saved {n}")));
        }
        let lines = chronicle.lines();
        assert_eq!((lines.len(), lines[0].text.as_str()), (200, "died"));
        assert_eq!(lines[199].text, "saved 1000");
    }

    #[test]
    fn a_thousand_warnings_leave_the_latest_of_everything() {
        let mut chronicle = Chronicle::default();
        for n in 1..=1000 {
            let tone = if n % 10 == 0 { Tone::Routine } else { Tone::Warning };
            chronicle.add(n, Told { step: None, tone, text: String::new() });
        }
        assert_eq!(
            chronicle.lines().iter().map(|line| line.unix_ms).collect::<Vec<_>>(),
            (801..=1000).collect::<Vec<_>>()
        );
    }
}
