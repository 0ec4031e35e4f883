//! Reading a journal however it was left: a line that is no record is passed over and counted, never an error.
//!
//! `plimsoll_watch::read` is strict, as it must be for a resume; a doctor tells the story with what there is.

use std::io::{BufRead, BufReader};
use std::path::Path;

use plimsoll_watch::Record;

/// A line longer than this is no record of ours; the rest of it is passed over.
const LONGEST: u64 = 16 << 20;

/// The records of the journal at `path`, and the numbers of the lines that are none. A journal that is not there is
/// empty.
pub fn read(path: &Path) -> std::io::Result<(Vec<Record>, Vec<usize>)> {
    match fs_err::File::open(path) {
        Ok(file) => records(BufReader::new(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((Vec::new(), Vec::new())),
        Err(error) => Err(error),
    }
}

/// The same from any reader.
pub fn records(mut from: impl BufRead) -> std::io::Result<(Vec<Record>, Vec<usize>)> {
    let (mut records, mut damaged, mut text) = (Vec::new(), Vec::new(), Vec::new());
    for line in 1.. {
        text.clear();
        if std::io::Read::take(&mut from, LONGEST).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        match serde_json::from_slice(&text) {
            Ok(record) if text.last() == Some(&b'\n') => records.push(record),
            _ => damaged.push(line),
        }
    }
    Ok((records, damaged))
}
