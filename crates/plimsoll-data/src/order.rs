//! In which order rows are visited: a pure function of (seed, epoch, block layout).
//!
//! The data are N stretches of as many blocks each. A window takes one block out of each stretch, by a permutation of its own for
//! each epoch, and the rows of a window are shuffled. So every window has a share of every part of the data: also of a file that
//! is sorted, where N blocks that are drawn freely would miss or double parts by chance. Which block comes when is computed, not
//! stored, so any place can be entered at once. Invariant: within an epoch each row comes exactly once; memory is 4 bytes a row and a
//! block of the window. It knows no files, micro-batch, threads or prefetch. The generator is our own (splitmix64), so that the
//! order never changes under a run.

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

    pub(crate) fn shuffles(self) -> bool {
        self.shuffle
    }

    pub(crate) fn seed(self) -> u64 {
        self.seed
    }

    /// Windows of a pass over `count` blocks.
    pub(crate) fn windows(self, count: usize) -> usize {
        count.div_ceil(self.window_blocks)
    }

    /// Writes the blocks of window number `window`, out of `count`, into `blocks`.
    pub(crate) fn blocks(self, epoch: u64, window: usize, count: usize, blocks: &mut Vec<u32>) {
        blocks.clear();
        let (count, window, windows) = (count as u64, window as u64, self.windows(count) as u64);
        if !self.shuffle {
            let each = self.window_blocks as u64;
            return blocks.extend((window * each..((window + 1) * each).min(count)).map(|block| block as u32));
        }
        let stretches = count.div_ceil(windows.max(1));
        for stretch in 0..stretches {
            let end = |stretch: u64| (u128::from(stretch) * u128::from(count) / u128::from(stretches)) as u64;
            let (first, size) = (end(stretch), end(stretch + 1) - end(stretch));
            // A stretch has a block for each window, or for all but one: these are dealt out, so that no window lacks more than others.
            let without = (size < windows).then(|| (stretch * windows - first) % windows);
            let nth = match without {
                Some(without) if without == window => continue,
                Some(without) if without < window => window - 1,
                _ => window,
            };
            let key = Draws::new([self.seed ^ stretch.rotate_left(32), epoch, u64::MAX]).key();
            blocks.push((first + permuted(key, nth, size)) as u32);
        }
    }

    /// Puts the rows of window number `window` in order.
    pub(crate) fn rows(self, epoch: u64, window: u64, rows: &mut [u32]) {
        if self.shuffle {
            shuffle(rows, &mut Draws::new([self.seed, epoch, window]));
        }
    }
}

/// Where `at` comes in a permutation of `0..size` of its own for each key: a Feistel network over the next power of four, entered
/// again until it leads back inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
pub(crate) fn permuted(key: u64, at: u64, size: u64) -> u64 {
    let half = (64 - size.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let mut value = at;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ mix(right + (round << 32))) & mask));
        }
        value = left << half | right;
        if value < size {
            return value;
        }
    }
}

/// Of the Feistel network. Four make it as good as random for an onlooker who sees few places; small networks need more.
const ROUNDS: u64 = 8;

/// Fisher and Yates.
pub(crate) fn shuffle(items: &mut [u32], draws: &mut Draws) {
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

    /// The words as one.
    pub fn key(self) -> u64 {
        self.0
    }

    /// A draw from `0..n`; the bias of the multiplication is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        ((u128::from(mix(self.0)) * u128::from(n)) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

pub(crate) fn mix(mut z: u64) -> u64 {
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
            let mut out: Vec<u32> = (0..500).collect();
            Order::new(seed, true).rows(epoch, window, &mut out);
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
        let mut out: Vec<u32> = (0..10).collect();
        Order::new(7, true).rows(3, 2, &mut out);
        assert_eq!(out, [8, 5, 3, 7, 2, 9, 0, 6, 1, 4]);
    }

    #[test]
    fn every_place_is_equally_likely() {
        let mut counts = [[0u32; 8]; 8];
        for seed in 0..8000 {
            let mut out: Vec<u32> = (0..8).collect();
            Order::new(seed, true).rows(0, 0, &mut out);
            for (place, &row) in out.iter().enumerate() {
                counts[place][row as usize] += 1;
            }
        }
        // Expected 1000 each, standard deviation 30.
        assert!(counts.iter().flatten().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }

    /// All windows of a pass.
    fn pass(order: Order, epoch: u64, count: usize) -> Vec<Vec<u32>> {
        let window = |nth| {
            let mut out = Vec::new();
            order.blocks(epoch, nth, count, &mut out);
            out
        };
        (0..order.windows(count)).map(window).collect()
    }

    #[test]
    fn without_shuffle_the_order_is_the_files() {
        assert_eq!(pass(Order::new(9, false), 4, 5).concat(), [0, 1, 2, 3, 4]);
        assert_eq!(Order::new(9, false).with_window(8).window_blocks(), 1);
    }

    /// As the order of rows: part of what a checkpoint means.
    #[test]
    fn the_order_of_blocks_is_the_same_for_ever() {
        assert_eq!(
            pass(Order::new(7, true).with_window(3), 2, 10),
            [&[4, 8][..], &[1, 7], &[0, 3, 6], &[2, 5, 9]].map(Vec::from)
        );
    }

    #[test]
    fn every_block_of_a_stretch_is_equally_likely_in_every_window() {
        // One stretch. Of 4 it is the whole network, of the others a part.
        for size in [2, 3, 4, 7, 8] {
            let mut counts = vec![vec![0u32; size]; size];
            for seed in 0..1000 * size as u64 {
                for (window, blocks) in pass(Order::new(seed, true).with_window(1), 0, size).iter().enumerate() {
                    counts[window][blocks[0] as usize] += 1;
                }
            }
            // Expected 1000 each, standard deviation at most 32.
            assert!(counts.iter().flatten().all(|&n| (850..1150).contains(&n)), "{size}: {counts:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_pass_has_each_block_once_and_a_window_one_of_each_stretch(
            seed: u64, epoch in 0..5u64, count in 1..3000usize, window in 1..200usize,
        ) {
            let order = Order::new(seed, true).with_window(window);
            let windows = pass(order, epoch, count);
            let (fewest, most) = (count / windows.len(), count.div_ceil(windows.len()));
            for blocks in &windows {
                proptest::prop_assert!((fewest..=most).contains(&blocks.len()) && blocks.len() <= window);
                // In the order of the file, and about as far apart as stretches are long.
                let apart = blocks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
                proptest::prop_assert!(blocks.is_sorted() && apart as usize <= 3 * windows.len());
            }
            let mut all = windows.concat();
            all.sort_unstable();
            proptest::prop_assert_eq!(all, (0..count as u32).collect::<Vec<u32>>());
        }
    }
}
