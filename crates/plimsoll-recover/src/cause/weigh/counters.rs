//! Counters and samples: they tell that the kernel killed, not for certain whom or at whose limit.
//!
//! `oom_kill` of a cgroup counts kills of its processes by any kernel OOM, the machine's included, and `oom` and `max`
//! may have risen earlier for other reasons; so the scope read from them is `Likely`, never `Proven`.

use plimsoll_machine::Bytes;

use super::{Case, Verdict};
use crate::cause::whose::{self, Whose};
use crate::cause::{CgroupCounters, Change, Confidence, Deed, Kind, Source, Target};

/// A machine with less than this share of its RAM left is short of memory (earlyoom acts at 10 %, kills at 5 %).
const SHORT_SHARE: u64 = 20;

/// The verdict on a death by `SIGKILL` that no log names.
pub(super) fn weigh(case: &mut Case<'_>) -> Option<Verdict> {
    // Readable counters that stood still clear the kernel: a kill of ours would have moved them.
    match kills(case) {
        Some(0) => {
            case.add(Source::CgroupCounters, "the cgroup counts no OOM kill since the start");
            // Docker's flag is sticky and of the whole container; against the counter it proves nothing.
            return None;
        }
        Some(risen) => {
            case.add(Source::CgroupCounters, format!("the cgroup counts {risen} more OOM kills than at the start"));
            if case.evidence.kernel_log.is_some() && !case.kernel.kills.is_empty() {
                // The log is readable and names only others: the counter is theirs, in a cgroup that we share.
                return None;
            }
            return Some((scope(case), Confidence::Likely));
        }
        None => {}
    }
    if let Some(verdict) = manager(case) {
        return Some(verdict);
    }
    let risen = case.evidence.vmstat_oom_kill.as_ref().map(Change::rise)?;
    case.add(Source::Vmstat, format!("the machine counts {risen} more OOM kills than at the start, of anybody"));
    if risen == 0 || !case.kernel.kills.is_empty() {
        return None;
    }
    host_is_short(case).then_some((Kind::KernelOomOfTheHost, Confidence::Likely))
}

/// Which OOM a kill of unsaid scope most likely was.
pub(super) fn scope(case: &mut Case<'_>) -> Kind {
    let rise = |change: Option<Change<u64>>| change.map_or(0, |change| change.rise());
    let (hits, peaked) = match case.evidence.cgroup {
        Some(CgroupCounters::V2 { oom, max, oom_group_kill, .. }) => {
            (rise(oom).max(rise(max)).max(rise(oom_group_kill)), None)
        }
        Some(CgroupCounters::V1 { failcnt, max_usage, limit, .. }) => (rise(failcnt), max_usage.zip(limit)),
        None => (0, None),
    };
    if hits > 0 {
        case.add(Source::CgroupCounters, format!("the cgroup's limit was hit {hits} times since the start"));
        if let Some((peak, limit)) = peaked {
            case.add(Source::CgroupCounters, format!("its peak is {peak} of {limit}"));
        }
        return Kind::KernelOomInOurCgroup;
    }
    // Where a pod and its container have one limit, only the pod's counters see the hit, so silence here is no proof.
    if host_is_short(case) { Kind::KernelOomOfTheHost } else { Kind::KernelOomInOurCgroup }
}

/// How many OOM kills the cgroup counted while the worker ran; `None` where that could not be read.
pub(super) fn kills(case: &Case<'_>) -> Option<u64> {
    match case.evidence.cgroup? {
        CgroupCounters::V1 { oom_kill, .. } => oom_kill.map(|change| change.rise()),
        CgroupCounters::V2 { oom_kill, oom_group_kill, .. } => {
            let group = oom_group_kill.map_or(0, |change| change.rise());
            oom_kill.map(|change| change.rise().max(group))
        }
    }
}

/// Slurm, Docker, Kubernetes and systemd, who read the counter of our cgroup for us.
fn manager(case: &mut Case<'_>) -> Option<Verdict> {
    let evidence = case.evidence;
    let ours = |target: &Target| match target {
        Target::ThisJob => true,
        Target::Unit(name) => whose::unit(evidence, name) != Whose::Theirs,
        Target::Process { .. } | Target::Cgroup(_) => false,
    };
    let found = case.notices.iter().find(|notice| notice.deed == Deed::KernelKilled && ours(&notice.target))?;
    let line = found.line.clone();
    case.add(Source::DaemonLog, line);
    Some((scope(case), Confidence::Likely))
}

fn host_is_short(case: &mut Case<'_>) -> bool {
    let Some(sample) = case.evidence.last_sample else { return false };
    let (Some(left), Some(ram)) = (sample.host_headroom, sample.host_ram) else { return false };
    let short = left < Bytes(ram.0 / SHORT_SHARE);
    let word = if short { "only " } else { "" };
    case.add(Source::Sample, format!("the machine had {word}{left} of {ram} left at the last sample"));
    short
}
