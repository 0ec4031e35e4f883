//! Work on all cores: a range of tasks, each run once, on the pool that the engine runs in.
//!
//! The engine's own thread is a worker of the pool, so a task list is pushed to a queue that is already there and
//! nothing is allocated. Task boundaries depend on shapes, never on the number of threads, wherever a sum is taken.

use std::ops::Range;

use rayon::prelude::*;

/// A raw pointer that tasks may share; each writes to places that no other task touches.
#[derive(Clone, Copy, Debug)]
pub struct Shared(pub *mut f32);

// SAFETY: the tasks that get a copy write to disjoint places; each use says which.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The first element.
    pub fn first(self) -> *mut f32 {
        self.0
    }

    /// The slice `start .. start + len`.
    ///
    /// # Safety
    /// The range lies inside the allocation, and no other live slice overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Runs `f` for each task.
pub fn tasks(count: usize, f: impl Fn(usize) + Sync + Send) {
    match count {
        0 => {}
        1 => f(0),
        _ => (0..count).into_par_iter().with_max_len(1).for_each(f),
    }
}

/// Runs `f` over row ranges of about `grain` rows.
pub fn rows(count: usize, grain: usize, f: impl Fn(Range<usize>) + Sync + Send) {
    let grain = grain.max(1);
    tasks(count.div_ceil(grain), |task| f(task * grain..((task + 1) * grain).min(count)));
}

/// Index of the running worker, below the number of threads.
pub fn worker() -> usize {
    rayon::current_thread_index().unwrap_or(0)
}
