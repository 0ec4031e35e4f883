//! Where the files of this process's cgroup are.
//!
//! `/proc/self/cgroup` gives a name in the hierarchy, the mount table says which part of the hierarchy is shown where.
//! In a container the two seldom begin at the same place: a bind mount shows only the container's own part, a cgroup
//! namespace renames the part to `/`, and a mount from outside of the namespace begins with `/..`.

use std::path::{Component, Path, PathBuf};

use crate::cgroup::{CgroupVersion, Place};
use crate::lines::misread;
use crate::{MachineError, Mount, Root};

const MEMBERSHIP: &str = "/proc/self/cgroup";

/// The names of this process's cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// In v1's hierarchy with the `memory` controller.
    pub memory: Option<String>,
    /// In v1's hierarchy with the `cpu` controller.
    pub cpu: Option<String>,
    /// In v2's only hierarchy.
    pub unified: Option<String>,
}

/// Reads the text of `/proc/self/cgroup`; `path` is only for the messages.
pub fn parse_membership(path: &Path, text: &str) -> Result<Membership, MachineError> {
    let mut found = Membership::default();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(misread(path, at + 1, "`id:controllers:/path`", line));
        };
        if !name.starts_with('/') || id.parse::<u32>().is_err() {
            return Err(misread(path, at + 1, "`id:controllers:/path`", line));
        }
        let name = name.strip_suffix(" (deleted)").unwrap_or(name).to_string();
        if id == "0" && controllers.is_empty() {
            found.unified = Some(name);
            continue;
        }
        for controller in controllers.split(',') {
            match controller {
                "memory" => found.memory = Some(name.clone()),
                "cpu" => found.cpu = Some(name.clone()),
                _ => {}
            }
        }
    }
    Ok(found)
}

pub(crate) fn read_membership(root: &Root) -> Result<Membership, MachineError> {
    match root.read_if_there(MEMBERSHIP)? {
        Some(text) => parse_membership(&root.join(MEMBERSHIP), &text),
        None => Ok(Membership::default()), // a kernel without cgroups
    }
}

/// The hierarchy that really has the memory files; `Err` inside is the reason why there is none.
pub(crate) fn locate_memory(root: &Root, mounts: &[Mount]) -> Result<Result<Place, String>, MachineError> {
    let membership = read_membership(root)?;
    if let Some(name) = &membership.memory
        && let Some(place) = locate(root, mounts, CgroupVersion::V1, "memory", name)
        && root.has(&place.chain[0].join("memory.limit_in_bytes"))
    {
        return Ok(Ok(place));
    }
    let Some(name) = &membership.unified else {
        return Ok(Err(match &membership.memory {
            Some(name) => format!("the mount table shows no memory files for cgroup `{name}`"),
            None => "the kernel has no memory controller in any cgroup hierarchy".to_string(),
        }));
    };
    let Some(place) = locate(root, mounts, CgroupVersion::V2, "", name) else {
        return Ok(Err(format!("no cgroup mount shows cgroup `{name}`")));
    };
    // The real root of v2 has the controller but no `memory.max`; with v1 in charge of memory it lacks the controller.
    let top = &place.chain[place.chain.len() - 1];
    let controllers = root.read_if_there(top.join("cgroup.controllers"))?.unwrap_or_default();
    let in_charge = controllers.split_ascii_whitespace().any(|word| word == "memory")
        || place.chain.iter().any(|dir| root.has(&dir.join("memory.max")));
    Ok(if in_charge { Ok(place) } else { Err("the cgroup mounts that are shown have no memory files".to_string()) })
}

/// The folder of the cgroup `name` in a hierarchy, through the mount that shows the most of it.
pub(crate) fn locate(
    root: &Root,
    mounts: &[Mount],
    version: CgroupVersion,
    controller: &str,
    name: &str,
) -> Option<Place> {
    let of_hierarchy = |mount: &&Mount| match version {
        CgroupVersion::V1 => mount.fs == "cgroup" && mount.has_option(controller),
        CgroupVersion::V2 => mount.fs == "cgroup2",
    };
    let shown = mounts.iter().filter(of_hierarchy).filter_map(|mount| {
        let full = shown_at(mount, name)?;
        // A folder that is not there (a cgroup removed under us, a table from another view) leaves its ancestors.
        let dir = full.ancestors().find(|dir| root.has(dir)).filter(|dir| dir.starts_with(&mount.point))?;
        let chain: Vec<PathBuf> =
            dir.ancestors().take_while(|dir| dir.starts_with(&mount.point)).map(Path::to_path_buf).collect();
        Some((dir == full, chain))
    });
    let (_, chain) = shown.max_by_key(|(whole, chain)| (*whole, chain.len()))?;
    Some(Place { version, name: name.to_string(), chain })
}

/// Where a mount shows the cgroup `name`, if it does.
fn shown_at(mount: &Mount, name: &str) -> Option<PathBuf> {
    let above = |part: &Component| matches!(part, Component::ParentDir);
    match Path::new(name).strip_prefix(&mount.root) {
        Ok(rest) if rest.components().any(|part| above(&part)) => None, // outside of what is shown
        Ok(rest) => Some(mount.point.components().chain(rest.components()).collect()),
        // The mount begins above our namespace, which hides the names in between: only the top is known, and it binds.
        Err(_) if Path::new(&mount.root).components().skip(1).all(|part| above(&part)) => Some(mount.point.clone()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, point: &str) -> Mount {
        Mount { root: root.into(), point: point.into(), fs: "cgroup2".into(), source: "x".into(), options: "rw".into() }
    }

    fn at(root: &str, name: &str) -> Option<PathBuf> {
        shown_at(&mount(root, "/sys/fs/cgroup"), name)
    }

    #[test]
    fn names_are_mapped_through_whatever_part_is_mounted() {
        let dir = |rest: &str| Some(PathBuf::from(format!("/sys/fs/cgroup{rest}")));
        // The whole hierarchy; a cgroup namespace.
        assert_eq!(at("/", "/user.slice/a.scope"), dir("/user.slice/a.scope"));
        assert_eq!(at("/", "/"), dir(""));
        // A bind mount of the container's own part, with the process in it or below.
        assert_eq!(at("/docker/ab", "/docker/ab"), dir(""));
        assert_eq!(at("/docker/ab", "/docker/ab/worker"), dir("/worker"));
        // Another container's part; a name that only begins alike.
        assert_eq!(at("/docker/ab", "/docker/abc"), None);
        assert_eq!(at("/docker/ab", "/"), None);
        // Moved out of the namespace: not under the mount.
        assert_eq!(at("/", "/../other"), None);
        // A mount made outside of the namespace.
        assert_eq!(at("/..", "/"), dir(""));
        assert_eq!(at("/..", "/../other"), dir("/other"));
    }

    #[test]
    fn v1_lines_co_mounted_controllers_and_v2_are_told_apart() {
        let text = "11:memory:/a:b\n4:cpu,cpuacct:/c\n1:name=systemd:/d\n0::/e (deleted)\n";
        let found = parse_membership(Path::new(MEMBERSHIP), text).unwrap();
        assert_eq!(found.memory.as_deref(), Some("/a:b"));
        assert_eq!(found.cpu.as_deref(), Some("/c"));
        assert_eq!(found.unified.as_deref(), Some("/e"));
    }

    #[test]
    fn a_line_that_names_no_cgroup_is_refused() {
        for wrong in ["memory", "4:memory", "4:memory:relative", "x:memory:/"] {
            let error = parse_membership(Path::new(MEMBERSHIP), &format!("0::/\n{wrong}\n")).unwrap_err().to_string();
            assert_eq!(error, format!("`/proc/self/cgroup` line 2: expected `id:controllers:/path`, found `{wrong}`"));
        }
    }
}
