//! Rows of a Parquet row group that lie in pages too large to be unpacked: found by the pages' headers alone.
//!
//! Invariant: nothing is unpacked here. Only for columns that have one value a row. It knows no values.

use std::ops::Range;
use std::sync::Arc;

use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use crate::pages::PlacedFile;

/// Rows (numbers in their row group) of one page, and what it unpacks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LargePage {
    pub rows: Range<u64>,
    pub bytes: u64,
}

/// The pages of `chunk` that unpack to more than `limit` bytes, in order. A dictionary is a page of all rows.
pub(crate) fn large_pages(
    file: &Arc<PlacedFile>,
    chunk: &ColumnChunkMetaData,
    rows: u64,
    limit: u64,
) -> Result<Vec<LargePage>> {
    if u64::try_from(chunk.uncompressed_size()).is_ok_and(|bytes| bytes <= limit) {
        return Ok(Vec::new());
    }
    let mut pages = SerializedPageReader::new(file.clone(), chunk, rows as usize, None)?;
    let (mut found, mut row) = (Vec::new(), 0u64);
    while let Some(page) = pages.peek_next_page()? {
        let bytes = file.last_unpacked();
        let values = page.num_rows.or(page.num_levels).unwrap_or(0) as u64;
        let end = row.checked_add(values).ok_or_else(|| ParquetError::EOF("more rows than there can be".into()))?;
        let of_page = if page.is_dict { 0..rows } else { row..end };
        if bytes > limit {
            found.push(LargePage { rows: of_page.clone(), bytes });
        }
        if !page.is_dict {
            row = of_page.end;
        }
        pages.skip_next_page()?;
    }
    match row == rows {
        true => Ok(found),
        false => Err(ParquetError::EOF(format!("expected {rows} rows in its pages, found {row}"))),
    }
}

/// What is in one range or another, in order, each row once.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(joined(vec![5..9, 0..2, 2..4, 7..12, 20..21]), [0..4, 5..12, 20..21]);
        assert!(joined(vec![]).is_empty());
    }
}
