//! One pass over all rows of all files, in order: each row is of a series, later than the one before it, and whole.
//!
//! Invariant: each pass gives the same rows, or an error that a file changed: rows, times and numbers are folded into one number that
//! passes compare. Memory is a chunk of rows, and for each series what is needed of its last row.

use super::csv::LONGEST_RECORD;
use super::cut;
use super::error::SeriesError;
use super::files::{SeriesFile, told_apart};
use super::names::Names;
use super::read::{Chunk, Room, Wanted, read};
use super::scale::{Scale, Spread};
use super::spec::{ClassTarget, Missing, Normalise, SeriesBy, SeriesSpec};
use super::time::TimeForm;
use crate::DataError;
use crate::order::mix;

/// A row that is handed on.
pub(crate) struct Row<'a> {
    /// The file, and `line 7` or `row 6`.
    pub file: &'a SeriesFile,
    pub place: (&'static str, u64),
    pub series: usize,
    /// How many rows of the series came before.
    pub number: u64,
    pub time: i64,
    /// NaN where it is missing and [`Missing::Mean`] stands for it.
    pub features: &'a [f64],
    /// What is foretold from; NaN where it is missing.
    pub cells: &'a [f64],
}

impl Row<'_> {
    /// Where it stands.
    pub fn place(&self) -> String {
        format!("{} {}", self.place.0, self.place.1)
    }
}

/// What is known of a series while rows come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Track {
    pub rows: u64,
    last: i64,
}

/// What a pass saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub tracks: Vec<Track>,
    /// Rows, times and numbers, as one number.
    pub digest: u64,
    pub rows: u64,
    pub form: Option<TimeForm>,
}

/// The passes over some files.
pub(crate) struct Walk<'a> {
    pub files: &'a [SeriesFile],
    pub spec: &'a SeriesSpec,
    wanted: Wanted<'a>,
    /// What each file is called, where it is a series by itself.
    file_names: Vec<String>,
    chunk: Chunk,
    room: Room,
    pub names: Names,
}

impl Walk<'_> {
    /// What is held whatever the memory: a record of CSV and what is read ahead, or a footer and a page of headers; rows that are gathered for a file;
    /// times that the cut is found by.
    pub const FIXED_BYTES: u64 = (16 << 20) + 8 * (cut::MOST * cut::LISTS) as u64;
}

impl<'a> Walk<'a> {
    /// Within `memory` bytes of chunk and pages.
    pub fn new(files: &'a [SeriesFile], spec: &'a SeriesSpec, memory: u64) -> Walk<'a> {
        let numbers: Vec<&str> = spec.features.iter().map(String::as_str).chain(spec.cells()).collect();
        let by = if let SeriesBy::Column(name) = &spec.by { Some(name.as_str()) } else { None };
        let chunk = Chunk::within(memory / 8, numbers.len());
        let wanted = Wanted { numbers, time: spec.time.as_deref(), by };
        Walk {
            files,
            spec,
            wanted,
            file_names: if spec.by == SeriesBy::File { file_names(files) } else { Vec::new() },
            chunk,
            room: room(memory),
            names: Names::within(names_share(memory), series_bytes(spec)),
        }
    }

    /// Hands each row to `visit`.
    pub fn pass(&mut self, visit: &mut dyn FnMut(Row<'_>) -> Result<(), DataError>) -> Result<Seen, DataError> {
        let mut seen = Seen::default();
        let mut last = Vec::new();
        self.chunk.form = None;
        for (number, file) in self.files.iter().enumerate() {
            let path = file.origin.path();
            let by_file = match self.spec.by {
                SeriesBy::One => Some(self.names.number("", path, || "start".into())?),
                SeriesBy::File => Some(self.names.number(&self.file_names[number], path, || "start".into())?),
                SeriesBy::Column(_) => None,
            };
            let checks = Checks { spec: self.spec, file, by_file };
            let (chunk, names) = (&mut self.chunk, &mut self.names);
            read(file, &self.wanted, self.room, chunk, names, &mut |chunk, word| {
                checks.rows(chunk, word, &mut seen, &mut last, visit)
            })?;
        }
        seen.form = self.chunk.form;
        if seen.rows == 0 {
            let path = self.files.first().map(|file| file.origin.path().to_path_buf()).unwrap_or_default();
            return Err(DataError::NoRows { files: self.files.len(), oversized: 0, path });
        }
        Ok(seen)
    }

    /// Says whether a later pass saw what an earlier one did.
    pub fn same(&self, earlier: &Seen, later: &Seen) -> Result<(), DataError> {
        if earlier.digest == later.digest && earlier.rows == later.rows {
            return Ok(());
        }
        let path = self.files.first().map(|file| file.origin.path().to_path_buf()).unwrap_or_default();
        let place = "one of its rows, or those of the files behind it".into();
        let (expected, found) = (format!("{} rows", earlier.rows), format!("{}, or other numbers", later.rows));
        Err(DataError::Changed { path, place, expected, found })
    }
}

/// Heap of a series beside its name, in bytes: its number, its length, its samples; its last row, where that stands for missing values;
/// and what it is normalised by, where that is its own.
pub(crate) fn series_bytes(spec: &SeriesSpec) -> u64 {
    let features = spec.features.len() as u64;
    let forward = if spec.missing == Missing::Forward { 8 * 2 * features } else { 0 };
    let scales = (size_of::<Spread>() + 2 * size_of::<Scale>()) as u64;
    let own = if spec.normalise == Normalise::Series { 2 * scales * features } else { 0 };
    512 + forward + own
}

/// What of it series and their names may take.
pub(crate) fn names_share(memory: u64) -> u64 {
    memory / 4
}

/// What of it Parquet may take: half is for pages, which are there as they are stored, unpacked, and as values, and so is a dictionary. A
/// footer may at least take as much as a record of CSV, of which there is none then.
fn room(memory: u64) -> Room {
    Room { page: memory / 8, footer: (memory / 8).max(LONGEST_RECORD as u64) }
}

/// The names of the series that files are.
pub(crate) fn file_names(files: &[SeriesFile]) -> Vec<String> {
    told_apart(&files.iter().map(|file| file.origin.path()).collect::<Vec<_>>())
}

/// What is looked at in the rows of one file.
struct Checks<'a> {
    spec: &'a SeriesSpec,
    file: &'a SeriesFile,
    by_file: Option<u32>,
}

impl Checks<'_> {
    /// `last` has the features of the last row of each series, where they stand for those that are missing.
    fn rows(
        &self,
        chunk: &mut Chunk,
        word: &'static str,
        seen: &mut Seen,
        last: &mut Vec<f64>,
        visit: &mut dyn FnMut(Row<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (width, features) = (chunk.width, self.spec.features.len());
        for at in 0..chunk.rows() {
            let place = (word, chunk.places[at]);
            let series = self.by_file.unwrap_or_else(|| chunk.series[at]) as usize;
            if seen.tracks.len() <= series {
                seen.tracks.resize(series + 1, Track::default());
            }
            let track = &mut seen.tracks[series];
            let number = track.rows;
            let time = chunk.times.get(at).copied().unwrap_or(number as i64);
            if number > 0 && time <= track.last {
                let form = chunk.form.unwrap_or(TimeForm::Number);
                return Err(self.time_order(place, [track.last, time].map(|time| form.told(time))));
            }
            *track = Track { rows: number + 1, last: time };
            let numbers = &mut chunk.numbers[at * width..][..width];
            seen.digest = mix(seen.digest ^ mix(time as u64 ^ (series as u64).rotate_left(32)));
            for number in &*numbers {
                // Whatever bits say NaN, it is missing.
                let bits = if number.is_nan() { u64::MAX } else { number.to_bits() };
                seen.digest = mix(seen.digest ^ bits);
            }
            seen.rows += 1;
            self.finite(numbers, place)?;
            let (row_features, cells) = numbers.split_at_mut(features);
            self.fill(row_features, series, number, last, place)?;
            self.targets(cells, place)?;
            visit(Row { file: self.file, place, series, number, time, features: row_features, cells })?;
        }
        Ok(())
    }

    fn time_order(&self, place: (&str, u64), times: [String; 2]) -> DataError {
        let series = match &self.spec.by {
            SeriesBy::Column(column) => format!("a series of column `{column}`"),
            SeriesBy::One | SeriesBy::File => "the series".into(),
        };
        SeriesError::TimeOrder {
            path: self.file.origin.path().into(),
            place: format!("{} {}", place.0, place.1),
            column: self.spec.time.clone().unwrap_or_default(),
            series,
            times: times.into(),
        }
        .into()
    }

    fn column(&self, which: usize) -> String {
        let features = self.spec.features.len();
        match self.spec.features.get(which) {
            Some(name) => name.clone(),
            None => self.spec.cells().get(which - features).map(|name| (*name).into()).unwrap_or_default(),
        }
    }

    fn bad(&self, which: usize, (word, place): (&str, u64), expected: String, found: f64) -> DataError {
        let (path, place) = (self.file.origin.path().into(), format!("{word} {place}"));
        let (column, found) = (self.column(which), format!("{found}"));
        SeriesError::BadCell { path, place, column, expected, found }.into()
    }

    fn missing(&self, which: usize, (word, place): (&str, u64), hint: &'static str) -> DataError {
        let (path, place) = (self.file.origin.path().into(), format!("{word} {place}"));
        SeriesError::MissingValue { path, place, column: self.column(which), hint }.into()
    }

    fn finite(&self, numbers: &[f64], place: (&str, u64)) -> Result<(), DataError> {
        for (which, number) in numbers.iter().enumerate() {
            if number.is_infinite() {
                return Err(self.bad(which, place, "a finite number".into(), *number));
            }
            if number.is_nan() && self.spec.missing == Missing::Refuse {
                let hint = "`data.series.missing` says what may stand for it: `forward`, `zero` or `mean`";
                return Err(self.missing(which, place, hint));
            }
        }
        Ok(())
    }

    /// Puts what stands for features that are missing, as far as that is known by now.
    fn fill(
        &self,
        features: &mut [f64],
        series: usize,
        number: u64,
        last: &mut Vec<f64>,
        place: (&str, u64),
    ) -> Result<(), DataError> {
        match self.spec.missing {
            Missing::Refuse | Missing::Mean => {}
            Missing::Zero => features.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0),
            Missing::Forward => {
                let width = features.len();
                if last.len() < (series + 1) * width {
                    last.resize((series + 1) * width, f64::NAN);
                }
                let before = &mut last[series * width..][..width];
                for (which, x) in features.iter_mut().enumerate() {
                    if x.is_nan() && number == 0 {
                        let hint = "it is the first row of its series, so there is no earlier value; `zero` or `mean` fill it too";
                        return Err(self.missing(which, place, hint));
                    }
                    if x.is_nan() {
                        *x = before[which];
                    }
                }
                before.copy_from_slice(features);
            }
        }
        Ok(())
    }

    /// Classes are whole numbers below their count.
    fn targets(&self, cells: &[f64], place: (&str, u64)) -> Result<(), DataError> {
        // The class is the first of the cells.
        let Some(ClassTarget::Column { classes, .. }) = &self.spec.class else { return Ok(()) };
        let class = cells[0];
        let good = class.is_nan() || (class >= 0.0 && class < f64::from(*classes) && class.fract() == 0.0);
        match good {
            true => Ok(()),
            false => {
                let expected = format!("a class from 0 to {}", classes - 1);
                Err(self.bad(self.spec.features.len(), place, expected, class))
            }
        }
    }
}
