//! A rank that takes its batches out of a ring, in the leader's process or in another.
//!
//! Invariant: a seat never waits for a leader that has ended, and takes all that was published before it ended. So all ranks that are
//! left stop behind the same round, and meet again at the same place.

use std::sync::Arc;

use super::line::Line;
use super::ring::{Ring, State};
use crate::making::Place;
use crate::slot::{Counts, Slot, Tokens};

/// A rank's seat at a ring.
pub struct Seat {
    pub ring: Arc<Ring>,
    pub line: Line,
    pub number: usize,
    /// The round that comes next.
    pub round: u64,
}

/// What came next.
pub enum Taken {
    Round(Counts, Place),
    /// The pass is over.
    Over,
    /// The leader has ended; with it, these ranks are gone.
    Leaderless(Vec<usize>),
    /// This rank goes on by itself, for this reason, if it is worth a word.
    Out(Option<&'static str>),
    GaveUp,
}

impl Seat {
    /// Waits for the next round and copies our part of it into `slot`.
    pub fn take(&mut self, tokens: Tokens, slot: &mut Slot, give_up: &dyn Fn() -> bool) -> Taken {
        let mut led = true;
        let taken = loop {
            // In this order: what was published before the end is seen with the end.
            let state = self.ring.state();
            if self.ring.published() > self.round {
                break self.take_published(tokens, slot);
            }
            match state {
                State::Ended => break Taken::Over,
                State::Failed => break Taken::Out(None),
                State::Running => {}
            }
            if self.ring.taken(self.number).is_none() {
                break Taken::Out(Some("the other ranks went on without it"));
            }
            if !led {
                break Taken::Leaderless(self.ring.gone_without_leader());
            }
            self.ask();
            self.line.wait();
            // If it has ended, one more look at what it left.
            led = self.line.listen();
            if give_up() {
                break Taken::GaveUp;
            }
        };
        self.ring.set_asking(self.number, false);
        taken
    }

    /// Says once that we wait.
    fn ask(&self) {
        if !self.ring.asks(self.number) {
            self.ring.set_asking(self.number, true);
            self.line.ring();
        }
    }

    fn take_published(&mut self, tokens: Tokens, slot: &mut Slot) -> Taken {
        let copied = self.ring.copy(tokens, self.round, self.number, slot);
        // Whether this was copied in time comes before whether it makes sense.
        if !self.ring.take(self.number, self.round) {
            return Taken::Out(Some("the other ranks went on without it"));
        }
        self.round += 1;
        self.line.ring();
        match copied {
            Some((found, place)) => Taken::Round(found, place),
            None => Taken::Out(Some("the shared ring holds what cannot be a batch")),
        }
    }
}
