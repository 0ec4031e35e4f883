//! Numbers from CSV, plain or packed, record by record.
//!
//! Invariant: one record and the chunk are held. A number is read to the nearest f64, so that what was written with enough digits is the same
//! number in each format. Nothing, `nan`, `na`, `n/a`, `null` and `none` are missing; so is what a blank line has where there is one column:
//! elsewhere, and behind the last record, blank lines are none.

use std::io::{self, BufRead};

use super::error::SeriesError;
use super::names::{Names, shown};
use super::read::{Chunk, Role, Rows, Wanted};
use super::time;
use crate::DataError;
use crate::form::{Cutter, Fault, Form};
use crate::input::Origin;
use crate::packed::{InOrder, Packing};

/// Bytes that are read at a time.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// The longest record: numbers take no more.
pub(crate) const LONGEST_RECORD: usize = 4 << 20;

pub(crate) struct CsvRows<'a> {
    origin: &'a Origin,
    packed: bool,
    from: Box<dyn BufRead + 'a>,
    cutter: Cutter<'static>,
    raw: Vec<u8>,
    /// Where the record that was read last begins.
    line: u64,
    next_line: u64,
    /// Blank lines before it that are rows of nothing, and were not handed on yet.
    blank: u64,
    /// It was not handed on yet.
    waits: bool,
    /// The place of each wanted column in a record, its name, and what it is for.
    columns: Vec<(usize, &'a str, Role)>,
}

impl<'a> CsvRows<'a> {
    /// Reads the header.
    pub fn open(
        origin: &'a Origin,
        delimiter: u8,
        packing: Option<Packing>,
        wanted: &Wanted<'a>,
    ) -> Result<CsvRows<'a>, DataError> {
        let from: Box<dyn BufRead> = match packing {
            None => Box::new(origin.reader(READ_BYTES)?),
            Some(packing) => InOrder::reader(origin, packing)?,
        };
        let cutter = Cutter::new(Form::Csv { delimiter }, &[]).with_most(LONGEST_RECORD);
        let (packed, raw) = (packing.is_some(), Vec::new());
        let mut rows = CsvRows {
            origin,
            packed,
            from,
            cutter,
            raw,
            line: 1,
            next_line: 1,
            blank: 0,
            waits: false,
            columns: Vec::new(),
        };
        let header = rows.cutter.read_header(&mut rows.from, &mut rows.raw);
        match header.map_err(|error| rows.unreadable(error))? {
            Ok(_) => {}
            Err(_) => return Err(DataError::NotUtf8 { path: origin.path().into(), line: 1, column: None }),
        }
        rows.count_lines(false);
        rows.too_long()?;
        for (name, role) in wanted.roles() {
            let header = rows.cutter.header();
            let mut places = header.iter().enumerate().filter(|(_, column)| *column == name).map(|(at, _)| at);
            let at = match (places.next(), places.next()) {
                (Some(at), None) => at,
                (Some(_), Some(_)) => {
                    let (path, column) = (origin.path().into(), name.into());
                    return Err(DataError::DuplicateColumn { path, line: 1, column });
                }
                (None, _) => {
                    let (path, place, column) = (origin.path().into(), "line 1".into(), name.into());
                    return Err(DataError::MissingColumn { path, place, column, present: header.join(", ") });
                }
            };
            rows.columns.push((at, name, role));
        }
        Ok(rows)
    }

    fn place(&self) -> String {
        format!("line {}", self.line)
    }

    /// Says at which line the record that was read last begins, and where the next one may. Blank lines before a record are read with it,
    /// and the last byte of the one before, where that has ended at the first of two (`half`).
    fn count_lines(&mut self, half: bool) {
        let blank = self.raw.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let before = line_ends(&self.raw[..blank], half);
        self.line = self.next_line + before;
        self.next_line += line_ends(&self.raw, half);
        self.blank = if self.cutter.header().len() == 1 { before } else { 0 };
    }

    fn unreadable(&self, error: io::Error) -> DataError {
        match DataError::from(error) {
            DataError::Io(error) if self.packed => {
                let (path, place) = (self.origin.path().into(), self.place());
                DataError::BadPacking { path, place, reason: error.to_string() }
            }
            other => other,
        }
    }

    fn too_long(&self) -> Result<(), DataError> {
        match self.raw.len() > LONGEST_RECORD {
            true => {
                let (path, place) = (self.origin.path().into(), self.place());
                Err(DataError::RowTooLong { path, place, limit: LONGEST_RECORD })
            }
            false => Ok(()),
        }
    }

    /// The next record that is not blank, checked; false at the end.
    fn record(&mut self) -> Result<bool, DataError> {
        loop {
            let half = self.raw.ends_with(b"\r");
            let read = self.cutter.next(&mut self.from, &mut self.raw).map_err(|error| self.unreadable(error))?;
            if read == 0 {
                return Ok(false);
            }
            self.count_lines(half);
            self.too_long()?;
            if self.cutter.is_blank(&self.raw) {
                continue;
            }
            let last = self.from.fill_buf().map(<[u8]>::is_empty);
            let last = last.map_err(|error| self.unreadable(error))?;
            let (path, line) = (self.origin.path().to_path_buf(), self.line);
            if last && self.cutter.ends_inside_quotes(&self.raw) {
                return Err(DataError::OpenQuote { path, line });
            }
            if let Err(Fault::Cells { expected, found }) = self.cutter.whole() {
                return Err(DataError::Cells { path, line, expected, found });
            }
            return Ok(true);
        }
    }
}

/// Lines that end in these bytes, by `\n`, `\r` or both; behind a `\r` where `half`.
fn line_ends(bytes: &[u8], half: bool) -> u64 {
    let mut before = if half { b'\r' } else { 0 };
    let mut ends = |byte: &u8| {
        let pair = (std::mem::replace(&mut before, *byte), *byte);
        matches!(pair, (_, b'\r')) || (pair.1 == b'\n' && pair.0 != b'\r')
    };
    bytes.iter().filter(|byte| ends(byte)).count() as u64
}

impl Rows for CsvRows<'_> {
    fn next(&mut self, chunk: &mut Chunk, names: &mut Names) -> Result<(), DataError> {
        chunk.clear();
        while chunk.rows() < chunk.most() {
            if !self.waits {
                if !self.record()? {
                    break;
                }
                self.waits = true;
            }
            let (path, line, blank) = (self.origin.path(), self.line - self.blank, self.blank > 0);
            if blank {
                self.blank -= 1;
            } else {
                self.waits = false;
            }
            chunk.places.push(line);
            for (at, name, role) in &self.columns {
                let cell = if blank { &b""[..] } else { self.cutter.cell(*at) };
                let Ok(cell) = std::str::from_utf8(cell) else {
                    return Err(DataError::NotUtf8 { path: path.into(), line, column: Some((*name).into()) });
                };
                let cell = cell.trim();
                let wrong = |expected: &str| SeriesError::BadCell {
                    path: path.into(),
                    place: format!("line {line}"),
                    column: (*name).into(),
                    expected: expected.into(),
                    found: format!("`{}`", shown(cell)),
                };
                match role {
                    Role::Number(_) => chunk.numbers.push(number(cell).ok_or_else(|| wrong("a number"))?),
                    Role::Time => {
                        let (form, time) =
                            time::parse(cell).ok_or_else(|| wrong("a whole number, date or timestamp"))?;
                        if chunk.form != Some(form) {
                            chunk.time_form(form, path, format!("line {line}"), name)?;
                        }
                        chunk.times.push(time);
                    }
                    Role::By if cell.is_empty() => return Err(wrong("the name of a series").into()),
                    Role::By => chunk.series.push(names.number(cell, path, || format!("line {line}"))?),
                }
            }
        }
        Ok(())
    }

    fn word(&self) -> &'static str {
        "line"
    }
}

/// The number that a cell is; NaN where it says that there is none.
fn number(cell: &str) -> Option<f64> {
    if let Ok(number) = cell.parse::<f64>() {
        return Some(number);
    }
    let is = |words: &[&str]| words.iter().any(|word| cell.eq_ignore_ascii_case(word));
    if is(&["", "na", "n/a", "null", "none"]) {
        Some(f64::NAN)
    } else if is(&["true"]) {
        Some(1.0)
    } else {
        is(&["false"]).then_some(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_numbers_missing_or_neither() {
        for (cell, expected) in [("1.5", 1.5), ("-0", -0.0), ("1e-320", 1e-320), ("0.1", 0.1), ("True", 1.0)] {
            assert_eq!(number(cell).unwrap().to_bits(), f64::to_bits(expected), "{cell}");
        }
        for cell in ["", "NaN", "nan", "NA", "null", "None", "N/A"] {
            assert!(number(cell).unwrap().is_nan(), "{cell}");
        }
        for cell in ["1,5", "0x10", "1 2", "-", "yes"] {
            assert_eq!(number(cell), None, "{cell}");
        }
    }
}
