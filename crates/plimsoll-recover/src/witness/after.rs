//! The evidence of a death that nobody was left to see, put together later from what the journal kept of the start.
//!
//! The kernel's ring may still hold the line, the boot id tells of a reboot, and a leaf that nobody removed still has
//! its counters.

use std::time::Duration;

use plimsoll_machine::{MemoryCounters, Place, Root, boot_id, in_first_cgroup_namespace, in_first_pid_namespace};
use rustix::time::{ClockId, clock_gettime};

use super::kmsg::{Kmsg, Tail};
use super::{Death, Started, change, journalctl, oom_kills, unix_ms};
use crate::cause::{Evidence, RunProcess};

/// The evidence of a death long after it, from the worker's start as the journal has it.
pub fn after_the_fact(root: &Root, started: &Started, death: Death) -> Evidence {
    let boot = change::of(started.boot_id.clone(), boot_id(root).ok().flatten());
    let same_boot = boot.as_ref().is_none_or(|boot| boot.before == boot.after);
    let place =
        started.cgroup.as_deref().filter(|_| same_boot).and_then(|name| Place::named(root, name).ok().flatten());
    let cgroup = place.and_then(|place| MemoryCounters::read(root, &place).ok()).map(|now| change::since_made(&now));
    let kernel_log = if same_boot {
        ring_since(root, started.unix_ms).or_else(|| journalctl::kernel_log(root, started.unix_ms))
    } else {
        started.boot_id.as_deref().and_then(|boot| journalctl::kernel_log_of_boot(root, boot))
    };
    let processes: Vec<RunProcess> = started.processes.clone();
    Evidence {
        worker: death.worker,
        exit: death.exit,
        stop_signal: death.stop_signal,
        told: death.told,
        stderr_tail: death.last_words,
        cgroup,
        // Another boot counts from zero again.
        vmstat_oom_kill: change::of(started.vmstat_oom_kill, oom_kills(root)).filter(|_| same_boot),
        kernel_log,
        daemon_log: journalctl::daemon_log(root, started.unix_ms),
        last_sample: death.last_sample,
        last_event: death.last_event,
        disk: death.disk,
        boot_id: boot,
        // Whoever asks may be in another container than the worker was; then its numbers are not of this namespace.
        first_pid_namespace: in_first_pid_namespace(root) && processes.iter().all(|known| known.nspid.len() == 1),
        cgroup_path: started.cgroup.clone().filter(|_| in_first_cgroup_namespace(root)),
        processes,
    }
}

/// What the kernel's ring still holds of the time since then.
fn ring_since(root: &Root, since_unix_ms: u64) -> Option<String> {
    let mut tail = Tail::default();
    Kmsg::at_start(root)?.read_on(&mut tail, by_the_kernels_clock(uptime(), unix_ms(), since_unix_ms));
    Some(tail.text())
}

/// A moment by the kernel's clock, with allowance for its error: a line too many is judged by its process, a line too
/// few is lost.
fn by_the_kernels_clock(uptime: Duration, now_unix_ms: u64, then_unix_ms: u64) -> Duration {
    let ago = Duration::from_millis(now_unix_ms.saturating_sub(then_unix_ms));
    // The log's clock is not steered as the machine's is; 200 ppm is worse than a quartz.
    let error = Duration::from_secs(60) + uptime / 5000;
    uptime.saturating_sub(ago).saturating_sub(error)
}

fn uptime() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec.clamp(0, 999_999_999) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{Confidence, Kind, cause};

    #[test]
    fn the_time_of_the_start_is_taken_early_rather_than_late() {
        let hours = |n: u64| Duration::from_secs(3600 * n);
        let start = by_the_kernels_clock(hours(10), 1_000_000_000, 1_000_000_000 - 3_600_000);
        assert!(start < hours(9) && start > hours(9) - Duration::from_secs(120), "{start:?}");
        assert_eq!(by_the_kernels_clock(hours(1), 1_000_000_000, 0), Duration::ZERO);
    }

    fn tree(boot: &str, log: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["proc/sys/kernel/random", "proc/self/ns", "dev"] {
            fs_err::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("pid:[4026531836]", dir.path().join("proc/self/ns/pid")).unwrap();
        fs_err::write(dir.path().join("proc/sys/kernel/random/boot_id"), boot).unwrap();
        fs_err::write(dir.path().join("proc/vmstat"), "oom_kill 4\n").unwrap();
        fs_err::write(dir.path().join("dev/kmsg"), log).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn a_kill_that_took_the_supervisor_too_is_found_in_the_ring() {
        let log = "3,1,900000000000000,-;Out of memory: Killed process 42 (plimsoll) total-vm:9kB, anon-rss:8kB, \
                   file-rss:0kB, shmem-rss:0kB\n";
        let (_dir, root) = tree("b1\n", log);
        let worker = RunProcess { role: "worker".into(), comm: "plimsoll".into(), nspid: vec![42] };
        let started = Started {
            unix_ms: unix_ms(),
            boot_id: Some("b1".into()),
            vmstat_oom_kill: Some(3),
            cgroup: None,
            processes: vec![worker],
        };
        let found = cause(&after_the_fact(&root, &started, Death::default()));
        assert_eq!((found.kind, found.confidence), (Kind::KernelOomOfTheHost, Confidence::Proven));

        let (_dir, root) = tree("b2\n", log);
        let evidence = after_the_fact(&root, &started, Death::default());
        assert_eq!((&evidence.kernel_log, evidence.vmstat_oom_kill), (&None, None), "the ring is another boot's");
        assert_eq!(cause(&evidence).kind, Kind::PowerOrReboot);
    }
}
