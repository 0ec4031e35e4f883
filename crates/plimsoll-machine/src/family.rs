//! Processes that belong together: who descends from whom, what each runs, and its fair share of their memory.
//!
//! Processes that were forked share pages. RSS counts a shared page in each of them, so its sum overstates a family by
//! up to the number of its members; PSS divides it among those that map it, and its sum is what the family takes. PSS
//! costs a walk over the page tables: meant for now and then, not for every second. What a process means to a run
//! (rank, loader) is not judged here.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::lines::{kib, misread};
use crate::{Bytes, MachineError, Root};

/// A process as its relatives see it, from `/proc/<pid>/stat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Relative {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// The kernel's name for it.
    pub comm: String,
    /// `R`, `S`, `D`, `T` (stopped), `Z` (ended and not collected) and others.
    pub state: char,
    /// CPU time that it and its threads have used, in clock ticks.
    pub cpu_ticks: u64,
    /// When it started, in clock ticks since the boot: number and start together name a process for ever.
    pub started_ticks: u64,
}

/// Its share of memory, from `/proc/<pid>/smaps_rollup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FairShare {
    /// All of it.
    pub pss: Bytes,
    /// Of it: heap, stacks, copies.
    pub anon: Bytes,
    /// Of it: mapped files, which the kernel can drop.
    pub file: Bytes,
    /// Of it: shared memory, pinned buffers among it.
    pub shmem: Bytes,
}

/// Reads the text of a process's `stat`; `path` is only for the messages.
pub fn parse_stat(path: &Path, text: &str) -> Result<Relative, MachineError> {
    let wrong = || misread(path, 1, "`pid (name) state parent ...`", text);
    // A name may hold spaces and brackets; it ends at the last one.
    let (pid, rest) = text.split_once(" (").ok_or_else(wrong)?;
    let (comm, rest) = rest.rsplit_once(") ").ok_or_else(wrong)?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|word| word.parse::<u64>().ok()).ok_or_else(wrong);
    let state = fields.first().and_then(|word| word.chars().next()).ok_or_else(wrong)?;
    Ok(Relative {
        pid: pid.trim().parse().map_err(|_| wrong())?,
        parent: number(1)? as u32,
        comm: comm.to_string(),
        state,
        cpu_ticks: number(11)?.saturating_add(number(12)?),
        started_ticks: number(19)?,
    })
}

/// The process `pid`.
pub fn relative(root: &Root, pid: u32) -> Result<Relative, MachineError> {
    let path = format!("/proc/{pid}/stat");
    let mut buffer = [0u8; 2 << 10];
    match root.read_into(Path::new(&path), &mut buffer) {
        Ok(text) => parse_stat(&root.join(&path), &String::from_utf8_lossy(text)),
        Err(MachineError::Missing { .. }) => Err(MachineError::NoProcess { pid }),
        Err(error) => Err(error),
    }
}

/// What the process was started with; empty for one that has ended or may not be looked at.
pub fn words(root: &Root, pid: u32) -> Vec<String> {
    let text = root.read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words: Vec<String> = text.split('\0').map(str::to_string).collect();
    words.pop(); // the text ends with a zero
    words
}

/// Those of `names` that the process was started with in its environment.
pub fn environment(root: &Root, pid: u32, names: &[&str]) -> BTreeMap<String, String> {
    let text = root.read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| names.contains(name)).map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Reads the text of a `smaps_rollup`; `path` is only for the messages.
pub fn parse_fair_share(path: &Path, text: &str) -> Result<FairShare, MachineError> {
    let mut share = FairShare::default();
    let mut seen = false;
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let slot = match key {
            "Pss" => &mut share.pss,
            "Pss_Anon" => &mut share.anon,
            "Pss_File" => &mut share.file,
            "Pss_Shmem" => &mut share.shmem,
            _ => continue,
        };
        *slot = kib(path, at + 1, line, value)?;
        seen |= key == "Pss";
    }
    if seen { Ok(share) } else { Err(MachineError::NoField { path: path.to_path_buf(), field: "Pss" }) }
}

/// The process's share of memory.
pub fn fair_share(root: &Root, pid: u32) -> Result<FairShare, MachineError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let mut buffer = [0u8; 4 << 10];
    match root.read_into(Path::new(&path), &mut buffer) {
        // One that has ended and was not collected has an empty file.
        Ok([]) => Ok(FairShare::default()),
        Ok(text) => parse_fair_share(&root.join(&path), &String::from_utf8_lossy(text)),
        Err(MachineError::Missing { .. }) => Err(MachineError::NoProcess { pid }),
        Err(error) => Err(error),
    }
}

/// All that descend from `pid`, without itself: a look at every process of the machine.
pub fn descendants(root: &Root, pid: u32) -> Vec<u32> {
    let Ok(entries) = fs_err::read_dir(root.join("/proc")) else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<Relative> = numbers.filter_map(|number| relative(root, number).ok()).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        let children = all.iter().filter(|one| one.parent == parent && one.pid != pid).map(|one| one.pid);
        found.extend(children);
        at += 1;
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = "42 (a ) (b) T 7 42 42 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0 987654 1 2 3\n";
        let found = parse_stat(Path::new("/proc/42/stat"), text).unwrap();
        assert_eq!((found.pid, found.parent, found.comm.as_str(), found.state), (42, 7, "a ) (b", 'T'));
        assert_eq!((found.cpu_ticks, found.started_ticks), (42, 987_654));
        let error = parse_stat(Path::new("/proc/42/stat"), "42 (x) S").unwrap_err().to_string();
        assert!(error.starts_with("`/proc/42/stat` line 1: expected `pid (name) state parent"), "{error}");
    }

    #[test]
    fn shares_are_read_and_a_text_without_them_is_refused() {
        let text = "55e0-7ffd ---p 0 00:00 0 [rollup]\nRss: 900 kB\nPss: 400 kB\nPss_Anon: 300 kB\nPss_File: 60 kB\n\
                    Pss_Shmem: 40 kB\nLocked: 0 kB\n";
        let share = parse_fair_share(Path::new("x"), text).unwrap();
        assert_eq!(share.pss, share.anon + share.file + share.shmem);
        assert!(parse_fair_share(Path::new("x"), "Rss: 1 kB\n").is_err());
        assert!(parse_fair_share(Path::new("x"), "Pss: many kB\n").is_err());
    }

    #[test]
    fn this_process_its_words_and_its_children_are_found() {
        let root = Root::system();
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("600").env("PLIMSOLL_TEST_RANK", "3").spawn().unwrap();
        let pid = child.id();
        assert!(descendants(&root, own).contains(&pid));
        assert_eq!(relative(&root, pid).unwrap().parent, own);
        // Between fork and exec it still has our words.
        while words(&root, pid).first().map(String::as_str) != Some("sleep") {
            std::thread::yield_now();
        }
        assert_eq!(words(&root, pid), ["sleep", "600"]);
        assert_eq!(environment(&root, pid, &["PLIMSOLL_TEST_RANK", "NO_SUCH"])["PLIMSOLL_TEST_RANK"], "3");
        assert!(fair_share(&root, own).unwrap().pss > Bytes::ZERO);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(relative(&root, pid), Err(MachineError::NoProcess { .. })));
        assert!(words(&root, pid).is_empty());
    }
}
