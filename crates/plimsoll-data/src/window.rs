//! Texts held at a time: the rows of one shuffle window, and the stream that moves from window to window.
//!
//! Invariant: one window is in memory, in buffers that were made for the largest one; a stream at a cursor is the same
//! however it got there. It knows nothing of tokens and batches.

use std::sync::Arc;

use crate::sources::ReadScratch;
use crate::{Cursor, DataError, Order, Sources};

/// Pairs of texts, end to end in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    text: String,
    /// Of each row: where its source begins, where its target begins, where it ends.
    rows: Vec<[u32; 3]>,
}

/// Bytes of `Texts` a row beside its text.
pub(crate) const ROW_ENTRY_BYTES: u64 = size_of::<[u32; 3]>() as u64;

impl Texts {
    pub fn with_room(text_bytes: usize, rows: usize) -> Texts {
        Texts { text: String::with_capacity(text_bytes), rows: Vec::with_capacity(rows) }
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn push(&mut self, source: &str, target: &str) {
        let start = self.text.len();
        self.text.push_str(source);
        let middle = self.text.len();
        self.text.push_str(target);
        self.rows.push([start as u32, middle as u32, self.text.len() as u32]);
    }

    /// Source and target of a row.
    pub fn pair(&self, row: usize) -> (&str, &str) {
        let [start, middle, end] = self.rows[row].map(|at| at as usize);
        (&self.text[start..middle], &self.text[middle..end])
    }
}

/// A row: its block, and its number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPlace {
    pub block: u32,
    pub row: u32,
}

/// The endless stream of samples.
pub(crate) struct Stream {
    sources: Arc<Sources>,
    order: Order,
    scratch: ReadScratch,
    texts: Texts,
    /// The epoch's order of blocks, the window's order of rows.
    blocks: Vec<u32>,
    rows: Vec<u32>,
    epoch: u64,
    window: usize,
    /// The next row of the window, as an index into `rows`.
    next: usize,
    loaded: bool,
}

impl Stream {
    /// A stream whose next sample is the one at `cursor`. Reads nothing yet.
    pub fn start(sources: Arc<Sources>, order: Order, cursor: Cursor) -> Stream {
        let room = sources.window_room(order);
        let mut stream = Stream {
            order,
            scratch: ReadScratch::for_sources(&sources),
            texts: Texts::with_room(room.text_bytes as usize, room.rows as usize),
            blocks: Vec::with_capacity(sources.blocks().len()),
            rows: Vec::with_capacity(room.rows as usize),
            epoch: cursor.epoch,
            window: 0,
            next: 0,
            loaded: false,
            sources,
        };
        let mut left = cursor.position % stream.sources.rows();
        stream.epoch += cursor.position / stream.sources.rows();
        order.blocks(stream.epoch, stream.sources.blocks().len(), &mut stream.blocks);
        loop {
            let rows = stream.window_rows();
            if left < rows {
                stream.next = left as usize;
                return stream;
            }
            left -= rows;
            stream.window += 1;
        }
    }

    /// The texts of the next sample.
    pub fn next(&mut self) -> Result<(&str, &str), DataError> {
        if !self.loaded {
            self.load()?;
        } else if self.next == self.rows.len() {
            self.advance();
            self.load()?;
        }
        self.next += 1;
        Ok(self.texts.pair(self.rows[self.next - 1] as usize))
    }

    /// The texts of the sample that `next` gave last.
    pub fn current(&self) -> (&str, &str) {
        self.texts.pair(self.rows[self.next - 1] as usize)
    }

    /// Where the sample that `next` gave last lies.
    pub fn place(&self) -> RowPlace {
        let mut row = self.rows[self.next - 1];
        for &block in self.window_blocks() {
            let rows = self.sources.blocks()[block as usize].rows;
            if row < rows {
                return RowPlace { block, row };
            }
            row -= rows;
        }
        RowPlace::default()
    }

    fn window_blocks(&self) -> &[u32] {
        let n = self.order.window_blocks();
        &self.blocks[self.window * n..((self.window + 1) * n).min(self.blocks.len())]
    }

    fn window_rows(&self) -> u64 {
        self.window_blocks().iter().map(|&b| u64::from(self.sources.blocks()[b as usize].rows)).sum()
    }

    fn advance(&mut self) {
        self.window += 1;
        self.next = 0;
        if self.window * self.order.window_blocks() >= self.blocks.len() {
            self.window = 0;
            self.epoch += 1;
            self.order.blocks(self.epoch, self.sources.blocks().len(), &mut self.blocks);
        }
    }

    fn load(&mut self) -> Result<(), DataError> {
        self.loaded = false;
        self.texts.clear();
        let n = self.order.window_blocks();
        for at in self.window * n..((self.window + 1) * n).min(self.blocks.len()) {
            self.sources.read_block(self.blocks[at] as usize, &mut self.scratch, &mut self.texts)?;
        }
        self.order.rows(self.epoch, self.window as u64, self.texts.len(), &mut self.rows);
        self.loaded = true;
        Ok(())
    }
}
