//! Whether a training still moves. Frameworks do not say: with one rank stopped, the others wait without a word, and the
//! time-outs of NCCL and gloo are 10 to 30 minutes where they are set at all. Pure.
//!
//! A rank in state T is noticed within [`NOTICED`]; a tree in which no rank computes, no line is written and no step is
//! done counts as standing still after the time that the caller gives.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A stopped rank is noticed after this time, plus one look.
pub const NOTICED: Duration = Duration::from_secs(5);
/// A rank that uses less than this of a core, in hundredths, only waits.
const BUSY: u64 = 5;

/// A rank at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPulse {
    /// Its rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Its state, as the kernel has it.
    pub state: char,
    /// CPU time that it and its loaders have used, in hundredths of a second.
    pub cpu: u64,
}

/// The tree at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Since the start.
    pub at: Duration,
    /// The ranks.
    pub ranks: Vec<RankPulse>,
    /// Lines written so far.
    pub lines: u64,
    /// The last step told.
    pub step: Option<u64>,
}

/// What a pulse means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Motion {
    /// It moves, or it is too early to say.
    Moves,
    /// A rank has been stopped for so long.
    Stopped {
        /// Which.
        rank: RankPulse,
        /// For how long.
        since: Duration,
    },
    /// Nothing has moved for so long.
    Still {
        /// For how long.
        since: Duration,
        /// The ranks that only wait.
        idle: Vec<RankPulse>,
    },
}

/// What is remembered between pulses.
#[derive(Clone, Debug, Default)]
pub struct Stall {
    stopped: Vec<(u32, Duration)>,
    moved: Option<Pulse>,
}

impl Stall {
    /// Takes a pulse; `after` is the time after which a tree without motion stands still.
    pub fn feel(&mut self, pulse: &Pulse, after: Duration) -> Motion {
        self.stopped.retain(|(pid, _)| pulse.ranks.iter().any(|rank| rank.pid == *pid && is_stopped(rank)));
        for rank in pulse.ranks.iter().filter(|rank| is_stopped(rank)) {
            if self.stopped.iter().all(|(pid, _)| *pid != rank.pid) {
                self.stopped.push((rank.pid, pulse.at));
            }
        }
        let longest = self.stopped.iter().min_by_key(|(_, from)| *from).copied();
        if let Some((pid, from)) = longest
            && let Some(rank) = pulse.ranks.iter().find(|rank| rank.pid == pid)
            && pulse.at.saturating_sub(from) >= NOTICED
        {
            return Motion::Stopped { rank: *rank, since: pulse.at.saturating_sub(from) };
        }
        let Some(moved) = &self.moved else {
            self.moved = Some(pulse.clone());
            return Motion::Moves;
        };
        let passed = pulse.at.saturating_sub(moved.at);
        let spoke = pulse.lines != moved.lines || pulse.step != moved.step;
        if spoke || pulse.ranks.is_empty() || pulse.ranks.iter().any(|rank| is_busy(rank, moved, passed)) {
            self.moved = Some(pulse.clone());
            return Motion::Moves;
        }
        if passed >= after { Motion::Still { since: passed, idle: pulse.ranks.clone() } } else { Motion::Moves }
    }
}

fn is_stopped(rank: &RankPulse) -> bool {
    matches!(rank.state, 'T' | 't')
}

/// Whether a rank has computed since the tree last moved; a new rank has. One whose time has become less has lost a
/// loader with all its time: something ended, and the count begins anew.
fn is_busy(rank: &RankPulse, moved: &Pulse, passed: Duration) -> bool {
    let Some(before) = moved.ranks.iter().find(|before| before.pid == rank.pid) else { return true };
    let hundredths = u64::try_from(passed.as_millis() / 10).unwrap_or(u64::MAX);
    match rank.cpu.checked_sub(before.cpu) {
        Some(used) => used.saturating_mul(100) > hundredths.max(100).saturating_mul(BUSY),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(60);

    fn pulse(seconds: u64, ranks: &[(u32, char, u64)], lines: u64) -> Pulse {
        let ranks = ranks.iter().enumerate();
        let ranks =
            ranks.map(|(rank, (pid, state, cpu))| RankPulse { rank: rank as u32, pid: *pid, state: *state, cpu: *cpu });
        Pulse { at: Duration::from_secs(seconds), ranks: ranks.collect(), lines, step: None }
    }

    #[test]
    fn a_stopped_rank_is_noticed_although_the_others_compute() {
        let mut stall = Stall::default();
        let mut found = Vec::new();
        for second in 0..10 {
            let state = if second >= 2 { 'T' } else { 'R' };
            found.push(stall.feel(&pulse(second, &[(1, 'R', 100 * second), (2, state, 50)], second), AFTER));
        }
        assert_eq!(found.iter().position(|motion| *motion != Motion::Moves), Some(7));
        assert!(matches!(&found[9], Motion::Stopped { rank, since } if rank.rank == 1 && since.as_secs() == 7));
        let going = stall.feel(&pulse(11, &[(1, 'R', 1100), (2, 'R', 60)], 11), AFTER);
        assert_eq!(going, Motion::Moves);
    }

    #[test]
    fn ranks_that_only_wait_stand_still_after_the_given_time() {
        let mut stall = Stall::default();
        for second in 0..60 {
            assert_eq!(
                stall.feel(&pulse(second, &[(1, 'S', 500), (2, 'S', 500 + second / 20)], 3), AFTER),
                Motion::Moves
            );
        }
        let found = stall.feel(&pulse(61, &[(1, 'S', 500), (2, 'S', 503)], 3), AFTER);
        assert!(matches!(found, Motion::Still { idle, .. } if idle.len() == 2));
    }

    #[test]
    fn a_rank_whose_loaders_ended_still_computes() {
        let mut stall = Stall::default();
        stall.feel(&pulse(0, &[(1, 'R', 100_000)], 0), AFTER);
        // Loaders with most of that time are gone; the rank computes on without a word.
        for second in 1..200 {
            assert_eq!(stall.feel(&pulse(second, &[(1, 'R', 20_000 + 100 * second)], 0), AFTER), Motion::Moves);
        }
        let found: Vec<Motion> =
            (200..270).map(|second| stall.feel(&pulse(second, &[(1, 'S', 39_900)], 0), AFTER)).collect();
        assert!(matches!(found.last(), Some(Motion::Still { .. })));
    }

    #[test]
    fn a_line_a_step_or_work_is_motion() {
        for (cpu, lines, step) in [(0, 1, None), (0, 0, Some(3)), (900, 0, None)] {
            let mut stall = Stall::default();
            stall.feel(&pulse(0, &[(1, 'S', 0)], 0), AFTER);
            let mut later = pulse(59, &[(1, 'S', cpu)], lines);
            later.step = step;
            stall.feel(&later, AFTER);
            let last = Pulse { at: Duration::from_secs(100), ..later };
            assert_eq!(stall.feel(&last, AFTER), Motion::Moves);
        }
    }
}
