//! One update of a run, and how far the next one comes meanwhile.
//!
//! While a card works at an update, the next batch is loaded and, where nothing can come between the two, launched: the card
//! goes on without waiting for the host to look at what came of the first. Invariant: what is saved, evaluated or stopped at
//! is the state after a step that was collected, so nothing is launched that such a moment would find half done.

use std::time::Instant;

use plimsoll_data::{Cursor, DataError};
use plimsoll_engine::cuda::CudaEngine;
use plimsoll_engine::{MicroStep, NotFinite, Stepper, Updated};

use super::feed::{Feed, Loaded};
use super::run::{Run, every};
use crate::render::Fail;

/// What a step did to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Skipped(NotFinite),
    Torn,
}

/// Whether the loader ended because it was asked to.
fn gave_up_waiting(fail: &Fail) -> bool {
    let fact = fail.fact.as_ref().and_then(|fact| fact.downcast_ref::<DataError>());
    matches!(fact, Some(DataError::Stopped))
}

/// What one update came to.
pub(super) struct StepReport {
    pub loss: f64,
    pub lr: f64,
    pub grad_norm: Option<f64>,
    pub tokens: u64,
    pub truncated: u64,
    /// Rows that were left out.
    pub dropped: u64,
    pub seconds: f64,
    pub data_seconds: f64,
    pub what: Outcome,
    /// Where the data of the next update begin.
    pub cursor: Cursor,
}

/// How far the next update has come before it is its turn.
#[derive(Default)]
pub(super) enum Ahead {
    #[default]
    Nothing,
    /// Its first batch is in the slot; or what is wrong with it.
    Loaded(Result<Loaded, Fail>),
    /// The card is at it: all of its one batch.
    Launched(Loaded),
}

impl Ahead {
    /// Whether weights may already be those of the next step.
    pub fn is_launched(&self) -> bool {
        matches!(self, Ahead::Launched(_))
    }
}

/// How far the next update may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Nothing,
    Load,
    Launch,
}

/// What is known of the time after an update before it has ended.
#[derive(Clone, Copy, Debug)]
struct Following {
    /// There is no next one.
    last: bool,
    evaluates: bool,
    saves: bool,
    /// Somebody asks for something that needs the state between two steps.
    asked: bool,
    /// Should this update change nothing, the run ends.
    patience_ends: bool,
    /// The next one is one batch, and needs nothing that comes of this one but the weights.
    independent: bool,
}

/// How far the next update may come while this one is under way.
fn reach(of: Following) -> Reach {
    if of.last || of.evaluates || of.asked {
        Reach::Nothing
    } else if of.saves || of.patience_ends || !of.independent {
        Reach::Load
    } else {
        Reach::Launch
    }
}

impl Run<'_> {
    /// One update: every micro-batch of the effective batch. None: asked to stop on the way; what was begun is dropped.
    pub(super) fn update(&mut self, feed: &mut Feed) -> Result<Option<StepReport>, Fail> {
        let start = Instant::now();
        let (mut tokens, mut truncated, mut dropped, mut samples) = (0, 0, 0, 0);
        let mut data_seconds = 0.0;
        let mut step = self.first_of(self.step);
        let batches = self.batches();
        for micro in 0..batches {
            // A hand-over waits for the update: where it cannot be saved, the run goes on with the next batch.
            if micro > 0 && self.stop.requested() && !self.stop.handing_over() {
                return Ok(None);
            }
            let asked = Instant::now();
            let loaded = match std::mem::take(&mut self.ahead) {
                Ahead::Launched(facts) => Ok((facts, true)),
                Ahead::Loaded(loaded) => loaded.map(|facts| (facts, false)),
                Ahead::Nothing => feed.next(&mut self.engine).map(|facts| (facts, false)),
            };
            let (facts, launched) = match loaded {
                // Data that lie elsewhere were waited for, and the wait was ended.
                Err(fail) if self.stop.requested() && gave_up_waiting(&fail) => return Ok(None),
                loaded => loaded?,
            };
            data_seconds += asked.elapsed().as_secs_f64();
            step = MicroStep { samples: facts.samples, first_sample: samples, ..step };
            if !launched {
                self.engine.micro_step(step)?;
            }
            samples += facts.samples as u32;
            tokens += facts.tokens;
            truncated += facts.truncated;
            dropped += facts.dropped;
        }
        let cursor = feed.cursor();
        let (reach, next) = (reach(self.following()), self.first_of(self.step + 1));
        let busy = |engine: &Stepper| engine.card().map_or(0.0, CudaEngine::busy_seconds);
        let (before, mut loading) = (busy(&self.engine), 0.0);
        let ahead = &mut self.ahead;
        let updated = self.engine.finish_update(step, |card| {
            *ahead = go_ahead(card, feed, reach, next, &mut loading);
        })?;
        // Loading that the card was not busy for is waiting.
        data_seconds += (loading - (busy(&self.engine) - before)).max(0.0);
        let (loss, grad_norm, what) = match updated {
            Updated::Done { loss, norm } => (loss, Some(norm), Outcome::Done),
            Updated::Skipped { loss, what } => (loss, None, Outcome::Skipped(what)),
            Updated::Torn { loss } => (loss, None, Outcome::Torn),
        };
        let seconds = start.elapsed().as_secs_f64();
        let (loss, lr) = (loss.mean(), step.lr.unwrap_or(0.0));
        Ok(Some(StepReport { loss, lr, grad_norm, tokens, truncated, dropped, seconds, data_seconds, what, cursor }))
    }

    /// An update before anything is known of its batch.
    fn first_of(&self, update: u64) -> MicroStep {
        let lr = self.settings.optimizer.lr();
        let lr = lr.map(|lr| self.settings.schedule.rate(lr, update, self.prepared.steps));
        MicroStep { update, samples: 0, first_sample: 0, lr }
    }

    /// Micro-batches of an update.
    fn batches(&self) -> usize {
        self.prepared.plan.effective_batch / self.engine.program().shape.samples
    }

    /// What comes after the update that is under way.
    fn following(&self) -> Following {
        let next = self.step + 1;
        let evaluates = self.prepared.data.evaluates() && every(self.settings.eval_every, next);
        Following {
            last: next >= self.prepared.steps,
            evaluates,
            saves: self.save_due(next, false, evaluates).is_some(),
            asked: self.stop.asks_anything(),
            patience_ends: self.skips + 1 >= self.settings.max_skips,
            independent: self.batches() == 1 && self.engine.card().is_some_and(CudaEngine::may_run_ahead),
        }
    }
}

/// Goes with the next update as far as it may; `loading` gets the seconds of its batch.
fn go_ahead(card: &mut CudaEngine, feed: &mut Feed, reach: Reach, next: MicroStep, loading: &mut f64) -> Ahead {
    if reach == Reach::Nothing {
        return Ahead::Nothing;
    }
    let asked = Instant::now();
    let loaded = feed.next_on_card(card);
    *loading = asked.elapsed().as_secs_f64();
    let facts = match loaded {
        Ok(facts) if reach == Reach::Launch => facts,
        loaded => return Ahead::Loaded(loaded),
    };
    // What is wrong with the next step is told when it is its turn: the one before it is good.
    match card.micro_step(MicroStep { samples: facts.samples, ..next }) {
        Ok(()) => Ahead::Launched(facts),
        Err(error) => Ahead::Loaded(Err(Fail::from(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Following = Following {
        last: false,
        evaluates: false,
        saves: false,
        asked: false,
        patience_ends: false,
        independent: true,
    };

    #[test]
    fn nothing_is_launched_across_a_moment_that_needs_the_state_between_two_steps() {
        assert_eq!(reach(QUIET), Reach::Launch);
        for (of, wanted) in [
            (Following { last: true, ..QUIET }, Reach::Nothing),
            (Following { evaluates: true, ..QUIET }, Reach::Nothing),
            (Following { asked: true, ..QUIET }, Reach::Nothing),
            (Following { saves: true, ..QUIET }, Reach::Load),
            (Following { patience_ends: true, ..QUIET }, Reach::Load),
            (Following { independent: false, ..QUIET }, Reach::Load),
            (Following { independent: false, last: true, ..QUIET }, Reach::Nothing),
        ] {
            assert_eq!(reach(of), wanted, "{of:?}");
        }
    }
}
