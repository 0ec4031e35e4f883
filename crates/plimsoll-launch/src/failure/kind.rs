//! The kinds of failure, by what has to be changed, not by how they look.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a foreign trainer's end was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It did what it was asked.
    Completed,
    /// A person, a batch system or a shutdown asked it to stop.
    Stopped,
    /// Somebody killed a process because host memory was short.
    HostOom {
        /// Who.
        by: Killer,
        /// Which sort of process.
        victim: Victim,
    },
    /// The system refused host memory; nobody was killed.
    AllocationRefused,
    /// `/dev/shm` is full.
    SharedMemoryFull,
    /// The limit of open files was reached.
    TooManyFiles,
    /// A loader process died, not for want of memory as far as was seen.
    LoaderWorkerDied {
        /// By which signal, where that is known.
        signal: Option<i32>,
    },
    /// The card's memory ran out.
    CardOom,
    /// The card had the memory, but not in one piece.
    CardFragmented,
    /// Another process holds what was missing on the card.
    CardNeighbour,
    /// An error of cuBLAS, cuDNN or NCCL that a full card often looks like.
    CardMasked,
    /// The card or its driver failed.
    CardLost,
    /// A rank ended, and nothing says why.
    RankDied {
        /// Which.
        rank: u32,
    },
    /// Ranks lost a peer; the peer's own end is not in what was seen.
    PeerLost,
    /// Nothing moves any more.
    Stalled {
        /// Whom the others wait for, where that is known.
        rank: Option<u32>,
    },
    /// The rendezvous port is taken.
    PortInUse,
    /// A checkpoint that cannot be loaded: missing, cut, of another shape or world size.
    BadCheckpoint,
    /// It runs, but not from where it was told to go on.
    NotRestored,
    /// An argument or setting that the trainer refuses.
    BadSetting,
    /// A Python module or a program that is not installed.
    MissingModule {
        /// Its name.
        name: String,
    },
    /// A compiler that was started on first use was killed.
    CompilerKilled,
    /// A file system is full.
    DiskFull,
    /// A disk or file system failed.
    IoError,
    /// The data are wrong or not there.
    BadData,
    /// A loss, gradient or weight is no finite number.
    NotFinite,
    /// Somebody's signal; nothing says whose or why.
    KilledUnproven {
        /// Which.
        signal: i32,
    },
    /// The machine went away.
    MachineLost,
    /// The program is wrong.
    Bug {
        /// Where: the innermost frame, or the signal of a fault.
        place: String,
    },
    /// Nothing that was seen explains it.
    Unknown,
}

/// Who killed for want of host memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Killer {
    /// The kernel, at the limit of a cgroup.
    Cgroup,
    /// The kernel, because the machine had none left.
    Host,
    /// A program that kills before the kernel must.
    Daemon {
        /// Which.
        name: String,
    },
}

/// Which sort of process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// One that trains.
    Rank,
    /// A loader process.
    Loader,
    /// A compiler, on first use of an extension.
    Compiler,
    /// The launcher.
    Launcher,
    /// Not known.
    Unknown,
}

impl FailureKind {
    /// Its name in journals and for programs.
    pub fn name(&self) -> &'static str {
        match self {
            FailureKind::Completed => "completed",
            FailureKind::Stopped => "stopped",
            FailureKind::HostOom { .. } => "host_oom",
            FailureKind::AllocationRefused => "allocation_refused",
            FailureKind::SharedMemoryFull => "shared_memory_full",
            FailureKind::TooManyFiles => "too_many_files",
            FailureKind::LoaderWorkerDied { .. } => "loader_worker_died",
            FailureKind::CardOom => "card_oom",
            FailureKind::CardFragmented => "card_fragmented",
            FailureKind::CardNeighbour => "card_neighbour",
            FailureKind::CardMasked => "card_masked",
            FailureKind::CardLost => "card_lost",
            FailureKind::RankDied { .. } => "rank_died",
            FailureKind::PeerLost => "peer_lost",
            FailureKind::Stalled { .. } => "stalled",
            FailureKind::PortInUse => "port_in_use",
            FailureKind::BadCheckpoint => "bad_checkpoint",
            FailureKind::NotRestored => "not_restored",
            FailureKind::BadSetting => "bad_setting",
            FailureKind::MissingModule { .. } => "missing_module",
            FailureKind::CompilerKilled => "compiler_killed",
            FailureKind::DiskFull => "disk_full",
            FailureKind::IoError => "io_error",
            FailureKind::BadData => "bad_data",
            FailureKind::NotFinite => "not_finite",
            FailureKind::KilledUnproven { .. } => "killed_unproven",
            FailureKind::MachineLost => "machine_lost",
            FailureKind::Bug { .. } => "bug",
            FailureKind::Unknown => "unknown",
        }
    }

    /// Whether less memory on the card would have prevented it.
    pub fn is_of_the_card(&self) -> bool {
        matches!(
            self,
            FailureKind::CardOom | FailureKind::CardFragmented | FailureKind::CardNeighbour | FailureKind::CardMasked
        )
    }

    /// Whether less host memory would have prevented it.
    pub fn is_of_the_host(&self) -> bool {
        matches!(self, FailureKind::HostOom { .. } | FailureKind::AllocationRefused)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureKind::Completed => write!(f, "it completed"),
            FailureKind::Stopped => write!(f, "stopped on request"),
            FailureKind::HostOom { by: Killer::Cgroup, victim } => {
                write!(f, "the kernel killed {victim} at the memory limit of its cgroup")
            }
            FailureKind::HostOom { by: Killer::Host, victim } => {
                write!(f, "the kernel killed {victim} because the machine had no memory left")
            }
            FailureKind::HostOom { by: Killer::Daemon { name }, victim } => {
                write!(f, "{name} killed {victim} because memory was short")
            }
            FailureKind::AllocationRefused => write!(f, "the system refused host memory"),
            FailureKind::SharedMemoryFull => write!(f, "the shared memory (/dev/shm) is full"),
            FailureKind::TooManyFiles => write!(f, "the limit of open files was reached"),
            FailureKind::LoaderWorkerDied { signal: Some(9) } => {
                write!(f, "a loader process was killed, by whom is unproven")
            }
            FailureKind::LoaderWorkerDied { signal: Some(signal) } => {
                write!(f, "a loader process died of signal {signal}")
            }
            FailureKind::LoaderWorkerDied { signal: None } => write!(f, "a loader process died"),
            FailureKind::CardOom => write!(f, "the card's memory ran out"),
            FailureKind::CardFragmented => write!(f, "the card's memory was there, but not in one piece"),
            FailureKind::CardNeighbour => write!(f, "another process holds the card's memory"),
            FailureKind::CardMasked => write!(f, "a library of the card failed, as a full card makes it"),
            FailureKind::CardLost => write!(f, "the card or its driver failed"),
            FailureKind::RankDied { rank } => write!(f, "rank {rank} died and did not say why"),
            FailureKind::PeerLost => write!(f, "ranks lost a peer that did not say why"),
            FailureKind::Stalled { rank: Some(rank) } => write!(f, "it stands still, waiting for rank {rank}"),
            FailureKind::Stalled { rank: None } => write!(f, "it stands still"),
            FailureKind::PortInUse => write!(f, "the port of the rendezvous is in use"),
            FailureKind::BadCheckpoint => write!(f, "the checkpoint cannot be loaded"),
            FailureKind::NotRestored => write!(f, "it did not go on from its checkpoint"),
            FailureKind::BadSetting => write!(f, "the trainer refuses a setting"),
            FailureKind::MissingModule { name } => write!(f, "`{name}` is not installed"),
            FailureKind::CompilerKilled => write!(f, "a compiler was killed, by whom is unproven"),
            FailureKind::DiskFull => write!(f, "the disk is full"),
            FailureKind::IoError => write!(f, "a disk or file system failed"),
            FailureKind::BadData => write!(f, "the data are wrong or missing"),
            FailureKind::NotFinite => write!(f, "numbers that are not finite"),
            FailureKind::KilledUnproven { signal } => write!(f, "killed by signal {signal}, cause unproven"),
            FailureKind::MachineLost => write!(f, "the machine went away"),
            FailureKind::Bug { place } => write!(f, "an error in the program, at {place}"),
            FailureKind::Unknown => write!(f, "cause unknown"),
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Victim::Rank => "a rank",
            Victim::Loader => "a loader process",
            Victim::Compiler => "a compiler",
            Victim::Launcher => "the launcher",
            Victim::Unknown => "a process",
        })
    }
}
