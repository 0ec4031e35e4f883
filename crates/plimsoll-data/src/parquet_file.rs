//! Parquet files: footer and schema checked, each cell of the two columns decoded once when opened, blocks read page by
//! page.
//!
//! Invariant: of each column one page (two while it changes) and its dictionary are held, never a row group of text; of
//! the footer only the two columns' chunks are kept. Rows before a block are passed over by page headers alone. It
//! knows nothing of order and tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::Length;
use parquet::file::serialized_reader::SerializedPageReader;

use crate::error::panic_message;
use crate::layout::{Block, BlockBuilder, MAX_ROW_BYTES};
use crate::pages::{CountedPages, PageFacts, PlacedFile};
use crate::window::Texts;
use crate::{ChosenColumns, Columns, DataError};

/// Heap of one kept column chunk; a test holds it against the library's own count.
const CHUNK_BYTES: u64 = 1024;

/// What is kept of a file between reads.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    bytes: u64,
    row_groups: Box<[RowGroup]>,
}

#[derive(Debug)]
struct RowGroup {
    first_row: u64,
    rows: u64,
    chunks: [ColumnChunkMetaData; 2],
}

/// Checks all of `path` and adds its rows to `builder`.
pub(crate) fn scan(
    path: &Path,
    file: u32,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ParquetFile, DataError> {
    guarded(path, || scan_file(path, file, wanted, chosen, builder))
}

/// Appends the rows of `block` to `texts`.
pub(crate) fn read(
    path: &Path,
    kept: &ParquetFile,
    names: &ChosenColumns,
    block: Block,
    texts: &mut Texts,
) -> Result<(), DataError> {
    guarded(path, || read_block(path, kept, names, block, texts))
}

/// The library panics on some damaged files; for us that is a bad file like any other. What `work` was writing to is
/// dropped by the caller together with the error.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = format!("its reader panicked: {}", panic_message(panic));
        Err(DataError::BadParquet { path: path.into(), place: "data".into(), reason })
    })
}

fn scan_file(
    path: &Path,
    file: u32,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ParquetFile, DataError> {
    let placed = PlacedFile::open(path)?;
    let bad = |place: String, e: ParquetError| bad(path, place, e);
    let footer = ParquetMetaDataReader::new()
        .parse_and_finish(&placed)
        .map_err(|e| bad(format!("footer of {} bytes", placed.len()), e))?;
    let names = match chosen {
        Some(names) => names.clone(),
        None => chosen.insert(wanted.choose(path, "schema", &present(&footer))?).clone(),
    };
    let columns = [column(path, &footer, &names.source)?, column(path, &footer, &names.target)?];
    let kept = keep(path, &footer, columns, placed.len())?;
    drop(footer);

    let columns = [Column::of(&placed), Column::of(&placed)];
    let mut row = 0u64;
    for (number, group) in kept.row_groups.iter().enumerate() {
        let mut cells = Cells::open(path, &columns, group, &names)
            .map_err(|e| e.unwrap_or_place(path, || format!("row group {number}")))?;
        for _ in 0..group.rows {
            let (source, target) = cells.next(row).map_err(|e| e.unwrap_or_place(path, || format!("row {row}")))?;
            let bytes = source.len() + target.len();
            if bytes > MAX_ROW_BYTES {
                let place = format!("row {row}");
                return Err(DataError::RowTooLong { path: path.into(), place, limit: MAX_ROW_BYTES });
            }
            builder.row(file, row, 0, bytes as u32, source.len() as u64, target.len() as u64);
            row += 1;
        }
        builder.close();
    }
    builder.facts.row_group_bytes += kept.row_groups.len() as u64 * 2 * CHUNK_BYTES;
    let facts = &mut builder.facts;
    for (column, pages) in columns.iter().zip([&mut facts.source_pages, &mut facts.target_pages]) {
        pages.largest_stored = pages.largest_stored.max(column.file.largest_read());
        column.facts.merge_into(pages);
    }
    Ok(kept)
}

fn read_block(
    path: &Path,
    kept: &ParquetFile,
    names: &ChosenColumns,
    block: Block,
    texts: &mut Texts,
) -> Result<(), DataError> {
    let placed = PlacedFile::open(path)?;
    if placed.len() != kept.bytes {
        return Err(DataError::Changed {
            path: path.into(),
            place: format!("row {}", block.place),
            expected: format!("a file of {} bytes", kept.bytes),
            found: format!("{} bytes", placed.len()),
        });
    }
    let number = kept.row_groups.partition_point(|g| g.first_row <= block.place) - 1;
    let group = &kept.row_groups[number];
    let place = |row: u64| move || format!("row {row}");
    let mut cells = Cells::open(path, &[Column::of(&placed), Column::of(&placed)], group, names)
        .and_then(|mut cells| cells.skip((block.place - group.first_row) as usize).map(|()| cells))
        .map_err(|e| e.unwrap_or_place(path, place(block.place)))?;
    let mut left = u64::from(block.text_bytes);
    for row in block.place..block.place + u64::from(block.rows) {
        let (source, target) = cells.next(row).map_err(|e| e.unwrap_or_place(path, place(row)))?;
        let bytes = (source.len() + target.len()) as u64;
        left = left.checked_sub(bytes).ok_or_else(|| DataError::Changed {
            path: path.into(),
            place: format!("row {row}"),
            expected: format!("a block of {} text bytes", block.text_bytes),
            found: "more".into(),
        })?;
        texts.push(source, target);
    }
    Ok(())
}

fn bad(path: &Path, place: String, error: ParquetError) -> DataError {
    DataError::BadParquet { path: path.into(), place, reason: error.to_string() }
}

/// Names of the top-level columns.
fn present(footer: &ParquetMetaData) -> Vec<String> {
    footer.file_metadata().schema().get_fields().iter().map(|f| f.name().to_string()).collect()
}

/// The leaf number of a top-level column of strings.
fn column(path: &Path, footer: &ParquetMetaData, name: &str) -> Result<usize, DataError> {
    let schema = footer.file_metadata().schema();
    let Some(field) = schema.get_fields().iter().find(|f| f.name() == name) else {
        return Err(DataError::MissingColumn {
            path: path.into(),
            place: "schema".into(),
            column: name.into(),
            present: present(footer).join(", "),
        });
    };
    let wrong = |found: String| DataError::ColumnType { path: path.into(), column: name.into(), found };
    if field.is_group() {
        return Err(wrong("a list, map or struct".into()));
    }
    let descriptor = footer.file_metadata().schema_descr();
    let leaf = (0..descriptor.num_columns())
        .find(|&i| descriptor.column(i).path().parts().len() == 1 && descriptor.column(i).name() == name)
        .ok_or_else(|| wrong("no leaf".into()))?;
    let found = descriptor.column(leaf);
    if found.physical_type() != Physical::BYTE_ARRAY {
        return Err(wrong(format!("{}", found.physical_type())));
    }
    if found.max_rep_level() != 0 {
        return Err(wrong("a repeated column".into()));
    }
    Ok(leaf)
}

/// Takes the two columns' chunks out of the footer and checks that they lie inside the file.
fn keep(path: &Path, footer: &ParquetMetaData, columns: [usize; 2], bytes: u64) -> Result<ParquetFile, DataError> {
    let mut first_row = 0u64;
    let mut row_groups = Vec::with_capacity(footer.num_row_groups());
    for (number, group) in footer.row_groups().iter().enumerate() {
        let wrong =
            |reason: String| DataError::BadParquet { path: path.into(), place: format!("row group {number}"), reason };
        let rows = u64::try_from(group.num_rows()).map_err(|_| wrong("a negative number of rows".into()))?;
        let mut chunks = Vec::with_capacity(2);
        for leaf in columns {
            if leaf >= group.num_columns() {
                return Err(wrong(format!("expected column {leaf}, found {} columns", group.num_columns())));
            }
            let chunk = group.column(leaf);
            if [Some(chunk.data_page_offset()), chunk.dictionary_page_offset(), Some(chunk.compressed_size())]
                .into_iter()
                .flatten()
                .any(|n| n < 0)
            {
                return Err(wrong(format!("a negative place or length of column {leaf}")));
            }
            let (start, len) = chunk.byte_range();
            if start.checked_add(len).is_none_or(|end| end > bytes) {
                return Err(wrong(format!(
                    "expected {len} bytes of column {leaf} at {start}, found a file of {bytes} bytes"
                )));
            }
            if chunk.num_values() != group.num_rows() {
                return Err(wrong(format!("expected {rows} values of column {leaf}, found {}", chunk.num_values())));
            }
            let slim = chunk.clone().into_builder().clear_statistics().clear_page_encoding_stats();
            let slim = slim.set_definition_level_histogram(None).set_repetition_level_histogram(None);
            chunks.push(slim.build().map_err(|e| wrong(e.to_string()))?);
        }
        let chunks = <[ColumnChunkMetaData; 2]>::try_from(chunks).map_err(|_| wrong("two chunks".into()))?;
        row_groups.push(RowGroup { first_row, rows, chunks });
        first_row += rows;
    }
    Ok(ParquetFile { bytes, row_groups: row_groups.into_boxed_slice() })
}

/// A fault of a cell, whose place the caller may know better.
enum CellFault {
    Known(DataError),
    Parquet(ParquetError),
}

impl CellFault {
    fn unwrap_or_place(self, path: &Path, place: impl FnOnce() -> String) -> DataError {
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
struct Column {
    file: Arc<PlacedFile>,
    facts: Arc<PageFacts>,
}

impl Column {
    fn of(file: &PlacedFile) -> Column {
        Column { file: Arc::new(file.twin()), facts: Arc::default() }
    }
}

/// The two columns of one row group, read in step, one row at a time: a batch of rows would keep the pages of all its
/// values alive.
struct Cells<'a> {
    path: &'a Path,
    names: [&'a str; 2],
    columns: [ColumnReaderImpl<ByteArrayType>; 2],
    values: [Vec<ByteArray>; 2],
    levels: Vec<i16>,
}

impl<'a> Cells<'a> {
    fn open(
        path: &'a Path,
        columns: &[Column; 2],
        group: &RowGroup,
        names: &'a ChosenColumns,
    ) -> Result<Cells<'a>, CellFault> {
        let column = |which: usize| -> Result<_, ParquetError> {
            let (chunk, Column { file, facts }) = (&group.chunks[which], &columns[which]);
            let pages = SerializedPageReader::new(file.clone(), chunk, group.rows as usize, None)?;
            let pages = Box::new(CountedPages::new(pages, facts.clone()));
            Ok(ColumnReaderImpl::<ByteArrayType>::new(chunk.column_descr_ptr(), pages))
        };
        Ok(Cells {
            path,
            names: [&names.source, &names.target],
            columns: [column(0)?, column(1)?],
            values: [Vec::with_capacity(1), Vec::with_capacity(1)],
            levels: Vec::with_capacity(1),
        })
    }

    fn skip(&mut self, rows: usize) -> Result<(), CellFault> {
        for column in &mut self.columns {
            let skipped = column.skip_records(rows)?;
            if skipped != rows {
                return Err(ParquetError::EOF(format!("expected {rows} rows before it, found {skipped}")).into());
            }
        }
        Ok(())
    }

    /// The texts of the next row, whose number in the file is `row`.
    fn next(&mut self, row: u64) -> Result<(&str, &str), CellFault> {
        for (column, values) in self.columns.iter_mut().zip(&mut self.values) {
            values.clear();
            self.levels.clear();
            let (records, ..) = column.read_records(1, Some(&mut self.levels), None, values)?;
            if records != 1 {
                return Err(ParquetError::EOF("expected one more row, found the end of the column".into()).into());
            }
        }
        Ok((self.text(0, row)?, self.text(1, row)?))
    }

    fn text(&self, which: usize, row: u64) -> Result<&str, CellFault> {
        let wrong = |found: &str| {
            CellFault::Known(DataError::NotAString {
                path: self.path.into(),
                place: format!("row {row}"),
                column: self.names[which].into(),
                found: found.into(),
            })
        };
        let value = self.values[which].first().ok_or_else(|| wrong("null"))?;
        std::str::from_utf8(value.data()).map_err(|_| wrong("bytes that are not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    #[test]
    fn a_kept_chunk_is_within_its_planned_bytes() {
        let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY prompt (UTF8); }").unwrap());
        let chunk = ColumnChunkMetaData::builder(SchemaDescriptor::new(schema).column(0)).build().unwrap();
        let row_group = size_of::<RowGroup>() as u64;
        assert!(row_group <= 2 * CHUNK_BYTES, "{row_group}");
        assert!(size_of_val(&chunk) as u64 <= CHUNK_BYTES);
    }
}
