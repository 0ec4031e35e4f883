//! Rows of numbers, of any format, some at a time.
//!
//! Invariant: of a file one chunk of rows is held, whose size is planned, and of one column at a time what its format needs to be
//! unpacked: so memory does not grow with the number of columns but by the chunk. What a number means (missing, out of order) is not
//! known here; nothing and null are NaN.

use std::path::Path;

use super::error::SeriesError;
use super::files::{Format, SeriesFile};
use super::names::Names;
use super::time::TimeForm;
use super::{arrow, csv, parquet};
use crate::DataError;
use crate::error::guarded;

/// The columns that are read.
#[derive(Clone, Debug)]
pub(crate) struct Wanted<'a> {
    /// Features, then what is foretold from; one column may be both.
    pub numbers: Vec<&'a str>,
    pub time: Option<&'a str>,
    /// The column that says which series a row is of.
    pub by: Option<&'a str>,
}

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The number with this place in a row.
    Number(usize),
    Time,
    By,
}

impl<'a> Wanted<'a> {
    /// All columns, with what they are for.
    pub fn roles(&self) -> impl Iterator<Item = (&'a str, Role)> + '_ {
        let numbers = self.numbers.iter().enumerate().map(|(at, name)| (*name, Role::Number(at)));
        let time = self.time.map(|name| (name, Role::Time));
        numbers.chain(time).chain(self.by.map(|name| (name, Role::By)))
    }
}

impl Role {
    /// What a column must hold for this.
    pub fn expected(self) -> &'static str {
        match self {
            Role::Number(_) => "numbers",
            Role::Time => "whole numbers, dates or timestamps",
            Role::By => "texts or whole numbers",
        }
    }
}

/// Some rows.
#[derive(Debug)]
pub(crate) struct Chunk {
    most: usize,
    pub width: usize,
    /// The number of each row in its file, or its line.
    pub places: Vec<u64>,
    /// Row by row; NaN where there is none.
    pub numbers: Vec<f64>,
    /// None where there is no column of them.
    pub times: Vec<i64>,
    /// None where there is no column that says it.
    pub series: Vec<u32>,
    /// What times are, as soon as one came.
    pub form: Option<TimeForm>,
}

impl Chunk {
    /// As many rows of `width` numbers as `bytes` have room for, at least one and at most 65536.
    pub fn within(bytes: u64, width: usize) -> Chunk {
        let most = (bytes / Chunk::row_bytes(width)).clamp(1, 1 << 16) as usize;
        Chunk {
            most,
            width,
            places: Vec::with_capacity(most),
            numbers: Vec::with_capacity(most * width),
            times: Vec::with_capacity(most),
            series: Vec::with_capacity(most),
            form: None,
        }
    }

    /// Heap of a row, in bytes.
    pub fn row_bytes(width: usize) -> u64 {
        (8 * width + 8 + 8 + 4) as u64
    }

    pub fn rows(&self) -> usize {
        self.places.len()
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn clear(&mut self) {
        self.places.clear();
        self.numbers.clear();
        self.times.clear();
        self.series.clear();
    }

    /// Room for `rows` rows from number `first` on, whose numbers are missing.
    pub fn begin(&mut self, first: u64, rows: usize, wanted: &Wanted<'_>) {
        self.clear();
        self.places.extend(first..first + rows as u64);
        self.numbers.resize(rows * self.width, f64::NAN);
        self.times.resize(if wanted.time.is_some() { rows } else { 0 }, 0);
        self.series.resize(if wanted.by.is_some() { rows } else { 0 }, 0);
    }

    /// Says what times are; an error where they were something else before.
    pub fn time_form(&mut self, form: TimeForm, path: &Path, place: String, column: &str) -> Result<(), DataError> {
        match self.form.replace(form) {
            Some(before) if before != form => {
                let (path, column) = (path.to_path_buf(), column.into());
                let (expected, found) = (before.name(), form.name());
                Err(SeriesError::MixedTimes { path, place, column, expected, found }.into())
            }
            _ => Ok(()),
        }
    }
}

/// How much of a Parquet file is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The largest page that is unpacked.
    pub page: u64,
    /// What is kept of a footer.
    pub footer: u64,
}

/// A file that is read from its first row to its last.
pub(crate) trait Rows {
    /// Replaces what is in `chunk` by the next rows; by none at the end.
    fn next(&mut self, chunk: &mut Chunk, names: &mut Names) -> Result<(), DataError>;

    /// `line` or `row`.
    fn word(&self) -> &'static str;
}

/// Hands all rows of a file to `visit`, a chunk at a time, with `line` or `row`. Pages and footers of Parquet that there is no room for are
/// refused.
pub(crate) fn read(
    file: &SeriesFile,
    wanted: &Wanted<'_>,
    room: Room,
    chunk: &mut Chunk,
    names: &mut Names,
    visit: &mut dyn FnMut(&mut Chunk, &'static str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let panicked = |reason: String| {
        let (path, place) = (file.origin.path().to_path_buf(), "data".to_string());
        match file.format {
            Format::Parquet => DataError::BadParquet { path, place, reason },
            Format::Arrow => DataError::BadArrow { path, place, reason },
            // It is read by our own code.
            Format::Csv { .. } => DataError::ThreadPanicked { reason },
        }
    };
    let open = || -> Result<Box<dyn Rows + '_>, DataError> {
        Ok(match file.format {
            Format::Csv { delimiter, packing } => {
                Box::new(csv::CsvRows::open(&file.origin, delimiter, packing, wanted)?)
            }
            Format::Parquet => Box::new(parquet::ParquetRows::open(&file.origin, wanted, room)?),
            Format::Arrow => Box::new(arrow::ArrowRows::open(&file.origin, wanted)?),
        })
    };
    let mut rows = guarded(open, panicked)?;
    let word = rows.word();
    loop {
        guarded(|| rows.next(chunk, names), panicked)?;
        if chunk.rows() == 0 {
            return Ok(());
        }
        visit(chunk, word)?;
    }
}
