//! CPU quota: how many cores' worth of time the cgroups give.
//!
//! v2 writes `quota period` into `cpu.max`, v1 into two files. Over the ancestors the smallest share binds.

use std::path::Path;

use crate::cgroup::CgroupVersion;
use crate::cgroup::locate::{locate, read_membership};
use crate::lines::misread;
use crate::{MachineError, Mount, Root};

/// The smallest quota over all ancestors, in cores; `None` where nobody sets one.
pub(crate) fn read_quota(root: &Root, mounts: &[Mount]) -> Result<Option<f64>, MachineError> {
    let membership = read_membership(root)?;
    let v1 = membership.cpu.and_then(|name| locate(root, mounts, CgroupVersion::V1, "cpu", &name));
    let v2 = membership.unified.and_then(|name| locate(root, mounts, CgroupVersion::V2, "", &name));
    let mut smallest: Option<f64> = None;
    for place in v1.into_iter().chain(v2) {
        for dir in &place.chain {
            let quota = match place.version {
                CgroupVersion::V1 => {
                    let (quota, period) = (dir.join("cpu.cfs_quota_us"), dir.join("cpu.cfs_period_us"));
                    match (root.read_if_there(&quota)?, root.read_if_there(&period)?) {
                        (Some(q), Some(p)) => parse_quota(&root.join(&quota), &format!("{} {}", q.trim(), p.trim()))?,
                        _ => None,
                    }
                }
                CgroupVersion::V2 => match root.read_if_there(dir.join("cpu.max"))? {
                    Some(text) => parse_quota(&root.join(dir.join("cpu.max")), &text)?,
                    None => None,
                },
            };
            smallest = [smallest, quota].into_iter().flatten().min_by(f64::total_cmp);
        }
    }
    Ok(smallest)
}

/// `quota period` in microseconds, where a quota of `max` or -1 is none.
fn parse_quota(path: &Path, text: &str) -> Result<Option<f64>, MachineError> {
    let wrong = || misread(path, 1, "`quota period` in microseconds", text.lines().next().unwrap_or(""));
    let (quota, period) = text.trim().split_once(' ').ok_or_else(wrong)?;
    if quota == "max" || quota == "-1" {
        return Ok(None);
    }
    let quota: u64 = quota.parse().map_err(|_| wrong())?;
    let period: u64 = period.trim().parse().ok().filter(|period| *period > 0).ok_or_else(wrong)?;
    Ok(Some(quota as f64 / period as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/sys/fs/cgroup/cpu.max";

    #[test]
    fn quotas_are_read_in_cores() {
        assert_eq!(parse_quota(Path::new(FILE), "150000 100000\n").unwrap(), Some(1.5));
        assert_eq!(parse_quota(Path::new(FILE), "max 100000\n").unwrap(), None);
        assert_eq!(parse_quota(Path::new(FILE), "-1 100000").unwrap(), None);
    }

    #[test]
    fn a_period_of_zero_or_a_missing_one_is_refused() {
        for wrong in ["100000 0", "100000", "", "x 100000"] {
            let error = parse_quota(Path::new(FILE), wrong).unwrap_err().to_string();
            assert!(error.contains("cpu.max` line 1") && error.ends_with(&format!("found `{wrong}`")), "{error}");
        }
    }
}
