//! JSONL files: one validating pass that builds the block index, and blocks read by position.
//!
//! Invariant: no more than one line is held while scanning, no more than one block while reading, and every line is
//! checked before the first batch. Blank lines are skipped, a byte order mark and CR LF are understood, the last line
//! may lack its newline. It knows nothing of order and tokens.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fs_err::File;

use crate::jsonl_row::{self, Row};
use crate::layout::{Block, BlockBuilder, MAX_ROW_BYTES};
use crate::row_text::RowText;
use crate::window::Texts;
use crate::{ChosenColumns, Columns, DataError, Kind, Style};

const BOM: &[u8] = b"\xef\xbb\xbf";
const READ_BYTES: usize = 256 << 10;

/// Reads all of `path`, checks each line and adds its rows to `builder`. `chosen` is decided by the first row where it
/// is still open. Returns the length of the file.
pub(crate) fn scan(
    path: &Path,
    file: u32,
    kind: Kind,
    wanted: &Columns,
    chosen: &mut Option<ChosenColumns>,
    builder: &mut BlockBuilder,
) -> Result<u64, DataError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, File::open(path)?);
    let mut line = Vec::new();
    let mut text = RowText::default();
    let (mut offset, mut number, mut block_end) = (0u64, 0u64, 0u64);
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_ROW_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        number += 1;
        if read > MAX_ROW_BYTES {
            let place = format!("line {number}");
            return Err(DataError::RowTooLong { path: path.into(), place, limit: MAX_ROW_BYTES });
        }
        let skipped = if offset == 0 && line.starts_with(BOM) { BOM.len() } else { 0 };
        let body = &line[skipped..];
        let start = offset + skipped as u64;
        offset += read as u64;
        if is_blank(body) {
            continue;
        }
        if chosen.is_none() {
            let keys = jsonl_row::keys(body);
            *chosen = keys.map(|keys| wanted.choose(kind, path, &format!("line {number}"), &keys)).transpose()?;
        }
        // A first line that is no object has no keys; parsing it says what is wrong with it.
        let Some(columns) = chosen else {
            check(path, number, body, &ChosenColumns::default(), &mut text)?;
            continue;
        };
        check(path, number, body, columns, &mut text)?;
        let (source, target) = text.texts(columns);
        builder.facts.longest_line = builder.facts.longest_line.max(read as u64);
        let gap = if start >= block_end { (start - block_end).min(u64::from(u32::MAX)) as u32 } else { 0 };
        builder.row(file, start, gap, body.len() as u32, source.len() as u64, target.len() as u64);
        block_end = offset;
    }
    builder.close();
    Ok(offset)
}

fn check(path: &Path, line: u64, body: &[u8], columns: &ChosenColumns, text: &mut RowText) -> Result<(), DataError> {
    let path = || path.to_path_buf();
    let place = || format!("line {line}");
    let wants = columns.wants();
    let name = |i: usize| wants[i].name.to_string();
    // Without the line end, an object that is cut short is wrong in the last column, not in the first of the next line.
    let row = jsonl_row::parse(body.trim_ascii_end(), &wants, &mut text.cells).map_err(|e| DataError::NotJson {
        path: path(),
        line,
        reason: reason(&e),
    })?;
    Err(match row {
        Row::Whole => return text.make(columns).map_err(|fault| fault.at(path(), place(), columns.source.clone())),
        Row::NotAnObject(found) => DataError::NotAnObject { path: path(), line, found },
        Row::Twice(i) => DataError::DuplicateColumn { path: path(), line, column: name(i) },
        Row::Other(i, found) if columns.style == Style::Messages => {
            DataError::NotMessages { path: path(), place: place(), column: name(i), found: found.into() }
        }
        Row::Other(i, found) => {
            DataError::NotAString { path: path(), place: place(), column: name(i), found: found.into() }
        }
        Row::BadMessage(i, fault) => fault.at(path(), place(), name(i)),
        Row::Missing(i) => DataError::MissingColumn {
            path: path(),
            place: place(),
            column: name(i),
            present: jsonl_row::keys(body).unwrap_or_default().join(", "),
        },
    })
}

/// The parser counts lines of what it was given, which is one; only its column is news.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cut = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} at column {}", &text[..cut], error.column())
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// Buffers for reading blocks, kept between reads.
#[derive(Default)]
pub(crate) struct JsonlScratch {
    raw: Vec<u8>,
    text: RowText,
}

impl JsonlScratch {
    /// With room for the largest block and the longest texts.
    pub fn with_room(raw: usize, source: usize, target: usize) -> JsonlScratch {
        JsonlScratch { raw: Vec::with_capacity(raw), text: RowText::with_room(source, target) }
    }
}

/// Appends the rows of `block` to `texts`.
pub(crate) fn read(
    path: &Path,
    file_bytes: u64,
    columns: &ChosenColumns,
    block: Block,
    scratch: &mut JsonlScratch,
    texts: &mut Texts,
) -> Result<(), DataError> {
    let changed = |expected: String, found: String| DataError::Changed {
        path: path.into(),
        place: format!("byte {}", block.place),
        expected,
        found,
    };
    let file = File::open(path)?;
    let now = file.metadata()?.len();
    if now != file_bytes {
        return Err(changed(format!("a file of {file_bytes} bytes"), format!("{now} bytes")));
    }
    scratch.raw.resize(block.raw_bytes as usize, 0);
    file.file().read_exact_at(&mut scratch.raw, block.place)?;
    let wants = columns.wants();
    let mut rows = 0;
    for line in scratch.raw.split(|b| *b == b'\n').filter(|line| !is_blank(line)) {
        match jsonl_row::parse(line, &wants, &mut scratch.text.cells) {
            Ok(Row::Whole) => match scratch.text.make(columns) {
                Ok(()) => {
                    let (source, target) = scratch.text.texts(columns);
                    texts.push(source, target);
                }
                Err(fault) => return Err(changed("a conversation".into(), fault.found)),
            },
            Ok(other) => return Err(changed("a row as it was".into(), format!("{other:?}"))),
            Err(e) => return Err(changed("a JSON object".into(), reason(&e))),
        }
        rows += 1;
    }
    if rows != block.rows {
        return Err(changed(format!("{} rows", block.rows), format!("{rows} rows")));
    }
    Ok(())
}

/// The number, from 1, of the line that holds row `row` of `block`. Reads the file up to there, in small pieces; for
/// messages only.
pub(crate) fn line_of(path: &Path, block: Block, row: u32) -> Result<u64, DataError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, File::open(path)?);
    let mut line = Vec::new();
    let (mut offset, mut number, mut seen) = (0u64, 0u64, 0u32);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(number);
        }
        number += 1;
        offset += read as u64;
        if offset > block.place && !is_blank(&line) {
            if seen == row {
                return Ok(number);
            }
            seen += 1;
        }
    }
}
