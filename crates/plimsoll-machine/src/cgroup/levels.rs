//! Reading the memory files of a cgroup and of its ancestors.
//!
//! Limits are read anew each time, since they may be changed under a running process. A level without memory files
//! (v2's root, or a cgroup whose parent keeps the controller to itself) is no level: it neither limits nor counts.

use std::path::Path;

use crate::cgroup::stat::{MemoryStat, parse_memory_stat, reclaimable};
use crate::cgroup::{CgroupVersion, Level, Limit, Place, Usage};
use crate::lines::{lone_limit, lone_number};
use crate::{Bytes, MachineError, Root};

/// All levels that have memory files, the process's own first.
pub(crate) fn read_levels(root: &Root, place: &Place) -> Result<Vec<Level>, MachineError> {
    match place.version {
        CgroupVersion::V1 => read_v1(root, place),
        CgroupVersion::V2 => {
            place.chain.iter().filter_map(|dir| read_v2_level(root, dir).transpose()).collect::<Result<_, _>>()
        }
    }
}

/// What one cgroup uses.
pub(crate) fn read_usage(root: &Root, version: CgroupVersion, dir: &Path) -> Result<Usage, MachineError> {
    let file = match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    };
    let stat = stat_in(root, dir, version)?;
    let files = stat.cache.saturating_sub(stat.shmem);
    Ok(Usage { current: number_in(root, dir, file)?, reclaimable: reclaimable(&stat), files })
}

fn read_v2_level(root: &Root, dir: &Path) -> Result<Option<Level>, MachineError> {
    if !root.has(&dir.join("memory.current")) {
        return Ok(None);
    }
    let hard = limit_in(root, dir, "memory.max")?;
    // Above `memory.high` the kernel slows the members down to a crawl: for a training run that is a limit.
    let soft = limit_in(root, dir, "memory.high")?;
    let swap_limit = limit_in(root, dir, "memory.swap.max")?.map(|limit| limit.bytes);
    let swap_room = match swap_limit {
        Some(limit) => Some(limit.saturating_sub(number_in(root, dir, "memory.swap.current")?)),
        None => None,
    };
    Ok(Some(Level {
        limit: [hard, soft].into_iter().flatten().min_by_key(|limit| limit.bytes),
        current: number_in(root, dir, "memory.current")?,
        reclaimable: reclaimable(&stat_in(root, dir, CgroupVersion::V2)?),
        swap_limit,
        swap_room,
        dir: dir.to_path_buf(),
    }))
}

fn read_v1(root: &Root, place: &Place) -> Result<Vec<Level>, MachineError> {
    let mut levels = Vec::with_capacity(place.chain.len());
    let mut hierarchical = None;
    for (depth, dir) in place.chain.iter().enumerate() {
        // On kernels before 5.11 a parent may be told not to count its children; then it does not bind them either.
        let binds = || Ok(root.read_if_there(dir.join("memory.use_hierarchy"))?.is_none_or(|text| text.trim() != "0"));
        if depth > 0 && !binds()? {
            break;
        }
        let limit = limit_in(root, dir, "memory.limit_in_bytes")?;
        let current = number_in(root, dir, "memory.usage_in_bytes")?;
        let stat = stat_in(root, dir, CgroupVersion::V1)?;
        if depth == 0 {
            let file = dir.join("memory.stat");
            hierarchical = stat.hierarchical_limit.map(|bytes| Limit { bytes, file });
        }
        // v1 limits memory and swap together: the swap is what that sum leaves above the memory limit.
        let both = limit_in(root, dir, "memory.memsw.limit_in_bytes")?;
        let swap_limit = match (&both, &limit) {
            (Some(both), Some(limit)) => Some(both.bytes.saturating_sub(limit.bytes)),
            _ => None,
        };
        let swap_room = match swap_limit {
            Some(allowed) => {
                let used = number_in(root, dir, "memory.memsw.usage_in_bytes")?.saturating_sub(current);
                Some(allowed.saturating_sub(used))
            }
            None => None,
        };
        let reclaimable = reclaimable(&stat);
        levels.push(Level { dir: dir.clone(), limit, current, reclaimable, swap_limit, swap_room });
    }
    bind_from_above(&mut levels, hierarchical);
    Ok(levels)
}

/// A limit below all that are shown comes from an ancestor that is not shown. It uses at least what the topmost shown
/// level uses, so it is counted there.
fn bind_from_above(levels: &mut [Level], hierarchical: Option<Limit>) {
    let Some(hidden) = hierarchical else { return };
    let shown = super::effective_limit(levels);
    if let Some(top) = levels.last_mut()
        && shown.is_none_or(|shown| hidden.bytes < shown.bytes)
    {
        top.limit = Some(hidden);
    }
}

fn limit_in(root: &Root, dir: &Path, name: &str) -> Result<Option<Limit>, MachineError> {
    let file = dir.join(name);
    let Some(text) = root.read_if_there(&file)? else { return Ok(None) };
    Ok(lone_limit(&root.join(&file), &text)?.map(|bytes| Limit { bytes, file }))
}

fn number_in(root: &Root, dir: &Path, name: &str) -> Result<Bytes, MachineError> {
    let file = dir.join(name);
    lone_number(&root.join(&file), &root.read(&file)?).map(Bytes)
}

fn stat_in(root: &Root, dir: &Path, version: CgroupVersion) -> Result<MemoryStat, MachineError> {
    let file = dir.join("memory.stat");
    parse_memory_stat(&root.join(&file), version, &root.read(&file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(limit: Option<u64>) -> Level {
        let limit = limit.map(|bytes| Limit { bytes: Bytes(bytes), file: "/m/memory.limit_in_bytes".into() });
        let dir = "/m".into();
        Level { dir, limit, current: Bytes(1), reclaimable: Bytes(0), swap_limit: None, swap_room: None }
    }

    #[test]
    fn a_limit_from_an_ancestor_out_of_sight_binds_at_the_top() {
        let hidden = Limit { bytes: Bytes(50), file: "/m/a/memory.stat".into() };
        let mut levels = [level(Some(100)), level(None)];
        bind_from_above(&mut levels, Some(hidden.clone()));
        assert_eq!(levels[1].limit, Some(hidden));
    }

    #[test]
    fn a_limit_that_is_shown_keeps_its_own_file() {
        let mut levels = [level(None), level(Some(50))];
        bind_from_above(&mut levels, Some(Limit { bytes: Bytes(50), file: "/m/a/memory.stat".into() }));
        assert_eq!(levels[1].limit.as_ref().unwrap().file, Path::new("/m/memory.limit_in_bytes"));
    }
}
