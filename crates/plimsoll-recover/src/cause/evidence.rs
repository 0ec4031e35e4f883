//! Everything that was seen of a death, as plain values.
//!
//! Nothing here is read from the machine: the supervisor fills it in, `doctor` fills it in from a run folder, and the
//! recorded deaths of the tests are these very structs. A field that could not be read is `None`, which is another
//! thing than zero: a counter that nobody could read proves nothing.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Kind;
use crate::Exit;

/// What was seen of one death.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// Whose exit codes these are.
    pub worker: Worker,
    /// How the worker ended; `None` where nobody was left to see it.
    #[serde(with = "exit")]
    pub exit: Option<Exit>,
    /// The signal by which the supervisor was asked to stop, if it was.
    pub stop_signal: Option<i32>,
    /// What our own worker says that it ended itself for.
    pub told: Option<Kind>,
    /// The last lines of its standard error, oldest first.
    pub stderr_tail: Vec<String>,
    /// The memory counters of the worker's cgroup.
    pub cgroup: Option<CgroupCounters>,
    /// `oom_kill` of `/proc/vmstat`: kernel OOM kills on the whole machine.
    pub vmstat_oom_kill: Option<Change<u64>>,
    /// The kernel's log since the worker started, raw; `None` where it may not be read.
    pub kernel_log: Option<String>,
    /// What other daemons wrote since then (systemd, systemd-oomd, earlyoom, kubelet, slurmstepd, docker inspect), raw.
    pub daemon_log: Option<String>,
    /// The last memory sample before the death.
    pub last_sample: Option<LastSample>,
    /// The last journal event before the death.
    pub last_event: Option<LastEvent>,
    /// The run folder's file system at the death.
    pub disk: Option<DiskAtDeath>,
    /// `/proc/sys/kernel/random/boot_id` when the worker started and now.
    pub boot_id: Option<Change<String>>,
    /// The processes of the run, as last seen.
    pub processes: Vec<RunProcess>,
    /// Whether `processes` were seen from the machine's first PID namespace, whose numbers the kernel's log uses.
    pub first_pid_namespace: bool,
    /// The worker's cgroup as the machine names it, such as `/system.slice/train.service`; `None` where a cgroup
    /// namespace hides it.
    pub cgroup_path: Option<String>,
}

/// Whose program died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Worker {
    /// Our own: its exit codes are [`crate::ExitCode`].
    #[default]
    Native,
    /// A foreign trainer: its exit codes mean what it likes.
    Foreign,
}

/// A value when the worker started, and at the death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change<T> {
    /// When it started.
    pub before: T,
    /// At the death.
    pub after: T,
}

impl Change<u64> {
    /// By how much it rose. A counter that fell is another cgroup's or another boot's: it tells nothing.
    pub fn rise(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

/// The counters of a memory cgroup. One that the kernel or version lacks is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version", rename_all = "snake_case", deny_unknown_fields)]
pub enum CgroupCounters {
    /// cgroup v1.
    V1 {
        /// `oom_kill` of `memory.oom_control` (kernel 4.13).
        oom_kill: Option<Change<u64>>,
        /// `memory.failcnt`: how often the limit was hit.
        failcnt: Option<Change<u64>>,
        /// `memory.max_usage_in_bytes` at the death.
        max_usage: Option<Bytes>,
        /// `memory.limit_in_bytes`.
        limit: Option<Bytes>,
    },
    /// cgroup v2: `memory.events`.
    V2 {
        /// Kills of the cgroup's processes, by any kernel OOM.
        oom_kill: Option<Change<u64>>,
        /// Allocations that were about to fail at the limit.
        oom: Option<Change<u64>>,
        /// Kills of the whole group (kernel 5.17).
        oom_group_kill: Option<Change<u64>>,
        /// How often `memory.max` was hit.
        max: Option<Change<u64>>,
        /// How often `memory.high` throttled.
        high: Option<Change<u64>>,
    },
}

/// The last memory sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastSample {
    /// What could still be taken, under all limits.
    pub headroom: Bytes,
    /// What could still be taken of the machine itself, limits aside.
    #[serde(default)]
    pub host_headroom: Option<Bytes>,
    /// The machine's RAM.
    #[serde(default)]
    pub host_ram: Option<Bytes>,
    /// The worker's swap.
    #[serde(default)]
    pub swap: Bytes,
    /// PSI `full avg10`, percent.
    #[serde(default)]
    pub stall_full: Option<f64>,
}

/// The last journal event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastEvent {
    /// Its step.
    pub step: u64,
    /// The journal's line.
    pub line: String,
}

/// A file system at the death.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskAtDeath {
    /// What was free.
    pub free: Bytes,
    /// What the write in progress still needed.
    #[serde(default)]
    pub needed: Option<Bytes>,
    /// The error of a file operation of the supervisor's own, if one failed.
    #[serde(default)]
    pub error: Option<String>,
}

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProcess {
    /// What it does: `worker`, `loader 2`, `rank 0`.
    pub role: String,
    /// The kernel's name for it (`comm`).
    pub comm: String,
    /// `NSpid` of its status: its numbers from the outermost visible namespace inwards.
    pub nspid: Vec<u32>,
}

/// `Option<Exit>` as `{ exited = 1 }` or `{ killed = 9 }`.
mod exit {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        Exited(i32),
        Killed(i32),
    }

    pub(super) fn serialize<S: Serializer>(exit: &Option<Exit>, to: S) -> Result<S::Ok, S::Error> {
        let shape = exit.map(|exit| match exit {
            Exit::Exited(status) => Shape::Exited(status),
            Exit::Killed(signal) => Shape::Killed(signal),
        });
        shape.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Exit>, D::Error> {
        Ok(Option::<Shape>::deserialize(from)?.map(|shape| match shape {
            Shape::Exited(status) => Exit::Exited(status),
            Shape::Killed(signal) => Exit::Killed(signal),
        }))
    }
}
