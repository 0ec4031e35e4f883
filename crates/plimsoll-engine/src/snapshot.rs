//! A copy of everything that a checkpoint holds, so that it can be written while the engine steps on.
//!
//! Its memory is taken and touched once, before step 1, as the plan says; filling it allocates nothing. It knows no file.

use plimsoll_plan::program::Program;
use plimsoll_plan::snapshot::SnapshotLayout;
use rayon::prelude::*;

use crate::arena::Arena;
use crate::cuda::CudaEngine;
use crate::engine::Engine;
use crate::error::EngineError;

/// Elements that one thread copies in one go.
const PART: usize = 1 << 18;

/// Weights and optimizer state of one moment.
#[derive(Debug)]
pub struct Snapshot {
    arena: Arena,
    layout: SnapshotLayout,
}

// SAFETY: the memory is written through `&mut self` alone.
unsafe impl Sync for Snapshot {}

impl Snapshot {
    /// Takes the memory of a copy of this program's weights and state.
    pub fn take(program: &Program) -> Result<Snapshot, EngineError> {
        let layout = SnapshotLayout::of(&program.store);
        Ok(Snapshot { arena: Arena::take(layout.words)?, layout })
    }

    /// Copies what the engine holds now, on all cores of the pool it is called in.
    pub fn fill(&mut self, engine: &Engine) {
        let (store, words) = (engine.store(), self.layout.words);
        // SAFETY: the arena has these words, and `&mut self` makes us the only one.
        let copy = unsafe { std::slice::from_raw_parts_mut(self.arena.base(), words) };
        for run in &self.layout.runs {
            let (to, from) = (&mut copy[run.to..run.to + run.words], &store[run.from..run.from + run.words]);
            to.par_chunks_mut(PART).zip(from.par_chunks(PART)).for_each(|(to, from)| to.copy_from_slice(from));
        }
    }

    /// Copies what a card holds now.
    pub(crate) fn fill_from_card(&mut self, engine: &CudaEngine) -> Result<(), EngineError> {
        let words = self.layout.words;
        // SAFETY: the arena has these words, and `&mut self` makes us the only one.
        let copy = unsafe { std::slice::from_raw_parts_mut(self.arena.base(), words) };
        for run in &self.layout.runs {
            engine.read_store(run.from, &mut copy[run.to..run.to + run.words])?;
        }
        for (weight, place) in &self.layout.split {
            engine.read_split(*weight, &mut copy[place.clone()])?;
        }
        Ok(())
    }

    /// The bytes of a trained parameter, as they are stored.
    pub fn param_bytes(&self, index: usize) -> &[u8] {
        let words = self.words();
        // SAFETY: any four bytes of f32 are four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
        &bytes[self.layout.params[index].clone()]
    }

    /// Optimizer state `nth` of a parameter.
    pub fn state(&self, index: usize, nth: usize) -> &[f32] {
        &self.words()[self.layout.state[index][nth].clone()]
    }

    fn words(&self) -> &[f32] {
        // SAFETY: the arena has these words; `&self` keeps the writer away.
        unsafe { std::slice::from_raw_parts(self.arena.base(), self.layout.words) }
    }
}
