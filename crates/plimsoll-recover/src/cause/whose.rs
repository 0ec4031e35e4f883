//! Whether a process, cgroup or unit in somebody's log is ours.
//!
//! The kernel and the daemons count in the machine's first PID namespace. From inside a container our numbers are
//! others, so there a number neither proves nor disproves anything; then cgroup and name decide, and only to `Perhaps`.

use super::evidence::Evidence;

/// Whether something is the run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// Somebody else's.
    Theirs,
    /// It fits, and so might another's.
    Perhaps,
    /// Ours.
    Ours,
}

/// Whose the process `pid`, called `comm`, in the cgroup `memcg` is.
pub(super) fn process(evidence: &Evidence, pid: u32, comm: Option<&str>, memcg: Option<&str>) -> Whose {
    let numbered = evidence.processes.iter().any(|process| process.nspid.first() == Some(&pid));
    let same_name = comm.map(|comm| evidence.processes.iter().any(|process| process.comm == comm));
    let same_group = match (memcg, &evidence.cgroup_path) {
        (Some(memcg), Some(own)) if own != "/" => Some(inside(memcg, own)),
        _ => None,
    };
    if evidence.first_pid_namespace && numbered {
        return Whose::Ours;
    }
    match (same_group, same_name) {
        (Some(false), _) => Whose::Theirs,
        // A child that no sample saw; in a cgroup that is shared it could be a neighbour, hence the name.
        (Some(true), Some(false)) if evidence.first_pid_namespace => Whose::Theirs,
        (Some(true), _) if !evidence.first_pid_namespace => Whose::Ours,
        (Some(true), _) => Whose::Perhaps,
        (None, _) if evidence.first_pid_namespace && !evidence.processes.is_empty() => Whose::Theirs,
        (None, Some(false)) if !evidence.processes.is_empty() => Whose::Theirs,
        (None, _) => Whose::Perhaps,
    }
}

/// Whose the cgroup `path` is: ours if it is the run's or one above it, since a kill of a cgroup takes all below.
pub(super) fn cgroup(evidence: &Evidence, path: &str) -> Whose {
    match &evidence.cgroup_path {
        Some(own) if own != "/" => {
            if inside(own, path) {
                Whose::Ours
            } else {
                Whose::Theirs
            }
        }
        _ => Whose::Perhaps,
    }
}

/// Whose the systemd unit `name` is: ours if the run's cgroup is in it.
pub(super) fn unit(evidence: &Evidence, name: &str) -> Whose {
    match &evidence.cgroup_path {
        Some(own) if own != "/" => {
            if own.split('/').any(|part| part == name) {
                Whose::Ours
            } else {
                Whose::Theirs
            }
        }
        _ => Whose::Perhaps,
    }
}

/// Whether the cgroup `path` is `above` or below it.
fn inside(path: &str, above: &str) -> bool {
    let above = above.trim_end_matches('/');
    path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::RunProcess;
    use super::*;

    fn seen_from(first_pid_namespace: bool, cgroup_path: Option<&str>) -> Evidence {
        let worker = RunProcess { role: "worker".into(), comm: "plimsoll".into(), nspid: vec![42, 7] };
        let cgroup_path = cgroup_path.map(str::to_string);
        Evidence { processes: vec![worker], first_pid_namespace, cgroup_path, ..Evidence::default() }
    }

    #[test]
    fn on_the_machine_itself_the_number_decides() {
        let evidence = seen_from(true, None);
        assert_eq!(process(&evidence, 42, Some("other"), None), Whose::Ours);
        assert_eq!(process(&evidence, 7, Some("plimsoll"), None), Whose::Theirs);
    }

    #[test]
    fn in_a_container_an_equal_number_proves_nothing_and_the_cgroup_decides() {
        let evidence = seen_from(false, Some("/docker/abc"));
        assert_eq!(process(&evidence, 42, Some("plimsoll"), Some("/docker/xyz")), Whose::Theirs);
        assert_eq!(process(&evidence, 9001, Some("plimsoll"), Some("/docker/abc")), Whose::Ours);
        let blind = seen_from(false, None);
        assert_eq!(process(&blind, 42, Some("plimsoll"), Some("/docker/abc")), Whose::Perhaps);
        assert_eq!(process(&blind, 42, Some("java"), None), Whose::Theirs);
    }

    #[test]
    fn a_cgroup_whose_name_only_begins_like_ours_is_not_ours() {
        let evidence = seen_from(false, Some("/a/run"));
        assert_eq!(cgroup(&evidence, "/a/run"), Whose::Ours);
        assert_eq!(cgroup(&evidence, "/a"), Whose::Ours);
        assert_eq!(cgroup(&evidence, "/a/run2"), Whose::Theirs);
        assert_eq!(process(&evidence, 1, Some("plimsoll"), Some("/a/run2")), Whose::Theirs);
    }

    #[test]
    fn a_unit_is_ours_when_the_run_is_in_it() {
        let evidence = seen_from(true, Some("/user.slice/app.slice/train.scope/leaf"));
        assert_eq!(unit(&evidence, "train.scope"), Whose::Ours);
        assert_eq!(unit(&evidence, "train"), Whose::Theirs);
    }
}
