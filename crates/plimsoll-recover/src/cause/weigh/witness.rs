//! The witnesses that name a victim: the kernel's log and the logs of other daemons.

use super::{Case, Verdict};
use crate::cause::whose::{self, Whose};
use crate::cause::{Confidence, Deed, KernelKill, Kind, Scope, Source, Target};

/// The kernel's own account. A kill of somebody else's process is noted, and settles nothing.
pub(super) fn kernel(case: &mut Case<'_>) -> Option<Verdict> {
    let evidence = case.evidence;
    let whose = |kill: &KernelKill| {
        let named = whose::process(evidence, kill.pid, Some(&kill.comm), kill.task_memcg.as_deref());
        let grouped = case.kernel.groups.iter().any(|path| {
            kill.task_memcg.is_none() && named != Whose::Theirs && whose::cgroup(evidence, path) == Whose::Ours
        });
        if grouped { Whose::Ours } else { named }
    };
    let judged: Vec<(Whose, KernelKill)> = case.kernel.kills.iter().map(|kill| (whose(kill), kill.clone())).collect();
    let Some((_, kill)) = judged.iter().filter(|(whose, _)| *whose != Whose::Theirs).max_by_key(|(whose, _)| *whose)
    else {
        for (_, kill) in judged.iter().take(3) {
            let text =
                format!("the kernel killed process {} (`{}`) for memory, which is not ours", kill.pid, kill.comm);
            case.add(Source::KernelLog, text);
        }
        return None;
    };
    let sure = judged.iter().any(|(whose, other)| *whose == Whose::Ours && other == kill);
    // A kill that only might be ours counts when the worker, or a child of it, was killed too.
    if !sure && !case.died_of_sigkill() {
        let text = format!("the kernel killed process {} (`{}`) for memory; it may be ours", kill.pid, kill.comm);
        case.add(Source::KernelLog, text);
        return None;
    }
    let kill = kill.clone();
    case.add(Source::KernelLog, kill.line.clone());
    if let Some(resident) = kill.resident {
        let shmem = resident.shmem.map_or(String::new(), |shmem| format!(", {shmem} shared or pinned"));
        let text = format!("it held {} of heap, {} of mapped files{shmem}", resident.anon, resident.file);
        case.add(Source::KernelLog, text);
    }
    if let Some(path) = &kill.oom_memcg {
        case.add(Source::KernelLog, format!("the limit was that of the cgroup `{path}`"));
    }
    let confidence = if sure && kill.scope != Scope::Unsaid { Confidence::Proven } else { Confidence::Likely };
    let kind = match kill.scope {
        Scope::Cgroup => Kind::KernelOomInOurCgroup,
        Scope::Host => Kind::KernelOomOfTheHost,
        Scope::Unsaid => super::counters::scope(case),
    };
    Some((kind, confidence))
}

/// A daemon that kills for want of memory.
pub(super) fn daemon(case: &mut Case<'_>) -> Option<Verdict> {
    let evidence = case.evidence;
    let mut perhaps = None;
    for notice in case.notices.clone() {
        let Deed::KilledBy(name) = notice.deed else { continue };
        let whose = match &notice.target {
            Target::Process { pid, comm } => whose::process(evidence, *pid, comm.as_deref(), None),
            Target::Cgroup(path) => whose::cgroup(evidence, path),
            Target::Unit(unit) => whose::unit(evidence, unit),
            Target::ThisJob => Whose::Ours,
        };
        let kind = Kind::OomDaemon { name: name.to_string() };
        match whose {
            Whose::Ours => {
                case.add(Source::DaemonLog, notice.line);
                return Some((kind, Confidence::Proven));
            }
            Whose::Perhaps => perhaps = perhaps.or(Some((kind, notice.line))),
            Whose::Theirs => {
                case.add(Source::DaemonLog, format!("`{name}` killed something that is not ours: {}", notice.line))
            }
        }
    }
    let (kind, line) = perhaps?;
    case.add(Source::DaemonLog, line);
    case.was_killed().then_some((kind, Confidence::Likely))
}

/// A batch system that ended the job, or lost the machine.
pub(super) fn scheduler(case: &mut Case<'_>) -> Option<Verdict> {
    let found = case.notices.iter().find(|notice| matches!(notice.deed, Deed::StoppedByScheduler | Deed::NodeLost))?;
    let verdict = match found.deed {
        Deed::NodeLost => (Kind::PowerOrReboot, Confidence::Likely),
        _ => (Kind::StoppedByUser, Confidence::Proven),
    };
    let line = found.line.clone();
    case.add(Source::DaemonLog, line);
    Some(verdict)
}

impl Case<'_> {
    fn died_of_sigkill(&self) -> bool {
        let child = crate::cause::child_killed(&self.evidence.stderr_tail).is_some();
        child || self.signal() == Some(super::SIGKILL) || self.evidence.exit.is_none()
    }

    fn was_killed(&self) -> bool {
        self.died_of_sigkill() || self.signal() == Some(super::SIGTERM)
    }
}
