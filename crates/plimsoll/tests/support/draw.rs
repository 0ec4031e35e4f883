//! Numbers that look random and are the same in every run (SplitMix64).

use std::ops::RangeInclusive;

/// A generator.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as usize
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.within(1..=n) == 1
    }

    pub fn one_of<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.within(0..=from.len() - 1)]
    }
}
