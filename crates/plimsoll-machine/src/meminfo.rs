//! `/proc/meminfo`: the RAM and swap of the whole machine.
//!
//! `MemAvailable` is the kernel's own estimate of what can be taken without swapping; it knows nothing of cgroups, so
//! it is only one of the bounds on what a run may use.

use std::path::Path;

use crate::lines::kib;
use crate::{Bytes, MachineError, Root};

pub(crate) const MEMINFO: &str = "/proc/meminfo";

/// What `/proc/meminfo` says, as far as it bears on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// RAM that the kernel manages.
    pub total: Bytes,
    /// RAM that can be taken without swapping.
    pub available: Bytes,
    /// Swap there is; zero where there is none.
    pub swap_total: Bytes,
    /// Swap not in use.
    pub swap_free: Bytes,
    /// What the kernel would promise under strict overcommit; absent on kernels without it.
    pub commit_limit: Option<Bytes>,
    /// What it has promised.
    pub committed: Option<Bytes>,
}

/// Reads the text of `/proc/meminfo`; `path` is only for the messages.
pub fn parse_meminfo(path: &Path, text: &str) -> Result<MemInfo, MachineError> {
    let keys = ["MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "CommitLimit", "Committed_AS"];
    let mut values = [None; 6];
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        if let Some(slot) = keys.iter().position(|k| *k == key) {
            values[slot] = Some(kib(path, at + 1, line, value)?);
        }
    }
    let [total, available, swap_total, swap_free, commit_limit, committed] = values;
    let needed = |value: Option<Bytes>, field| value.ok_or(MachineError::NoField { path: path.to_path_buf(), field });
    Ok(MemInfo {
        total: needed(total, "MemTotal")?,
        available: needed(available, "MemAvailable")?,
        swap_total: swap_total.unwrap_or_default(),
        swap_free: swap_free.unwrap_or_default(),
        commit_limit,
        committed,
    })
}

pub(crate) fn read(root: &Root) -> Result<MemInfo, MachineError> {
    parse_meminfo(&root.join(MEMINFO), &root.read(MEMINFO)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "MemTotal:       24684100 kB\nMemFree:        22709356 kB\nMemAvailable:   24156636 kB\n\
                        SwapTotal:             8 kB\nSwapFree:              4 kB\nHugePages_Total:       0\n";

    #[test]
    fn kib_become_bytes() {
        let info = parse_meminfo(Path::new(MEMINFO), GOOD).unwrap();
        assert_eq!(info.total, Bytes::kib(24684100));
        assert_eq!(info.available, Bytes::kib(24156636));
        assert_eq!((info.swap_total, info.swap_free), (Bytes::kib(8), Bytes::kib(4)));
        assert_eq!(info.committed, None);
    }

    #[test]
    fn a_kernel_without_swap_support_has_no_swap() {
        let text = "MemTotal: 100 kB\nMemAvailable: 50 kB\n";
        assert_eq!(parse_meminfo(Path::new(MEMINFO), text).unwrap().swap_total, Bytes::ZERO);
    }

    #[test]
    fn a_line_that_does_not_parse_is_named_by_its_number() {
        let error = parse_meminfo(Path::new(MEMINFO), &GOOD.replace("24156636 kB", "plenty")).unwrap_err().to_string();
        assert_eq!(error, "`/proc/meminfo` line 3: expected `Key: number kB`, found `MemAvailable:   plenty`");
    }

    #[test]
    fn a_missing_line_is_named() {
        let error = parse_meminfo(Path::new(MEMINFO), "MemTotal: 100 kB\n").unwrap_err().to_string();
        assert_eq!(error, "`/proc/meminfo` has no `MemAvailable` line");
    }
}
