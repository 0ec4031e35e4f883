//! The sparse index: where blocks of rows lie, and the facts of the data that memory depends on.
//!
//! Invariant: a block holds rows of one file (of one row group, for Parquet), at most [`MAX_BLOCK_ROWS`] of them, and at
//! most the target number of bytes unless a single row is longer. The index costs 24 bytes a block, so at most
//! `24 x (bytes / target + rows / 4096 + row groups + files)`, and never more than 24 bytes a row.

use std::path::Path;

use crate::DataError;
use crate::page_cache::ReadOnce;

/// Most rows of one block.
pub(crate) const MAX_BLOCK_ROWS: u32 = 4096;

/// Longest row of a file of text, and longest source plus target of a Parquet or Arrow row, in bytes.
pub const MAX_ROW_BYTES: usize = 64 << 20;

/// A run of rows that is read in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Text: offset of its first byte. Parquet and Arrow: number of its first row in the file.
    pub place: u64,
    /// Text: bytes from its first to its last row's end. Parquet and Arrow: as `text_bytes`.
    pub raw_bytes: u32,
    /// Bytes of source and target text together.
    pub text_bytes: u32,
    /// Rows.
    pub rows: u32,
    /// Which file.
    pub file: u32,
}

/// Bytes of a block for data of so many bytes: 64 KiB, and up to 256 KiB for large data, so that the index stays small
/// (12 MiB for 128 GiB) and a shuffle window stays a few MiB.
pub(crate) fn block_target(data_bytes: u64) -> u32 {
    (data_bytes >> 16).clamp(64 << 10, 256 << 10) as u32
}

/// Bytes of a block of a Parquet file at least: to read one, whole pages are unpacked, and these usually hold 1 MiB of text, so
/// that in a pass with blocks of 64 KiB each would be unpacked sixteen times. The same for packed Arrow batches, which are unpacked from
/// their beginning.
pub(crate) const PARQUET_BLOCK: u32 = 256 << 10;

/// The largest row, and page of a column, that is read, and what becomes of larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Bytes of a row: of its line, or of its texts where it has none. At most [`MAX_ROW_BYTES`].
    pub row: usize,
    /// Bytes of a Parquet page, unpacked.
    pub page: u64,
    /// Rows that are larger, or lie in a page that is, are left out and counted, not refused.
    pub skip: bool,
}

impl Default for Largest {
    fn default() -> Self {
        Largest { row: MAX_ROW_BYTES, page: u64::MAX, skip: false }
    }
}

impl Largest {
    /// What a loader below `ceiling` has room for: a row is there several times while it is read, a page twice.
    pub fn within(ceiling: u64, skip: bool) -> Largest {
        Largest { row: MAX_ROW_BYTES.min((ceiling / 8) as usize), page: ceiling / 4, skip }
    }
}

/// What opening found out about the data; everything that the loader's memory depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DataFacts {
    /// Rows in all files.
    pub rows: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Files.
    pub files: u64,
    /// Longest row of a file of text (JSONL, CSV, plain), in bytes.
    pub longest_line: u64,
    /// Most columns of a CSV file.
    #[serde(default)]
    pub most_cells: u64,
    /// Heap of reading packed files, where there are any.
    #[serde(default)]
    pub unpacking_bytes: u64,
    /// Longest source text, in bytes.
    pub longest_source: u64,
    /// Longest target text, in bytes.
    pub longest_target: u64,
    /// Largest block as stored, in bytes (text).
    pub largest_block: u64,
    /// Parquet pages of the source column.
    pub source_pages: ColumnPages,
    /// Parquet pages of the target column.
    pub target_pages: ColumnPages,
    /// Parquet pages of the third column, where there is one.
    #[serde(default)]
    pub input_pages: ColumnPages,
    /// Heap held for Parquet row groups and Arrow batches between reads, in bytes.
    pub row_group_bytes: u64,
    /// Heap of reading Arrow batches beside the texts, where there are any.
    #[serde(default)]
    pub arrow_bytes: u64,
    /// Heap of reading files that lie elsewhere, where there are any.
    #[serde(default)]
    pub remote_bytes: u64,
    /// Rows that were left out, because they or the pages that they are in are too large.
    #[serde(default)]
    pub oversized: u64,
    /// Of a mixture: a number that tells its sets and weights from others; else 0.
    #[serde(default)]
    pub mixture: u64,
}

impl DataFacts {
    /// These and those of more files.
    pub(crate) fn join(&mut self, more: &DataFacts) {
        let DataFacts { rows, blocks, files, row_group_bytes, oversized, .. } = more;
        self.rows += rows;
        self.blocks += blocks;
        self.files += files;
        self.row_group_bytes += row_group_bytes;
        self.oversized += oversized;
        self.longest_line = self.longest_line.max(more.longest_line);
        self.most_cells = self.most_cells.max(more.most_cells);
        self.unpacking_bytes = self.unpacking_bytes.max(more.unpacking_bytes);
        self.longest_source = self.longest_source.max(more.longest_source);
        self.longest_target = self.longest_target.max(more.longest_target);
        self.largest_block = self.largest_block.max(more.largest_block);
        self.arrow_bytes = self.arrow_bytes.max(more.arrow_bytes);
        self.remote_bytes = self.remote_bytes.max(more.remote_bytes);
        self.source_pages.join(&more.source_pages);
        self.target_pages.join(&more.target_pages);
        self.input_pages.join(&more.input_pages);
    }
}

/// The largest Parquet pages of one column; all zero where there is no Parquet file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ColumnPages {
    /// Largest page as stored, in bytes.
    pub largest_stored: u64,
    /// Largest data page decompressed, in bytes.
    pub largest_page: u64,
    /// Most values of one data page.
    pub most_page_values: u64,
    /// Largest dictionary page decompressed, in bytes.
    pub largest_dictionary: u64,
    /// Most values of one dictionary.
    pub most_dictionary_values: u64,
}

impl ColumnPages {
    fn join(&mut self, more: &ColumnPages) {
        self.largest_stored = self.largest_stored.max(more.largest_stored);
        self.largest_page = self.largest_page.max(more.largest_page);
        self.most_page_values = self.most_page_values.max(more.most_page_values);
        self.largest_dictionary = self.largest_dictionary.max(more.largest_dictionary);
        self.most_dictionary_values = self.most_dictionary_values.max(more.most_dictionary_values);
    }
}

/// Groups rows into blocks while a file is scanned; their `file` is 0.
pub(crate) struct BlockBuilder {
    blocks: Vec<Block>,
    open: Option<Block>,
    target: u32,
    pub facts: DataFacts,
    /// The file at work, where its pages are not to stay.
    pub read_once: Option<ReadOnce>,
    /// What is too large.
    pub largest: Largest,
}

impl BlockBuilder {
    pub fn new(target: u32) -> BlockBuilder {
        BlockBuilder {
            blocks: Vec::new(),
            open: None,
            target,
            facts: DataFacts::default(),
            read_once: None,
            largest: Largest::default(),
        }
    }

    /// From here on blocks are of at least so many bytes.
    pub fn aim_at_least(&mut self, target: u32) {
        self.close();
        self.target = self.target.max(target);
    }

    /// One more row: it begins at `place` and is stored in `raw` bytes; `gap` bytes lie between the row before
    /// and this one.
    pub fn row(&mut self, place: u64, gap: u32, raw: u32, source_bytes: u64, target_bytes: u64) {
        let text = (source_bytes + target_bytes) as u32;
        if let Some(file) = &mut self.read_once {
            file.passed(u64::from(gap) + u64::from(raw));
        }
        self.facts.rows += 1;
        self.facts.longest_source = self.facts.longest_source.max(source_bytes);
        self.facts.longest_target = self.facts.longest_target.max(target_bytes);
        let grown = self.open.map_or(0, |b| b.raw_bytes.saturating_add(gap).saturating_add(raw));
        if self.open.is_some_and(|b| b.rows >= MAX_BLOCK_ROWS) || grown > self.target {
            self.close();
        }
        match &mut self.open {
            Some(block) => {
                block.raw_bytes += gap + raw;
                block.text_bytes += text;
                block.rows += 1;
            }
            None => self.open = Some(Block { place, raw_bytes: raw, text_bytes: text, rows: 1, file: 0 }),
        }
    }

    /// A row at `place` of `path` is too large: it is left out, or the file refused.
    pub fn oversized_row(&mut self, path: &Path, place: String) -> Result<(), DataError> {
        if !self.largest.skip {
            return Err(DataError::RowTooLong { path: path.into(), place, limit: self.largest.row });
        }
        self.left_out(1);
        Ok(())
    }

    /// The next rows are in no block.
    pub fn left_out(&mut self, rows: u64) {
        self.facts.oversized += rows;
        self.close();
    }

    /// Ends the open block where it is half full at least: here is a good place.
    pub fn close_half_full(&mut self) {
        if self.open.is_some_and(|block| block.raw_bytes >= self.target / 2) {
            self.close();
        }
    }

    /// Ends the open block, as at the end of a file or of a row group.
    pub fn close(&mut self) {
        if let Some(block) = self.open.take() {
            self.facts.largest_block = self.facts.largest_block.max(u64::from(block.raw_bytes));
            self.blocks.push(block);
        }
    }

    /// The index and the facts.
    pub fn finish(mut self) -> (Vec<Block>, DataFacts) {
        self.close();
        self.facts.blocks = self.blocks.len() as u64;
        (self.blocks, self.facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_entry_is_24_bytes() {
        assert_eq!(size_of::<Block>(), 24);
    }

    #[test]
    fn blocks_end_at_the_target_and_the_row_limit() {
        let mut b = BlockBuilder::new(100);
        for i in 0..5 {
            b.row(i * 40, 0, 40, 10, 10);
        }
        b.row(200, 0, 500, 200, 200);
        b.row(700, 0, 10, 1, 1);
        let (blocks, facts) = b.finish();
        let rows: Vec<u32> = blocks.iter().map(|b| b.rows).collect();
        assert_eq!(rows, [2, 2, 1, 1, 1]);
        assert_eq!((facts.rows, facts.largest_block, facts.longest_source), (7, 500, 200));

        let mut b = BlockBuilder::new(u32::MAX);
        for i in 0..u64::from(MAX_BLOCK_ROWS) + 1 {
            b.row(i, 0, 1, 0, 0);
        }
        assert_eq!(b.finish().0.len(), 2);
    }
}
