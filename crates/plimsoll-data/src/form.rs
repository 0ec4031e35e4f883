//! How a file of text is cut into rows, and a row into cells: lines of JSON, records of CSV, lines of plain text.
//!
//! Invariant: one row is held at a time, and no more than [`MAX_ROW_BYTES`] of it and one read ahead. What a row may be wrong in is a
//! [`Fault`]; it knows no file and no line number.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use csv_core::ReadRecordResult;

use crate::jsonl_row::{self, Row, Want, WantedCell};
use crate::layout::MAX_ROW_BYTES;
use crate::messages::{self, MessageFault, NotMessages};

/// How rows and cells are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A JSON object a line.
    Json,
    /// Records, the first of which names the columns.
    Csv { delimiter: u8 },
    /// A text a line.
    Line,
}

/// The name of the one column of a file of plain text.
pub(crate) const TEXT: &str = "text";

/// What is wrong with a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The JSON parser's reason.
    NotJson(String),
    /// JSON, but not an object.
    NotAnObject(&'static str),
    /// A wanted column (by its index) is missing; all that are there.
    Missing(usize, Vec<String>),
    /// A wanted column is there twice.
    Twice(usize),
    /// A wanted column holds something else.
    Other(usize, &'static str),
    /// A wanted column holds messages, and one of them is wrong.
    BadMessage(usize, MessageFault),
    /// Another number of cells than columns.
    Cells { expected: usize, found: usize },
    /// Bytes that are no UTF-8, in a column, or in the line.
    NotUtf8(Option<usize>),
    /// The file ends inside quotes.
    OpenQuote,
}

/// Cuts rows off a stream, and cells off a row.
pub(crate) struct Cutter<'a> {
    form: Form,
    /// Of CSV: the columns of the file.
    header: Cow<'a, [String]>,
    record: Record,
    /// Bytes of a row, at most.
    most: usize,
}

impl<'a> Cutter<'a> {
    /// For a file whose header was read already, or that has none.
    pub fn new(form: Form, header: &'a [String]) -> Cutter<'a> {
        Cutter { form, header: header.into(), record: Record::new(form), most: MAX_ROW_BYTES }
    }

    /// The columns of the file, where it names them once.
    pub fn into_header(self) -> Vec<String> {
        self.header.into_owned()
    }

    /// The columns of the file, where it names them once and they were read.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Whether the record that was read last has a cell for each column.
    pub fn whole(&self) -> Result<(), Fault> {
        let (expected, found) = (self.header.len(), self.record.count);
        if expected == found { Ok(()) } else { Err(Fault::Cells { expected, found }) }
    }

    /// Cell `at` of the record that was read last, which is whole.
    pub fn cell(&self, at: usize) -> &[u8] {
        self.record.cell(at)
    }

    /// Reads the header, where the form has one, into `raw`; its length.
    pub fn read_header(&mut self, from: &mut dyn BufRead, raw: &mut Vec<u8>) -> io::Result<Result<usize, Fault>> {
        let Form::Csv { .. } = self.form else { return Ok(Ok(0)) };
        let read = self.next(from, raw)?;
        let mut header = Vec::new();
        for cell in self.record.cells() {
            match std::str::from_utf8(cell) {
                Ok(name) => header.push(name.trim().to_string()),
                Err(_) => return Ok(Err(Fault::NotUtf8(None))),
            }
        }
        self.header = header.into();
        Ok(Ok(read))
    }

    /// The same, for rows of at most `most` bytes.
    pub fn with_most(self, most: usize) -> Cutter<'a> {
        Cutter { most, ..self }
    }

    /// Reads the next row into `raw`, with its end; its length, 0 at the end. One that is too long is not read to its end.
    pub fn next(&mut self, from: &mut dyn BufRead, raw: &mut Vec<u8>) -> io::Result<usize> {
        raw.clear();
        match self.form {
            Form::Json | Form::Line => from.take(self.most as u64 + 1).read_until(b'\n', raw),
            Form::Csv { .. } => self.record.read(from, raw, self.most),
        }
    }

    /// Passes over what is left of the row that was begun last, `raw`, which is too long; bytes and line ends of that.
    pub fn pass_over(&mut self, from: &mut dyn BufRead, raw: &[u8]) -> io::Result<(u64, u64)> {
        match self.form {
            Form::Json | Form::Line if raw.ends_with(b"\n") => Ok((0, 0)),
            Form::Json | Form::Line => Ok((from.skip_until(b'\n')? as u64, 1)),
            Form::Csv { .. } => self.record.pass_over(from),
        }
    }

    /// Whether there is nothing on a row.
    pub fn is_blank(&self, body: &[u8]) -> bool {
        match self.form {
            Form::Json | Form::Line => body.iter().all(u8::is_ascii_whitespace),
            Form::Csv { .. } => self.record.count == 0,
        }
    }

    /// The columns that a row shows, or `None` where it shows none.
    pub fn columns(&self, body: &[u8]) -> Option<Vec<String>> {
        match self.form {
            Form::Json => jsonl_row::keys(body),
            Form::Csv { .. } => Some(self.header.to_vec()),
            Form::Line => Some(vec![TEXT.into()]),
        }
    }

    /// The wanted cells of the row that was read last; `body` is it, without a byte order mark.
    pub fn cells(&mut self, body: &[u8], wants: &[Want<'_>], texts: &mut [String]) -> Result<(), Fault> {
        match self.form {
            Form::Json => json_cells(body, wants, texts),
            Form::Csv { .. } => self.csv_cells(wants, texts),
            Form::Line => {
                // A line is one text, whatever the column is called; it is no pair and no conversation.
                if !matches!(wants, [Want { cell: WantedCell::Text, .. }]) {
                    return Err(Fault::Missing(0, vec![TEXT.into()]));
                }
                let text = std::str::from_utf8(body).map_err(|_| Fault::NotUtf8(None))?;
                texts[0].clear();
                texts[0].push_str(text.trim_end_matches(['\n', '\r']));
                Ok(())
            }
        }
    }

    /// Whether the record that was read last, the last of its file, ends inside quotes.
    pub fn ends_inside_quotes(&self, raw: &[u8]) -> bool {
        let Form::Csv { .. } = self.form else { return false };
        if raw.ends_with(b"\n") && !raw.contains(&b'"') {
            return false;
        }
        // One more quote closes it and changes nothing; behind a whole record it would be part of the last cell.
        let mut closed = raw.to_vec();
        closed.push(b'"');
        let (mut again, mut read) = (Record::new(self.form), Vec::new());
        again.read(&mut &closed[..], &mut read, MAX_ROW_BYTES).is_ok_and(|n| n == closed.len())
            && again.cells().eq(self.record.cells())
    }

    fn csv_cells(&self, wants: &[Want<'_>], texts: &mut [String]) -> Result<(), Fault> {
        self.whole()?;
        for (i, want) in wants.iter().enumerate() {
            let mut of_name = self.header.iter().enumerate().filter(|(_, name)| *name == want.name).map(|(at, _)| at);
            let at = match (of_name.next(), of_name.next()) {
                (Some(at), None) => at,
                (Some(_), Some(_)) => return Err(Fault::Twice(i)),
                (None, _) if want.cell == WantedCell::TextOrNothing => {
                    texts[i].clear();
                    continue;
                }
                (None, _) => return Err(Fault::Missing(i, self.header.to_vec())),
            };
            let text = std::str::from_utf8(self.record.cell(at)).map_err(|_| Fault::NotUtf8(Some(i)))?;
            match want.cell {
                WantedCell::Messages => match messages::from_json(text, &mut texts[i]) {
                    None => {}
                    Some(NotMessages::Other(found)) => return Err(Fault::Other(i, found)),
                    Some(NotMessages::Fault(fault)) => return Err(Fault::BadMessage(i, fault)),
                },
                WantedCell::Text | WantedCell::TextOrNothing => {
                    texts[i].clear();
                    texts[i].push_str(text);
                }
            }
        }
        Ok(())
    }
}

fn json_cells(body: &[u8], wants: &[Want<'_>], texts: &mut [String]) -> Result<(), Fault> {
    // Without the line end, an object that is cut short is wrong in the last column, not in the first of the next line.
    let row = jsonl_row::parse(body.trim_ascii_end(), wants, texts).map_err(|e| Fault::NotJson(reason(&e)))?;
    Err(match row {
        Row::Whole => return Ok(()),
        Row::NotAnObject(found) => Fault::NotAnObject(found),
        Row::Missing(i) => Fault::Missing(i, jsonl_row::keys(body).unwrap_or_default()),
        Row::Twice(i) => Fault::Twice(i),
        Row::Other(i, found) => Fault::Other(i, found),
        Row::BadMessage(i, fault) => Fault::BadMessage(i, fault),
    })
}

/// The parser counts lines of what it was given, which is one; only its column is news.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cut = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} at column {}", &text[..cut], error.column())
}

/// One record of CSV: its cells end to end, unquoted. The buffers stay as long as the longest record made them.
struct Record {
    core: csv_core::Reader,
    cells: Vec<u8>,
    ends: Vec<usize>,
    /// How many cells it has.
    count: usize,
    /// It was read to its end.
    whole: bool,
}

impl Record {
    fn new(form: Form) -> Record {
        let delimiter = if let Form::Csv { delimiter } = form { delimiter } else { b',' };
        let core = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
        Record { core, cells: vec![0; 1 << 10], ends: vec![0; 16], count: 0, whole: true }
    }

    fn cell(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.cells[start..self.ends[at]]
    }

    fn cells(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).map(|at| self.cell(at))
    }

    /// Reads a record, and what blank lines are before it, to `raw`; how many bytes.
    fn read(&mut self, from: &mut dyn BufRead, raw: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        let (mut written, mut ended) = (0, 0);
        let done = loop {
            let there = from.fill_buf()?;
            let (found, used, wrote, ends) =
                self.core.read_record(there, &mut self.cells[written..], &mut self.ends[ended..]);
            raw.extend_from_slice(&there[..used]);
            from.consume(used);
            written += wrote;
            ended += ends;
            self.whole = matches!(found, ReadRecordResult::Record | ReadRecordResult::End);
            if raw.len() > most {
                break true;
            }
            match found {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.cells.resize(2 * self.cells.len(), 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => break true,
                ReadRecordResult::End => break false,
            }
        };
        self.count = if done { ended } else { 0 };
        Ok(raw.len())
    }

    /// Reads on to the end of the record; nothing of it is kept. Bytes and line ends.
    fn pass_over(&mut self, from: &mut dyn BufRead) -> io::Result<(u64, u64)> {
        let (mut bytes, mut lines) = (0, 0);
        while !self.whole {
            let there = from.fill_buf()?;
            let (found, used, ..) = self.core.read_record(there, &mut self.cells, &mut self.ends);
            bytes += used as u64;
            lines += there[..used].iter().filter(|byte| **byte == b'\n').count() as u64;
            from.consume(used);
            self.whole = matches!(found, ReadRecordResult::Record | ReadRecordResult::End);
        }
        Ok((bytes, lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(name: &str) -> Want<'_> {
        Want { name, cell: WantedCell::Text }
    }

    /// All rows of `text`, the wanted cells of each joined by `|`.
    fn rows(text: &[u8], delimiter: u8, names: &[&str]) -> Result<Vec<String>, Fault> {
        let mut cutter = Cutter::new(Form::Csv { delimiter }, &[]);
        let (mut from, mut raw, mut list) = (text, Vec::new(), Vec::new());
        cutter.read_header(&mut from, &mut raw).unwrap()?;
        let wants: Vec<Want<'_>> = names.iter().map(|name| want(name)).collect();
        let mut texts = [String::new(), String::new(), String::new()];
        while cutter.next(&mut from, &mut raw).unwrap() > 0 {
            if cutter.is_blank(&raw) {
                continue;
            }
            cutter.cells(&raw, &wants, &mut texts)?;
            if from.is_empty() && cutter.ends_inside_quotes(&raw) {
                return Err(Fault::OpenQuote);
            }
            list.push(texts[..names.len()].join("|"));
        }
        Ok(list)
    }

    #[test]
    fn quoted_newlines_delimiters_and_quotes_are_part_of_a_cell() {
        let text = b"\xef\xbb\xbfa,b\r\n\"1\n2\",\"x, \"\"y\"\"\"\r\n\r\n3,5\" disk\n,\"\"\n4,end";
        assert_eq!(rows(text, b',', &["a", "b"]).unwrap(), ["1\n2|x, \"y\"", "3|5\" disk", "|", "4|end"]);
        assert_eq!(rows(b"b\ta\n1\t2,3\n", b'\t', &["a", "b"]).unwrap(), ["2,3|1"]);
    }

    #[test]
    fn what_is_wrong_with_a_record_is_named() {
        let of = |text: &[u8]| rows(text, b',', &["a", "b"]).unwrap_err();
        assert_eq!(of(b"a,b\n1\n"), Fault::Cells { expected: 2, found: 1 });
        assert_eq!(of(b"a,b\n1,2,3\n"), Fault::Cells { expected: 2, found: 3 });
        assert_eq!(of(b"a,c\n1,2\n"), Fault::Missing(1, vec!["a".into(), "c".into()]));
        assert_eq!(of(b"a,b,a\n1,2,3\n"), Fault::Twice(0));
        assert_eq!(of(b"a,b\n1,\xff\n"), Fault::NotUtf8(Some(1)));
        assert_eq!(of(b"a,b\n1,2\n3,\"cut off\n"), Fault::OpenQuote);
        assert_eq!(of(b"a,b\n1,2\n3,\"cut off"), Fault::OpenQuote);
        for whole in [&b"a,b\n1,\"x\""[..], b"a,b\n1,\"x\"\n", b"a,b\n1,5\"", b"a,b\n1,\n"] {
            assert_eq!(rows(whole, b',', &["a", "b"]).unwrap().len(), 1, "{}", String::from_utf8_lossy(whole));
        }
    }
}
