//! How many incidents of which kind a journal holds.
//!
//! The view has their number and not their kinds. They are rare, so the journal is gone through again when their number
//! has changed, line by line: what is held is one line, however long the journal.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use fs_err as fs;

use crate::{Event, Record, WatchError};

/// So much of a line is looked at; an incident's evidence is far smaller.
const LONGEST_LINE: u64 = 16 << 20;
const MARK: &[u8] = b"\"event\":\"incident\"";

/// Kinds of incidents and how often they happened.
pub(super) type Kinds = BTreeMap<String, u64>;

/// The kinds in the journal at `path`. A line that is no record is passed over.
pub(super) fn kinds(path: &Path) -> Result<Kinds, WatchError> {
    let mut from = BufReader::new(fs::File::open(path)?);
    let (mut kinds, mut line) = (Kinds::new(), Vec::new());
    while from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
        if line.windows(MARK.len()).take(64).any(|part| part == MARK)
            && let Ok(Record { event: Event::Incident { kind, .. }, .. }) = serde_json::from_slice(&line)
        {
            *kinds.entry(kind).or_default() += 1;
        }
        line.clear();
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Journal;

    #[test]
    fn incidents_are_counted_by_kind_among_other_lines_and_broken_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let mut journal = Journal::create(&path).unwrap();
        for kind in ["disk_full", "kernel_oom_in_our_cgroup", "disk_full"] {
            let (told, confidence) = ("it said \"event\":\"incident\"".to_string(), "likely".to_string());
            journal.record(&Event::Warning { step: 1, message: told.clone() }).unwrap();
            let (kind, because, evidence) = (kind.to_string(), Vec::new(), Value::Null);
            let incident = Event::Incident { step: 1, saved_step: 0, kind, told, confidence, because, evidence };
            journal.record(&incident).unwrap();
        }
        let whole = fs::read(&path).unwrap();
        let broken =
            b"{\"unix_ms\":1,\"event\":\"incident\",\"kind\":\"power\"}\n{\"unix_ms\":2,\"event\":\"incident\"";
        fs::write(&path, [&whole[..], broken].concat()).unwrap();
        let expected = [("disk_full", 2), ("kernel_oom_in_our_cgroup", 1)].map(|(kind, n)| (kind.to_string(), n));
        assert_eq!(kinds(&path).unwrap(), Kinds::from(expected));
    }
}
