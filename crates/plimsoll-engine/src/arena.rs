//! The arena: one anonymous mapping, taken whole and touched at the start, given back at the end.
//!
//! A machine that cannot give the memory says so here, before step 1. Huge pages are asked for inside the arena only.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::EngineError;

const HUGE: usize = 2 << 20;

/// Memory of `words` elements of four bytes, zeroed, aligned to a huge page.
#[derive(Debug)]
pub struct Arena {
    mapping: *mut u8,
    mapped: usize,
    base: *mut f32,
    words: usize,
}

// SAFETY: the arena owns its mapping; access is governed by the engine, which hands out disjoint slices.
unsafe impl Send for Arena {}

impl Arena {
    /// Takes and touches the memory.
    pub fn take(words: usize) -> Result<Arena, EngineError> {
        let bytes = (words * 4).max(4096).next_multiple_of(4096);
        // Room to align the start to a huge page without touching what lies before it.
        let mapped = bytes + HUGE;
        let refused = |source| EngineError::ArenaRefused { bytes: bytes as u64, source };
        // SAFETY: a fresh private anonymous mapping at an address the kernel chooses.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?
        .cast::<u8>();
        let base = mapping.wrapping_add(mapping.align_offset(HUGE));
        let whole = bytes / HUGE * HUGE;
        if whole > 0 {
            // SAFETY: the range lies inside our mapping. Advice may be refused (no huge pages): that costs speed only.
            let _ = unsafe { madvise(base.cast(), whole, Advice::LinuxHugepage) };
        }
        let arena = Arena { mapping, mapped, base: base.cast(), words: bytes / 4 };
        for at in (0..bytes).step_by(4096) {
            // SAFETY: `at` is inside the mapping. A write, so that the page is really there.
            unsafe { base.add(at).write_volatile(0) };
        }
        Ok(arena)
    }

    /// First element.
    pub fn base(&self) -> *mut f32 {
        self.base
    }

    /// Elements.
    pub fn words(&self) -> usize {
        self.words
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody holds a slice of it any more.
        let _ = unsafe { munmap(self.mapping.cast(), self.mapped) };
    }
}
