//! Parquet files: footer and schema checked, each cell of the wanted columns decoded once when opened, blocks read page
//! by page.
//!
//! Invariant: of each column one page (two while it changes) and its dictionary are held, never a row group of text; of
//! the footer only the wanted columns' chunks are kept. Rows before a block are passed over by page headers alone. It
//! knows nothing of order and tokens.

use std::ops::Range;
use std::path::Path;

use parquet::basic::Type as Physical;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::Length;

use crate::error::guarded;
use crate::input::Origin;
use crate::jsonl_row::WantedCell;
use crate::layout::{Block, BlockBuilder, Largest};
use crate::oversized::{LargePage, joined, large_pages};
use crate::page_table::PageTable;
use crate::pages::PlacedFile;
use crate::parquet_cells::{CellFault, Cells, Column};
use crate::row_text::RowText;
use crate::window::Texts;
use crate::{ChosenColumns, Columns, DataError, Kind};

/// Heap of one kept column chunk; a test holds it against the library's own count.
pub(crate) const CHUNK_BYTES: u64 = 1024;

/// What is kept of a file between reads.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    bytes: u64,
    row_groups: Box<[RowGroup]>,
    /// The leaves are role and content of a list of messages.
    nested: bool,
}

#[derive(Debug)]
pub(crate) struct RowGroup {
    first_row: u64,
    pub rows: u64,
    pub chunks: Box<[ColumnChunkMetaData]>,
    /// Where the pages of each lie, once all was read; nothing where lists are read.
    pub pages: Box<[PageTable]>,
}

/// Checks all of `path` and adds its rows to `builder`.
pub(crate) fn scan(
    origin: &Origin,
    kind: Kind,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ParquetFile, DataError> {
    guarded(|| scan_file(origin, kind, wanted, chosen, builder), panicked(origin.path()))
}

/// Appends the rows of `block` to `texts`.
pub(crate) fn read(
    origin: &Origin,
    kept: &ParquetFile,
    names: &ChosenColumns,
    block: Block,
    texts: &mut Texts,
) -> Result<(), DataError> {
    guarded(|| read_block(origin, kept, names, block, texts), panicked(origin.path()))
}

fn panicked(path: &Path) -> impl FnOnce(String) -> DataError {
    |reason| DataError::BadParquet { path: path.into(), place: "data".into(), reason }
}

fn scan_file(
    origin: &Origin,
    kind: Kind,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ParquetFile, DataError> {
    let (path, placed) = (origin.path(), PlacedFile::open(origin)?);
    let footer = footer(path, &placed)?;
    let names = match chosen {
        Some(names) => names.clone(),
        None => chosen.insert(wanted.choose(kind, path, "schema", &present(&footer))?).clone(),
    };
    let leaves = leaves(path, &footer, &names)?;
    let mut kept = keep(path, &footer, &leaves, placed.len())?;
    drop(footer);

    let columns: Vec<Column> = leaves.leaves.iter().map(|_| Column::of(&placed)).collect();
    let mut text = RowText::default();
    let (mut row, mut pages) = (0u64, 0);
    for (number, group) in kept.row_groups.iter_mut().enumerate() {
        let mut cells = Cells::open(path, &columns, group, &names, kept.nested)
            .map_err(|e| e.unwrap_or_place(path, || format!("row group {number}")))?;
        let large = match kept.nested {
            true => Vec::new(),
            false => large_rows(path, &columns, group, builder.largest)
                .map_err(|e| e.unwrap_or_place(path, || format!("row group {number}")))?,
        };
        let (first, mut large) = (row, large.into_iter().peekable());
        // A dictionary is unpacked even to be passed over.
        if large.next_if(|rows| group.rows > 0 && *rows == (0..group.rows)).is_some() {
            builder.left_out(group.rows);
            row += group.rows;
            group.pages = group.chunks.iter().map(|_| PageTable::default()).collect();
            continue;
        }
        while row < first + group.rows {
            if let Some(rows) = large.next_if(|rows| first + rows.start == row) {
                let rows = rows.end - rows.start;
                cells.skip(rows).map_err(|e| e.unwrap_or_place(path, || format!("row {row}")))?;
                builder.left_out(rows);
                row += rows;
                continue;
            }
            let (source, target) =
                cells.next(row, &mut text).map_err(|e| e.unwrap_or_place(path, || format!("row {row}")))?;
            let bytes = source.len() + target.len();
            if bytes > builder.largest.row {
                builder.oversized_row(path, format!("row {row}"))?;
                row += 1;
                continue;
            }
            // A block of two pages would be both of them unpacked.
            if std::mem::replace(&mut pages, columns[0].facts.pages()) != pages {
                builder.close_half_full();
            }
            builder.row(row, 0, bytes as u32, source.len() as u64, target.len() as u64);
            row += 1;
        }
        builder.close();
        drop(cells);
        group.pages = columns.iter().map(|column| column.facts.take_table()).collect();
        builder.facts.row_group_bytes += group.pages.iter().map(PageTable::heap_bytes).sum::<u64>();
    }
    builder.facts.row_group_bytes += (kept.row_groups.len() * leaves.leaves.len().max(2)) as u64 * CHUNK_BYTES;
    let facts = &mut builder.facts;
    let pages = [&mut facts.source_pages, &mut facts.target_pages, &mut facts.input_pages];
    for (column, pages) in columns.iter().zip(pages) {
        pages.largest_stored = pages.largest_stored.max(column.file.largest_read());
        column.facts.merge_into(pages);
    }
    Ok(kept)
}

/// What the end of a file says of it.
pub(crate) fn footer(path: &Path, placed: &PlacedFile) -> Result<ParquetMetaData, DataError> {
    let place = || format!("footer of {} bytes", placed.len());
    ParquetMetaDataReader::new().parse_and_finish(placed).map_err(|e| bad(path, place(), e))
}

/// A file whose cells were all seen before, and where its pages lie: the tables of each row group, in order. Nothing where these are
/// not of this file.
pub(crate) fn reopen(
    origin: &Origin,
    names: &ChosenColumns,
    tables: Vec<PageTable>,
) -> Result<Option<ParquetFile>, DataError> {
    let open = || {
        let (path, placed) = (origin.path(), PlacedFile::open(origin)?);
        let footer = footer(path, &placed)?;
        keep(path, &footer, &leaves(path, &footer, names)?, placed.len())
    };
    let mut kept = guarded(open, panicked(origin.path()))?;
    let wanted: usize = kept.row_groups.iter().map(|group| group.chunks.len()).sum();
    if wanted != tables.len() {
        return Ok(None);
    }
    let mut tables = tables.into_iter();
    for group in &mut kept.row_groups {
        group.pages = tables.by_ref().take(group.chunks.len()).collect();
    }
    Ok(Some(kept))
}

impl ParquetFile {
    /// Rows of all row groups.
    pub fn rows(&self) -> u64 {
        self.row_groups.iter().map(|group| group.rows).sum()
    }

    /// Where the pages of each column lie, row group by row group.
    pub fn tables(&self) -> impl Iterator<Item = &PageTable> {
        self.row_groups.iter().flat_map(|group| &group.pages)
    }
}

/// Rows of the group that are left out because one of their pages is too large; an error where that is refused.
fn large_rows(
    path: &Path,
    columns: &[Column],
    group: &RowGroup,
    Largest { page: limit, skip, .. }: Largest,
) -> Result<Vec<Range<u64>>, CellFault> {
    let mut ranges = Vec::new();
    for (column, chunk) in columns.iter().zip(&group.chunks) {
        for LargePage { rows, bytes } in large_pages(&column.file, chunk, group.rows, limit)? {
            if !skip {
                let (path, place) = (path.to_path_buf(), format!("row {}", group.first_row + rows.start));
                let column = chunk.column_path().string();
                return Err(CellFault::Known(DataError::PageTooLarge { path, place, column, bytes, limit }));
            }
            ranges.push(rows);
        }
    }
    Ok(joined(ranges))
}

fn read_block(
    origin: &Origin,
    kept: &ParquetFile,
    names: &ChosenColumns,
    block: Block,
    texts: &mut Texts,
) -> Result<(), DataError> {
    let (path, placed) = (origin.path(), PlacedFile::open(origin)?);
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
    let columns: Vec<Column> = group.chunks.iter().map(|_| Column::of(&placed)).collect();
    let mut text = RowText::default();
    let mut cells = Cells::open_at(path, &columns, group, names, kept.nested, block.place - group.first_row)
        .map_err(|e| e.unwrap_or_place(path, place(block.place)))?;
    let mut left = u64::from(block.text_bytes);
    for row in block.place..block.place + u64::from(block.rows) {
        let (source, target) = cells.next(row, &mut text).map_err(|e| e.unwrap_or_place(path, place(row)))?;
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

pub(crate) fn bad(path: &Path, place: String, error: ParquetError) -> DataError {
    let error = match error {
        ParquetError::External(inner) => {
            match inner.downcast::<std::io::Error>().map(|io| io.downcast::<DataError>()) {
                Ok(Ok(ours)) => return ours,
                Ok(Err(io)) => ParquetError::External(Box::new(io)),
                Err(other) => ParquetError::External(other),
            }
        }
        other => other,
    };
    DataError::BadParquet { path: path.into(), place, reason: error.to_string() }
}

/// Names of the top-level columns.
fn present(footer: &ParquetMetaData) -> Vec<String> {
    footer.file_metadata().schema().get_fields().iter().map(|f| f.name().to_string()).collect()
}

/// The leaves that make a row.
struct Leaves {
    leaves: Vec<usize>,
    nested: bool,
}

fn leaves(path: &Path, footer: &ParquetMetaData, names: &ChosenColumns) -> Result<Leaves, DataError> {
    let wants = names.wants();
    let field = |name: &str| footer.file_metadata().schema().get_fields().iter().find(|f| f.name() == name);
    if let [want] = wants[..]
        && want.cell == WantedCell::Messages
        && field(want.name).is_some_and(|f| f.is_group())
    {
        let leaves = message_leaves(path, footer, want.name)?;
        return Ok(Leaves { leaves, nested: true });
    }
    let leaves = wants.iter().map(|want| column(path, footer, want.name)).collect::<Result<_, _>>()?;
    Ok(Leaves { leaves, nested: false })
}

/// The leaves of role and content in a list of structs.
fn message_leaves(path: &Path, footer: &ParquetMetaData, name: &str) -> Result<Vec<usize>, DataError> {
    let descriptor = footer.file_metadata().schema_descr();
    let find = |names: [&str; 2]| {
        (0..descriptor.num_columns()).find(|&i| {
            let column = descriptor.column(i);
            column.path().parts().first().is_some_and(|first| first == name)
                && names.contains(&column.name())
                && column.max_rep_level() == 1
                && column.physical_type() == Physical::BYTE_ARRAY
        })
    };
    match (find(["role", "from"]), find(["content", "value"])) {
        (Some(role), Some(content)) => Ok(vec![role, content]),
        _ => Err(DataError::ColumnType {
            path: path.into(),
            column: name.into(),
            found: "a list, map or struct without texts `role` and `content`".into(),
        }),
    }
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

/// What is kept between reads of the wanted columns.
fn keep(path: &Path, footer: &ParquetMetaData, wanted: &Leaves, bytes: u64) -> Result<ParquetFile, DataError> {
    // A list has at least one entry a row: where it is empty, one that says so.
    let fits = if wanted.nested { i64::ge } else { i64::eq };
    let mut first_row = 0;
    let group = |GroupChunks { rows, chunks }| {
        let group = RowGroup { first_row, rows, chunks: chunks.into(), pages: Box::default() };
        first_row += rows;
        group
    };
    let row_groups = chunks_of(path, footer, &wanted.leaves, bytes, fits)?.into_iter().map(group).collect();
    Ok(ParquetFile { bytes, row_groups, nested: wanted.nested })
}

/// Chunks of a row group, and its rows.
pub(crate) struct GroupChunks {
    pub rows: u64,
    pub chunks: Vec<ColumnChunkMetaData>,
}

/// Takes the chunks of some leaves out of a footer and checks that they lie inside a file of `bytes` and `fit` the rows.
pub(crate) fn chunks_of(
    path: &Path,
    footer: &ParquetMetaData,
    leaves: &[usize],
    bytes: u64,
    fits: fn(&i64, &i64) -> bool,
) -> Result<Vec<GroupChunks>, DataError> {
    let mut groups = Vec::with_capacity(footer.num_row_groups());
    let mut all = 0u64;
    for (number, group) in footer.row_groups().iter().enumerate() {
        let wrong =
            |reason: String| DataError::BadParquet { path: path.into(), place: format!("row group {number}"), reason };
        let rows = u64::try_from(group.num_rows()).map_err(|_| wrong("a negative number of rows".into()))?;
        all = all.checked_add(rows).ok_or_else(|| wrong("more rows than there can be".into()))?;
        let mut chunks = Vec::with_capacity(leaves.len());
        for &leaf in leaves {
            if leaf >= group.num_columns() {
                return Err(wrong(format!("expected column {leaf}, found {} columns", group.num_columns())));
            }
            let chunk = group.column(leaf);
            let numbers =
                [Some(chunk.data_page_offset()), chunk.dictionary_page_offset(), Some(chunk.compressed_size())];
            if numbers.into_iter().flatten().any(|n| n < 0) {
                return Err(wrong(format!("a negative place or length of column {leaf}")));
            }
            let (start, len) = chunk.byte_range();
            if start.checked_add(len).is_none_or(|end| end > bytes) {
                return Err(wrong(format!(
                    "expected {len} bytes of column {leaf} at {start}, found a file of {bytes} bytes"
                )));
            }
            if !fits(&chunk.num_values(), &group.num_rows()) {
                return Err(wrong(format!("expected {rows} values of column {leaf}, found {}", chunk.num_values())));
            }
            let slim = chunk.clone().into_builder().clear_statistics().clear_page_encoding_stats();
            let slim = slim.set_definition_level_histogram(None).set_repetition_level_histogram(None);
            chunks.push(slim.build().map_err(|e| wrong(e.to_string()))?);
        }
        groups.push(GroupChunks { rows, chunks });
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    #[test]
    fn a_kept_chunk_is_within_its_planned_bytes() {
        let schema = Arc::new(parse_message_type("message m { REQUIRED BYTE_ARRAY prompt (UTF8); }").unwrap());
        let chunk = ColumnChunkMetaData::builder(SchemaDescriptor::new(schema).column(0)).build().unwrap();
        let row_group = (size_of::<RowGroup>() + 2 * size_of_val(&chunk)) as u64;
        assert!(row_group <= 2 * CHUNK_BYTES, "{row_group}");
    }
}
