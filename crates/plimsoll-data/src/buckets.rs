//! Batches of samples of like length: a group is sorted by length (pairs by both lengths) and cut into batches, which come in a random
//! order.
//!
//! Invariant: every sample of a group comes once; the result is a function of the lengths, the batch size and a key alone. A batch that
//! is not full comes last, so that those of the next group begin where batches begin, and lies anywhere among the lengths, so that
//! whoever leaves it out does not always leave out the shortest. Nothing is allocated on the way.

use std::cmp::Reverse;

use crate::order::{Draws, shuffle};

/// Batches of a group: few enough to be made again when a run goes on inside it. `tests/data/paired.rs` prints what is padded.
pub(crate) const GROUP_BATCHES: usize = 16;

/// Of the samples sorted by their first length, so many strips are sorted by the second: with one strip that alone counts, with as many
/// as batches only the first, and between them both do. What pads least is taken.
const STRIPS: [usize; 5] = [16, 8, 4, 2, 1];

/// Sorts groups of samples.
pub(crate) struct Buckets {
    batch: usize,
    sorted: Vec<u32>,
    batches: Vec<u32>,
    order: Vec<u32>,
}

impl Buckets {
    /// For groups of batches of so many samples.
    pub fn new(batch: usize) -> Buckets {
        let list = |most: usize| Vec::with_capacity(most);
        Buckets {
            batch,
            sorted: list(batch * GROUP_BATCHES),
            batches: list(GROUP_BATCHES),
            order: list(batch * GROUP_BATCHES),
        }
    }

    /// Heap of one for batches of so many samples, in bytes.
    pub fn heap_bytes(batch: usize) -> u64 {
        ((2 * batch + 1) * GROUP_BATCHES * size_of::<u32>()) as u64
    }

    /// Samples of a group.
    pub fn group(&self) -> usize {
        self.batch * GROUP_BATCHES
    }

    /// The order of samples of so many tokens on each side.
    pub fn order(&mut self, samples: usize, tokens: impl Fn(usize) -> [usize; 2], key: [u64; 3]) -> &[u32] {
        let Buckets { batch, sorted, batches, order } = self;
        let tokens = |nth: u32| tokens(nth as usize);
        let (full, rest) = (samples / *batch, samples % *batch);
        let draws = &mut Draws::new(key);
        sorted.clear();
        sorted.extend(0..samples as u32);
        sorted.sort_unstable_by_key(|nth| (Reverse(tokens(*nth)[0]), *nth));
        let skipped = draws.below(full as u64 + 1) as usize * *batch;
        sorted[skipped..].rotate_left(rest);
        let (whole, left) = sorted.split_at_mut(full * *batch);
        let mut arrange = |strips: usize| {
            whole.sort_unstable_by_key(|nth| (Reverse(tokens(*nth)[0]), *nth));
            for strip in whole.chunks_mut(full.div_ceil(strips).max(1) * *batch) {
                strip.sort_unstable_by_key(|nth| (Reverse(tokens(*nth)[1]), *nth));
            }
            let widest = |batch: &[u32], side: usize| batch.iter().map(|nth| tokens(*nth)[side]).max().unwrap_or(0);
            whole.chunks(*batch).map(|batch| widest(batch, 0) + widest(batch, 1)).sum::<usize>()
        };
        let best = STRIPS.into_iter().min_by_key(|strips| arrange(*strips)).unwrap_or(1);
        arrange(best);
        batches.clear();
        batches.extend(0..full as u32);
        shuffle(batches, draws);
        order.clear();
        for nth in batches.iter() {
            order.extend(&whole[*nth as usize * *batch..][..*batch]);
        }
        order.extend(&*left);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_comes_once_and_batches_are_of_like_length(
            tokens in prop::collection::vec(1..500usize, 0..160), batch in 1..10usize, key: u64,
        ) {
            let tokens = &tokens[..tokens.len().min(batch * GROUP_BATCHES)];
            let mut buckets = Buckets::new(batch);
            let order = buckets.order(tokens.len(), |nth| [tokens[nth], 0], [key, 1, 2]).to_vec();
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..tokens.len() as u32).collect::<Vec<_>>());
            let mut lengths: Vec<(usize, usize)> = order
                .chunks(batch)
                .map(|batch| batch.iter().map(|nth| tokens[*nth as usize]))
                .map(|batch| (batch.clone().min().unwrap(), batch.max().unwrap()))
                .collect();
            lengths.sort_unstable();
            prop_assert!(lengths.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{lengths:?}");
        }

        #[test]
        fn of_two_lengths_all_ways_are_tried(
            tokens in prop::collection::vec((1..500usize, 1..500usize), 32..=32), key: u64,
        ) {
            let mut buckets = Buckets::new(2);
            let order = buckets.order(32, |nth| [tokens[nth].0, tokens[nth].1], [key, 1, 2]).to_vec();
            let padded = |order: &[u32]| -> usize {
                let widest = |batch: &[u32], side: fn(&(usize, usize)) -> usize| {
                    batch.iter().map(|nth| side(&tokens[*nth as usize])).max().unwrap()
                };
                order.chunks(2).map(|batch| widest(batch, |t| t.0) + widest(batch, |t| t.1)).sum()
            };
            let mut by_either: [Vec<u32>; 2] = [(0..32).collect(), (0..32).collect()];
            by_either[0].sort_by_key(|nth| tokens[*nth as usize].0);
            by_either[1].sort_by_key(|nth| tokens[*nth as usize].1);
            // Equal lengths may be cut in another way.
            prop_assert!(by_either.iter().all(|one| padded(&order) <= padded(one) + 500), "{order:?}");
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..32).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn batches_come_in_any_order_and_the_one_that_is_not_full_last_and_of_any_length() {
        let orders: Vec<Vec<u32>> =
            (0..200).map(|key| Buckets::new(4).order(11, |nth| [100 - nth, 3], [key, 0, 0]).to_vec()).collect();
        let firsts: std::collections::BTreeSet<u32> = orders.iter().map(|order| order[0]).collect();
        assert!(firsts.len() > 2, "{firsts:?}");
        let lasts: std::collections::BTreeSet<Vec<u32>> = orders.iter().map(|order| order[8..].to_vec()).collect();
        assert_eq!(lasts.into_iter().collect::<Vec<_>>(), [vec![0, 1, 2], vec![4, 5, 6], vec![8, 9, 10]]);
    }
}
