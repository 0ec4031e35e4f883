//! The way from tokenising threads to the assembler: a fixed buffer of words, filled in the order of tickets.
//!
//! Invariant: what comes out has the order of the tickets, whichever thread was first; nothing grows. A thread that is
//! early waits with its tokens in hand. Parts are sent in frames of at most `frame_words` words: a header, then tokens.
//! It knows nothing of samples.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::DataError;
use crate::pairs::lock;
use crate::patience::Patience;

/// What a frame's header says beside its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The row ends with this frame.
    pub row: bool,
    /// The row was the last of its pass.
    pub epoch: bool,
    /// Something of the row was left out.
    pub cut: bool,
}

const ROW: u32 = 1 << 31;
const EPOCH: u32 = 1 << 30;
const CUT: u32 = 1 << 29;
const LENGTH: u32 = CUT - 1;

/// Words of the largest frame without its header, and of the whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TubeRoom {
    pub frame_words: usize,
    pub words: usize,
}

impl TubeRoom {
    /// For `samples` samples of `rows` rows, ready at a time.
    pub fn new(rows: usize, samples: usize) -> TubeRoom {
        let frame_words = rows + 1;
        TubeRoom { frame_words, words: (samples + 1) * (frame_words + 1) }
    }

    /// Heap of the buffer, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        (self.words * size_of::<u32>()) as u64
    }
}

pub(crate) struct Tube {
    state: Mutex<State>,
    /// Words became free, or it is another ticket's turn, or the end came.
    room: Condvar,
    /// A frame came, or an error, or the end.
    ready: Condvar,
    /// Of whoever receives.
    pub patience: Patience,
    frame_words: usize,
}

struct State {
    buffer: Box<[u32]>,
    /// The first word in use, and how many are.
    first: usize,
    used: usize,
    /// Whose turn it is.
    turn: u64,
    /// Nothing comes from this ticket on.
    end: Option<u64>,
    error: Option<DataError>,
    failed: bool,
    stop: bool,
}

impl State {
    fn push(&mut self, word: u32) {
        let at = (self.first + self.used) % self.buffer.len();
        self.buffer[at] = word;
        self.used += 1;
    }

    fn pop(&mut self) -> u32 {
        let word = self.buffer[self.first];
        self.first = (self.first + 1) % self.buffer.len();
        self.used -= 1;
        word
    }
}

impl Tube {
    pub fn new(room: TubeRoom) -> Tube {
        Tube {
            state: Mutex::new(State {
                buffer: vec![0; room.words].into(),
                first: 0,
                used: 0,
                turn: 0,
                end: None,
                error: None,
                failed: false,
                stop: false,
            }),
            room: Condvar::new(),
            ready: Condvar::new(),
            patience: Patience::default(),
            frame_words: room.frame_words,
        }
    }

    /// Sends the words of `ticket` when its turn comes. False: there is nothing more to do.
    pub fn send(&self, ticket: u64, words: &[u32], ending: Ending) -> bool {
        let Some(mut state) = self.wait_for_turn(ticket) else { return false };
        let mut rest = words;
        loop {
            let (now, later) = rest.split_at(rest.len().min(self.frame_words));
            while state.buffer.len() - state.used < now.len() + 1 {
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
                if state.stop || state.failed {
                    return false;
                }
            }
            let last = later.is_empty();
            let flag = |on: bool, bit: u32| if on && last { bit } else { 0 };
            let flags = flag(ending.row, ROW) | flag(ending.epoch, EPOCH) | flag(ending.cut, CUT);
            state.push(now.len() as u32 | flags);
            now.iter().for_each(|word| state.push(*word));
            self.ready.notify_one();
            if last {
                break;
            }
            rest = later;
        }
        state.turn += 1;
        drop(state);
        self.room.notify_all();
        true
    }

    /// Says, when its turn comes, that `ticket` failed.
    pub fn fail(&self, ticket: u64, error: DataError) {
        if let Some(state) = self.wait_for_turn(ticket) {
            self.set_error(state, error);
        }
    }

    /// Says at once that nothing more will come.
    pub fn fail_now(&self, error: DataError) {
        let state = lock(&self.state);
        if !state.failed {
            self.set_error(state, error);
        }
    }

    fn set_error(&self, mut state: MutexGuard<'_, State>, error: DataError) {
        state.failed = true;
        state.error = Some(error);
        drop(state);
        self.ready.notify_all();
        self.room.notify_all();
    }

    /// There will be no ticket from `ticket` on.
    pub fn end_at(&self, ticket: u64) {
        lock(&self.state).end = Some(ticket);
        self.ready.notify_all();
    }

    /// Lets the threads go.
    pub fn stop(&self) {
        lock(&self.state).stop = true;
        self.room.notify_all();
    }

    /// Waits for the next frame and puts its words into `frame`. `None`: there are no more.
    pub fn receive(&self, frame: &mut Vec<u32>) -> Result<Option<Ending>, DataError> {
        frame.clear();
        let mut state = lock(&self.state);
        while state.used == 0 {
            if state.failed {
                return Err(state.error.take().unwrap_or(DataError::Stopped));
            }
            if state.end.is_some_and(|end| state.turn >= end) {
                return Ok(None);
            }
            state = self.patience.wait(&self.ready, &self.state, state)?;
        }
        let header = state.pop();
        for _ in 0..header & LENGTH {
            let word = state.pop();
            frame.push(word);
        }
        drop(state);
        self.room.notify_all();
        let is = |bit: u32| header & bit != 0;
        Ok(Some(Ending { row: is(ROW), epoch: is(EPOCH), cut: is(CUT) }))
    }

    fn wait_for_turn(&self, ticket: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        while !state.stop && !state.failed && state.turn != ticket {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.stop && !state.failed).then_some(state)
    }
}
