//! Points about the machine: memory limits, shared memory, pinning, swap, promises of memory, open files.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use super::Item;

/// Open files that a loader process takes for tensors in flight, besides its own.
const FILES_PER_BATCH: u64 = 8;
/// Open files that a torch process has without any loader.
const FILES_ALONE: u64 = 256;

/// The machine and its limits. `None` is what could not be read; an inner `None` is "no limit".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostFacts {
    /// Installed RAM.
    pub ram: Option<Bytes>,
    /// What could be taken now, under all limits.
    pub available: Option<Bytes>,
    /// The tightest cgroup limit.
    pub cgroup_limit: Option<Bytes>,
    /// Whether cgroups could be read.
    pub cgroup_seen: bool,
    /// What the training is reckoned to need at its peak.
    pub demand: Option<Bytes>,
    /// Size of `/dev/shm`.
    pub shared_memory: Option<Bytes>,
    /// `RLIMIT_MEMLOCK`; `None` is no limit.
    pub memlock: Option<Bytes>,
    /// Whether memory is registered with a network card or an NVMe engine, which counts against it.
    pub registers_memory: bool,
    /// Swap that there is.
    pub swap: Option<Bytes>,
    /// `vm.overcommit_memory`.
    pub overcommit: Option<u8>,
    /// What may still be promised under `vm.overcommit_memory = 2`.
    pub commit_left: Option<Bytes>,
    /// `RLIMIT_AS`, where one is set.
    pub address_space: Option<Bytes>,
    /// The limit of open files.
    pub open_files: Option<u64>,
}

/// How batches are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoaderFacts {
    /// Ranks on this machine.
    pub ranks: u64,
    /// Loader processes per rank.
    pub workers: u64,
    /// Batches that each holds ready.
    pub prefetch: u64,
    /// Bytes of a batch.
    pub batch: Option<Bytes>,
    /// What is pinned, over all ranks.
    pub pinned: Bytes,
}

impl LoaderFacts {
    /// Batches in flight at most.
    fn in_flight(&self) -> u64 {
        self.ranks.max(1) * self.workers * self.prefetch.max(1)
    }
}

pub(super) fn items(host: &HostFacts, loader: &LoaderFacts) -> Vec<Item> {
    let mut out = vec![memory(host), limit(host)];
    out.extend(shared_memory(host, loader));
    out.extend(pinned(host, loader));
    out.push(swap(host));
    out.extend(promises(host));
    out.extend(open_files(host, loader));
    out
}

fn memory(host: &HostFacts) -> Item {
    let Some(left) = host.available else {
        return Item::unknown("host memory", "what can be taken could not be read", "look at `free -m`");
    };
    let cure = "make the training smaller: fewer loader processes first, then the batch (`plimsoll plan --trainer`)";
    Item::demand("host memory", host.demand, left, "can be taken", cure)
}

fn limit(host: &HostFacts) -> Item {
    let name = "memory limit";
    if !host.cgroup_seen {
        let cure = "look at `memory.max` of the cgroup, or ask the container's or batch system's owner";
        return Item::unknown(name, "the limits of the cgroups could not be read", cure);
    }
    match (host.cgroup_limit, host.ram, host.demand) {
        (None, _, _) => Item::pass(name, "no cgroup limits the memory below the machine's RAM"),
        (Some(limit), Some(ram), None) if limit < ram => Item::unknown(
            name,
            format!("a cgroup limits the memory to {limit}; the machine's {ram} do not count"),
            "reckon with the limit, not with what `free` shows",
        ),
        (Some(limit), _, Some(need)) if need > limit => Item::fail(
            name,
            format!("a cgroup limits the memory to {limit}, {need} are needed"),
            "raise the limit (`docker run --memory`, `systemd-run -p MemoryMax=`, `#SBATCH --mem`), or plan below it",
        ),
        (Some(limit), _, _) => Item::pass(name, format!("a cgroup limits the memory to {limit}, which is enough")),
    }
}

fn shared_memory(host: &HostFacts, loader: &LoaderFacts) -> Option<Item> {
    let name = "shared memory";
    if loader.workers == 0 {
        return None;
    }
    let cure = "give it more: `docker run --shm-size=8g` (the default is 64 MiB), or use fewer loader processes";
    let flight = loader.in_flight();
    Some(match (host.shared_memory, loader.batch) {
        (Some(size), Some(batch)) => {
            let need = Bytes(batch.0.saturating_mul(flight));
            let found = format!("/dev/shm has {size}; {flight} batches of {batch} in flight take {need}");
            if need <= size { Item::pass(name, found) } else { Item::fail(name, found, cure) }
        }
        (Some(size), None) => {
            Item::unknown(name, format!("/dev/shm has {size}; the bytes of a batch are not known"), cure)
        }
        (None, _) => Item::unknown(name, "the size of /dev/shm could not be read", cure),
    })
}

fn pinned(host: &HostFacts, loader: &LoaderFacts) -> Option<Item> {
    let name = "locked memory";
    let pinned = loader.pinned;
    if pinned == Bytes::ZERO {
        return None;
    }
    let cure = "raise it before the start: `ulimit -l unlimited`, `docker run --ulimit memlock=-1`";
    if host.ram.is_some_and(|ram| pinned >= ram) {
        let found = format!("{pinned} are to be pinned, which is all of the RAM");
        return Some(Item::fail(name, found, "pin less: switch `pin_memory` or pinned offload buffers off"));
    }
    Some(match host.memlock {
        None => Item::pass(name, format!("no limit; {pinned} are to be pinned")),
        Some(limit) if limit >= pinned => Item::pass(name, format!("{limit} may be locked, {pinned} are to be pinned")),
        Some(limit) if host.registers_memory => {
            let found = format!("{limit} may be locked; {pinned} are registered with a network card or NVMe engine");
            Item::fail(name, found, cure)
        }
        // The CUDA driver does not count its own pinning against the limit, as far as is known; others do.
        Some(limit) => {
            Item::unknown(name, format!("{limit} may be locked, {pinned} are to be pinned by the card's driver"), cure)
        }
    })
}

fn swap(host: &HostFacts) -> Item {
    let name = "swap";
    match host.swap {
        Some(Bytes::ZERO) => Item::unknown(
            name,
            "there is none: a short moment of too much ends in a kill",
            "`plimsoll probe` says whether some would help and prints the commands; it helps no card and nothing pinned",
        ),
        Some(swap) => Item::pass(name, format!("{swap}; it carries what is cold, and nothing of a card")),
        None => Item::unknown(name, "could not be read", "look at `swapon --show`"),
    }
}

fn promises(host: &HostFacts) -> Vec<Item> {
    let mut out = Vec::new();
    let name = "promised memory";
    match (host.overcommit, host.commit_left, host.demand) {
        (Some(2), Some(left), Some(need)) if left < need.saturating_add(need) => out.push(Item::fail(
            name,
            format!(
                "`vm.overcommit_memory` is 2 and {left} may still be promised; forks promise a parent's {need} again"
            ),
            "set `vm.overcommit_memory` to 0, or raise `vm.overcommit_ratio`",
        )),
        (Some(2), _, _) => out.push(Item::unknown(
            name,
            "`vm.overcommit_memory` is 2: allocations are refused that would never be touched",
            "set it to 0 unless it is there on purpose",
        )),
        (Some(how), _, _) => out.push(Item::pass(name, format!("`vm.overcommit_memory` is {how}"))),
        (None, _, _) => {}
    }
    if let Some(limit) = host.address_space {
        out.push(Item::fail(
            "address space",
            format!("`ulimit -v` is {limit}: CUDA and memory maps take far more addresses than memory"),
            "`ulimit -v unlimited`; limit memory by a cgroup instead",
        ));
    }
    out
}

fn open_files(host: &HostFacts, loader: &LoaderFacts) -> Option<Item> {
    let name = "open files";
    let limit = host.open_files?;
    let need = FILES_ALONE + loader.workers * loader.prefetch.max(1) * FILES_PER_BATCH;
    let found =
        format!("{limit} may be open; about {need} are needed by a rank with {} loader processes", loader.workers);
    Some(if limit >= need {
        Item::pass(name, found)
    } else {
        Item::fail(name, found, "`ulimit -n 65536` before the start")
    })
}
