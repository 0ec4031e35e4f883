//! The wanted columns of one Parquet row group, read in step, one row at a time: a batch of rows would keep the pages of
//! all its values alive.
//!
//! Invariant: a row is whole or names what is wrong with it. It knows nothing of blocks and files.

use std::path::Path;
use std::sync::Arc;

use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

use crate::jsonl_row::{Want, WantedCell};
use crate::messages::{self, ConversationWriter, MessageFault, NotMessages};
use crate::page_table::pages_from;
use crate::pages::{CountedPages, PageFacts, PlacedFile};
use crate::parquet_file::{RowGroup, bad};
use crate::row_text::RowText;
use crate::{ChosenColumns, DataError, Kind};

/// A fault of a cell, whose place the caller may know better.
pub(crate) enum CellFault {
    Known(DataError),
    Parquet(ParquetError),
}

impl CellFault {
    pub fn unwrap_or_place(self, path: &Path, place: impl FnOnce() -> String) -> DataError {
        match self {
            CellFault::Known(error) => error,
            CellFault::Parquet(error) => bad(path, place(), error),
        }
    }
}

impl From<ParquetError> for CellFault {
    fn from(error: ParquetError) -> CellFault {
        CellFault::Parquet(error)
    }
}

/// The way to one column's bytes, with counts of what came by it.
pub(crate) struct Column {
    pub file: Arc<PlacedFile>,
    pub facts: Arc<PageFacts>,
}

impl Column {
    pub fn of(file: &PlacedFile) -> Column {
        Column { file: Arc::new(file.twin()), facts: Arc::default() }
    }
}

/// One leaf, and what it holds of the present row.
struct Leaf {
    reader: ColumnReaderImpl<ByteArrayType>,
    /// How deep a value that is there is defined.
    full: i16,
    values: Vec<ByteArray>,
    defined: Vec<i16>,
    repeated: Vec<i16>,
}

impl Leaf {
    fn skip(&mut self, rows: usize) -> Result<(), ParquetError> {
        let skipped = if rows == 0 { 0 } else { self.reader.skip_records(rows)? };
        match skipped == rows {
            true => Ok(()),
            false => Err(ParquetError::EOF(format!("expected {rows} rows before it, found {skipped}"))),
        }
    }
}

pub(crate) struct Cells<'a> {
    path: &'a Path,
    columns: &'a ChosenColumns,
    wants: Vec<Want<'a>>,
    leaves: Vec<Leaf>,
    nested: bool,
}

impl<'a> Cells<'a> {
    /// All rows of a group. Of columns with a value for each row it is noted where their pages lie.
    pub fn open(
        path: &'a Path,
        columns: &[Column],
        group: &RowGroup,
        names: &'a ChosenColumns,
        nested: bool,
    ) -> Result<Cells<'a>, CellFault> {
        Cells::enter(path, columns, group, names, nested, None)
    }

    /// The rows of a group, from number `row` in it on.
    pub fn open_at(
        path: &'a Path,
        columns: &[Column],
        group: &RowGroup,
        names: &'a ChosenColumns,
        nested: bool,
        row: u64,
    ) -> Result<Cells<'a>, CellFault> {
        Cells::enter(path, columns, group, names, nested, Some(row))
    }

    fn enter(
        path: &'a Path,
        columns: &[Column],
        group: &RowGroup,
        names: &'a ChosenColumns,
        nested: bool,
        row: Option<u64>,
    ) -> Result<Cells<'a>, CellFault> {
        let leaf = |(which, (chunk, column)): (usize, (&ColumnChunkMetaData, &Column))| {
            column.file.expect_pages_of(chunk.uncompressed_size());
            let from = row.and_then(|row| group.pages.get(which)?.find(row));
            let pages = pages_from(&column.file, chunk, group.rows as usize, from)?;
            let mut pages = CountedPages::new(pages, column.facts.clone());
            if row.is_none() && !nested {
                pages = pages.noting(column.file.clone());
            }
            let pages = Box::new(pages);
            let before = row.unwrap_or(0) - from.map_or(0, |page| u64::from(page.first_row));
            let descriptor = chunk.column_descr_ptr();
            let mut leaf = Leaf {
                full: descriptor.max_def_level(),
                reader: ColumnReaderImpl::<ByteArrayType>::new(descriptor, pages),
                values: Vec::with_capacity(1),
                defined: Vec::with_capacity(1),
                repeated: Vec::with_capacity(1),
            };
            leaf.skip(before as usize)?;
            Ok(leaf)
        };
        let leaves = group.chunks.iter().zip(columns).enumerate().map(leaf).collect::<Result<_, ParquetError>>()?;
        Ok(Cells { path, columns: names, wants: names.wants(), leaves, nested })
    }

    /// Passes over rows.
    pub fn skip(&mut self, rows: u64) -> Result<(), CellFault> {
        self.leaves.iter_mut().try_for_each(|leaf| Ok(leaf.skip(rows as usize)?))
    }

    /// The texts of the next row, whose number in the file is `row`.
    pub fn next<'t>(&'t mut self, row: u64, text: &'t mut RowText) -> Result<(&'t str, &'t str), CellFault> {
        for leaf in &mut self.leaves {
            leaf.values.clear();
            leaf.defined.clear();
            leaf.repeated.clear();
            let repeated = self.nested.then_some(&mut leaf.repeated);
            let (records, ..) = leaf.reader.read_records(1, Some(&mut leaf.defined), repeated, &mut leaf.values)?;
            if records != 1 {
                return Err(ParquetError::EOF("expected one more row, found the end of the column".into()).into());
            }
        }
        match self.columns.kind {
            Kind::Pairs => return Ok((self.cell(0, row)?, self.cell(1, row)?)),
            Kind::Text => return Ok((self.cell(0, row)?, "")),
            Kind::Chat => {}
        }
        let fault = |fault: MessageFault| {
            let (path, column) = (self.path.to_path_buf(), self.columns.source.clone());
            CellFault::Known(fault.at(path, format!("row {row}"), column))
        };
        if self.nested {
            self.conversation(row, &mut text.cells[0], fault)?;
        } else if self.wants[0].cell == WantedCell::Messages {
            let wrong = messages::from_json(self.cell(0, row)?, &mut text.cells[0]);
            match wrong {
                None => {}
                Some(NotMessages::Fault(wrong)) => return Err(fault(wrong)),
                Some(NotMessages::Other(found)) => {
                    return Err(CellFault::Known(DataError::NotMessages {
                        path: self.path.into(),
                        place: format!("row {row}"),
                        column: self.columns.source.clone(),
                        found: found.into(),
                    }));
                }
            }
        } else {
            for which in 0..self.leaves.len() {
                text.cells[which].clear();
                text.cells[which].push_str(self.cell(which, row)?);
            }
        }
        text.make(self.columns).map_err(fault)?;
        Ok(text.texts(self.columns))
    }

    /// The messages of a list of structs, as one conversation.
    fn conversation(
        &self,
        row: u64,
        out: &mut String,
        fault: impl Fn(MessageFault) -> CellFault,
    ) -> Result<(), CellFault> {
        let [roles, contents] = &self.leaves[..] else { return Ok(()) };
        let mut writer = ConversationWriter::new(out);
        // An empty list, or none, is one entry that is not defined down to the leaf.
        let empty = roles.values.is_empty() && contents.values.is_empty() && roles.defined.len() == 1;
        if !empty {
            for (leaf, expected) in [(roles, "a string as its role"), (contents, "a string as its content")] {
                if let Some(at) = leaf.defined.iter().position(|level| *level < leaf.full) {
                    return Err(fault(MessageFault { number: Some(at + 1), expected, found: "null".into() }));
                }
            }
            if roles.values.len() != contents.values.len() {
                let found = format!("{} and {}", roles.values.len(), contents.values.len());
                return Err(fault(MessageFault { number: None, expected: "as many roles as contents", found }));
            }
        }
        for (role, content) in roles.values.iter().zip(&contents.values) {
            let (role, content) = (self.utf8(role, row)?, self.utf8(content, row)?);
            writer.push(role, content).map_err(&fault)?;
        }
        writer.finish().map_err(&fault)
    }

    /// The text of a plain column.
    fn cell(&self, which: usize, row: u64) -> Result<&str, CellFault> {
        match self.leaves[which].values.first() {
            Some(value) => self.utf8_of(which, value, row),
            None if self.wants[which].cell == WantedCell::TextOrNothing => Ok(""),
            None => Err(self.wrong(which, row, "null")),
        }
    }

    fn utf8<'t>(&self, value: &'t ByteArray, row: u64) -> Result<&'t str, CellFault> {
        self.utf8_of(0, value, row)
    }

    fn utf8_of<'t>(&self, which: usize, value: &'t ByteArray, row: u64) -> Result<&'t str, CellFault> {
        std::str::from_utf8(value.data()).map_err(|_| self.wrong(which, row, "bytes that are not UTF-8"))
    }

    fn wrong(&self, which: usize, row: u64, found: &str) -> CellFault {
        CellFault::Known(DataError::NotAString {
            path: self.path.into(),
            place: format!("row {row}"),
            column: self.wants[which].name.into(),
            found: found.into(),
        })
    }
}
