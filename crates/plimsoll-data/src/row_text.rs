//! From the cells of a row to the two texts that the window holds of it.
//!
//! Invariant: a pair is its two cells as they are; a conversation is one text, JSON, with nothing beside it; a text is
//! itself. It knows no file and no tokens.

use std::path::PathBuf;

use crate::columns::Style;
use crate::jsonl_row::MOST_COLUMNS;
use crate::messages::{self, MessageFault};
use crate::{ChosenColumns, DataError, Kind};

/// The cells of one row, and the conversation made of them.
#[derive(Default)]
pub(crate) struct RowText {
    pub cells: [String; MOST_COLUMNS],
    made: String,
}

impl RowText {
    /// With room for texts of these lengths.
    pub fn with_room(source: usize, target: usize) -> RowText {
        let [first, second, third] = [source, target, 0].map(String::with_capacity);
        RowText { cells: [first, second, third], made: String::new() }
    }

    /// Makes what is made of the cells. Needed before [`RowText::texts`].
    pub fn make(&mut self, columns: &ChosenColumns) -> Result<(), MessageFault> {
        let [first, second, third] = &self.cells;
        match (columns.kind, columns.style) {
            (Kind::Chat, Style::Pair) => messages::from_pair(&[first], second, &mut self.made),
            (Kind::Chat, Style::Instruction) => messages::from_pair(&[first, third], second, &mut self.made),
            _ => Ok(()),
        }
    }

    /// Source and target as the window holds them.
    pub fn texts(&self, columns: &ChosenColumns) -> (&str, &str) {
        match (columns.kind, columns.style) {
            (Kind::Pairs, _) => (&self.cells[0], &self.cells[1]),
            (Kind::Chat, Style::Pair | Style::Instruction) => (&self.made, ""),
            _ => (&self.cells[0], ""),
        }
    }
}

impl MessageFault {
    /// The fault, with its place.
    pub fn at(self, path: PathBuf, place: String, column: String) -> DataError {
        let MessageFault { number, expected, found } = self;
        let place = number.map_or(place.clone(), |n| format!("{place}, message {n}"));
        DataError::BadMessage { path, place, column, expected, found }
    }
}
