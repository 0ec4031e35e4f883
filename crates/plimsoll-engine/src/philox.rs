//! Dropout's random numbers: Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; seven
//! rounds pass BigCrush).
//!
//! A number is a pure function of (seed, update, sample in the effective batch, place, row, column): never of the
//! micro-batch, the thread or the order of work. So any split of an effective batch drops the same elements, and a
//! recomputed block drops what it dropped before.

use crate::simd::LANES;

/// What is dropped in one place of one update.
#[derive(Clone, Copy, Debug)]
pub struct Dropper {
    /// Key: the run's seed.
    pub seed: u64,
    /// Which update.
    pub update: u32,
    /// Which place on the tape.
    pub place: u32,
    /// An element is dropped when its number is below this.
    pub threshold: u32,
    /// What is kept is multiplied by this.
    pub scale: f32,
}

/// Columns that one block of counters covers: 16 counters of four words each.
pub const BLOCK: usize = 4 * LANES;

impl Dropper {
    /// Drops with probability `rate`.
    pub fn new(seed: u64, update: u32, place: u32, rate: f32) -> Dropper {
        let threshold = (f64::from(rate) * 4_294_967_296.0) as u32;
        Dropper { seed, update, place, threshold, scale: 1.0 / (1.0 - rate) }
    }

    /// The factors of 64 columns, 0 or `scale` each: block `block` of row `row`, whose rows are `width` columns long.
    #[inline(always)]
    pub fn block(&self, sample: u32, row: u64, width: usize, block: usize) -> [f32; BLOCK] {
        let counter = (row * blocks(width) as u64 + block as u64) * LANES as u64;
        // Places are small numbers, so what a very long attention row needs beyond 32 bits goes above them.
        let place = self.place ^ ((counter >> 32) as u32) << 20;
        let words = philox(self.seed, counter as u32, sample, place, self.update);
        let mut factors = [0.0f32; BLOCK];
        for w in 0..4 {
            for i in 0..LANES {
                factors[w * LANES + i] = if words[w][i] < self.threshold { 0.0 } else { self.scale };
            }
        }
        factors
    }

    /// Calls `f(first column, factors)` for each block of a row.
    #[inline(always)]
    pub fn row(&self, sample: u32, row: u64, width: usize, mut f: impl FnMut(usize, &[f32; BLOCK])) {
        for block in 0..blocks(width) {
            f(block * BLOCK, &self.block(sample, row, width, block));
        }
    }

    /// Multiplies a row by its factors.
    #[inline(always)]
    pub fn apply(&self, sample: u32, row: u64, values: &mut [f32]) {
        let width = values.len();
        for (block, values) in values.chunks_mut(BLOCK).enumerate() {
            let factors = self.block(sample, row, width, block);
            for (v, f) in values.iter_mut().zip(&factors) {
                *v *= f;
            }
        }
    }
}

/// Elements that one call of `rounding` covers: two of each of its words.
pub const ROUNDED: usize = 2 * BLOCK;
/// Marks counters that round weights; the places of dropout are below it.
const ROUNDING: u32 = 1 << 31;

/// The random bits that round elements `group * ROUNDED ..` of a stored parameter after an update.
#[inline(always)]
pub fn rounding(seed: u64, update: u64, param: u32, group: u64) -> [u16; ROUNDED] {
    let counter = group * LANES as u64;
    let words = philox(seed, counter as u32, (counter >> 32) as u32, ROUNDING | param, update as u32);
    let mut bits = [0; ROUNDED];
    for w in 0..4 {
        for i in 0..LANES {
            bits[w * LANES + i] = words[w][i] as u16;
            bits[BLOCK + w * LANES + i] = (words[w][i] >> 16) as u16;
        }
    }
    bits
}

/// Blocks that a row of `width` columns takes.
pub fn blocks(width: usize) -> usize {
    width.div_ceil(BLOCK)
}

/// One word of the stream of (seed, sequence, position).
pub fn word(seed: u64, sequence: u32, position: u32) -> u32 {
    philox(seed, position, sequence, u32::MAX, 0)[0][0]
}

/// Four words for each of sixteen consecutive counters.
#[inline(always)]
fn philox(seed: u64, counter: u32, sample: u32, place: u32, update: u32) -> [[u32; LANES]; 4] {
    const M0: u64 = 0xD251_1F53;
    const M1: u64 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    let mut c0: [u32; LANES] = std::array::from_fn(|i| counter.wrapping_add(i as u32));
    let mut c1 = [sample; LANES];
    let mut c2 = [place; LANES];
    let mut c3 = [update; LANES];
    let (mut k0, mut k1) = (seed as u32, (seed >> 32) as u32);
    for _ in 0..7 {
        for i in 0..LANES {
            let a = M0 * u64::from(c0[i]);
            let b = M1 * u64::from(c2[i]);
            let (next0, next2) = ((b >> 32) as u32 ^ c1[i] ^ k0, (a >> 32) as u32 ^ c3[i] ^ k1);
            c0[i] = next0;
            c1[i] = b as u32;
            c2[i] = next2;
            c3[i] = a as u32;
        }
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_philox() {
        // Known answers of Random123's kat_vectors for philox4x32 with 7 rounds.
        let zero = philox(0, 0, 0, 0, 0);
        assert_eq!(
            [zero[0][0], zero[1][0], zero[2][0], zero[3][0]],
            [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]
        );
    }

    #[test]
    fn rounding_bits_differ_from_group_to_group_and_are_even() {
        let (mut sum, mut seen) = (0.0f64, std::collections::HashSet::new());
        for update in 0..4 {
            for param in 0..4 {
                for group in [0, 1, 2, 1 << 28, 1 << 29] {
                    let bits = rounding(7, update, param, group);
                    sum += bits.iter().map(|b| f64::from(*b)).sum::<f64>();
                    assert!(seen.insert(bits));
                }
            }
        }
        let mean = sum / (80 * ROUNDED) as f64 / 65_535.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }

    #[test]
    fn the_rate_is_kept_and_rows_differ() {
        let dropper = Dropper::new(1, 2, 3, 0.1);
        let width = 1000;
        let mut dropped = 0;
        let mut seen = std::collections::HashSet::new();
        for row in 0..500 {
            let mut values = vec![1.0f32; width];
            dropper.apply(0, row, &mut values);
            dropped += values.iter().filter(|v| **v == 0.0).count();
            let pattern: Vec<bool> = values.iter().map(|v| *v == 0.0).collect();
            assert!(seen.insert(pattern));
        }
        let share = dropped as f64 / (500.0 * width as f64);
        assert!((share - 0.1).abs() < 0.002, "{share}");
    }
}
