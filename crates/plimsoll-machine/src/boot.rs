//! Which boot of the machine this is, and whether we see it as its kernel does.
//!
//! The kernel's log counts processes in the first PID namespace and names cgroups from the first cgroup namespace;
//! from inside of a container ours are other numbers and other names.

use crate::{MachineError, Root};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The kernel gives its first namespaces fixed numbers (`include/linux/proc_ns.h`).
const FIRST_PID: &str = "pid:[4026531836]";
const FIRST_CGROUP: &str = "cgroup:[4026531835]";

/// The number that the kernel drew when it booted; `None` where it is not shown.
pub fn boot_id(root: &Root) -> Result<Option<String>, MachineError> {
    Ok(root.read_if_there(BOOT_ID)?.map(|text| text.trim().to_string()).filter(|id| !id.is_empty()))
}

/// Whether this process is in the machine's first PID namespace. Where that cannot be seen, it is not.
pub fn in_first_pid_namespace(root: &Root) -> bool {
    namespace(root, "pid").is_some_and(|name| name == FIRST_PID)
}

/// Whether this process is in the machine's first cgroup namespace. A kernel without them (before 4.6) has only one.
pub fn in_first_cgroup_namespace(root: &Root) -> bool {
    let known = namespace(root, "pid").is_some();
    known && namespace(root, "cgroup").is_none_or(|name| name == FIRST_CGROUP)
}

fn namespace(root: &Root, kind: &str) -> Option<String> {
    let link = fs_err::read_link(root.join(format!("/proc/self/ns/{kind}"))).ok()?;
    Some(link.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(links: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("proc/self/ns")).unwrap();
        for (kind, name) in links {
            symlink(name, dir.path().join("proc/self/ns").join(kind)).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn the_first_namespaces_are_known_by_their_numbers() {
        let (_dir, machine) = tree(&[("pid", FIRST_PID), ("cgroup", FIRST_CGROUP)]);
        assert!(in_first_pid_namespace(&machine) && in_first_cgroup_namespace(&machine));
        let (_dir, container) = tree(&[("pid", "pid:[4026532281]"), ("cgroup", "cgroup:[4026532284]")]);
        assert!(!in_first_pid_namespace(&container) && !in_first_cgroup_namespace(&container));
        let (_dir, old) = tree(&[("pid", FIRST_PID)]);
        assert!(in_first_cgroup_namespace(&old));
        let (_dir, blind) = tree(&[]);
        assert!(!in_first_pid_namespace(&blind) && !in_first_cgroup_namespace(&blind));
    }

    #[test]
    fn a_boot_has_a_number_where_it_is_shown() {
        let (dir, root) = tree(&[]);
        assert_eq!(boot_id(&root).unwrap(), None);
        fs_err::create_dir_all(dir.path().join("proc/sys/kernel/random")).unwrap();
        fs_err::write(dir.path().join("proc/sys/kernel/random/boot_id"), "27824927-bdf8\n").unwrap();
        assert_eq!(boot_id(&root).unwrap().as_deref(), Some("27824927-bdf8"));
    }
}
