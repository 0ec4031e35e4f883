//! The machine as far as swap is concerned: what there is, what is permitted, and where a swap file would lie.
//!
//! Nobody's demand is in it; whoever asks adds it. Nothing is written, and what cannot be read is absent.

use std::path::Path;

use plimsoll_launch::swap::SwapFacts;
use plimsoll_machine::{Probe, Root, probe};

/// Marks that container runtimes leave.
const CONTAINERS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// Of this machine; `None` where it cannot be read.
pub fn swap_facts(root: &Root) -> Option<SwapFacts> {
    // A swap file lies in the root folder, which is not where runs are written.
    Some(of_probe(root, &probe(root, Path::new("/")).ok()?))
}

/// Of a probe of the machine, whose disk is the one that a swap file would lie on.
fn of_probe(root: &Root, found: &Probe) -> SwapFacts {
    let swaps = fs_err::read_to_string(root.join("/proc/swaps")).unwrap_or_default();
    SwapFacts {
        ram: found.usable,
        swap_total: found.swap.total,
        swap_used: found.swap.total.saturating_sub(found.swap.free),
        swap_allowed: found.cgroup.seen().and_then(|cgroup| cgroup.swap_limit),
        zram: swaps.lines().any(|line| line.starts_with("/dev/zram")),
        disk_free: Some(found.disk.space.available),
        file_system: found.disk.fs.clone(),
        rotational: None,
        in_container: CONTAINERS.iter().any(|mark| root.join(mark).exists()),
        ..SwapFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_ram_and_nobodys_demand() {
        let facts = swap_facts(&Root::system()).unwrap();
        assert!(facts.ram.0 > 0 && facts.disk_free.is_some(), "{facts:?}");
        assert_eq!((facts.pageable.0, facts.pinned.0), (0, 0));
    }
}
