//! The arena: one anonymous mapping, taken whole and touched at the start, given back at the end.
//!
//! A machine that cannot give the memory says so here, before step 1. Huge pages are asked for inside the arena only, and
//! refused around it: where the kernel hands them out unasked, memory that nobody planned would become resident.

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
        let (before, whole) = (base.addr() - mapping.addr(), bytes / HUGE * HUGE);
        for (at, length, advice) in [
            (0, before, Advice::LinuxNoHugepage),
            (before, whole, Advice::LinuxHugepage),
            (before + whole, mapped - before - whole, Advice::LinuxNoHugepage),
        ] {
            if length > 0 {
                // SAFETY: the range lies inside our mapping. Advice may be refused: a kernel without huge pages needs none.
                let _ = unsafe { madvise(mapping.wrapping_add(at).cast(), length, advice) };
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `VmFlags` of the mapping that holds an address.
    fn flags(at: usize) -> Vec<String> {
        let text = fs_err::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in text.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = first.split_once('-').map(|(from, to)| (hex(from), hex(to))) {
                inside = (from..to).contains(&at);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.split_whitespace().map(str::to_string).collect();
            }
        }
        panic!("nothing is mapped at {at:#x}");
    }

    #[test]
    fn huge_pages_are_refused_outside_the_whole_huge_pages_of_an_arena() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            println!("skipped: this kernel has no transparent huge pages");
            return;
        }
        // Two huge pages and a half: the half and the room to align must stay with small pages.
        let arena = Arena::take(5 * HUGE / 2 / 4).unwrap();
        let (start, base) = (arena.mapping.addr(), arena.base.addr());
        let has = |at: usize, flag: &str| flags(at).iter().any(|f| f == flag);
        assert!(has(base, "hg") && has(base + 2 * HUGE - 1, "hg"));
        assert!(has(base + 2 * HUGE, "nh") && has(start + arena.mapped - 1, "nh"));
        assert!(start == base || (has(start, "nh") && has(base - 1, "nh")));
    }
}
