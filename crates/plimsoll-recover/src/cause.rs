//! What killed a run: evidence in, cause out. Pure.
//!
//! Invariant: no cause without evidence. `Proven` needs a witness that names this very death (the kernel's log with our
//! process, a daemon's line, the program's own words); counters and samples make it `Likely`; a signal by itself makes
//! it `KilledUnproven`, status 137 included: a shell writes 137 for every `SIGKILL`, whoever sent it. Every fact that
//! was used, and every one that speaks against the obvious guess, is in [`Cause::because`].
//!
//! It reads no file, and knows neither what to do about a cause (`policy`) nor how to tell it to a person.

mod daemon_log;
mod evidence;
mod kernel_log;
mod program_log;
mod weigh;
mod whose;

use serde::{Deserialize, Serialize};

pub use daemon_log::{Deed, Notice, Target, parse_daemon_log};
pub use evidence::{CgroupCounters, Change, DiskAtDeath, Evidence, LastEvent, LastSample, RunProcess, Worker};
pub use kernel_log::{KernelKill, KernelStory, Resident, Scope, parse_kernel_log};
pub use program_log::{LastWords, child_killed, parse_last_words};
pub use weigh::cause;

/// What killed a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The kernel's OOM killer, at the limit of the run's cgroup or of one above it.
    KernelOomInOurCgroup,
    /// The kernel's OOM killer, because the machine had no memory left.
    KernelOomOfTheHost,
    /// A program that kills before the kernel must.
    OomDaemon {
        /// Which.
        name: String,
    },
    /// Somebody's signal; nothing says whose or why.
    KilledUnproven {
        /// Which signal.
        signal: i32,
    },
    /// A person, a batch system or a shutdown asked it to stop.
    StoppedByUser,
    /// A file system is full.
    DiskFull,
    /// A disk or a file system fails.
    IoError,
    /// The input is wrong.
    BadData,
    /// A loss, gradient or weight is no finite number.
    NonFinite,
    /// The program is wrong: a panic, an uncaught exception, a fault.
    Bug {
        /// Where, as the program or the kernel told it.
        place: String,
    },
    /// The machine went away.
    PowerOrReboot,
    /// The card's memory ran out.
    CudaOutOfMemory,
    /// The system refused an allocation (overcommit, address space, `RLIMIT`); nobody was killed.
    AllocationRefused,
    /// The plan does not fit the budget; nothing was started.
    DoesNotFit,
    /// Nothing that was seen explains it.
    Unknown,
}

/// How sure a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Nothing proves it.
    Unproven,
    /// The evidence points there; another reading is possible.
    Likely,
    /// A witness names this death.
    Proven,
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The exit status or signal.
    ExitStatus,
    /// The stop that the supervisor was asked for.
    StopSignal,
    /// Standard error.
    Stderr,
    /// The cgroup's counters.
    CgroupCounters,
    /// `/proc/vmstat`.
    Vmstat,
    /// The kernel's log.
    KernelLog,
    /// The log of another daemon.
    DaemonLog,
    /// The last memory sample.
    Sample,
    /// The run's journal.
    Journal,
    /// The file system.
    Disk,
    /// The boot id.
    BootId,
}

/// A fact that speaks for the cause, or against the obvious guess.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Who says so.
    pub source: Source,
    /// What.
    pub text: String,
}

/// What killed a run, how sure that is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// What.
    pub kind: Kind,
    /// How sure.
    pub confidence: Confidence,
    /// Why; never empty.
    pub because: Vec<Fact>,
}
