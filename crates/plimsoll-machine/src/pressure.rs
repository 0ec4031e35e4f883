//! Memory pressure (PSI): the share of time in which work stood still for want of memory.
//!
//! A kernel may be built or booted without it, and cgroup v1 has none of its own; then it is unseen, with the reason.

use std::path::Path;

use serde::Serialize;

use crate::lines::misread;
use crate::{MachineError, Root, Sighting};

/// Percent of wall time lost, averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stall {
    /// Over the last 10 seconds.
    pub avg10: f64,
    /// Over the last minute.
    pub avg60: f64,
}

/// Memory pressure of the machine or of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// At least one task waited for memory.
    pub some: Stall,
    /// All tasks waited at once.
    pub full: Stall,
}

/// Reads the text of a pressure file; `path` is only for the messages.
pub fn parse_pressure(path: &Path, text: &str) -> Result<Pressure, MachineError> {
    let stall = |line: &str| -> Option<Stall> {
        let share = |key: &str| {
            let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key))?;
            word.parse::<f64>().ok().filter(|share| share.is_finite() && *share >= 0.0)
        };
        Some(Stall { avg10: share("avg10=")?, avg60: share("avg60=")? })
    };
    let (mut some, mut full) = (None, None);
    for (at, line) in text.lines().enumerate() {
        let slot = match line.split_ascii_whitespace().next() {
            Some("some") => &mut some,
            Some("full") => &mut full,
            _ => continue,
        };
        let expected = "`some|full avg10=percent avg60=percent`";
        *slot = Some(stall(line).ok_or_else(|| misread(path, at + 1, expected, line))?);
    }
    let needed = |stall: Option<Stall>, field| stall.ok_or(MachineError::NoField { path: path.to_path_buf(), field });
    Ok(Pressure { some: needed(some, "some")?, full: needed(full, "full")? })
}

/// Memory pressure of the whole machine.
pub fn machine_pressure(root: &Root) -> Result<Sighting<Pressure>, MachineError> {
    read(root, Path::new("/proc/pressure/memory"))
}

pub(crate) fn read(root: &Root, file: &Path) -> Result<Sighting<Pressure>, MachineError> {
    match root.read(file) {
        Ok(text) => Ok(Sighting::Seen(parse_pressure(&root.join(file), &text)?)),
        Err(MachineError::Missing { .. }) => Ok(Sighting::unseen(format!("no `{}`", file.display()))),
        // With `psi=0` on the kernel's command line the file is there and every read fails.
        Err(MachineError::Unreadable { source, .. }) => {
            Ok(Sighting::unseen(format!("`{}` cannot be read: {source}", file.display())))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/proc/pressure/memory";

    #[test]
    fn both_lines_are_read() {
        let text =
            "some avg10=1.53 avg60=0.93 avg300=0.63 total=6316927\nfull avg10=0.24 avg60=0.20 avg300=0 total=1\n";
        let pressure = parse_pressure(Path::new(FILE), text).unwrap();
        assert_eq!(pressure.some, Stall { avg10: 1.53, avg60: 0.93 });
        assert_eq!(pressure.full, Stall { avg10: 0.24, avg60: 0.20 });
    }

    #[test]
    fn a_share_that_is_no_number_is_refused_by_line() {
        for wrong in ["NaN", "-1.0", "x", ""] {
            let text = format!("some avg10=0.00 avg60=0.00\nfull avg10={wrong} avg60=0.00\n");
            let error = parse_pressure(Path::new(FILE), &text).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(&format!("avg10={wrong} ")), "{error}");
        }
        let error = parse_pressure(Path::new(FILE), "some avg10=0.00 avg60=0.00\n").unwrap_err().to_string();
        assert_eq!(error, "`/proc/pressure/memory` has no `full` line");
    }
}
