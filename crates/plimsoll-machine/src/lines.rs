//! The shapes of line that the kernel writes: `Key:   12 kB`, `key 12`, a lone number.
//!
//! Every failure names file, line, what was expected and what was found. Nothing here knows what a key means.

use std::path::Path;

use crate::{Bytes, MachineError};

/// A line that is not what it should be.
pub(crate) fn misread(path: &Path, line: usize, expected: &'static str, found: &str) -> MachineError {
    const LONGEST: usize = 80;
    let mut found: String = found.trim_end().to_string();
    if let Some((cut, _)) = found.char_indices().nth(LONGEST) {
        found.truncate(cut);
        found.push_str("...");
    }
    MachineError::Line { path: path.to_path_buf(), line, expected, found }
}

/// The value of a `Key:   12 kB` line, for the text after the colon.
pub(crate) fn kib(path: &Path, line: usize, text: &str, value: &str) -> Result<Bytes, MachineError> {
    value
        .trim()
        .strip_suffix("kB")
        .and_then(|n| n.trim_end().parse::<u64>().ok())
        .and_then(|n| n.checked_mul(1024))
        .map(Bytes)
        .ok_or_else(|| misread(path, line, "`Key: number kB`", text))
}

/// The only number in a file such as `memory.current`.
pub(crate) fn lone_number(path: &Path, text: &str) -> Result<u64, MachineError> {
    text.trim().parse().map_err(|_| misread(path, 1, "a number", text.lines().next().unwrap_or("")))
}

/// The number of the line `key 12` in a file such as `memory.events`; `None` where there is no such line.
pub(crate) fn keyed_number(path: &Path, text: &str, key: &str) -> Result<Option<u64>, MachineError> {
    for (at, line) in text.lines().enumerate() {
        if let Some(value) = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' ')) {
            return value.trim().parse().map(Some).map_err(|_| misread(path, at + 1, "`key number`", line));
        }
    }
    Ok(None)
}

/// The only limit in a file such as `memory.max`: a number of bytes, or none.
///
/// No limit is `max` in cgroup v2. In v1 it is the largest multiple of the page size, which differs between machines,
/// so anything from 2^62 up counts as none: no machine has that much.
pub(crate) fn lone_limit(path: &Path, text: &str) -> Result<Option<Bytes>, MachineError> {
    if text.trim() == "max" {
        return Ok(None);
    }
    let bytes = text
        .trim()
        .parse()
        .map_err(|_| misread(path, 1, "a number of bytes or `max`", text.lines().next().unwrap_or("")))?;
    Ok(limited(bytes))
}

/// A number of bytes as a limit: none where it is one of v1's ways to say so.
pub(crate) fn limited(bytes: u64) -> Option<Bytes> {
    (bytes < 1 << 62).then_some(Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/sys/fs/cgroup/memory.max";

    #[test]
    fn both_ways_to_say_no_limit_are_read() {
        assert_eq!(lone_limit(Path::new(FILE), "max\n").unwrap(), None);
        assert_eq!(lone_limit(Path::new(FILE), "9223372036854771712\n").unwrap(), None);
        // The same on a machine with pages of 64 KiB.
        assert_eq!(lone_limit(Path::new(FILE), "9223372036854710272\n").unwrap(), None);
        assert_eq!(lone_limit(Path::new(FILE), "0\n").unwrap(), Some(Bytes(0)));
    }

    #[test]
    fn a_wrong_limit_is_named_with_file_line_expected_and_found() {
        let error = lone_limit(Path::new(FILE), "-1\n").unwrap_err().to_string();
        assert_eq!(error, "`/sys/fs/cgroup/memory.max` line 1: expected a number of bytes or `max`, found `-1`");
    }

    #[test]
    fn a_number_of_kib_that_does_not_fit_in_bytes_is_refused() {
        assert!(kib(Path::new(FILE), 3, "MemTotal: 18446744073709551615 kB", " 18446744073709551615 kB").is_err());
        assert!(kib(Path::new(FILE), 3, "MemTotal: 5", " 5").is_err());
    }

    #[test]
    fn a_long_wrong_line_is_cut_in_the_message() {
        let error = lone_number(Path::new(FILE), &"é".repeat(500)).unwrap_err().to_string();
        assert!(error.ends_with("...`") && error.chars().count() < 200, "{error}");
    }
}
