//! `/proc/self/mountinfo`: which file system is mounted where, and which part of it.
//!
//! Needed for two things: finding a cgroup's folder inside a container, where the mount shows only a part of the
//! hierarchy, and naming the file system of a path. It only reads the table; it does not look at the mounts.

use std::path::{Path, PathBuf};

use crate::lines::misread;
use crate::{MachineError, Root};

pub(crate) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The folder of the file system that is shown; `/` where all of it is.
    pub root: String,
    /// Where it is shown.
    pub point: PathBuf,
    /// The kind of file system: `ext4`, `overlay`, `cgroup2`.
    pub fs: String,
    /// What is mounted: a device, a server's folder, or a mere word.
    pub source: String,
    /// The options of the file system; for cgroup v1 the controllers.
    pub options: String,
}

impl Mount {
    /// Whether the file system's options include this word.
    pub fn has_option(&self, word: &str) -> bool {
        self.options.split(',').any(|option| option == word)
    }
}

/// Reads the text of a mount table; `path` is only for the messages.
pub fn parse_mountinfo(path: &Path, text: &str) -> Result<Vec<Mount>, MachineError> {
    let parse = |line: &str| -> Option<Mount> {
        // id parent major:minor root point options [tags...] - kind source options
        let mut words = line.split(' ');
        let root = unescape(words.nth(3)?);
        let point = PathBuf::from(unescape(words.next()?));
        let mut after = words.skip_while(|word| *word != "-").skip(1);
        let fs = after.next()?.to_string();
        let source = unescape(after.next()?);
        // A file system may have no options of its own, and an empty source has been seen: both stay empty.
        let options = after.next().unwrap_or("").to_string();
        Some(Mount { root, point, fs, source, options })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(at, line)| {
            parse(line).ok_or_else(|| misread(path, at + 1, "`id parent dev root point options - kind source`", line))
        })
        .collect()
}

/// The mount on which an absolute path without links lies: the deepest that holds it, the latest where several do.
pub fn mount_of<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

pub(crate) fn read(root: &Root) -> Result<Vec<Mount>, MachineError> {
    parse_mountinfo(&root.join(MOUNTINFO), &root.read(MOUNTINFO)?)
}

/// Undoes the kernel's `\040` for a blank, and the like.
fn unescape(word: &str) -> String {
    let bytes = word.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes
            .get(at + 1..at + 4)
            .filter(|code| bytes[at] == b'\\' && code.iter().all(|d| (b'0'..b'8').contains(d)));
        match code {
            Some(code) => {
                plain.push(code.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:3 - ext4 /dev/vda rw,discard
35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
50 27 8:1 / /mnt/my\\040disk rw - ext4 /dev/sdb1 rw
51 27 8:2 / /mnt/my\\040disk rw - xfs /dev/sdb2 rw
";

    #[test]
    fn tags_escapes_and_partial_roots_are_read() {
        let mounts = parse_mountinfo(Path::new(MOUNTINFO), TABLE).unwrap();
        assert_eq!(mounts.len(), 5);
        assert_eq!((mounts[1].fs.as_str(), mounts[1].source.as_str()), ("ext4", "/dev/vda"));
        assert_eq!(mounts[2].root, "/docker/ab");
        assert!(mounts[2].has_option("memory") && !mounts[2].has_option("mem"));
        assert_eq!(mounts[3].point, Path::new("/mnt/my disk"));
    }

    #[test]
    fn a_path_lies_on_its_deepest_and_latest_mount() {
        let mounts = parse_mountinfo(Path::new(MOUNTINFO), TABLE).unwrap();
        let fs = |path: &str| mount_of(&mounts, Path::new(path)).unwrap().fs.clone();
        assert_eq!(fs("/mnt/my disk/run"), "xfs");
        assert_eq!(fs("/mnt/my diskette"), "ext4");
        assert_eq!(fs("/proc/self"), "proc");
    }

    #[test]
    fn a_line_without_its_dash_is_refused_by_number() {
        let error = parse_mountinfo(Path::new(MOUNTINFO), "22 27 0:21 / /proc rw - proc proc rw\n22 27 0:21 / /x rw\n");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("`/proc/self/mountinfo` line 2: expected `id parent dev root"), "{error}");
        assert!(error.ends_with("found `22 27 0:21 / /x rw`"), "{error}");
    }
}
