//! Who a process is, from `/proc/<pid>/status`: its name, its numbers, its parent.
//!
//! The numbers are needed because the kernel's log counts in the machine's first PID namespace, which need not be ours.

use std::path::Path;

use crate::lines::misread;
use crate::{MachineError, Root};

/// A process by name and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The kernel's name for it: the first 15 bytes of its program's.
    pub comm: String,
    /// Its numbers from the outermost visible PID namespace inwards.
    pub nspid: Vec<u32>,
    /// Its parent; 0 for one outside of our sight.
    pub parent: u32,
}

/// Reads the text of a process's `status`; `path` is only for the messages.
pub fn parse_identity(path: &Path, text: &str) -> Result<Identity, MachineError> {
    let (mut comm, mut nspid, mut parent, mut pid) = (None, None, None, None);
    for (at, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let number = |word: &str| word.parse::<u32>().map_err(|_| misread(path, at + 1, "`Key: number`", line));
        match key {
            "Name" => comm = Some(unescape(value.strip_prefix('\t').unwrap_or(value))),
            "Pid" => pid = Some(number(value.trim())?),
            "PPid" => parent = Some(number(value.trim())?),
            "NSpid" => nspid = Some(value.split_ascii_whitespace().map(number).collect::<Result<Vec<u32>, _>>()?),
            _ => {}
        }
    }
    let missing = |field| MachineError::NoField { path: path.to_path_buf(), field };
    let pid = pid.ok_or_else(|| missing("Pid"))?;
    Ok(Identity {
        comm: comm.ok_or_else(|| missing("Name"))?,
        nspid: nspid.unwrap_or_else(|| vec![pid]), // a kernel before 4.1 does not say
        parent: parent.ok_or_else(|| missing("PPid"))?,
    })
}

/// Who the process `pid` is.
pub fn identity(root: &Root, pid: u32) -> Result<Identity, MachineError> {
    let path = format!("/proc/{pid}/status");
    let mut buffer = [0u8; 16 << 10];
    match root.read_into(Path::new(&path), &mut buffer) {
        Ok(text) => parse_identity(&root.join(&path), &String::from_utf8_lossy(text)),
        Err(MachineError::Missing { .. }) => Err(MachineError::NoProcess { pid }),
        Err(error) => Err(error),
    }
}

/// The kernel writes a line end in a name as `\n` and a backslash twice.
fn unescape(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => plain.push('\\'),
            },
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/proc/7/status";

    #[test]
    fn a_process_in_a_container_has_a_number_in_each_namespace() {
        let text = "Name:\ta b\\n\\\\c\nUmask:\t0022\nPid:\t7\nPPid:\t1\nNSpid:\t4242\t7\n";
        let found = parse_identity(Path::new(FILE), text).unwrap();
        assert_eq!(found, Identity { comm: "a b\n\\c".into(), nspid: vec![4242, 7], parent: 1 });
        let old = parse_identity(Path::new(FILE), "Name:\tx\nPid:\t7\nPPid:\t0\n").unwrap();
        assert_eq!(old.nspid, [7]);
    }

    #[test]
    fn a_number_that_is_none_is_named_and_so_is_a_missing_line() {
        let error = parse_identity(Path::new(FILE), "Name:\tx\nPid:\t7\nNSpid:\t7 y\n").unwrap_err().to_string();
        assert_eq!(error, "`/proc/7/status` line 3: expected `Key: number`, found `NSpid:\t7 y`");
        let error = parse_identity(Path::new(FILE), "Name:\tx\nPid:\t7\n").unwrap_err().to_string();
        assert_eq!(error, "`/proc/7/status` has no `PPid` line");
    }

    #[test]
    fn this_process_knows_itself_and_its_parent() {
        let own = std::process::id();
        let found = identity(&Root::system(), own).unwrap();
        assert_eq!(found.nspid.last(), Some(&own));
        assert_eq!(found.parent, std::os::unix::process::parent_id());
        assert!(matches!(identity(&Root::system(), u32::MAX), Err(MachineError::NoProcess { pid: u32::MAX })));
    }
}
