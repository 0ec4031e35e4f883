//! The machine's part of the facts: memory, limits, swap, promises, cards.

use plimsoll_launch::check::{CardFacts, CardHolder, HostFacts};
use plimsoll_machine::{Bytes, Cards, Overcommit, Probe, Root, Sighting, parse_meminfo};

/// Of a probe; what a training needs is not in it.
pub fn host_facts(root: &Root, found: &Probe) -> HostFacts {
    let limit = found.cgroup.seen().and_then(|cgroup| cgroup.limit.as_ref()).map(|limit| limit.bytes);
    HostFacts {
        ram: Some(found.ram.total),
        available: Some(found.usable),
        cgroup_limit: limit.filter(|limit| *limit < found.ram.total),
        cgroup_seen: found.cgroup.seen().is_some(),
        demand: None,
        shared_memory: found.shm.seen().map(|shm| shm.available),
        memlock: found.limits.memlock,
        registers_memory: false,
        swap: Some(found.swap.total),
        overcommit: found.kernel.overcommit.map(|how| match how {
            Overcommit::Heuristic => 0,
            Overcommit::Always => 1,
            Overcommit::Strict => 2,
        }),
        commit_left: commit_left(root),
        address_space: found.limits.address_space,
        open_files: found.limits.open_files,
    }
}

/// What the kernel may still promise.
fn commit_left(root: &Root) -> Option<Bytes> {
    let path = root.join("/proc/meminfo");
    let found = parse_meminfo(&path, &fs_err::read_to_string(&path).ok()?).ok()?;
    Some(found.commit_limit?.saturating_sub(found.committed?))
}

/// The card with the least room of those that the command may see; `None` where there is none.
pub fn card_facts(env: impl Fn(&str) -> Option<String>) -> Option<CardFacts> {
    let Sighting::Seen(cards) = Cards::open() else { return None };
    let all = cards.look();
    let visible = env("CUDA_VISIBLE_DEVICES");
    if visible.as_deref().is_some_and(|list| list.trim().is_empty() || list.trim() == "-1") {
        return None;
    }
    // CUDA's own numbers count as the driver's only where both count by the bus.
    let by_bus = env("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
    let named = |at: usize, uuid: &str| match visible.as_deref() {
        None => true,
        Some(list) => list.split(',').map(str::trim).any(|word| match word.parse::<usize>() {
            Ok(number) => !by_bus || number == at,
            Err(_) => uuid.starts_with(word),
        }),
    };
    let seen = all.iter().enumerate().filter(|(at, card)| named(*at, &card.uuid)).map(|(_, card)| card);
    let card = seen.min_by_key(|card| card.memory.free)?;
    let others =
        card.processes.iter().map(|(pid, held)| CardHolder { pid: *pid, name: name_of(*pid), held: Some(*held) });
    Some(CardFacts {
        total: Some(card.memory.total),
        free: Some(card.memory.free),
        demand: None,
        others: Some(others.collect()),
        cards: all.len() as u32,
        device_order: env("CUDA_DEVICE_ORDER"),
        alloc_conf: env("PYTORCH_ALLOC_CONF").or_else(|| env("PYTORCH_CUDA_ALLOC_CONF")),
        segments_work: cfg!(target_os = "linux"),
    })
}

fn name_of(pid: u32) -> Option<String> {
    Some(fs_err::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_string())
}
