//! The kernel's settings that decide how memory may be taken: overcommit, huge pages, locked memory, page size.
//!
//! Read only. What a kernel lacks is `None`; what it says in words that we do not know is an error.

use std::path::Path;

use serde::Serialize;

use crate::lines::misread;
use crate::{Bytes, MachineError, Root};

const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const LIMITS: &str = "/proc/self/limits";

/// `vm.overcommit_memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overcommit {
    /// 0: obvious excess is refused.
    Heuristic,
    /// 1: nothing is refused.
    Always,
    /// 2: promises are counted, and refused above the commit limit.
    Strict,
}

/// Transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Everywhere.
    Always,
    /// Where the program asks.
    Madvise,
    /// Nowhere.
    Never,
}

/// The kernel under us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// Whether it is the one of the Windows Subsystem for Linux.
    pub wsl: bool,
    /// Whether memory is promised beyond what there is.
    pub overcommit: Option<Overcommit>,
    /// Transparent huge pages; `None` where the kernel has none.
    pub huge_pages: Option<HugePages>,
    /// The size of a page.
    pub page: Bytes,
}

/// Limits on this process, soft ones; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResourceLimits {
    /// Memory that may be locked, which pinned buffers are.
    pub memlock: Option<Bytes>,
    /// Address space.
    pub address_space: Option<Bytes>,
    /// Open files.
    pub open_files: Option<u64>,
}

/// Reads the text of `/proc/self/limits`; `path` is only for the messages.
pub fn parse_limits(path: &Path, text: &str) -> Result<ResourceLimits, MachineError> {
    let soft = |field: &'static str| -> Result<Option<u64>, MachineError> {
        let (at, line, rest) = text
            .lines()
            .enumerate()
            .find_map(|(at, line)| line.strip_prefix(field).map(|rest| (at + 1, line, rest)))
            .ok_or(MachineError::NoField { path: path.to_path_buf(), field })?;
        match rest.split_ascii_whitespace().next() {
            Some("unlimited") => Ok(None),
            Some(number) if number.parse::<u64>().is_ok() => Ok(number.parse().ok()),
            _ => Err(misread(path, at, "`name soft hard unit` with a number or `unlimited`", line)),
        }
    };
    Ok(ResourceLimits {
        memlock: soft("Max locked memory")?.map(Bytes),
        address_space: soft("Max address space")?.map(Bytes),
        open_files: soft("Max open files")?,
    })
}

pub(crate) fn read_limits(root: &Root) -> Result<ResourceLimits, MachineError> {
    parse_limits(&root.join(LIMITS), &root.read(LIMITS)?)
}

pub(crate) fn read_overcommit(root: &Root) -> Result<Option<Overcommit>, MachineError> {
    let Some(text) = root.read_if_there(OVERCOMMIT)? else { return Ok(None) };
    match text.trim() {
        "0" => Ok(Some(Overcommit::Heuristic)),
        "1" => Ok(Some(Overcommit::Always)),
        "2" => Ok(Some(Overcommit::Strict)),
        other => Err(misread(&root.join(OVERCOMMIT), 1, "`0`, `1` or `2`", other)),
    }
}

fn read_huge_pages(root: &Root) -> Result<Option<HugePages>, MachineError> {
    let Some(text) = root.read_if_there(HUGE_PAGES)? else { return Ok(None) };
    let chosen = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match chosen {
        Some("always") => Ok(Some(HugePages::Always)),
        Some("madvise") => Ok(Some(HugePages::Madvise)),
        Some("never") => Ok(Some(HugePages::Never)),
        _ => Err(misread(&root.join(HUGE_PAGES), 1, "`always madvise never` with one in brackets", &text)),
    }
}

pub(crate) fn read(root: &Root) -> Result<Kernel, MachineError> {
    let release = root.read(RELEASE)?.trim().to_string();
    Ok(Kernel {
        wsl: release.to_ascii_lowercase().contains("microsoft"),
        release,
        overcommit: read_overcommit(root)?,
        huge_pages: read_huge_pages(root)?,
        page: Bytes(rustix::param::page_size() as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max open files            20000                20000                files     
Max locked memory         8388608              unlimited            bytes     
Max address space         unlimited            unlimited            bytes     
";

    #[test]
    fn soft_limits_are_read() {
        let limits = parse_limits(Path::new(LIMITS), TABLE).unwrap();
        assert_eq!(limits.memlock, Some(Bytes::mib(8)));
        assert_eq!(limits.address_space, None);
        assert_eq!(limits.open_files, Some(20000));
    }

    #[test]
    fn a_missing_or_wrong_limit_is_named() {
        let error = parse_limits(Path::new(LIMITS), "Max open files  5 5 files\n").unwrap_err().to_string();
        assert_eq!(error, "`/proc/self/limits` has no `Max locked memory` line");
        let error = parse_limits(Path::new(LIMITS), &TABLE.replace("8388608", "lots")).unwrap_err().to_string();
        assert!(error.starts_with("`/proc/self/limits` line 3: expected"), "{error}");
    }

    #[test]
    fn settings_in_unknown_words_are_refused_with_the_words() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = Root::at(dir.path()).join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        write(OVERCOMMIT, "7\n");
        write(HUGE_PAGES, "always madvise never\n");
        let error = read_overcommit(&Root::at(dir.path())).unwrap_err().to_string();
        assert!(error.ends_with("overcommit_memory` line 1: expected `0`, `1` or `2`, found `7`"), "{error}");
        let error = read_huge_pages(&Root::at(dir.path())).unwrap_err().to_string();
        assert!(error.ends_with("found `always madvise never`"), "{error}");
    }
}
