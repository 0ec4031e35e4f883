//! Which rows a sample is made of: computed, never stored.
//!
//! A series of n rows that is cut after b of them has training samples inside of the first b rows, targets included, and validation
//! samples inside of those behind b and the gap. So no row of a sample of one part, window or target, is in any of the other, and between
//! the last steps of their windows are at least `window + horizon` steps. Invariant: pure; memory is 16 bytes a series and part.

use super::error::SeriesError;
use super::spec::{SeriesSpec, Validation};
use super::time::TimeForm;

/// Which samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Before the cut; all, where there is none.
    Training,
    /// Behind the cut.
    Validation,
}

impl Part {
    /// How a message goes on that speaks of windows; without a cut there is but one part.
    pub(crate) fn of_which(self, is_cut: bool) -> &'static str {
        match self {
            Part::Training if is_cut => " of training",
            Part::Training => "",
            Part::Validation => " of validation",
        }
    }
}

/// How windows lie in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub window: u64,
    pub horizon: u64,
    pub stride: u64,
}

impl Windows {
    pub fn of(spec: &SeriesSpec) -> Windows {
        Windows { window: spec.window as u64, horizon: spec.horizon as u64, stride: spec.stride as u64 }
    }

    /// Rows of the shortest series that has a sample.
    pub fn needed(self) -> u64 {
        self.window + self.horizon
    }

    /// Samples of `rows` rows that follow each other.
    pub fn count(self, rows: u64) -> u64 {
        rows.checked_sub(self.needed()).map_or(0, |more| more / self.stride + 1)
    }
}

/// The rows of a sample, as numbers in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleRows {
    pub series: usize,
    /// The first row of the window.
    pub first: u64,
    /// Its last row.
    pub last: u64,
    /// The row that is foretold.
    pub target: u64,
}

/// A series in the store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Stretch {
    pub name: Box<str>,
    pub rows: u64,
    /// Rows before the cut; all, where there is none.
    pub before: u64,
    /// The time of the first row, of the last one before the cut, and of the first behind it.
    pub first: Option<i64>,
    pub latest: Option<i64>,
    pub earliest: Option<i64>,
}

/// The samples of one part.
#[derive(Debug)]
pub(crate) struct Samples {
    windows: Windows,
    /// Behind the samples of each series.
    ends: Box<[u64]>,
    /// The first row of each series' part in the store.
    begins: Box<[u64]>,
}

impl Samples {
    pub fn new(part: Part, stretches: &[Stretch], windows: Windows, gap: u64) -> Samples {
        let (mut row, mut samples) = (0, 0);
        let (mut ends, mut begins) = (Vec::with_capacity(stretches.len()), Vec::with_capacity(stretches.len()));
        for stretch in stretches {
            let (begin, rows) = match part {
                Part::Training => (row, stretch.before),
                Part::Validation => {
                    let passed = stretch.before.saturating_add(gap).min(stretch.rows);
                    (row + passed, stretch.rows - passed)
                }
            };
            samples += windows.count(rows);
            ends.push(samples);
            begins.push(begin);
            row += stretch.rows;
        }
        Samples { windows, ends: ends.into(), begins: begins.into() }
    }

    pub fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The rows of sample `number`, which is below the count.
    pub fn rows(&self, number: u64) -> SampleRows {
        let series = self.ends.partition_point(|end| *end <= number);
        let in_series = number - if series == 0 { 0 } else { self.ends[series - 1] };
        let first = self.begins[series] + in_series * self.windows.stride;
        let last = first + self.windows.window - 1;
        SampleRows { series, first, last, target: last + self.windows.horizon }
    }

    /// Heap of it, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        (size_of_val(&*self.ends) + size_of_val(&*self.begins)) as u64
    }

    /// The earliest time of a part, over all series that have samples of it.
    pub fn begin(&self, part: Part, stretches: &[Stretch]) -> Option<i64> {
        let of = |(series, stretch): (usize, &Stretch)| match part {
            _ if self.touched(series).is_none() => None,
            Part::Training => stretch.first,
            Part::Validation => stretch.earliest,
        };
        stretches.iter().enumerate().filter_map(of).min()
    }

    /// First and last row that samples of a series touch; none where it has no samples.
    fn touched(&self, series: usize) -> Option<(u64, u64)> {
        let before = if series == 0 { 0 } else { self.ends[series - 1] };
        (self.ends[series] > before).then(|| (self.rows(before).first, self.rows(self.ends[series] - 1).target))
    }
}

/// Refuses parts without samples.
pub(crate) fn check_samples(
    part: Part,
    samples: &Samples,
    stretches: &[Stretch],
    validation: Option<&Validation>,
) -> Result<(), SeriesError> {
    if samples.count() > 0 {
        return Ok(());
    }
    let gap = validation.map_or(0, |validation| validation.gap as u64);
    let rows = |stretch: &Stretch| match part {
        Part::Training => stretch.before,
        Part::Validation => stretch.rows.saturating_sub(stretch.before.saturating_add(gap)),
    };
    let Windows { window, horizon, .. } = samples.windows;
    Err(SeriesError::NoSamples {
        part: part.of_which(validation.is_some()),
        window: window as usize,
        horizon: horizon as usize,
        needed: samples.windows.needed(),
        longest: stretches.iter().map(rows).max().unwrap_or(0),
    })
}

/// Looks whether any sample of training touches a row, its own series' or another's, that is not earlier than all rows of the
/// validation's samples.
pub(crate) fn check_leak(
    training: &Samples,
    validation: &Samples,
    stretches: &[Stretch],
    form: TimeForm,
) -> Result<(), SeriesError> {
    let leak = |training: i64, validation: i64| {
        let [training, validation] = [training, validation].map(|time| form.told(time));
        Err(SeriesError::Leak { training, validation })
    };
    let mut row = 0;
    let (mut latest, mut earliest) = (None, None);
    for (series, stretch) in stretches.iter().enumerate() {
        let trained = training.touched(series).map(|(_, last)| last - row);
        let validated = validation.touched(series).map(|(first, _)| first - row);
        if trained.is_some_and(|last| last >= stretch.before) || validated.is_some_and(|first| first < stretch.before) {
            return leak(stretch.latest.unwrap_or(i64::MAX), stretch.earliest.unwrap_or(i64::MIN));
        }
        latest = latest.max(trained.and(stretch.latest));
        earliest = match (earliest, validated.and(stretch.earliest)) {
            (Some(a), Some(b)) => Some(i64::min(a, b)),
            (one, other) => one.or(other),
        };
        row += stretch.rows;
    }
    match (latest, earliest) {
        (Some(training), Some(validation)) if training >= validation => leak(training, validation),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stretch(rows: u64, before: u64) -> Stretch {
        let time = |row: u64| Some(row as i64);
        let (first, latest, earliest) = (time(0), time(before.saturating_sub(1)), time(before));
        Stretch { name: "".into(), rows, before, first, latest, earliest }
    }

    /// All samples of rows `from..to`, one after the other, as anybody would write it.
    fn naive(from: u64, to: u64, windows: Windows) -> Vec<[u64; 3]> {
        let mut list = Vec::new();
        let mut first = from;
        while first + windows.window - 1 + windows.horizon < to {
            let last = first + windows.window - 1;
            list.push([first, last, last + windows.horizon]);
            first += windows.stride;
        }
        list
    }

    proptest! {
        #[test]
        fn samples_are_those_of_a_list_and_the_parts_share_no_row(
            lengths in prop::collection::vec((0u64..60, 0.0f64..1.0), 1..5),
            window in 1u64..9, horizon in 0u64..7, stride in 1u64..6, gap in 0u64..9,
        ) {
            let windows = Windows { window, horizon, stride };
            let stretches: Vec<Stretch> =
                lengths.iter().map(|(rows, part)| stretch(*rows, (*rows as f64 * part) as u64)).collect();
            let parts = [Part::Training, Part::Validation].map(|part| Samples::new(part, &stretches, windows, gap));
            let (mut row, mut expected) = (0, [Vec::new(), Vec::new()]);
            for (series, s) in stretches.iter().enumerate() {
                let training = naive(row, row + s.before, windows);
                let validation = naive(row + s.before + gap, row + s.rows, windows);
                for (a, b) in training.iter().flat_map(|a| validation.iter().map(move |b| (a, b))) {
                    // Not one row of a window or target is in both, and windows end far enough apart.
                    prop_assert!(a[2] < b[0] && b[1] - a[1] >= window + horizon + gap);
                }
                expected[0].extend(training.into_iter().map(|rows| (series, rows)));
                expected[1].extend(validation.into_iter().map(|rows| (series, rows)));
                row += s.rows;
            }
            for (samples, expected) in parts.iter().zip(&expected) {
                prop_assert_eq!(samples.count(), expected.len() as u64);
                for (number, (series, [first, last, target])) in expected.iter().enumerate() {
                    let rows = SampleRows { series: *series, first: *first, last: *last, target: *target };
                    prop_assert_eq!(samples.rows(number as u64), rows);
                }
            }
            // Each series has times of its own here, so only the rows are compared.
            let timeless: Vec<Stretch> =
                stretches.iter().map(|s| Stretch { latest: None, earliest: None, ..s.clone() }).collect();
            prop_assert!(check_leak(&parts[0], &parts[1], &timeless, TimeForm::Number).is_ok());
        }
    }

    #[test]
    fn a_leak_is_found_in_rows_and_in_times() {
        let windows = Windows { window: 3, horizon: 2, stride: 1 };
        let parts = |stretches: &[Stretch]| {
            [Part::Training, Part::Validation].map(|part| Samples::new(part, stretches, windows, 0))
        };
        let good = [stretch(40, 20)];
        let [training, validation] = parts(&good);
        assert!(check_leak(&training, &validation, &good, TimeForm::Number).is_ok());
        // Samples that were counted for another cut than the one that is checked.
        for other in [stretch(40, 18), stretch(40, 22)] {
            let found = check_leak(&training, &validation, &[other], TimeForm::Number);
            assert!(matches!(found, Err(SeriesError::Leak { .. })));
        }
        // A second series whose training rows are later than the validation of the first.
        let late = Stretch { latest: Some(30), earliest: Some(31), ..stretch(40, 20) };
        let two = [stretch(40, 20), late];
        let [training, validation] = parts(&two);
        let leak = check_leak(&training, &validation, &two, TimeForm::Number).unwrap_err().to_string();
        assert!(leak.contains("latest row has the time 30, and the earliest row of the validation 20"), "{leak}");
    }
}
