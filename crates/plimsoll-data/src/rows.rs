//! Files of rows of text, one behind the other: one validating pass that builds the block index, and blocks read by position.
//!
//! Invariant: no more than one row is held while scanning, no more than one block while reading, and every row is checked
//! before the first batch. Blank lines are skipped, a byte order mark and CR LF are understood, the last line may lack its
//! newline. How rows and cells are written is a [`Form`]. It knows nothing of order and tokens.

use std::io::{self, BufRead, Read};
use std::path::Path;

use crate::form::{Cutter, Fault, Form};
use crate::input::Origin;
use crate::layout::{Block, BlockBuilder};
use crate::packed::{FrameReader, FrameScratch, Frames, InOrder, Packing, READ_HEAP, Unpacking};
use crate::row_text::RowText;
use crate::window::Texts;
use crate::{ChosenColumns, Columns, DataError, Kind, Style};

const BOM: &[u8] = b"\xef\xbb\xbf";
const READ_BYTES: usize = 256 << 10;

/// What is kept of a file between reads.
#[derive(Debug)]
pub(crate) struct RowFile {
    form: Form,
    bytes: u64,
    /// Its columns, where the file itself names them once.
    header: Box<[String]>,
    /// What is read instead of a packed file.
    frames: Option<Frames>,
    /// Of a packed file that is read in its own order only.
    in_order: Option<Packing>,
}

impl RowFile {
    /// It is read in its own order only.
    pub fn is_in_order(&self) -> bool {
        self.in_order.is_some()
    }

    /// Its columns, where the file itself names them once.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Bytes of it, unpacked; nothing where only reading all of it would tell.
    pub fn unpacked(&self) -> Option<u64> {
        match (&self.frames, self.in_order) {
            (Some(frames), _) => Some(frames.unpacked()),
            (None, Some(_)) => None,
            (None, None) => Some(self.bytes),
        }
    }

    /// Heap of what is kept, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let names: usize = self.header.iter().map(String::capacity).sum();
        (size_of_val(&*self.header) + names) as u64 + self.frames.as_ref().map_or(0, Frames::heap_bytes)
    }

    /// What is read instead of the file, where it is packed.
    pub fn frames_path(&self) -> Option<&Path> {
        self.frames.as_ref().and_then(Frames::path)
    }

    /// Bytes on the disk beside the file itself.
    pub fn disk_bytes(&self) -> u64 {
        self.frames.as_ref().map_or(0, Frames::disk_bytes)
    }

    /// The bytes of the file, unpacked, from the first on.
    fn reader(&self, origin: &Origin) -> Result<Box<dyn BufRead + '_>, DataError> {
        Ok(match (&self.frames, self.in_order) {
            (Some(frames), _) => Box::new(FrameReader::new(frames)?),
            (None, Some(packing)) => InOrder::reader(origin, packing)?,
            (None, None) => Box::new(origin.reader(READ_BYTES)?),
        })
    }
}

/// What is to be read of a file, and how.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    pub origin: &'a Origin,
    pub form: Form,
    /// How it is packed, and the folder for its frames.
    pub packed: Option<(Packing, Option<&'a Path>)>,
    /// A packed file that cannot be entered where it lies is read in its own order.
    pub in_order: bool,
    pub kind: Kind,
    pub wanted: &'a Columns,
}

/// Reads all of a file, checks each row and adds it to `builder`. `chosen` is decided by the first row where it is still open.
pub(crate) fn scan(
    of: Scan<'_>,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<RowFile, DataError> {
    let mut kept = found(of)?;
    if let Some((packing, folder)) = of.packed {
        let needs = &mut builder.facts.unpacking_bytes;
        *needs = (*needs).max(kept.in_order.map_or(0, InOrder::heap_bytes));
        *needs = (*needs).max(kept.frames.as_ref().map_or(READ_HEAP, Frames::read_heap));
        if let (None, None, Some(folder)) = (&kept.frames, kept.in_order, folder) {
            let mut unpacking = Unpacking::start(of.origin, packing, folder)?;
            kept.header = scan_rows(of, &mut unpacking, chosen, builder)?;
            kept.frames = Some(unpacking.finish()?);
            return Ok(kept);
        }
    }
    let header = scan_rows(of, &mut *kept.reader(of.origin)?, chosen, builder)?;
    Ok(RowFile { header, ..kept })
}

/// A file as it can be read; its frames only where they are there, its header not yet.
fn found(of: Scan<'_>) -> Result<RowFile, DataError> {
    let bytes = of.origin.open()?.len()?;
    let mut kept = RowFile { form: of.form, bytes, header: Box::default(), frames: None, in_order: None };
    let Some((packing, folder)) = of.packed else { return Ok(kept) };
    kept.frames = if packing == Packing::Zstd { Frames::own(of.origin)? } else { None };
    if kept.frames.is_none() && of.in_order {
        kept.in_order = Some(packing);
    } else if kept.frames.is_none() {
        let folder = folder.ok_or_else(|| DataError::NoFolder { path: of.origin.path().into() })?;
        kept.frames = Frames::find(of.origin, folder);
    }
    Ok(kept)
}

/// A file whose rows were all seen before, with its header. Nothing where it would have to be unpacked again.
pub(crate) fn reopen(of: Scan<'_>, header: Vec<String>) -> Result<Option<RowFile>, DataError> {
    let kept = RowFile { header: header.into(), ..found(of)? };
    let can = of.packed.is_none() || kept.frames.is_some() || kept.in_order.is_some();
    Ok(can.then_some(kept))
}

/// The rows of a stream; gives the header.
fn scan_rows(
    of: Scan<'_>,
    reader: &mut dyn BufRead,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<Box<[String]>, DataError> {
    let Scan { origin, form, kind, wanted, .. } = of;
    let path = origin.path();
    let mut cutter = Cutter::new(form, &[]).with_most(builder.largest.row);
    let (mut raw, mut text) = (Vec::new(), RowText::default());
    let at = |line: u64| At { path, line, packed: of.packed.is_some() };
    let header = cutter.read_header(reader, &mut raw).map_err(|e| at(1).unreadable(e))?;
    let (mut offset, mut line, mut block_end) = (raw.len() as u64, 1 + newlines(&raw), 0u64);
    header.map_err(|fault| at(1).error(fault, &ChosenColumns::default()))?;
    loop {
        let here = at(line);
        let read = cutter.next(reader, &mut raw).map_err(|e| here.unreadable(e))?;
        if read == 0 {
            break;
        }
        if read > builder.largest.row {
            builder.oversized_row(path, at(line + newlines_before(&raw)).place())?;
            let (bytes, lines) = cutter.pass_over(reader, &raw).map_err(|e| here.unreadable(e))?;
            offset += read as u64 + bytes;
            line += newlines(&raw) + lines;
            continue;
        }
        // A record of CSV is read with the line ends before it.
        let here = at(line + newlines_before(&raw));
        let skipped = if offset == 0 && raw.starts_with(BOM) { BOM.len() } else { 0 };
        let (body, start) = (&raw[skipped..], offset + skipped as u64);
        offset += read as u64;
        line += newlines(&raw);
        if cutter.is_blank(body) {
            continue;
        }
        if chosen.is_none() {
            let present = cutter.columns(body);
            *chosen = present.map(|present| wanted.choose(kind, path, &here.place(), &present)).transpose()?;
        }
        // A first line of JSON that is no object shows no columns; cutting it says what is wrong with it.
        let open = ChosenColumns::default();
        let columns = chosen.as_ref().unwrap_or(&open);
        let cut = cutter.cells(body, &columns.wants(), &mut text.cells);
        let is_last = reader.fill_buf().map_err(|e| here.unreadable(e))?.is_empty();
        let cut = if is_last && cutter.ends_inside_quotes(&raw) { Err(Fault::OpenQuote) } else { cut };
        cut.map_err(|fault| here.error(fault, columns))?;
        text.make(columns).map_err(|fault| fault.at(path.into(), here.place(), columns.source.clone()))?;
        let (source, target) = text.texts(columns);
        builder.facts.longest_line = builder.facts.longest_line.max(read as u64);
        let gap = if start >= block_end { (start - block_end).min(u64::from(u32::MAX)) as u32 } else { 0 };
        builder.row(start, gap, body.len() as u32, source.len() as u64, target.len() as u64);
        block_end = offset;
    }
    builder.close();
    let header: Box<[String]> = cutter.into_header().into();
    builder.facts.most_cells = builder.facts.most_cells.max(header.len() as u64);
    Ok(header)
}

fn newlines(raw: &[u8]) -> u64 {
    raw.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Those before the first byte of something else.
fn newlines_before(raw: &[u8]) -> u64 {
    let text = raw.iter().position(|byte| !matches!(byte, b'\n' | b'\r')).unwrap_or(raw.len());
    newlines(&raw[..text])
}

/// Where a row begins.
#[derive(Clone, Copy)]
struct At<'a> {
    path: &'a Path,
    line: u64,
    packed: bool,
}

impl At<'_> {
    fn place(&self) -> String {
        format!("line {}", self.line)
    }

    /// The file cannot be read on: as the system says, or because what it is packed in is broken.
    fn unreadable(&self, error: io::Error) -> DataError {
        match DataError::from(error) {
            DataError::Io(error) if self.packed && error.kind() != io::ErrorKind::StorageFull => {
                DataError::BadPacking { path: self.path.into(), place: self.place(), reason: error.to_string() }
            }
            other => other,
        }
    }

    fn error(&self, fault: Fault, columns: &ChosenColumns) -> DataError {
        let (path, line, place) = (self.path.to_path_buf(), self.line, self.place());
        let wants = columns.wants();
        let name = |i: usize| wants[i].name.to_string();
        match fault {
            Fault::NotJson(reason) => DataError::NotJson { path, line, reason },
            Fault::NotAnObject(found) => DataError::NotAnObject { path, line, found },
            Fault::Twice(i) => DataError::DuplicateColumn { path, line, column: name(i) },
            Fault::Other(i, found) if columns.style == Style::Messages => {
                DataError::NotMessages { path, place, column: name(i), found: found.into() }
            }
            Fault::Other(i, found) => DataError::NotAString { path, place, column: name(i), found: found.into() },
            Fault::BadMessage(i, fault) => fault.at(path, place, name(i)),
            Fault::Missing(i, present) => {
                DataError::MissingColumn { path, place, column: name(i), present: present.join(", ") }
            }
            Fault::Cells { expected, found } => DataError::Cells { path, line, expected, found },
            Fault::NotUtf8(i) => DataError::NotUtf8 { path, line, column: i.map(name) },
            Fault::OpenQuote => DataError::OpenQuote { path, line },
        }
    }
}

/// Buffers for reading blocks, kept between reads.
#[derive(Default)]
pub(crate) struct RowScratch {
    block: Vec<u8>,
    raw: Vec<u8>,
    text: RowText,
    frames: Option<FrameScratch>,
    in_order: Option<InOrder>,
}

impl RowScratch {
    /// With room for the largest block, the longest row and the longest texts.
    pub fn with_room(block: usize, row: usize, source: usize, target: usize) -> RowScratch {
        RowScratch {
            block: Vec::with_capacity(block),
            raw: Vec::with_capacity(row),
            text: RowText::with_room(source, target),
            frames: None,
            in_order: None,
        }
    }
}

/// Appends the rows of `block` to `texts`.
pub(crate) fn read(
    origin: &Origin,
    kept: &RowFile,
    columns: &ChosenColumns,
    block: Block,
    scratch: &mut RowScratch,
    texts: &mut Texts,
) -> Result<(), DataError> {
    let changed = |expected: String, found: String| DataError::Changed {
        path: origin.path().into(),
        place: format!("byte {}", block.place),
        expected,
        found,
    };
    let broken = |error| match DataError::from(error) {
        DataError::Io(error) => {
            let place = format!("byte {} of what is packed", block.place);
            DataError::BadPacking { path: origin.path().into(), place, reason: error.to_string() }
        }
        other => other,
    };
    let file = origin.open()?;
    let now = file.len()?;
    if now != kept.bytes {
        return Err(changed(format!("a file of {} bytes", kept.bytes), format!("{now} bytes")));
    }
    let RowScratch { block: bytes, raw, text, frames: unpacking, in_order } = scratch;
    bytes.resize(block.raw_bytes as usize, 0);
    match (&kept.frames, kept.in_order) {
        (None, None) => file.read_exact_at(bytes, block.place)?,
        (None, Some(packing)) => {
            InOrder::read_exact_at(in_order, origin, packing, block.place, bytes).map_err(broken)?
        }
        (Some(frames), _) => {
            if unpacking.is_none() {
                *unpacking = Some(FrameScratch::new()?);
            }
            let unpacking = unpacking.as_mut().expect("it was just made");
            frames.read_exact_at(unpacking, block.place, bytes).map_err(broken)?;
        }
    }
    let wants = columns.wants();
    let mut cutter = Cutter::new(kept.form, &kept.header);
    let (mut from, mut rows) = (&bytes[..], 0);
    while cutter.next(&mut from, raw)? > 0 {
        if cutter.is_blank(raw) {
            continue;
        }
        if let Err(fault) = cutter.cells(raw, &wants, &mut text.cells) {
            let expected = if matches!(fault, Fault::NotJson(_)) { "a JSON object" } else { "a row as it was" };
            return Err(changed(expected.into(), format!("{fault:?}")));
        }
        text.make(columns).map_err(|fault| changed("a conversation".into(), fault.found))?;
        let (source, target) = text.texts(columns);
        texts.push(source, target);
        rows += 1;
    }
    if rows != block.rows {
        return Err(changed(format!("{} rows", block.rows), format!("{rows} rows")));
    }
    Ok(())
}

/// The number, from 1, of the line at which row `row` of `block` begins. Reads the file up to there, in small pieces; for
/// messages only.
pub(crate) fn line_of(origin: &Origin, kept: &RowFile, block: Block, row: u32) -> Result<u64, DataError> {
    let mut reader = kept.reader(origin)?;
    let mut line = 1;
    let mut before = reader.by_ref().take(block.place);
    loop {
        let there = before.fill_buf()?;
        if there.is_empty() {
            break;
        }
        line += newlines(there);
        let used = there.len();
        before.consume(used);
    }
    let (mut cutter, mut raw, mut seen) = (Cutter::new(kept.form, &kept.header), Vec::new(), 0);
    while cutter.next(&mut reader, &mut raw)? > 0 {
        if !cutter.is_blank(&raw) {
            if seen == row {
                return Ok(line + newlines_before(&raw));
            }
            seen += 1;
        }
        line += newlines(&raw);
    }
    Ok(line)
}
