//! `probe`: everything that this crate can tell, in one value.
//!
//! The value is printed by its `Display` (in `report`) or serialised; both say the same numbers. It is a snapshot: for
//! a figure to be watched take [`Headroom`](crate::Headroom).

use std::path::Path;

use serde::Serialize;

use crate::cgroup;
use crate::{
    Bound, Bytes, Cgroup, Cpu, Disk, Gpus, Kernel, MachineError, MemInfo, Mount, Pressure, ResourceLimits, Root,
    Sighting, Space, cpu, disk, gpu, kernel, meminfo, mounts, pressure, usable,
};

/// RAM of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ram {
    /// In all.
    pub total: Bytes,
    /// To be had without swapping, cgroups aside.
    pub available: Bytes,
}

/// Swap of the machine, and what of it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// In all.
    pub total: Bytes,
    /// Not in use.
    pub free: Bytes,
    /// Of the free, what the cgroups let this process have.
    pub usable: Bytes,
}

/// The machine, and what a run may use of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// What a run may use of RAM now.
    pub usable: Bytes,
    /// What sets that.
    pub bound: Bound,
    /// RAM.
    pub ram: Ram,
    /// Swap.
    pub swap: Swap,
    /// The memory cgroup.
    pub cgroup: Sighting<Cgroup>,
    /// Memory pressure of the machine.
    pub pressure: Sighting<Pressure>,
    /// The processor.
    pub cpu: Cpu,
    /// The file system of the path asked for.
    pub disk: Disk,
    /// `/dev/shm`.
    pub shm: Sighting<Space>,
    /// Cards.
    pub gpus: Sighting<Gpus>,
    /// Limits on this process.
    pub limits: ResourceLimits,
    /// The kernel.
    pub kernel: Kernel,
}

/// Looks at the machine, and at the disk under `disk_path`.
pub fn probe(root: &Root, disk_path: &Path) -> Result<Probe, MachineError> {
    let mounts = mounts::read(root)?;
    let memory = meminfo::read(root)?;
    let cgroup = read_cgroup(root, &mounts)?;
    let kernel = kernel::read(root)?;
    let own = cgroup.seen();
    let now = usable(&memory, own.and_then(|cgroup| cgroup.room.as_ref()), kernel.overcommit);
    Ok(Probe {
        usable: now.bytes,
        bound: now.bound,
        ram: Ram { total: memory.total, available: memory.available },
        swap: swap_of(&memory, own.and_then(|cgroup| cgroup.swap_room)),
        pressure: pressure::machine_pressure(root)?,
        cpu: cpu::read(root, &mounts)?,
        disk: disk::read(root, &mounts, disk_path)?,
        shm: disk::read_shm(root, &mounts, memory.total)?,
        gpus: gpu::read(root),
        limits: kernel::read_limits(root)?,
        cgroup,
        kernel,
    })
}

/// The machine's swap is ours only as far as the cgroups allow.
fn swap_of(memory: &MemInfo, room: Option<Bytes>) -> Swap {
    let usable = room.map_or(memory.swap_free, |room| room.min(memory.swap_free));
    Swap { total: memory.swap_total, free: memory.swap_free, usable }
}

fn read_cgroup(root: &Root, mounts: &[Mount]) -> Result<Sighting<Cgroup>, MachineError> {
    let place = match cgroup::locate_memory(root, mounts)? {
        Ok(place) => place,
        Err(reason) => return Ok(Sighting::unseen(reason)),
    };
    let levels = cgroup::read_levels(root, &place)?;
    let pressure = place.pressure(root)?;
    Ok(Sighting::Seen(Cgroup::of(place.version, place.name, levels, pressure)))
}
