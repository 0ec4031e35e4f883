//! Texts held at a time: the rows of one shuffle window, and the stream that moves from window to window.
//!
//! Invariant: one window is in memory, in buffers that were made for the largest one; a stream at a cursor is the same
//! however it got there. It knows nothing of tokens and batches.

use std::sync::Arc;

use crate::prepared::{Side, TokenRows};
use crate::sources::{ReadScratch, WindowRoom};
use crate::visits::{Visit, Visits};
use crate::{Cursor, DataError, Order, Sources};

/// Pairs of texts, end to end in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    text: String,
    /// Of each row: where its source begins, where its target begins, where it ends.
    rows: Vec<[u32; 3]>,
    /// Of prepared data, tokens instead.
    tokens: TokenRows,
}

/// Bytes of `Texts` a row beside its text.
pub(crate) const ROW_ENTRY_BYTES: u64 = size_of::<[u32; 3]>() as u64;

impl Texts {
    pub fn with_room(text_bytes: usize, rows: usize) -> Texts {
        Texts { text: String::with_capacity(text_bytes), rows: Vec::with_capacity(rows), tokens: TokenRows::default() }
    }

    /// With room for texts or tokens.
    fn for_sources(sources: &Sources, room: WindowRoom) -> Texts {
        let (bytes, rows) = (room.text_bytes as usize, room.rows as usize);
        match sources.prepared() {
            None => Texts::with_room(bytes, rows),
            Some(prepared) => Texts { tokens: TokenRows::with_room(prepared.form(), bytes, rows), ..Texts::default() },
        }
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.rows.clear();
        self.tokens.clear();
    }

    pub fn len(&self) -> usize {
        self.rows.len() + self.tokens.len()
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
    /// Which window has what; the rows of this one, and their order.
    all: Visits,
    visits: Vec<Visit>,
    rows: Vec<u32>,
    epoch: u64,
    window: usize,
    /// Rows that the window has, and the next of them, as an index into `rows`.
    rows_here: u64,
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
            texts: Texts::for_sources(&sources, room),
            all: Visits::new(sources.laid(), order),
            visits: Vec::with_capacity(room.visits as usize),
            rows: Vec::with_capacity(room.rows as usize),
            epoch: cursor.epoch,
            window: 0,
            rows_here: 0,
            next: 0,
            loaded: false,
            sources,
        };
        stream.epoch += cursor.position / stream.sources.rows();
        stream.enter();
        stream.skip(cursor.position % stream.sources.rows());
        stream
    }

    /// Passes over samples. Reads nothing.
    pub fn skip(&mut self, mut samples: u64) {
        loop {
            let left = self.rows_here - self.next as u64;
            if samples <= left {
                self.next += samples as usize;
                return;
            }
            samples -= left;
            self.advance();
        }
    }

    /// Goes on to the next sample.
    pub fn step(&mut self) -> Result<(), DataError> {
        // A window of a small mixture may have no row.
        while self.next as u64 == self.rows_here {
            self.advance();
        }
        if !self.loaded {
            self.load()?;
        }
        self.next += 1;
        Ok(())
    }

    /// The texts of the sample that it is at.
    pub fn current(&self) -> (&str, &str) {
        self.texts.pair(self.rows[self.next - 1] as usize)
    }

    /// The tokens of the sample that it is at, of prepared data.
    pub fn tokens(&self) -> [Side<'_>; 2] {
        self.texts.tokens.row(self.rows[self.next - 1] as usize)
    }

    /// Where the sample that it is at lies.
    pub fn place(&self) -> RowPlace {
        let mut row = self.rows[self.next - 1];
        for block in distinct(&self.visits) {
            let rows = self.sources.blocks()[block as usize].rows;
            if row < rows {
                return RowPlace { block, row };
            }
            row -= rows;
        }
        RowPlace::default()
    }

    /// Finds the rows of the window that it is at.
    fn enter(&mut self) {
        self.all.window(self.sources.laid(), self.epoch, self.window, &mut self.visits);
        self.rows_here = self.visits.iter().map(|visit| u64::from(visit.rows)).sum();
        self.next = 0;
        self.loaded = false;
    }

    fn advance(&mut self) {
        self.window += 1;
        if self.window == self.all.windows(self.sources.laid(), self.epoch) {
            self.window = 0;
            self.epoch += 1;
        }
        self.enter();
    }

    fn load(&mut self) -> Result<(), DataError> {
        self.texts.clear();
        self.rows.clear();
        let (mut held, mut begins) = (None, 0);
        for &Visit { block, first, rows } in &self.visits {
            if held != Some(block) {
                begins = self.texts.len() as u32;
                let number = block as usize;
                match self.sources.prepared() {
                    None => self.sources.read_block(number, &mut self.scratch, &mut self.texts)?,
                    Some(prepared) => {
                        prepared.read_block(number, self.sources.blocks()[number], &mut self.texts.tokens)?;
                    }
                }
                held = Some(block);
            }
            self.rows.extend(begins + first..begins + first + rows);
        }
        self.order.rows(self.epoch, self.window as u64, &mut self.rows);
        self.loaded = true;
        Ok(())
    }
}

/// The blocks of visits, each once; visits of one block follow each other.
fn distinct(visits: &[Visit]) -> impl Iterator<Item = u32> {
    visits.chunk_by(|a, b| a.block == b.block).map(|of_block| of_block[0].block)
}
