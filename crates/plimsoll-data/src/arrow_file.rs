//! Arrow IPC files (`.arrow`, `.feather`) and streams (`.arrows`, and the `.arrow` of Hugging Face datasets): each cell of the wanted
//! columns read once when opened, blocks read by position.
//!
//! Invariant: of a batch only places are kept, and while it is read a chunk of each wanted buffer is held, never a batch; of a packed
//! batch the unpackers too, so that who reads in order unpacks once. It knows nothing of order and tokens.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::arrow_buffer::BufferFault;
use crate::arrow_cells::{ArrowCells, Dictionary, RowFault};
use crate::arrow_messages::{Head, Messages};
use crate::arrow_places::{Body, Places};
use crate::arrow_shape::{At, LeafShape, Shape};
use crate::error::guarded;
use crate::input::{Input, Origin};
use crate::layout::{Block, BlockBuilder, PARQUET_BLOCK};
use crate::row_text::RowText;
use crate::window::Texts;
use crate::{ChosenColumns, Columns, DataError, Kind};

/// What is kept of a file between reads.
#[derive(Debug)]
pub(crate) struct ArrowFile {
    bytes: u64,
    shape: Shape,
    batches: Box<[Batch]>,
    /// The first one is empty, for columns that have none.
    dictionaries: Box<[Arc<Dictionary>]>,
}

#[derive(Debug)]
struct Batch {
    first_row: u64,
    rows: u64,
    leaves: Box<[Places]>,
}

impl ArrowFile {
    /// Heap of what is kept, in bytes.
    fn heap_bytes(&self) -> u64 {
        let places = |batch: &Batch| {
            size_of_val(&*batch.leaves) as u64 + batch.leaves.iter().map(Places::heap_bytes).sum::<u64>()
        };
        let dictionary = |kept: &Arc<Dictionary>| kept.heap_bytes() + (size_of::<Dictionary>() + 16) as u64;
        size_of_val(&*self.batches) as u64
            + self.batches.iter().map(places).sum::<u64>()
            + size_of_val(&*self.dictionaries) as u64
            + self.dictionaries.iter().map(dictionary).sum::<u64>()
            + (self.shape.leaves.capacity() * size_of::<LeafShape>()) as u64
    }

    /// Rows of all batches.
    pub fn rows(&self) -> u64 {
        self.batches.last().map_or(0, |batch| batch.first_row + batch.rows)
    }

    fn cells(&self, file: &Arc<Input>, batch: &Batch) -> ArrowCells {
        ArrowCells::open(file, &self.shape, &batch.leaves, &self.dictionaries)
    }
}

/// The batch that was read last, as the number of its file and its own.
#[derive(Default)]
pub(crate) struct ArrowScratch {
    open: Option<(u32, usize, ArrowCells)>,
}

/// Checks all of `path` and adds its rows to `builder`.
pub(crate) fn scan(
    origin: &Origin,
    kind: Kind,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ArrowFile, DataError> {
    guarded(|| scan_file(origin, kind, wanted, chosen, builder), |reason| bad(origin.path(), "data", reason))
}

/// Appends the rows of `block` to `texts`.
pub(crate) fn read(
    origin: &Origin,
    kept: &ArrowFile,
    names: &ChosenColumns,
    block: Block,
    scratch: &mut ArrowScratch,
    texts: &mut Texts,
) -> Result<(), DataError> {
    guarded(|| read_block(origin, kept, names, block, scratch, texts), |reason| bad(origin.path(), "data", reason))
}

fn bad(path: &Path, place: &str, reason: String) -> DataError {
    DataError::BadArrow { path: path.into(), place: place.into(), reason }
}

fn scan_file(
    origin: &Origin,
    kind: Kind,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<ArrowFile, DataError> {
    let (path, mut messages) = (origin.path(), Messages::open(origin)?);
    let walked = messages.walked()?;
    let names = match chosen {
        Some(names) => names.clone(),
        None => chosen.insert(wanted.choose(kind, path, "schema", &walked.present())?).clone(),
    };
    let shape = walked.shape(path, &names)?;
    let (mut index, mut packed, mut rows) = (Index::new(shape), false, 0);
    let mut batches = Vec::new();
    let mut text = RowText::default();
    let wants = names.wants();
    while let Some(batch) = index.next_batch(&mut messages, path, rows)? {
        if !packed && batch.leaves.iter().any(Places::is_packed) {
            packed = true;
            builder.aim_at_least(PARQUET_BLOCK);
        }
        let mut cells = ArrowCells::open(&messages.file, &index.shape, &batch.leaves, &index.dictionaries);
        for in_batch in 0..batch.rows {
            let row = rows + in_batch;
            let place = || format!("row {row}");
            match cells.row(in_batch, &names, &wants, &mut text) {
                Ok(()) => {}
                Err(RowFault::Buffer(BufferFault::TooLong)) => {
                    builder.oversized_row(path, place())?;
                    continue;
                }
                Err(fault) => return Err(fault.at(path, place(), &names)),
            }
            let (source, target) = text.texts(&names);
            let bytes = source.len() + target.len();
            if bytes > builder.largest.row {
                builder.oversized_row(path, place())?;
                continue;
            }
            builder.row(row, 0, bytes as u32, source.len() as u64, target.len() as u64);
        }
        rows += batch.rows;
        builder.facts.arrow_bytes = builder.facts.arrow_bytes.max(cells.heap_bytes());
        batches.push(batch);
    }
    builder.close();
    let kept = index.into_file(messages.bytes, batches);
    builder.facts.row_group_bytes += kept.heap_bytes();
    Ok(kept)
}

/// A file whose cells were all seen before: only what its messages say is read.
pub(crate) fn reopen(origin: &Origin, names: &ChosenColumns) -> Result<ArrowFile, DataError> {
    let open = || {
        let (path, mut messages) = (origin.path(), Messages::open(origin)?);
        let mut index = Index::new(messages.walked()?.shape(path, names)?);
        let (mut batches, mut rows) = (Vec::new(), 0);
        while let Some(batch) = index.next_batch(&mut messages, path, rows)? {
            rows += batch.rows;
            batches.push(batch);
        }
        Ok(index.into_file(messages.bytes, batches))
    };
    guarded(open, |reason| bad(origin.path(), "data", reason))
}

/// What messages say, as they come.
struct Index {
    shape: Shape,
    dictionaries: Vec<Arc<Dictionary>>,
    /// Which of them each wanted id means at present.
    current: HashMap<i64, usize>,
}

impl Index {
    fn new(shape: Shape) -> Index {
        let ids = shape.leaves.iter().filter_map(|leaf| leaf.coded).map(|coded| (coded.dictionary, 0));
        Index { current: ids.collect(), dictionaries: vec![Arc::default()], shape }
    }

    fn into_file(self, bytes: u64, batches: Vec<Batch>) -> ArrowFile {
        ArrowFile { bytes, shape: self.shape, batches: batches.into(), dictionaries: self.dictionaries.into() }
    }

    /// Takes messages up to the next batch that has rows, the first of which is row `first_row`.
    fn next_batch(
        &mut self,
        messages: &mut Messages<'_>,
        path: &Path,
        first_row: u64,
    ) -> Result<Option<Batch>, DataError> {
        while let Some(head) = messages.next()? {
            let batch = self.message(&messages.file, &head).map_err(|fault| fault.at(path, head.place.clone()))?;
            if let Some(batch) = batch {
                return Ok(Some(Batch { first_row, ..batch }));
            }
        }
        Ok(None)
    }

    /// Takes a message; its places and rows, where it is a batch that has any.
    fn message(&mut self, file: &Arc<Input>, head: &Head) -> Result<Option<Batch>, BufferFault> {
        let message = head.message().map_err(BufferFault::Broken)?;
        if let Some(said) = message.header_as_dictionary_batch() {
            let leaf = self.shape.leaves.iter().find(|leaf| leaf.coded.is_some_and(|c| c.dictionary == said.id()));
            let (Some(leaf), Some(batch)) = (leaf, said.data()) else { return Ok(None) };
            let values = LeafShape { list: None, at: At::default(), coded: None, ..*leaf };
            let body = Body { file, start: head.body, bytes: head.body_bytes, batch };
            let piece = body.places(&values, body.rows()?, 0)?.held(file)?;
            self.add(said.id(), piece, said.isDelta());
            return Ok(None);
        }
        let Some(batch) = message.header_as_record_batch() else {
            let found = message.header_type().variant_name().unwrap_or("something unknown");
            return Err(BufferFault::Broken(format!("expected a record batch, found {found}")));
        };
        let body = Body { file, start: head.body, bytes: head.body_bytes, batch };
        let rows = body.rows()?;
        if rows == 0 {
            return Ok(None);
        }
        let place = |leaf: &LeafShape| {
            let dictionary = leaf.coded.and_then(|coded| self.current.get(&coded.dictionary)).copied().unwrap_or(0);
            body.places(leaf, rows, dictionary)
        };
        let leaves = self.shape.leaves.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Some(Batch { first_row: 0, rows, leaves }))
    }

    fn add(&mut self, id: i64, piece: Places, is_delta: bool) {
        let number = self.current.get(&id).copied().unwrap_or(0);
        if number == 0 || !is_delta {
            self.current.insert(id, self.dictionaries.len());
            self.dictionaries.push(Arc::default());
        }
        let number = self.current.get(&id).copied().unwrap_or(0);
        Arc::make_mut(&mut self.dictionaries[number]).push(piece);
    }
}

fn read_block(
    origin: &Origin,
    kept: &ArrowFile,
    names: &ChosenColumns,
    block: Block,
    scratch: &mut ArrowScratch,
    texts: &mut Texts,
) -> Result<(), DataError> {
    let path = origin.path();
    let changed = |row: u64, expected: String, found: String| DataError::Changed {
        path: path.into(),
        place: format!("row {row}"),
        expected,
        found,
    };
    let file = Arc::new(origin.open()?);
    let now = file.len()?;
    if now != kept.bytes {
        return Err(changed(block.place, format!("a file of {} bytes", kept.bytes), format!("{now} bytes")));
    }
    let mut text = RowText::default();
    let wants = names.wants();
    let mut left = u64::from(block.text_bytes);
    let (mut row, end) = (block.place, block.place + u64::from(block.rows));
    while row < end {
        let number = kept.batches.partition_point(|batch| batch.first_row <= row) - 1;
        let batch = &kept.batches[number];
        // Nothing is held of another batch while this one is read, and nothing after an error.
        let cells = scratch.open.take().filter(|(of, open, _)| (*of, *open) == (block.file, number));
        let mut cells = cells.map_or_else(|| kept.cells(&file, batch), |(_, _, cells)| cells);
        for in_batch in row - batch.first_row..batch.rows.min(end - batch.first_row) {
            let here = batch.first_row + in_batch;
            let place = || format!("row {here}");
            cells.row(in_batch, names, &wants, &mut text).map_err(|fault| fault.at(path, place(), names))?;
            let (source, target) = text.texts(names);
            left = left
                .checked_sub((source.len() + target.len()) as u64)
                .ok_or_else(|| changed(here, format!("a block of {} text bytes", block.text_bytes), "more".into()))?;
            texts.push(source, target);
        }
        row = batch.first_row + batch.rows;
        if batch.leaves.iter().any(Places::is_packed) {
            scratch.open = Some((block.file, number, cells));
        }
    }
    if left > 0 {
        return Err(changed(
            block.place,
            format!("a block of {} text bytes", block.text_bytes),
            format!("{left} less"),
        ));
    }
    Ok(())
}
