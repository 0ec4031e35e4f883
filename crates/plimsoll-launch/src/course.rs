//! What to do after a foreign trainer's end: done, again, one rung down, an older checkpoint, or no further. Pure.
//!
//! Invariants. It ends: at most [`TRIES`] deaths in a row with the same settings and no newer checkpoint, and a failure that a new try cannot
//! mend is not tried again. Only what the cause asks for is changed: a kill that nobody explains changes no setting, a
//! full card leaves the loaders alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::{Abilities, FailureKind, Killer, Victim};
use crate::ladder::{self, Bottom, Rung, Shortage, Stand};
use crate::{Command, Knob, Settings};

/// How many deaths in a row, without a newer checkpoint between them, end the trying.
pub const TRIES: usize = 5;
/// How often the same failure is simply tried again.
const SAME_AGAIN: usize = 3;

/// A death.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Death {
    /// What it was.
    pub kind: FailureKind,
    /// What the run was set to.
    pub settings: Settings,
    /// The last step that was told.
    pub step: Option<u64>,
    /// The newest whole checkpoint at that time: its step, or its number in order of writing.
    pub saved: Option<u64>,
    /// How many whole checkpoints there were.
    pub checkpoints: usize,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Then {
    /// Nothing: it is done.
    Done,
    /// Nothing: it was asked to stop, and can go on.
    Stopped,
    /// Start again with the same settings.
    Again {
        /// Why.
        why: String,
        /// Seconds to wait before.
        pause: u64,
    },
    /// Start again one rung down.
    Down {
        /// The rung.
        rung: Rung,
        /// Whether others took the memory, so that it may step up again.
        neighbour: bool,
    },
    /// Compile outside of the limit what is compiled on first use, then start again.
    WarmUp,
    /// Go on from an older checkpoint: this one cannot be loaded.
    Older,
    /// Stop trying.
    GiveUp {
        /// Why.
        why: Why,
    },
}

/// Why there is no further try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// A new try would fail the same way.
    NeedsAPerson,
    /// It failed like this before, and nothing has changed.
    SameAgain,
    /// Many deaths and no newer checkpoint.
    NoProgress {
        /// How many.
        deaths: usize,
    },
    /// The ladder has ended.
    Bottom(Bottom),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NeedsAPerson => write!(f, "a new try would fail the same way"),
            Why::SameAgain => write!(f, "it has failed like this before, and nothing has changed since"),
            Why::NoProgress { deaths } => write!(f, "{deaths} deaths in a row without a newer checkpoint"),
            Why::Bottom(bottom) => write!(f, "{bottom}"),
        }
    }
}

/// What to do after the last of `deaths`, in order.
pub fn course(deaths: &[Death], stand: &Stand<'_>) -> Then {
    let Some((last, earlier)) = deaths.split_last() else { return Then::Again { why: String::new(), pause: 0 } };
    use FailureKind as Kind;
    match &last.kind {
        Kind::Completed => return Then::Done,
        Kind::Stopped => return Then::Stopped,
        Kind::BadSetting
        | Kind::MissingModule { .. }
        | Kind::BadData
        | Kind::NotFinite
        | Kind::DiskFull
        | Kind::TooManyFiles
        | Kind::NotRestored => return Then::GiveUp { why: Why::NeedsAPerson },
        _ => {}
    }
    let since = deaths_without_progress(deaths);
    if since >= TRIES {
        return Then::GiveUp { why: Why::NoProgress { deaths: since } };
    }
    let same = earlier.iter().rev().take_while(|death| is_same(death, last)).count();
    let shortage = match &last.kind {
        Kind::CompilerKilled | Kind::HostOom { victim: Victim::Compiler, .. } if same == 0 => return Then::WarmUp,
        Kind::HostOom { .. } | Kind::AllocationRefused | Kind::CompilerKilled => Some(Shortage::Ram),
        Kind::SharedMemoryFull => Some(Shortage::SharedMemory),
        Kind::CardFragmented => Some(Shortage::Fragments),
        // A neighbour may be gone in a moment; one that stays leaves less for us.
        Kind::CardNeighbour if same == 0 => {
            return Then::Again { why: "another process held the card; it may be gone".to_string(), pause: 30 };
        }
        Kind::CardOom | Kind::CardMasked | Kind::CardNeighbour => Some(Shortage::Vram),
        _ => None,
    };
    if let Some(shortage) = shortage {
        let neighbour = matches!(&last.kind, Kind::CardNeighbour | Kind::HostOom { by: Killer::Host, .. });
        return match ladder::next(shortage, stand) {
            Ok(rung) => Then::Down { rung, neighbour },
            Err(bottom) => Then::GiveUp { why: Why::Bottom(bottom) },
        };
    }
    if last.kind == Kind::BadCheckpoint {
        // Each one before was passed over too.
        return if last.checkpoints > same + 1 { Then::Older } else { Then::GiveUp { why: Why::NeedsAPerson } };
    }
    let (tries, pause) = match &last.kind {
        // What a program does wrong it does again, unless it came further than before.
        Kind::Bug { .. } | Kind::Unknown => (1, 1),
        Kind::PortInUse => (SAME_AGAIN, 5),
        Kind::IoError | Kind::CardLost => (SAME_AGAIN, 10),
        _ => (SAME_AGAIN, 0),
    };
    if same >= tries {
        return Then::GiveUp { why: Why::SameAgain };
    }
    Then::Again { why: "nothing says that the same would happen again".to_string(), pause }
}

/// What a command can do, for advice.
pub fn abilities(command: &Command, knobs: &[Knob], on_card: bool) -> Abilities {
    let can = |knob| knobs.contains(&knob);
    let rows = command.layers().any(|layer| layer.place(Knob::Length).is_some_and(|place| place.rows.is_some()));
    Abilities {
        accumulate: can(Knob::Accumulation) && command.layers().any(|layer| layer.can.exact_accumulation),
        clip: false,
        checkpointing: can(Knob::Checkpointing),
        precision: can(Knob::Precision),
        length: can(Knob::Length) && !rows,
        clip_length: rows,
        attention: can(Knob::Attention),
        zero: can(Knob::ZeroStage),
        resume: command.layers().any(|layer| layer.checkpoints.resume.is_some()),
        segments: can(Knob::Segments) && on_card,
    }
}

/// The same failure at the same place with the same settings.
fn is_same(one: &Death, other: &Death) -> bool {
    one.kind.name() == other.kind.name()
        && one.settings == other.settings
        && (one.step, one.saved) == (other.step, other.saved)
}

/// Deaths with the last one's settings since the newest checkpoint became the newest: a step down is a new try, and the
/// ladder ends by itself.
fn deaths_without_progress(deaths: &[Death]) -> usize {
    let Some(last) = deaths.last() else { return 0 };
    let here = |death: &&Death| death.saved == last.saved && death.settings == last.settings;
    deaths.iter().rev().take_while(here).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Allow;

    fn death(kind: FailureKind, step: u64, saved: Option<u64>) -> Death {
        Death { kind, settings: Settings::new(), step: Some(step), saved, checkpoints: saved.map_or(0, |_| 2) }
    }

    fn decide(deaths: &[Death], workers: u64) -> Then {
        let settings: Settings = [(Knob::Workers, workers.into())].into();
        let stand = Stand {
            settings: &settings,
            can: &[Knob::Workers],
            exact_accumulation: false,
            world_fixed: false,
            on_card: false,
            evaluating: false,
            longest: None,
            allow: &Allow::default(),
        };
        course(deaths, &stand)
    }

    fn oom() -> FailureKind {
        FailureKind::HostOom { by: Killer::Cgroup, victim: Victim::Rank }
    }

    #[test]
    fn memory_that_ran_out_asks_for_a_rung_and_a_bare_kill_for_none() {
        assert!(matches!(decide(&[death(oom(), 5, Some(4))], 2), Then::Down { neighbour: false, .. }));
        let killed = FailureKind::KilledUnproven { signal: 9 };
        assert!(matches!(decide(&[death(killed, 5, Some(4))], 2), Then::Again { .. }));
        assert!(matches!(decide(&[death(oom(), 5, Some(4))], 0), Then::GiveUp { why: Why::Bottom(_) }));
    }

    #[test]
    fn what_a_new_try_cannot_mend_is_not_tried() {
        for kind in [FailureKind::BadSetting, FailureKind::NotFinite, FailureKind::NotRestored, FailureKind::DiskFull] {
            assert_eq!(decide(&[death(kind, 1, None)], 2), Then::GiveUp { why: Why::NeedsAPerson });
        }
    }

    #[test]
    fn the_same_bug_at_the_same_step_is_tried_twice_and_deaths_without_progress_end() {
        let bug = || FailureKind::Bug { place: "t.py:3".to_string() };
        assert!(matches!(decide(&[death(bug(), 7, Some(4))], 0), Then::Again { .. }));
        let twice = [death(bug(), 7, Some(4)), death(bug(), 7, Some(4))];
        assert_eq!(decide(&twice, 0), Then::GiveUp { why: Why::SameAgain });
        let further = [death(bug(), 7, Some(4)), death(bug(), 9, Some(8))];
        assert!(matches!(decide(&further, 0), Then::Again { .. }));
        let killed = |step| death(FailureKind::KilledUnproven { signal: 9 }, step, Some(4));
        let many: Vec<Death> = (5..10).map(killed).collect();
        assert_eq!(decide(&many, 0), Then::GiveUp { why: Why::NoProgress { deaths: 5 } });
    }

    #[test]
    fn a_neighbour_is_waited_for_once_and_then_given_way_to() {
        let first = death(FailureKind::CardNeighbour, 3, Some(2));
        assert!(matches!(decide(std::slice::from_ref(&first), 1), Then::Again { pause: 30, .. }));
        assert!(!matches!(decide(&[first.clone(), first], 1), Then::Again { .. }));
        let host = FailureKind::HostOom { by: Killer::Host, victim: Victim::Rank };
        assert!(matches!(decide(&[death(host, 3, Some(2))], 1), Then::Down { neighbour: true, .. }));
    }

    #[test]
    fn a_compiler_is_run_outside_of_the_limit_and_a_bad_checkpoint_is_passed_over() {
        let compiler = FailureKind::HostOom { by: Killer::Cgroup, victim: Victim::Compiler };
        assert_eq!(decide(&[death(compiler, 0, None)], 1), Then::WarmUp);
        assert_eq!(decide(&[death(FailureKind::BadCheckpoint, 0, Some(4))], 1), Then::Older);
        assert_eq!(decide(&[death(FailureKind::BadCheckpoint, 0, None)], 1), Then::GiveUp { why: Why::NeedsAPerson });
        let bad = |of| Death { checkpoints: of, ..death(FailureKind::BadCheckpoint, 0, Some(4)) };
        assert_eq!(decide(&[bad(3), bad(3)], 1), Then::Older);
        assert_eq!(decide(&[bad(2), bad(2)], 1), Then::GiveUp { why: Why::NeedsAPerson });
    }
}
