//! What other programs say of a kill: OOM daemons that kill for themselves, and managers that count the kernel's kills.
//!
//! Total: any text gives an answer. Their process numbers and cgroup paths are the machine's, not a container's;
//! whether they mean us is decided elsewhere, except where the line is about the very job whose log it stands in.

/// Whom a line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process by the machine's number.
    Process {
        /// Its number.
        pid: u32,
        /// Its name, where it is told.
        comm: Option<String>,
    },
    /// A cgroup by its path.
    Cgroup(String),
    /// A systemd unit by its name.
    Unit(String),
    /// The job that this log is of.
    ThisJob,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A daemon killed for want of memory.
    KilledBy(&'static str),
    /// A manager saw the kernel's OOM killer at work; the scope stays unsaid.
    KernelKilled,
    /// A batch system stopped the job: time, preemption, cancellation.
    StoppedByScheduler,
    /// A batch system lost the machine.
    NodeLost,
}

/// A line that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What was done.
    pub deed: Deed,
    /// To whom.
    pub target: Target,
    /// The line.
    pub line: String,
}

/// Reads the log of daemons and managers; other lines are passed over.
pub fn parse_daemon_log(text: &str) -> Vec<Notice> {
    let notice = |line: &str| {
        let line = line.trim();
        let (deed, target) = systemd(line).or_else(|| earlyoom(line)).or_else(|| manager(line))?;
        Some(Notice { deed, target, line: line.to_string() })
    };
    text.lines().filter_map(notice).collect()
}

/// systemd-oomd's `Killed CGROUP due to ...`, and the service manager's lines of units.
fn systemd(line: &str) -> Option<(Deed, Target)> {
    if let Some((_, rest)) = line.split_once("systemd-oomd[") {
        let (_, rest) = rest.split_once("]: Killed ")?;
        let (cgroup, why) = rest.split_once(" due to ")?;
        let memory = why.starts_with("memory used") || why.starts_with("memory pressure");
        return memory.then(|| (Deed::KilledBy("systemd-oomd"), Target::Cgroup(cgroup.to_string())));
    }
    let (_, rest) = line.split_once("systemd[")?;
    let (_, rest) = rest.split_once("]: ")?;
    let (unit, said) = rest.split_once(": ")?;
    let unit = Target::Unit(unit.to_string());
    if said.starts_with("systemd-oomd killed ") {
        return Some((Deed::KilledBy("systemd-oomd"), unit));
    }
    let kernel = said.contains("killed by the OOM killer") || said.contains("Failed with result 'oom-kill'");
    kernel.then_some((Deed::KernelKilled, unit))
}

/// earlyoom's `sending SIGTERM to process N [uid U ]"comm": ...`.
fn earlyoom(line: &str) -> Option<(Deed, Target)> {
    let rest = ["sending SIGTERM to process ", "sending SIGKILL to process "]
        .iter()
        .find_map(|mark| line.split_once(mark).map(|(_, rest)| rest))?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let pid = rest[..digits].parse().ok()?;
    let comm = rest.split_once('"').and_then(|(_, rest)| rest.rsplit_once("\":")).map(|(comm, _)| comm.to_string());
    Some((Deed::KilledBy("earlyoom"), Target::Process { pid, comm }))
}

/// Slurm, Kubernetes, Docker, Ray: what they say stands in the log of the job itself.
fn manager(line: &str) -> Option<(Deed, Target)> {
    let has = |mark: &str| line.contains(mark);
    let slurm = has("slurmstepd") || has("StepId=") || has("srun:");
    let deed = if slurm && has("Detected") && (has("oom_kill event") || has("oom-kill event")) {
        Deed::KernelKilled
    } else if slurm && (has("exceeded memory limit") || has("Exceeded job memory limit")) {
        Deed::KilledBy("slurmstepd")
    } else if slurm && has("CANCELLED") && has("DUE TO NODE FAILURE") {
        Deed::NodeLost
    } else if slurm && has("CANCELLED AT") {
        Deed::StoppedByScheduler
    } else if has("The node was low on resource: memory") {
        Deed::KilledBy("kubelet")
    } else if has("Task was killed due to the node running low on memory") {
        Deed::KilledBy("ray")
    } else if has("\"OOMKilled\": true") || has("\"OOMKilled\":true") || reason_is_oom_killed(line) {
        Deed::KernelKilled
    } else {
        return None;
    };
    Some((deed, Target::ThisJob))
}

/// `Reason: OOMKilled` and `"reason": "OOMKilled"`.
fn reason_is_oom_killed(line: &str) -> bool {
    let bare: String = line.chars().filter(|c| !c.is_whitespace() && *c != '"').collect();
    let bare = bare.to_ascii_lowercase();
    bare.trim_end_matches(',').ends_with("reason:oomkilled")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_killer_is_known_by_its_own_words() {
        let cgroup = |path: &str| Target::Cgroup(path.to_string());
        let process = |pid, comm: &str| Target::Process { pid, comm: Some(comm.to_string()) };
        let (oomd, early) = (Deed::KilledBy("systemd-oomd"), Deed::KilledBy("earlyoom"));
        let cases = [
            (
                "box systemd-oomd[612]: Killed /a/b.scope due to memory pressure for /a being 62% > 60% for > 30s",
                (oomd.clone(), cgroup("/a/b.scope")),
            ),
            (
                "systemd[1]: t.scope: systemd-oomd killed 3 process(es) in this unit.",
                (oomd, Target::Unit("t.scope".into())),
            ),
            (
                "earlyoom[5]: sending SIGTERM to process 4242 uid 1000 \"python3\": oom_score 1003, VmRSS 12 MiB",
                (early.clone(), process(4242, "python3")),
            ),
            ("sending SIGKILL to process 7 \"a\": badness 9, VmRSS 1 MiB", (early, process(7, "a"))),
            ("slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.", (Deed::KernelKilled, Target::ThisJob)),
            (
                "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-15T01:00:00 DUE TO TIME LIMIT ***",
                (Deed::StoppedByScheduler, Target::ThisJob),
            ),
            ("      Reason:       OOMKilled", (Deed::KernelKilled, Target::ThisJob)),
            ("            \"OOMKilled\": true,", (Deed::KernelKilled, Target::ThisJob)),
        ];
        for (line, (deed, target)) in cases {
            assert_eq!(parse_daemon_log(line), [Notice { deed, target, line: line.trim().to_string() }], "{line}");
        }
    }

    #[test]
    fn lines_that_tell_of_no_kill_are_passed_over() {
        for line in [
            "\"OOMKilled\": false,",
            "Reason: Completed",
            "earlyoom[5]: mem avail: 4000 of 8000 MiB (50%), swap free: 0 of 0 MiB",
            "systemd-oomd[612]: Swap is currently not detected; memory pressure usage will be degraded",
            "systemd[1]: t.service: Main process exited, code=killed, status=9/KILL",
            "CANCELLED AT the counter",
        ] {
            assert_eq!(parse_daemon_log(line), [], "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,300}") {
            parse_daemon_log(&text);
        }

        #[test]
        fn any_shuffle_of_the_daemons_words_is_read_without_a_panic(
            words in proptest::collection::vec(prop::sample::select(vec![
                "systemd-oomd[", "systemd[", "]: ", "]: Killed ", " due to ", "memory used", ": ", "sending SIGTERM to process ",
                "12", "\"", "\":", "é", "\n", "slurmstepd", "CANCELLED AT", "Reason:", "OOMKilled",
            ]), 0..30)
        ) {
            parse_daemon_log(&words.concat());
        }
    }
}
