//! Where the pages of a Parquet column lie: so that a block is entered at its page, not at the beginning of its row group, which may be a
//! gigabyte before, and a dictionary is unpacked only for pages that refer to it.
//!
//! Invariant: one entry of 16 bytes for [`APART`] bytes of the file at most, whatever the size of pages. Only for columns that have
//! one value a row: in a list, a page need not begin with a row. It knows no values.

use std::sync::Arc;

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use crate::pages::PlacedFile;

/// Bytes between two entries, at least.
const APART: u64 = 64 << 10;

/// A page, and what is known of those up to the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageAt {
    /// Where its header begins.
    pub offset: u64,
    /// The number of its first row in the row group.
    pub first_row: u32,
    /// Some of them, or of those behind, refer to the dictionary.
    pub dictionary: bool,
}

/// Entries of one column chunk, in order.
#[derive(Debug, Default)]
pub(crate) struct PageTable(Vec<PageAt>);

impl PageTable {
    /// One more page.
    pub fn note(&mut self, offset: u64, first_row: u64, dictionary: bool) {
        match self.0.last_mut() {
            Some(last) if offset < last.offset.saturating_add(APART) => last.dictionary |= dictionary,
            // Rows beyond are reached from the last entry before.
            _ => match u32::try_from(first_row) {
                Ok(first_row) => self.0.push(PageAt { offset, first_row, dictionary }),
                Err(_) => self.0.last_mut().into_iter().for_each(|last| last.dictionary |= dictionary),
            },
        }
    }

    /// The last entry at or before `row` of the row group.
    pub fn find(&self, row: u64) -> Option<PageAt> {
        let behind = self.0.partition_point(|page| u64::from(page.first_row) <= row);
        behind.checked_sub(1).map(|at| self.0[at])
    }

    /// The same, whole: in no more room than it needs, and each entry knows of the pages behind it too.
    pub fn fitted(mut self) -> PageTable {
        // A block that begins here may go on to pages of later entries.
        let mut later = false;
        for page in self.0.iter_mut().rev() {
            later |= page.dictionary;
            page.dictionary = later;
        }
        self.0.shrink_to_fit();
        self
    }

    /// Its entries.
    pub fn entries(&self) -> &[PageAt] {
        &self.0
    }

    /// A table of entries as [`PageTable::entries`] gave them.
    pub fn of(entries: Vec<PageAt>) -> PageTable {
        PageTable(entries)
    }

    /// Heap, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<PageAt>()) as u64
    }
}

/// The pages of `chunk`, from the one at `from` on, its dictionary first where it is needed; all of them where nothing is known.
pub(crate) fn pages_from(
    file: &Arc<PlacedFile>,
    chunk: &ColumnChunkMetaData,
    rows: usize,
    from: Option<PageAt>,
) -> Result<PagesFrom> {
    let whole = |chunk: &ColumnChunkMetaData| SerializedPageReader::new(file.clone(), chunk, rows, None);
    let Some(from) = from else { return Ok(PagesFrom { dictionary: None, rest: whole(chunk)? }) };
    let (start, length) = chunk.byte_range();
    let left = start.saturating_add(length).checked_sub(from.offset);
    let left = left.and_then(|left| i64::try_from(left).ok()).zip(i64::try_from(from.offset).ok());
    let (left, offset) = left.ok_or_else(|| ParquetError::EOF("a page behind the end of its column".into()))?;
    let tail = chunk.clone().into_builder().set_dictionary_page_offset(None).set_data_page_offset(offset);
    let tail = tail.set_total_compressed_size(left).build()?;
    let dictionary = if from.dictionary { Some(whole(chunk)?) } else { None };
    Ok(PagesFrom { dictionary, rest: whole(&tail)? })
}

/// The first page of one reader, then all of another.
pub(crate) struct PagesFrom {
    dictionary: Option<SerializedPageReader<PlacedFile>>,
    rest: SerializedPageReader<PlacedFile>,
}

impl PageReader for PagesFrom {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.dictionary.take() {
            Some(mut first) => first.get_next_page(),
            None => self.rest.get_next_page(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        match &mut self.dictionary {
            Some(first) => first.peek_next_page(),
            None => self.rest.peek_next_page(),
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        match self.dictionary.take() {
            Some(mut first) => first.skip_next_page(),
            None => self.rest.skip_next_page(),
        }
    }
}

impl Iterator for PagesFrom {
    type Item = Result<Page>;
    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_far_apart_and_know_what_lies_between() {
        let mut table = PageTable::default();
        assert_eq!(table.find(0), None);
        for page in 0..100u64 {
            table.note(4 + page * 10_000, page * 7, page == 9);
        }
        assert_eq!(table.0.len(), 15, "each seventh page");
        assert_eq!(table.find(48), Some(PageAt { offset: 4, first_row: 0, dictionary: false }));
        assert_eq!(table.find(49), Some(PageAt { offset: 70_004, first_row: 49, dictionary: true }));
        assert_eq!(table.find(u64::MAX).unwrap().first_row, 98 * 7);
        table.note(u64::MAX, 1 << 40, true);
        assert_eq!((table.0.len(), table.find(1 << 41).unwrap().dictionary), (15, true));
        assert_eq!(size_of::<PageAt>(), 16);
        assert_eq!(table.fitted().heap_bytes(), 15 * 16);
    }
}
