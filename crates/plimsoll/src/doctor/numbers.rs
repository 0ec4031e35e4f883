//! The numbers of a death, read once: what a headline, a ground and a piece of advice say of one thing is one value.

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::{CgroupCounters, Evidence, KernelKill, parse_kernel_log};
use plimsoll_watch::Event;

use super::attempts::{Attempt, Course, Finite};
use super::case::Case;

/// What is known of a death in numbers; what is not known is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    /// The plan's peak of RAM.
    pub planned: Option<Bytes>,
    /// The smallest plan with the same results.
    pub smallest: Option<Bytes>,
    /// RAM of the run when it was last looked at.
    pub seen: Option<Bytes>,
    /// The memory limit that was hit.
    pub limit: Option<Limit>,
    /// Whether the worker had a cgroup of its own.
    pub own_cgroup: bool,
    /// Heap and shared memory of the killed process, by the kernel's log.
    pub held: Option<Bytes>,
    /// What the machine could still give, of how much, at the last sample.
    pub host: Option<(Bytes, Bytes)>,
    /// Disk that a save needs.
    pub disk_needed: Option<Bytes>,
    /// Disk that was free at the death.
    pub disk_free_then: Option<Bytes>,
    /// Disk that is free now.
    pub disk_free_now: Option<Bytes>,
    /// A checkpoint's length.
    pub checkpoint: Option<Bytes>,
    /// The last step whose loss was a number.
    pub finite: Option<Finite>,
}

/// A memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How much.
    pub bytes: Bytes,
    /// Whose, where the kernel said.
    pub of: Option<String>,
    /// Whether it is the guard that the supervisor put around this worker alone.
    pub own: bool,
}

impl Numbers {
    /// Reads them.
    pub fn read(case: &Case, attempt: &Attempt<'_>, course: &Course, evidence: &Evidence) -> Numbers {
        let log = evidence.kernel_log.as_deref().unwrap_or_default();
        let kill = our_kill(evidence, log);
        let (planned, smallest) = match attempt.planned() {
            Some(Event::Planned { ram_bytes, smallest_bytes, .. }) => (Some(*ram_bytes), Some(*smallest_bytes)),
            _ => (planned_at_start(case), None),
        };
        let seen = attempt.records.iter().rev().find_map(|record| match record.event {
            Event::Step { ram_bytes, .. } | Event::Sample { ram_bytes, .. } => Some(ram_bytes),
            _ => None,
        });
        let on_disk = case.checkpoints.iter().rev().find_map(|checkpoint| checkpoint.bytes);
        let checkpoint = on_disk.or_else(|| last_save(case));
        let sample = evidence.last_sample;
        Numbers {
            planned: planned.or(case.plan.as_ref().map(|plan| plan.ram_peak)),
            smallest: smallest.filter(|bytes| *bytes > Bytes::ZERO),
            seen: seen.filter(|bytes| *bytes > Bytes::ZERO),
            own_cgroup: matches!(attempt.worker(), Some(Event::WorkerStarted { cgroup: Some(_), .. })),
            limit: limit(attempt, evidence, kill.as_ref(), log),
            held: kill
                .and_then(|kill| kill.resident)
                .map(|resident| resident.anon.saturating_add(resident.shmem.unwrap_or_default())),
            host: sample.and_then(|sample| sample.host_headroom.zip(sample.host_ram)),
            disk_needed: evidence.disk.as_ref().and_then(|disk| disk.needed).or(checkpoint),
            disk_free_then: evidence.disk.as_ref().map(|disk| disk.free),
            disk_free_now: case.now.disk_free,
            checkpoint,
            finite: course.finite,
        }
    }
}

fn planned_at_start(case: &Case) -> Option<Bytes> {
    case.records.iter().rev().find_map(|record| match record.event {
        Event::Planned { ram_bytes, .. } => Some(ram_bytes),
        Event::RunStarted { planned_ram_bytes, .. } => Some(planned_ram_bytes),
        _ => None,
    })
}

fn last_save(case: &Case) -> Option<Bytes> {
    case.records.iter().rev().find_map(|record| match record.event {
        Event::Saved { bytes, .. } => Some(bytes),
        _ => None,
    })
}

/// The kernel's kill of a process of the run, by its number or its cgroup.
fn our_kill(evidence: &Evidence, log: &str) -> Option<KernelKill> {
    let numbered = |kill: &&KernelKill| {
        evidence.first_pid_namespace && evidence.processes.iter().any(|p| p.nspid.first() == Some(&kill.pid))
    };
    let grouped = |kill: &&KernelKill| kill.task_memcg.is_some() && kill.task_memcg == evidence.cgroup_path;
    let kills = parse_kernel_log(log).kills;
    kills.iter().rev().find(numbered).or_else(|| kills.iter().rev().find(grouped)).cloned()
}

fn limit(attempt: &Attempt<'_>, evidence: &Evidence, kill: Option<&KernelKill>, log: &str) -> Option<Limit> {
    let of = kill.and_then(|kill| kill.oom_memcg.clone());
    let own = match (attempt.worker(), &of) {
        (Some(Event::WorkerStarted { cgroup: Some(leaf), .. }), Some(of)) => of.ends_with(leaf.as_str()) && leaf != "/",
        _ => false,
    };
    let counted = match evidence.cgroup {
        Some(CgroupCounters::V1 { limit, .. }) => limit,
        _ => None,
    };
    // The counters are those of the worker's own cgroup; the kernel's report is of the one whose limit was hit.
    let of_ours = of.is_none() || of == evidence.cgroup_path;
    // The report that belongs to a kill stands before it; a log may hold those of other kills too.
    let before = kill.and_then(|kill| log.split_once(kill.line.as_str())).map_or("", |(before, _)| before);
    let bytes = reported_limit(before).or(counted.filter(|_| of_ours))?;
    Some(Limit { bytes, of, own })
}

/// `memory: usage 524288kB, limit 524288kB, failcnt 42`, the last of them.
pub fn reported_limit(log: &str) -> Option<Bytes> {
    let last = log.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("memory: usage ")?;
        let (_, rest) = rest.split_once("kB, limit ")?;
        let (number, _) = rest.split_once("kB")?;
        number.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    last.map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_report_of_a_limit_is_read_and_nonsense_is_not() {
        let log = "x memory: usage 524288kB, limit 1048576kB, failcnt 42\nmemory+swap: usage 5kB, limit 9kB, failcnt 0";
        assert_eq!(reported_limit(log), Some(Bytes::gib(1)));
        assert_eq!(reported_limit("memory: usage 1kB, limit 99999999999999999999kB, failcnt"), None);
        assert_eq!(reported_limit("memory: usage 1kB, limit"), None);
    }
}
