//! Where validation begins: the instant that leaves the asked part of all rows behind it.
//!
//! Invariant: a function of the rows alone, in memory that grows with the logarithm of their number. Up to [`MOST`] rows it is exact. Of
//! more, a full list of times is sorted, and every second of them goes on to the next list, where it stands for twice as many rows (Munro
//! and Paterson 1980). That moves the rank of a time by what one of them stands for, up and down in turn: of n rows over L lists by
//! n (L / 2 + 1) / [`MOST`] at most, whatever their order. Nothing is drawn, and no length of a series can fall in with it.

/// Times of a list.
pub(crate) const MOST: usize = 1 << 14;
/// Lists of more rows than anybody has.
pub(crate) const LISTS: usize = 28;

/// Times of all rows, or some of them that stand for all.
pub(crate) struct Times {
    /// Each time of list l stands for 2^l rows.
    lists: Vec<List>,
    rows: u64,
    most: usize,
}

#[derive(Default)]
struct List {
    times: Vec<i64>,
    /// Of the next pairs the second ones go on.
    second: bool,
}

impl Times {
    pub fn new() -> Times {
        Times { lists: Vec::new(), rows: 0, most: MOST }
    }

    pub fn add(&mut self, time: i64) {
        self.rows += 1;
        self.put(0, time);
    }

    fn put(&mut self, list: usize, time: i64) {
        if list == self.lists.len() {
            self.lists.push(List { times: Vec::with_capacity(self.most), second: false });
        }
        if self.lists[list].times.len() == self.most {
            self.thin(list);
        }
        self.lists[list].times.push(time);
    }

    /// Hands half of a full list on.
    fn thin(&mut self, list: usize) {
        let full = &mut self.lists[list];
        let (mut times, first) = (std::mem::take(&mut full.times), usize::from(full.second));
        full.second = !full.second;
        times.sort_unstable();
        times.iter().skip(first).step_by(2).for_each(|time| self.put(list + 1, *time));
        times.clear();
        self.lists[list].times = times;
    }

    /// The least time that at most `fraction` of the rows are not earlier than, unless more share it.
    pub fn cut(mut self, fraction: f64) -> Option<i64> {
        self.lists.iter_mut().for_each(|list| list.times.sort_unstable());
        let before = ((1.0 - fraction) * self.rows as f64).ceil() as u64;
        let before = before.min(self.rows.checked_sub(1)?);
        let (mut at, mut passed) = (vec![0; self.lists.len()], 0);
        loop {
            let next = |list: usize| self.lists[list].times.get(at[list]).map(|time| (*time, list));
            let (time, list) = (0..at.len()).filter_map(next).min()?;
            at[list] += 1;
            passed += 1 << list;
            if passed > before {
                return Some(time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_cut_leaves_the_asked_part_behind_it() {
        let cut = |rows: i64, fraction: f64| {
            let mut times = Times::new();
            (0..rows).for_each(|row| times.add(row * 10));
            times.cut(fraction)
        };
        assert_eq!(cut(100, 0.2), Some(800));
        assert_eq!(cut(10, 0.25), Some(80));
        assert_eq!(cut(1, 0.5), Some(0));
        assert_eq!(cut(0, 0.5), None);
        // As many as are held at once.
        assert_eq!(cut(MOST as i64, 0.25), Some(10 * MOST as i64 * 3 / 4));
    }

    /// By how many rows the cut of these times misses the fraction, and by how many it may.
    fn missed(all: impl Iterator<Item = i64> + Clone, most: usize, fraction: f64) -> (f64, f64) {
        let mut times = Times { most, ..Times::new() };
        all.clone().for_each(|time| times.add(time));
        let (rows, lists) = (times.rows as f64, times.lists.len() as f64 - 1.0);
        let cut = times.cut(fraction).unwrap();
        let behind = all.filter(|time| *time >= cut).count() as f64;
        // One row more or less is a matter of rounding.
        ((behind - fraction * rows).abs(), rows * (lists / 2.0 + 1.0) / most as f64 + 1.0)
    }

    #[test]
    fn series_of_any_length_interleaved_or_one_behind_the_other_are_cut_where_was_asked() {
        for (series, each) in [(4096, 256), (32_768, 32), (1024, 1024), (3, 349_525), (1000, 1000)] {
            let behind = (0..series).flat_map(|one| (0..each).map(move |row| row * series + one));
            let interleaved = (0..each).flat_map(|row| (0..series).map(move |one| row * series + one));
            for fraction in [0.1, 0.2, 0.5] {
                for (off, may) in [missed(behind.clone(), MOST, fraction), missed(interleaved.clone(), MOST, fraction)]
                {
                    assert!(off <= may && may < 1e-3 * (series * each) as f64, "{series} of {each}: {off} of {may}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn series_of_random_lengths_are_cut_within_what_is_promised(
            lengths in prop::collection::vec(1i64..900, 1..60), most in 4usize..40, fraction in 0.01f64..0.99,
        ) {
            let most = 2 * most;
            let count = lengths.len() as i64;
            let of = |(one, length): (usize, &i64)| (0..*length).map(move |row| row * count + one as i64);
            let all: Vec<i64> = lengths.iter().enumerate().flat_map(of).collect();
            let (off, may) = missed(all.iter().copied(), most, fraction);
            prop_assert!(off <= may, "{off} of {may}");
        }
    }
}
