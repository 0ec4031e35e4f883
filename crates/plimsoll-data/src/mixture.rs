//! Several data sets in one: what each is made of, and how often its rows come.
//!
//! Invariant: a weight is a number of millionths, so that passes can be counted without rounding twice: a set of R rows and weight w
//! gives the whole number nearest to w x R rows in each pass. It knows no order and no files' contents.

use std::ops::Range;
use std::path::PathBuf;

use crate::{ChosenColumns, Columns, DataError};

/// How often each row of a set comes in one pass: 2 is twice, 0.5 is every second row, the others in the next pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u64);

/// Of a weight of 1.
const PARTS: u64 = 1_000_000;

impl Weight {
    /// Each row once.
    pub const ONE: Weight = Weight(PARTS);
    /// The largest.
    pub const MOST: f64 = 1000.0;

    /// To six digits behind the point; none for what is not above 0, or above [`Weight::MOST`].
    pub fn new(weight: f64) -> Option<Weight> {
        let parts = weight * PARTS as f64;
        (weight <= Weight::MOST && parts >= 0.5).then(|| Weight(parts.round() as u64))
    }

    /// As a number.
    pub fn get(self) -> f64 {
        self.0 as f64 / PARTS as f64
    }

    /// Rows that a set of so many gives in a pass.
    fn rows(self, of: u64) -> u64 {
        ((u128::from(of) * u128::from(self.0) + u128::from(PARTS / 2)) / u128::from(PARTS)) as u64
    }

    pub(crate) fn parts(self) -> u64 {
        self.0
    }
}

/// A data set to open.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// Paths or patterns.
    pub files: Vec<PathBuf>,
    /// Its columns.
    pub columns: Columns,
    /// How often its rows come.
    pub weight: Weight,
}

/// An opened data set of a mixture.
#[derive(Clone, Debug)]
pub struct Set {
    /// The columns that are read.
    pub columns: ChosenColumns,
    /// Its first file.
    pub path: PathBuf,
    /// Its files.
    pub files: u64,
    /// Rows of its files.
    pub rows: u64,
    /// How often they come.
    pub weight: Weight,
    /// Rows of it in each pass.
    pub pass_rows: u64,
    /// Its blocks.
    pub(crate) blocks: Range<usize>,
}

impl Set {
    /// Says how many of its rows a pass has; a set of which none is left is an error.
    pub(crate) fn weighed(self, number: usize) -> Result<Set, DataError> {
        let pass_rows = self.weight.rows(self.rows);
        if pass_rows == 0 {
            let (path, rows, weight) = (self.path, self.rows, self.weight.get());
            return Err(DataError::NothingLeft { set: number + 1, path, rows, weight });
        }
        Ok(Set { pass_rows, ..self })
    }

    /// Every row comes once, as without a mixture.
    pub(crate) fn is_plain(&self) -> bool {
        self.weight == Weight::ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_above_nothing_and_finite() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9, 1000.5] {
            assert_eq!(Weight::new(wrong), None, "{wrong}");
        }
        for right in [1.0, 2.0, 0.5, 0.3, 1.7, 0.000_001, 1000.0] {
            assert_eq!(Weight::new(right).map(Weight::get), Some(right));
        }
        assert_eq!(Weight::new(1.0), Some(Weight::ONE));
    }

    #[test]
    fn rows_of_a_pass_are_the_nearest_whole_number() {
        let rows = |weight: f64, of: u64| Weight::new(weight).unwrap().rows(of);
        assert_eq!([rows(1.0, 7), rows(2.0, 7), rows(0.5, 7), rows(0.3, 10), rows(1.7, 10)], [7, 14, 4, 3, 17]);
        assert_eq!(rows(1.0, u64::from(u32::MAX) * 1000), u64::from(u32::MAX) * 1000);
        assert_eq!(rows(0.001, 400), 0);
    }
}
