//! Whose turn it is at a ring of batches: threads fill its places, one caller takes from them in order.
//!
//! Invariant: a place is filled again only when what was in it has been taken, and an error comes in place of the first batch that it is of,
//! not before it. It holds no batch and knows none; nothing is allocated but at the start, and by errors.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::DataError;
use crate::pairs::lock;
use crate::patience::{GiveUp, Patience};

/// The turns of one ring.
pub(crate) struct Turns {
    state: Mutex<State>,
    /// A place became free, or the end came.
    room: Condvar,
    /// A batch became complete, or an error came.
    ready: Condvar,
    patience: Patience,
    places: usize,
}

struct State {
    taken: u64,
    complete: Box<[bool]>,
    stop: bool,
    failed: bool,
    /// The earliest error, with the number of its sample.
    error: Option<(u64, DataError)>,
}

impl Turns {
    pub fn new(places: usize) -> Turns {
        let complete = vec![false; places].into();
        let state = State { taken: 0, complete, stop: false, failed: false, error: None };
        let (room, ready, patience) = (Condvar::new(), Condvar::new(), Patience::default());
        Turns { state: Mutex::new(state), room, ready, patience, places }
    }

    /// Where a batch is in the ring.
    pub fn place(&self, batch: u64) -> usize {
        (batch % self.places as u64) as usize
    }

    /// Waits until `batch` is complete, or what went wrong before sample `end`, behind its last one, is told.
    pub fn wait_for(&self, batch: u64, end: u64) -> Result<(), DataError> {
        let mut state = lock(&self.state);
        while !state.complete[self.place(batch)] {
            if state.error.as_ref().is_some_and(|(sample, _)| *sample < end) {
                return Err(state.error.take().map_or(DataError::Stopped, |(_, error)| error));
            }
            if state.failed && state.error.is_none() {
                return Err(DataError::Stopped);
            }
            state = self.patience.wait(&self.ready, &self.state, state)?;
        }
        Ok(())
    }

    /// The caller has what was in `batch`.
    pub fn took(&self, batch: u64) {
        let mut state = lock(&self.state);
        state.complete[self.place(batch)] = false;
        state.taken += 1;
        drop(state);
        self.room.notify_all();
    }

    /// Waits until `batch` has a place; false where there is nothing more to do.
    pub fn wait_for_room(&self, batch: u64) -> bool {
        let mut state = lock(&self.state);
        while !state.stop && !state.failed && batch >= state.taken + self.places as u64 {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.stop && !state.failed
    }

    /// All of `batch` is in its place.
    pub fn completed(&self, batch: u64) {
        lock(&self.state).complete[self.place(batch)] = true;
        self.ready.notify_all();
    }

    /// Sample number `sample`, counted as in [`Turns::wait_for`], cannot be had.
    pub fn fail(&self, sample: u64, error: DataError) {
        let mut state = lock(&self.state);
        state.failed = true;
        if state.error.as_ref().is_none_or(|(earlier, _)| sample < *earlier) {
            state.error = Some((sample, error));
        }
        drop(state);
        self.ready.notify_all();
        self.room.notify_all();
    }

    /// The caller wants no more.
    pub fn stop(&self) {
        lock(&self.state).stop = true;
        self.room.notify_all();
    }

    pub fn give_up_when(&self, asked: GiveUp) {
        self.patience.ends_when(asked);
    }
}
