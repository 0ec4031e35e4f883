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

use std::fmt;

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

impl Kind {
    /// Its name in journals and for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::KernelOomInOurCgroup => "kernel_oom_in_our_cgroup",
            Kind::KernelOomOfTheHost => "kernel_oom_of_the_host",
            Kind::OomDaemon { .. } => "oom_daemon",
            Kind::KilledUnproven { .. } => "killed_unproven",
            Kind::StoppedByUser => "stopped_by_user",
            Kind::DiskFull => "disk_full",
            Kind::IoError => "io_error",
            Kind::BadData => "bad_data",
            Kind::NonFinite => "non_finite",
            Kind::Bug { .. } => "bug",
            Kind::PowerOrReboot => "power_or_reboot",
            Kind::CudaOutOfMemory => "cuda_out_of_memory",
            Kind::AllocationRefused => "allocation_refused",
            Kind::DoesNotFit => "does_not_fit",
            Kind::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::KernelOomInOurCgroup => write!(f, "killed by the kernel at the memory limit of its cgroup"),
            Kind::KernelOomOfTheHost => write!(f, "killed by the kernel because the machine had no memory left"),
            Kind::OomDaemon { name } => write!(f, "killed by {name} because memory was short"),
            Kind::KilledUnproven { signal } => write!(f, "killed by signal {signal}, cause unproven"),
            Kind::StoppedByUser => write!(f, "stopped on request"),
            Kind::DiskFull => write!(f, "the disk is full"),
            Kind::IoError => write!(f, "a disk or file system failed"),
            Kind::BadData => write!(f, "the input is wrong"),
            Kind::NonFinite => write!(f, "numbers that are not finite"),
            Kind::Bug { place } => write!(f, "a bug in the program, at {place}"),
            Kind::PowerOrReboot => write!(f, "the machine went away"),
            Kind::CudaOutOfMemory => write!(f, "the card's memory ran out"),
            Kind::AllocationRefused => write!(f, "the system refused memory"),
            Kind::DoesNotFit => write!(f, "the plan does not fit"),
            Kind::Unknown => write!(f, "cause unknown"),
        }
    }
}

impl Confidence {
    /// Its name in journals and for programs.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Unproven => "unproven",
            Confidence::Likely => "likely",
            Confidence::Proven => "proven",
        }
    }
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

impl Source {
    /// In words.
    pub fn told(self) -> &'static str {
        match self {
            Source::ExitStatus => "exit status",
            Source::StopSignal => "stop signal",
            Source::Stderr => "its own words",
            Source::CgroupCounters => "cgroup counters",
            Source::Vmstat => "/proc/vmstat",
            Source::KernelLog => "kernel log",
            Source::DaemonLog => "daemon log",
            Source::Sample => "last sample",
            Source::Journal => "journal",
            Source::Disk => "disk",
            Source::BootId => "boot id",
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source.told(), self.text)
    }
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
