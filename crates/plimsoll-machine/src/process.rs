//! The memory of one process, from `/proc/<pid>/status`.
//!
//! Meant to be read every second, so it reads once into a buffer on the stack and keeps nothing. RSS counts shared
//! pages in every process that maps them: it must not be summed over a family of processes that share much.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::lines::{kib, misread};
use crate::{Bytes, MachineError, Root};

/// What a process holds. All zero, threads aside, for one that has ended and waits to be collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// In RAM now (`VmRSS`).
    pub rss: Bytes,
    /// The most that ever was in RAM (`VmHWM`).
    pub peak: Bytes,
    /// Of `rss`: heap, stacks, arenas.
    pub rss_anon: Bytes,
    /// Of `rss`: mapped files, which the kernel can drop.
    pub rss_file: Bytes,
    /// Of `rss`: shared memory, pinned buffers among it.
    pub rss_shmem: Bytes,
    /// In swap.
    pub swap: Bytes,
    /// Page tables (`VmPTE`), which `rss` does not count.
    pub page_tables: Bytes,
    /// Threads.
    pub threads: u64,
}

/// Reads the text of a process's `status`; `path` is only for the messages.
pub fn parse_status(path: &Path, text: &str) -> Result<ProcessMemory, MachineError> {
    const KEYS: [&str; 7] = ["VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem", "VmSwap", "VmPTE"];
    let mut values = [None; 7];
    let mut threads = None;
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        if key == "Threads" {
            let wrong = |_| misread(path, at + 1, "`Threads: number`", line);
            threads = Some(value.trim().parse::<u64>().map_err(wrong)?);
        } else if let Some(slot) = KEYS.iter().position(|k| *k == key) {
            values[slot] = Some(kib(path, at + 1, line, value)?);
        }
    }
    let threads = threads.ok_or(MachineError::NoField { path: path.to_path_buf(), field: "Threads" })?;
    if values.iter().all(Option::is_none) {
        return Ok(ProcessMemory { threads, ..ProcessMemory::default() });
    }
    let needed =
        |slot: usize| values[slot].ok_or(MachineError::NoField { path: path.to_path_buf(), field: KEYS[slot] });
    Ok(ProcessMemory {
        rss: needed(0)?,
        peak: needed(1)?,
        rss_anon: needed(2)?,
        rss_file: needed(3)?,
        rss_shmem: needed(4)?,
        swap: values[5].unwrap_or_default(), // a kernel without swap has no such line
        page_tables: needed(6)?,
        threads,
    })
}

/// Address space of this process that files are mapped into, without the pages that it has written to: those are its own
/// copies, and `rss_anon` counts them. What `rss_file` can grow to at most.
pub fn own_mapped_files(root: &Root) -> Result<Bytes, MachineError> {
    // A kernel built without page monitoring has no `smaps`; `maps` then gives a looser bound.
    let (smaps, maps) = (root.join("/proc/self/smaps"), root.join("/proc/self/maps"));
    let path = if smaps.exists() { smaps } else { maps };
    let text =
        fs_err::read_to_string(&path).map_err(|source| MachineError::Unreadable { path: path.clone(), source })?;
    parse_mapped_files(&path, &text)
}

/// Sum of the ranges of a `smaps` or `maps` file that belong to a file, less their `Anonymous` pages; `path` is only for
/// the messages.
pub fn parse_mapped_files(path: &Path, text: &str) -> Result<Bytes, MachineError> {
    let (mut sum, mut of_a_file) = (Bytes::ZERO, false);
    for (at, line) in text.lines().enumerate() {
        // A line of facts starts with its name and a colon, a range with `start-end`.
        if let Some((name, value)) = line.split_once(':').filter(|(name, _)| !name.contains(' ')) {
            if name == "Anonymous" && of_a_file {
                sum = sum.saturating_sub(kib(path, at + 1, line, value)?);
            }
            continue;
        }
        let wrong = || misread(path, at + 1, "`start-end perms offset device inode [path]`", line);
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().ok_or_else(wrong)?;
        let inode = fields.nth(3).ok_or_else(wrong)?;
        let (start, end) = range.split_once('-').ok_or_else(wrong)?;
        let address = |text: &str| u64::from_str_radix(text, 16).map_err(|_| wrong());
        of_a_file = inode != "0";
        if of_a_file {
            sum += Bytes(address(end)?.checked_sub(address(start)?).ok_or_else(wrong)?);
        }
    }
    Ok(sum)
}

/// The memory of a process.
pub fn process_memory(root: &Root, pid: u32) -> Result<ProcessMemory, MachineError> {
    match read_status(root, Path::new(&format!("/proc/{pid}/status"))) {
        Err(MachineError::Missing { .. }) => Err(MachineError::NoProcess { pid }),
        answer => answer,
    }
}

/// The children of a process's first thread; none where the kernel does not list them.
pub fn children(root: &Root, pid: u32) -> Vec<u32> {
    let mut buffer = [0u8; 4096];
    let file = format!("/proc/{pid}/task/{pid}/children");
    let Ok(bytes) = root.read_into(Path::new(&file), &mut buffer) else { return Vec::new() };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The memory of this process.
pub fn own_memory(root: &Root) -> Result<ProcessMemory, MachineError> {
    read_status(root, Path::new("/proc/self/status"))
}

fn read_status(root: &Root, path: &Path) -> Result<ProcessMemory, MachineError> {
    // About 1.5 KiB in practice; a process in hundreds of groups or on thousands of cores has longer lines.
    let mut buffer = [0u8; 16 << 10];
    let bytes = root.read_into(path, &mut buffer)?;
    let real: PathBuf = root.join(path);
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_status(&real, text),
        Err(_) => parse_status(&real, &String::from_utf8_lossy(bytes)), // a program's name may be any bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_are_summed_and_neither_anonymous_ranges_nor_written_pages_are() {
        let text = "\
55e0a000-55e0c000 r--p 00000000 fe:00 1234 /usr/bin/x
55e0c000-55e0d000 r-xp 00002000 fe:00 1234 /usr/bin/x
7f000000-7f100000 rw-p 00000000 00:00 0
7ffd0000-7ffd1000 rw-p 00000000 00:00 0 [stack]
";
        assert_eq!(parse_mapped_files(Path::new("maps"), text).unwrap(), Bytes(0x3000));
        let copied = text.replace("x\n7f00", "x\nSize:   4 kB\nAnonymous:   4 kB\nVmFlags: rd wr\n7f00");
        let copied = copied.replace("[stack]\n", "[stack]\nAnonymous:   4 kB\n");
        assert_eq!(parse_mapped_files(Path::new("smaps"), &copied).unwrap(), Bytes(0x2000), "{copied}");
        assert!(parse_mapped_files(Path::new("maps"), "zz-yy r--p 0 0:0 5 /x").is_err());
        assert!(parse_mapped_files(Path::new("maps"), "1000").is_err());
    }

    const GOOD: &str = "Name:\tcat\nVmHWM:\t    1616 kB\nVmRSS:\t    1600 kB\nRssAnon:\t     112 kB\nRssFile:\t    1400 kB\n\
                        RssShmem:\t       88 kB\nVmPTE:\t      44 kB\nVmSwap:\t       3 kB\nThreads:\t2\n";

    #[test]
    fn all_parts_are_read() {
        let memory = parse_status(Path::new("/proc/7/status"), GOOD).unwrap();
        assert_eq!((memory.rss, memory.peak), (Bytes::kib(1600), Bytes::kib(1616)));
        assert_eq!(memory.rss, memory.rss_anon + memory.rss_file + memory.rss_shmem);
        assert_eq!((memory.swap, memory.page_tables, memory.threads), (Bytes::kib(3), Bytes::kib(44), 2));
    }

    #[test]
    fn an_ended_process_holds_nothing() {
        let memory = parse_status(Path::new("/proc/7/status"), "Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n").unwrap();
        assert_eq!(memory, ProcessMemory { threads: 1, ..ProcessMemory::default() });
    }

    #[test]
    fn half_a_status_is_refused() {
        let error = parse_status(Path::new("/proc/7/status"), &GOOD.replace("VmHWM", "VmXXX")).unwrap_err().to_string();
        assert_eq!(error, "`/proc/7/status` has no `VmHWM` line");
        let error = parse_status(Path::new("/proc/7/status"), &GOOD.replace("\t2", "\ttwo")).unwrap_err().to_string();
        assert_eq!(error, "`/proc/7/status` line 9: expected `Threads: number`, found `Threads:\ttwo`");
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = process_memory(&Root::system(), u32::MAX).unwrap_err();
        assert!(matches!(error, MachineError::NoProcess { pid: u32::MAX }), "{error}");
    }
}
