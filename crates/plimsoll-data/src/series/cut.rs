//! Where validation begins: the instant that leaves the asked part of all rows behind it.
//!
//! Invariant: a function of the rows alone, in memory of [`MOST`] times. Up to as many rows it is exact; of more, each 2nd, 4th, ... row's
//! time is looked at, so it is exact within that many.

/// Times that are kept.
pub(crate) const MOST: usize = 1 << 16;

/// Times of some rows.
pub(crate) struct Times {
    kept: Vec<i64>,
    /// Of so many rows one is kept.
    each: u64,
    rows: u64,
    most: usize,
}

impl Times {
    pub fn new() -> Times {
        Times { kept: Vec::with_capacity(MOST), each: 1, rows: 0, most: MOST }
    }

    pub fn add(&mut self, time: i64) {
        if self.rows.is_multiple_of(self.each) {
            if self.kept.len() == self.most {
                let mut number = 0;
                self.kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.each *= 2;
            }
            // A full list is even, so the row that filled it is the first of the next pair.
            self.kept.push(time);
        }
        self.rows += 1;
    }

    /// The least time that at most `fraction` of the rows are not earlier than, unless more share it.
    pub fn cut(mut self, fraction: f64) -> Option<i64> {
        self.kept.sort_unstable();
        let before = ((1.0 - fraction) * self.kept.len() as f64).ceil() as usize;
        self.kept.get(before.min(self.kept.len().checked_sub(1)?)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_leaves_the_asked_part_behind_it() {
        let cut = |rows: i64, most: usize, fraction: f64| {
            let mut times = Times { most, ..Times::new() };
            (0..rows).for_each(|row| times.add(row * 10));
            times.cut(fraction)
        };
        assert_eq!(cut(100, MOST, 0.2), Some(800));
        assert_eq!(cut(10, MOST, 0.25), Some(80));
        assert_eq!(cut(1, MOST, 0.5), Some(0));
        assert_eq!(cut(0, MOST, 0.5), None);
        // Each 16th of 1000 is kept then.
        let coarse = cut(1000, 64, 0.2).unwrap();
        assert!((coarse - 8000).abs() <= 160, "{coarse}");
    }
}
