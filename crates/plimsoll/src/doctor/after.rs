//! A death that nobody saw: what the journal kept of the worker's start, given to the witness who looks now.

use plimsoll_machine::Root;
use plimsoll_recover::cause::{Evidence, LastEvent, LastSample, RunProcess};
use plimsoll_recover::witness::{Death, Started, after_the_fact};
use plimsoll_watch::Event;

use super::attempts::Attempt;

/// What the machine still shows of the end of `attempt`. Of a worker whose number the journal does not have, logs tell
/// nothing: its name is that of every other run.
pub fn evidence(root: &Root, attempt: &Attempt<'_>) -> Evidence {
    let evidence = after_the_fact(root, &started(attempt), death(attempt));
    match is_numbered(&evidence) {
        true => evidence,
        false => Evidence { kernel_log: None, daemon_log: None, ..evidence },
    }
}

/// Whether the run's processes are known by their numbers.
pub fn is_numbered(evidence: &Evidence) -> bool {
    evidence.processes.iter().any(|process| !process.nspid.is_empty())
}

/// The worker's start, as the journal has it.
fn started(attempt: &Attempt<'_>) -> Started {
    let process = |nspid: Vec<u32>| RunProcess { role: "worker".to_string(), comm: "plimsoll".to_string(), nspid };
    let unix_ms = attempt.began();
    match attempt.worker() {
        Some(Event::WorkerStarted { pid, nspid, cgroup, boot_id, vmstat_oom_kill, .. }) => Started {
            unix_ms,
            boot_id: Some(boot_id.clone()).filter(|id| !id.is_empty()),
            vmstat_oom_kill: *vmstat_oom_kill,
            cgroup: cgroup.clone(),
            processes: vec![process(if nspid.is_empty() { vec![*pid] } else { nspid.clone() })],
        },
        _ => Started { unix_ms, processes: vec![process(Vec::new())], ..Started::default() },
    }
}

fn death(attempt: &Attempt<'_>) -> Death {
    let last_sample = attempt.records.iter().rev().find_map(|record| match &record.event {
        Event::Sample { seen, .. } => Some(LastSample {
            headroom: seen.headroom_bytes?,
            host_headroom: None,
            host_ram: None,
            swap: seen.swap_bytes.unwrap_or_default(),
            stall_full: seen.stall_full,
        }),
        _ => None,
    });
    let step = attempt.records.iter().rev().find_map(|record| match record.event {
        Event::Step { step, .. } | Event::Resumed { step, .. } => Some(step),
        _ => None,
    });
    let line = attempt.records.last().and_then(|record| serde_json::to_string(record).ok());
    let last_event = line.map(|line| LastEvent { step: step.unwrap_or(0), line });
    Death { last_sample, last_event, ..Death::default() }
}

#[cfg(test)]
mod tests {
    use plimsoll_recover::cause::{Confidence, Kind, cause};

    use super::*;
    use crate::doctor::attempts::attempts;
    use crate::doctor::fixture::Story;

    /// A machine whose kernel killed a `plimsoll` with this number.
    fn machine(pid: u32) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["proc/sys/kernel/random", "proc/self/ns", "dev"] {
            fs_err::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("pid:[4026531836]", dir.path().join("proc/self/ns/pid")).unwrap();
        fs_err::write(dir.path().join("proc/sys/kernel/random/boot_id"), "boot-a\n").unwrap();
        let line = format!("Out of memory: Killed process {pid} (plimsoll) total-vm:9kB, anon-rss:8kB, file-rss:0kB");
        fs_err::write(dir.path().join("dev/kmsg"), format!("3,1,900000000000000,-;{line}\n")).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn a_kill_is_ours_by_its_number_and_never_by_a_name_that_every_run_has() {
        let mut journal = Story::begun();
        journal.steps(1, 5, 0.5, 0.0);
        let of = |records: &[plimsoll_watch::Record], pid: u32| {
            let (_dir, root) = machine(pid);
            let found = cause(&evidence(&root, attempts(records).last().unwrap()));
            (found.kind, found.confidence)
        };
        assert_eq!(of(&journal.records, 4242), (Kind::KernelOomOfTheHost, Confidence::Proven));
        assert_eq!(of(&journal.records, 777), (Kind::Unknown, Confidence::Unproven));
        // A journal of before the supervisor wrote of its workers.
        assert_eq!(of(&journal.records[2..], 777), (Kind::Unknown, Confidence::Unproven));
    }
}
