//! Parquet's bytes by position: a reader that shares no file offset between threads, and a page counter.
//!
//! Invariant: at most one page is read at a time, and no read goes past the end of the file. It knows nothing of rows.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::input::{Input, Origin};
use crate::layout::ColumnPages;
use crate::page_table::PageTable;
use crate::pairs::lock;

/// Largest page that is unpacked whatever the footer says of its column, in bytes.
const ANY_PAGE: u64 = 16 << 20;

/// A file read by position.
pub(crate) struct PlacedFile {
    file: Arc<Input>,
    bytes: u64,
    largest_read: AtomicU64,
    /// Largest page that is unpacked.
    largest_page: AtomicU64,
    /// Where the header that was read last begins.
    last_header: Arc<AtomicU64>,
    /// What it says its page unpacks to.
    last_unpacked: Arc<AtomicU64>,
}

impl PlacedFile {
    pub fn open(origin: &Origin) -> io::Result<PlacedFile> {
        let file = origin.open()?;
        let bytes = file.len()?;
        Ok(PlacedFile::new(Arc::new(file), bytes))
    }

    /// The same open file with its own count of reads.
    pub fn twin(&self) -> PlacedFile {
        PlacedFile::new(self.file.clone(), self.bytes)
    }

    fn new(file: Arc<Input>, bytes: u64) -> PlacedFile {
        PlacedFile {
            file,
            bytes,
            largest_read: AtomicU64::new(0),
            largest_page: AtomicU64::new(u64::MAX),
            last_header: Arc::default(),
            last_unpacked: Arc::default(),
        }
    }

    /// From here on pages are those of a column chunk that unpacks to so many bytes. The library takes room for as much as a page's header
    /// says, which may be anything where it is damaged.
    pub fn expect_pages_of(&self, chunk_bytes: i64) {
        let most = u64::try_from(chunk_bytes).unwrap_or(0).max(ANY_PAGE);
        self.largest_page.store(most, Ordering::Relaxed);
    }

    /// Where the header that was read last begins.
    fn last_header(&self) -> u64 {
        self.last_header.load(Ordering::Relaxed)
    }

    /// What the page of the header that was read last unpacks to; nothing where that cannot be told.
    pub fn last_unpacked(&self) -> u64 {
        self.last_unpacked.load(Ordering::Relaxed)
    }

    /// The longest single read so far.
    pub fn largest_read(&self) -> u64 {
        self.largest_read.load(Ordering::Relaxed)
    }
}

impl Length for PlacedFile {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for PlacedFile {
    type T = HeaderReader;

    fn get_read(&self, start: u64) -> Result<HeaderReader> {
        let largest_page = self.largest_page.load(Ordering::Relaxed);
        Ok(HeaderReader {
            file: self.file.clone(),
            start,
            at: start,
            buffer: [0; 512],
            from: 0,
            to: 0,
            largest_page,
            last_header: self.last_header.clone(),
            last_unpacked: self.last_unpacked.clone(),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            let found = self.bytes.saturating_sub(start);
            return Err(ParquetError::EOF(format!("expected {length} bytes at {start}, found {found}")));
        }
        self.largest_read.fetch_max(length as u64, Ordering::Relaxed);
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}

/// Sequential reads from one place on, for page headers, which are short.
pub(crate) struct HeaderReader {
    file: Arc<Input>,
    start: u64,
    at: u64,
    buffer: [u8; 512],
    from: usize,
    to: usize,
    largest_page: u64,
    last_header: Arc<AtomicU64>,
    last_unpacked: Arc<AtomicU64>,
}

/// What the header of a page that begins so says it unpacks to: the second field of a struct in Thrift's compact form.
fn unpacked_bytes(header: &[u8]) -> Option<u64> {
    let mut bytes = header.iter().copied();
    let mut field = 0;
    loop {
        let head = bytes.next()?;
        field = if head >> 4 == 0 { zigzag(&mut bytes)? } else { field + i64::from(head >> 4) };
        // Only numbers come before it.
        let value = if (4..=6).contains(&(head & 15)) { zigzag(&mut bytes)? } else { return None };
        if field >= 2 {
            return if field == 2 { u64::try_from(value).ok() } else { None };
        }
    }
}

/// A number of few bytes where it is small.
fn zigzag(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
        if shift > 63 {
            return None;
        }
    }
}

impl HeaderReader {
    /// Whether the page whose header was begun may be unpacked.
    fn check_page(&self) -> io::Result<()> {
        let unpacked = unpacked_bytes(&self.buffer[..self.to]);
        self.last_unpacked.store(unpacked.unwrap_or(0), Ordering::Relaxed);
        match unpacked {
            Some(bytes) if bytes > self.largest_page => {
                let most = self.largest_page;
                let reason = format!("expected a page of at most {most} bytes when unpacked, found one of {bytes}");
                Err(io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            _ => Ok(()),
        }
    }
}

impl Read for HeaderReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.from == self.to {
            if out.len() >= self.buffer.len() {
                let read = self.file.read_at(out, self.at)?;
                self.at += read as u64;
                return Ok(read);
            }
            self.to = self.file.read_at(&mut self.buffer, self.at)?;
            if self.at == self.start {
                self.last_header.store(self.start, Ordering::Relaxed);
                self.check_page()?;
            }
            self.at += self.to as u64;
            self.from = 0;
        }
        let taken = out.len().min(self.to - self.from);
        out[..taken].copy_from_slice(&self.buffer[self.from..self.from + taken]);
        self.from += taken;
        Ok(taken)
    }
}

/// The largest pages that went by.
#[derive(Default)]
pub(crate) struct PageFacts {
    page: AtomicU64,
    dictionary: AtomicU64,
    dictionary_values: AtomicU64,
    page_values: AtomicU64,
    pages: AtomicU64,
    /// Where pages of the column chunk at work lie, where that is asked for.
    table: Mutex<PageTable>,
}

impl PageFacts {
    /// Pages of values that went by.
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Where the pages lie that went by since this was asked last.
    pub fn take_table(&self) -> PageTable {
        std::mem::take(&mut *lock(&self.table)).fitted()
    }

    /// Joins what was seen into `pages`.
    pub fn merge_into(&self, pages: &mut ColumnPages) {
        let grow = |into: &mut u64, from: &AtomicU64| *into = (*into).max(from.load(Ordering::Relaxed));
        grow(&mut pages.largest_page, &self.page);
        grow(&mut pages.largest_dictionary, &self.dictionary);
        grow(&mut pages.most_dictionary_values, &self.dictionary_values);
        grow(&mut pages.most_page_values, &self.page_values);
    }
}

/// Pages of one column chunk, counted as they pass.
pub(crate) struct CountedPages<P> {
    inner: P,
    facts: Arc<PageFacts>,
    dictionary_seen: bool,
    /// Rows that went by, and the file that knows where its pages are, where a table is wanted.
    noted: Option<(u64, Arc<PlacedFile>)>,
}

impl<P> CountedPages<P> {
    pub fn new(inner: P, facts: Arc<PageFacts>) -> CountedPages<P> {
        CountedPages { inner, facts, dictionary_seen: false, noted: None }
    }

    /// The same, of a column with a value for each row, whose pages' places are noted.
    pub fn noting(self, file: Arc<PlacedFile>) -> CountedPages<P> {
        CountedPages { noted: Some((0, file)), ..self }
    }
}

impl<P: PageReader> PageReader for CountedPages<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            let bytes = page.buffer().len() as u64;
            let values = u64::from(page.num_values());
            let indexed = matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
            let (most_bytes, most_values) = match page {
                // The library takes room for as many as the page says; each is a length of four bytes at least.
                Page::DictionaryPage { .. } if values > bytes / 4 => {
                    let reason =
                        format!("expected a dictionary of at most {} values, found one of {values}", bytes / 4);
                    return Err(ParquetError::General(reason));
                }
                Page::DictionaryPage { .. } => {
                    self.dictionary_seen = true;
                    (&self.facts.dictionary, &self.facts.dictionary_values)
                }
                // The library panics here.
                _ if indexed && !self.dictionary_seen => {
                    return Err(ParquetError::General("a page refers to a dictionary that is not there".into()));
                }
                _ => {
                    self.facts.pages.fetch_add(1, Ordering::Relaxed);
                    if let Some((rows, file)) = &mut self.noted {
                        lock(&self.facts.table).note(file.last_header(), *rows, indexed);
                        *rows += values;
                    }
                    (&self.facts.page, &self.facts.page_values)
                }
            };
            most_bytes.fetch_max(bytes, Ordering::Relaxed);
            most_values.fetch_max(values, Ordering::Relaxed);
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some((rows, _)) = &mut self.noted
            && let Some(page) = self.inner.peek_next_page()?
            && !page.is_dict
        {
            *rows += page.num_rows.or(page.num_levels).unwrap_or(0) as u64;
        }
        self.inner.skip_next_page()
    }
}

impl<P: PageReader> Iterator for CountedPages<P> {
    type Item = Result<Page>;
    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_unpacks_to_is_the_second_field_of_its_header() {
        // Type 0, 300 bytes, 20 bytes; then with the field's number in full.
        assert_eq!(unpacked_bytes(&[0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x28]), Some(300));
        assert_eq!(unpacked_bytes(&[0x15, 0x00, 0x05, 0x04, 0xd8, 0x04]), Some(300));
        assert_eq!(unpacked_bytes(&[0x15, 0x00, 0x15, 0x01]), None, "a negative one is the library's to refuse");
        assert_eq!(unpacked_bytes(&[0x15, 0x00, 0x25, 0x28]), None);
        assert_eq!(unpacked_bytes(&[0x15, 0x00, 0x15, 0xff]), None);
        assert_eq!(unpacked_bytes(&[]), None);
    }
}
