//! Chance that can be repeated: numbers that nobody chose, from a seed that the test prints.
//!
//! With `PLIMSOLL_TEST_SEED` set, the same numbers come again. What a machine makes of them still differs in time, so a
//! repeated test meets much the same moments, not the very same ones.

use std::hash::{BuildHasher, RandomState};

/// The variable that holds the seed of a test that is to be repeated.
pub const SEED: &str = "PLIMSOLL_TEST_SEED";

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Chance(u64);

/// The seed of this test: the one that was asked for, or a new one.
pub fn seed() -> u64 {
    let asked = std::env::var(SEED).ok().map(|text| text.parse().expect("PLIMSOLL_TEST_SEED is a number"));
    asked.unwrap_or_else(|| RandomState::new().hash_one(0u8))
}

impl Chance {
    /// The stream of `lane` under `seed`.
    pub fn new(seed: u64, lane: u64) -> Chance {
        Chance(seed ^ lane.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// The next number (splitmix64).
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }
}
