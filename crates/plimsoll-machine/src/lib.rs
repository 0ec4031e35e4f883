//! What is there: RAM, swap, cgroup limits, pressure, cores, disks, GPUs, the memory of processes.
//!
//! Invariant: this crate only reads, and every file it reads hangs under a [`Root`] that the caller gives, so that
//! tests run on recorded trees. Reading, parsing and deciding are apart: parsers take text, decisions
//! ([`effective_limit`], [`reclaimable`], [`usable`]) take values. It knows nothing of models and plans.

mod boot;
mod bytes;
mod cards;
mod cgroup;
mod cpu;
mod disk;
mod error;
mod family;
mod gpu;
mod headroom;
mod identity;
mod kernel;
mod lines;
mod meminfo;
mod mounts;
mod pressure;
mod probe;
mod process;
mod report;
mod root;
mod sighting;
mod vmstat;

pub use boot::{boot_id, in_first_cgroup_namespace, in_first_pid_namespace};
pub use bytes::{Bytes, NotBytes};
pub use cards::{CardUse, Cards};
pub use cgroup::{
    Cgroup, CgroupVersion, Level, Limit, Membership, MemoryCounters, MemoryStat, Place, Room, Usage, effective_limit,
    parse_membership, parse_memory_stat, reclaimable, tightest,
};
pub use cpu::{Cores, Cpu, SimdLevel, parse_cpu_list, parse_cpuinfo, usable_cores};
pub use disk::{Disk, DiskKind, Space, space_of};
pub use error::MachineError;
pub use family::{
    FairShare, Relative, descendants, environment, fair_share, parse_fair_share, parse_stat, relative, words,
};
pub use gpu::{Gpu, GpuMemory, Gpus, gpu_memory_used};
pub use headroom::{Bound, Headroom, Usable, headroom, usable};
pub use identity::{Identity, identity, parse_identity};
pub use kernel::{HugePages, Kernel, Overcommit, ResourceLimits, parse_limits};
pub use meminfo::{MemInfo, parse_meminfo};
pub use mounts::{Mount, mount_of, parse_mountinfo};
pub use pressure::{Pressure, Stall, machine_pressure, parse_pressure};
pub use probe::{Probe, Ram, Swap, probe};
pub use process::{
    ProcessMemory, children, own_mapped_files, own_memory, parse_mapped_files, parse_status, process_memory,
};
pub use root::Root;
pub use sighting::Sighting;
pub use vmstat::{VmStat, parse_vmstat};
