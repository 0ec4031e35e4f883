//! In which order rows are visited: a pure function of (seed, epoch, block layout).
//!
//! The blocks are permuted for each epoch; then windows of N consecutive blocks of that order are mixed, and the rows of
//! a window are shuffled. Nothing else is remembered, so any place can be entered at once. Invariant: within an epoch
//! each row comes exactly once; memory is 4 bytes a block and 4 bytes a row of the window. It knows no files, micro-batch,
//! threads or prefetch. The generator is our own (splitmix64), so that the order never changes under a run.

/// Blocks mixed at a time unless told otherwise.
pub const WINDOW_BLOCKS: usize = 64;

/// The rule of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Order {
    seed: u64,
    shuffle: bool,
    window_blocks: usize,
}

impl Order {
    /// Shuffled by `seed` in windows of [`WINDOW_BLOCKS`], or in file order.
    pub fn new(seed: u64, shuffle: bool) -> Order {
        Order { seed, shuffle, window_blocks: if shuffle { WINDOW_BLOCKS } else { 1 } }
    }

    /// The same with another number of blocks (at least 1) in a window: more mixing, more memory.
    pub fn with_window(self, blocks: usize) -> Order {
        Order { window_blocks: if self.shuffle { blocks.max(1) } else { 1 }, ..self }
    }

    /// Blocks in a window.
    pub fn window_blocks(self) -> usize {
        self.window_blocks
    }

    /// Writes the order of all blocks in `epoch` into `blocks`.
    pub(crate) fn blocks(self, epoch: u64, count: usize, blocks: &mut Vec<u32>) {
        blocks.clear();
        blocks.extend(0..count as u32);
        if self.shuffle {
            shuffle(blocks, &mut Draws::new([self.seed, epoch, u64::MAX]));
        }
    }

    /// Writes the order of the `count` rows of window number `window` into `rows`.
    pub(crate) fn rows(self, epoch: u64, window: u64, count: usize, rows: &mut Vec<u32>) {
        rows.clear();
        rows.extend(0..count as u32);
        if self.shuffle {
            shuffle(rows, &mut Draws::new([self.seed, epoch, window]));
        }
    }
}

/// Fisher and Yates.
fn shuffle(items: &mut [u32], draws: &mut Draws) {
    for i in (1..items.len()).rev() {
        items.swap(i, draws.below(i as u64 + 1) as usize);
    }
}

/// splitmix64, keyed by words.
pub(crate) struct Draws(u64);

impl Draws {
    pub fn new(key: [u64; 3]) -> Draws {
        let mut state = 0x706c_696d_736f_6c6c;
        for word in key {
            state = mix(state ^ mix(word.wrapping_add(GOLDEN)));
        }
        Draws(state)
    }

    /// A draw from `0..n`; the bias of the multiplication is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        ((u128::from(mix(self.0)) * u128::from(n)) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_permutations_that_differ_by_seed_epoch_and_window() {
        let rows = |seed, epoch, window| {
            let mut out = Vec::new();
            Order::new(seed, true).rows(epoch, window, 500, &mut out);
            out
        };
        let first = rows(1, 0, 0);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..500).collect::<Vec<u32>>());
        for other in [rows(2, 0, 0), rows(1, 1, 0), rows(1, 0, 1)] {
            assert_ne!(first, other);
        }
        assert_eq!(first, rows(1, 0, 0));
    }

    /// The order is part of what a checkpoint means: these numbers may never change.
    #[test]
    fn the_order_is_the_same_for_ever() {
        let mut out = Vec::new();
        Order::new(7, true).rows(3, 2, 10, &mut out);
        assert_eq!(out, [8, 5, 3, 7, 2, 9, 0, 6, 1, 4]);
    }

    #[test]
    fn every_place_is_equally_likely() {
        let mut counts = [[0u32; 8]; 8];
        let mut out = Vec::new();
        for seed in 0..8000 {
            Order::new(seed, true).rows(0, 0, 8, &mut out);
            for (place, &row) in out.iter().enumerate() {
                counts[place][row as usize] += 1;
            }
        }
        // Expected 1000 each, standard deviation 30.
        assert!(counts.iter().flatten().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }

    #[test]
    fn without_shuffle_the_order_is_the_files() {
        let mut out = Vec::new();
        Order::new(9, false).blocks(4, 5, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4]);
        assert_eq!(Order::new(9, false).with_window(8).window_blocks(), 1);
    }
}
