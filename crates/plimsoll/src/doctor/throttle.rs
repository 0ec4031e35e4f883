//! The CPU bandwidth of a live worker's cgroup (`cpu.stat`), where it can be read.

use plimsoll_machine::Root;

use super::case::Throttle;

/// What the cgroup of the process `pid` counted.
pub fn throttle(root: &Root, pid: u32) -> Option<Throttle> {
    let membership = fs_err::read_to_string(root.join(format!("/proc/{pid}/cgroup"))).ok()?;
    places(&membership).iter().find_map(|place| parse(&fs_err::read_to_string(root.join(place)).ok()?))
}

/// Where `cpu.stat` may be: in the usual mounts, v2 and v1, and at their tops for a container that sees only its own.
fn places(membership: &str) -> Vec<String> {
    let mut places = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let tops: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            names if names.split(',').any(|name| name == "cpu") => {
                &["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"]
            }
            _ => continue,
        };
        let path = path.trim_end_matches('/');
        places.extend(tops.iter().flat_map(|top| [format!("{top}{path}/cpu.stat"), format!("{top}/cpu.stat")]));
    }
    places
}

fn parse(text: &str) -> Option<Throttle> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    Some(Throttle { periods: field("nr_periods")?, throttled: field("nr_throttled")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_of_a_process_is_found_in_v1_and_v2() {
        for (cgroup, file) in [
            ("0::/run.scope\n", "sys/fs/cgroup/run.scope/cpu.stat"),
            ("3:cpu,cpuacct:/docker/x\n0::/\n", "sys/fs/cgroup/cpu,cpuacct/cpu.stat"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in [("proc/7/cgroup", cgroup), (file, "usage_usec 9\nnr_periods 40\nnr_throttled 30\n")] {
                let path = dir.path().join(path);
                fs_err::create_dir_all(path.parent().unwrap()).unwrap();
                fs_err::write(path, text).unwrap();
            }
            let found = throttle(&Root::at(dir.path()), 7);
            assert_eq!(found, Some(Throttle { periods: 40, throttled: 30 }), "{cgroup}");
            assert_eq!(throttle(&Root::at(dir.path()), 8), None);
        }
    }

    #[test]
    fn a_cgroup_without_a_quota_says_nothing() {
        assert_eq!(parse("usage_usec 9\nuser_usec 5\n"), None);
    }
}
