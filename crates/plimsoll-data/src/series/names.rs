//! Which series a row is of: names become numbers, in the order in which they first come.
//!
//! Invariant: no more series than their share of memory has room for, [`MOST_SERIES`] at most, with names of [`LONGEST_NAME`] bytes; once closed, none is added, so that a file
//! that changed between two passes is seen. It knows nothing of rows.

use std::collections::HashMap;
use std::path::Path;

use super::error::SeriesError;
use crate::DataError;

/// The most series that are told apart.
pub(crate) const MOST_SERIES: usize = 1 << 20;
/// The longest name of one, in bytes.
pub(crate) const LONGEST_NAME: usize = 1 << 10;

/// Names and their numbers.
#[derive(Debug)]
pub(crate) struct Names {
    /// Bytes that all of them may still take, and what each takes beside its name.
    left: u64,
    each: u64,
    numbers: HashMap<Box<str>, u32>,
    list: Vec<Box<str>>,
    /// The series that was asked for last, since rows of one often follow each other.
    last: usize,
    closed: bool,
}

impl Names {
    /// As many as `bytes` have room for, where each takes so many beside its name.
    pub fn within(bytes: u64, each: u64) -> Names {
        Names { left: bytes, each, numbers: HashMap::new(), list: Vec::new(), last: 0, closed: false }
    }

    /// The number of `name`, which stands at a place of a file.
    pub fn number(&mut self, name: &str, path: &Path, place: impl Fn() -> String) -> Result<u32, DataError> {
        if self.list.get(self.last).is_some_and(|last| **last == *name) {
            return Ok(self.last as u32);
        }
        let takes = name_bytes(name, self.each);
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if self.closed => {
                let (expected, found) = ("a series that was there before".into(), format!("`{}`", shown(name)));
                return Err(DataError::Changed { path: path.into(), place: place(), expected, found });
            }
            None if self.numbers.len() >= MOST_SERIES || name.len() > LONGEST_NAME || takes > self.left => {
                let (path, place, so_far) = (path.to_path_buf(), place(), self.numbers.len());
                let (most, longest) = (MOST_SERIES, LONGEST_NAME);
                return Err(SeriesError::TooManySeries { path, place, so_far, most, longest }.into());
            }
            None => {
                self.left -= takes;
                let number = self.numbers.len() as u32;
                self.numbers.insert(name.into(), number);
                self.list.push(name.into());
                number
            }
        };
        self.last = number as usize;
        Ok(number)
    }

    /// From here on no name is added.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// The names, by their numbers.
    pub fn list(&self) -> Vec<Box<str>> {
        self.list.clone()
    }
}

/// What a series takes by its name, where each takes so many bytes beside it: it is in several lists.
pub(crate) fn name_bytes(name: &str, each: u64) -> u64 {
    each + 4 * name.len() as u64
}

/// What of a text is shown in a message.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}
