//! What the worker sees of its own memory, and what swap costs it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_machine::{Bytes, Headroom, ProcessMemory, Root, children, own_memory, process_memory, space_of};
use plimsoll_plan::choose::Plan;
use plimsoll_watch::{Event, Moment, Seen};

use super::run::Run;
use crate::heap::{self, Role};

/// Between two looks at the memory of the run.
const LOOK: Duration = Duration::from_millis(500);
/// Between two samples in the journal, besides those at telling moments.
const SAMPLE: Duration = Duration::from_secs(30);
/// How the names of the supervisor's own cgroups begin.
const LEAF: &str = "plimsoll-";
/// Steps in swap before its cost is told.
const SWAP_STEPS: u32 = 5;

/// Where the worker looks.
pub(super) struct Looks {
    root: Root,
    headroom: Option<Headroom>,
    supervisor: u32,
    looked: Option<Instant>,
    sampled: Instant,
    /// All processes, at the last look.
    pub ram: Bytes,
    /// The card, at the last look.
    vram: Option<Bytes>,
    /// This process, at the last look.
    ours: ProcessMemory,
    swap: SwapCost,
}

impl Looks {
    pub fn new(supervisor: u32) -> Looks {
        let root = Root::system();
        Looks {
            headroom: Headroom::find(&root).ok().map(|headroom| headroom.outside_of(LEAF)),
            root,
            supervisor,
            looked: None,
            sampled: Instant::now(),
            ram: Bytes::ZERO,
            vram: None,
            ours: ProcessMemory::default(),
            swap: SwapCost::default(),
        }
    }

    /// What is seen now.
    pub fn sample(&mut self, at: Moment, step: u64, folder: &Path, plan: &Plan) -> Event {
        self.sampled = Instant::now();
        let free = space_of(folder).ok().map(|space| space.available);
        let supervisor = process_memory(&self.root, self.supervisor).unwrap_or_default();
        let ours = own_memory(&self.root).unwrap_or_default();
        let seen = Seen {
            headroom_bytes: self.headroom.as_ref().and_then(|headroom| headroom.read().ok()),
            swap_bytes: Some(ours.swap),
            disk_free_bytes: free,
            parts: parts(plan, &ours, &supervisor),
            vram_bytes: self.vram,
            ..Seen::default()
        };
        Event::Sample { at, step, ram_bytes: ours.rss + supervisor.rss, seen }
    }
}

impl Run<'_> {
    /// Reads the run's memory: what is used now, and the sum of the peaks, page tables with them.
    pub(super) fn look(&mut self) {
        let looks = &mut self.looks;
        looks.looked = Some(Instant::now());
        let Ok(ours) = own_memory(&looks.root) else { return };
        let Ok(theirs) = process_memory(&looks.root, looks.supervisor) else { return };
        let highest = |of: &ProcessMemory| of.peak + of.page_tables;
        let (mut ram, mut peak) = (ours.rss + theirs.rss, highest(&ours) + highest(&theirs));
        // The mirror, where there is one.
        let us = std::process::id();
        for pid in children(&looks.root, looks.supervisor).into_iter().filter(|pid| *pid != us) {
            if let Ok(other) = process_memory(&looks.root, pid) {
                (ram, peak) = (ram + other.rss, peak + highest(&other));
            }
        }
        (looks.ram, looks.ours) = (ram, ours);
        let used = self.engine.card().and_then(|card| card.used_now().ok()).map(Bytes);
        // Others may have let go of theirs meanwhile; the arena is ours in any case.
        let arena = self.engine.card().map_or(Bytes::ZERO, |card| Bytes(card.used().arena));
        looks.vram = used.map(|used| used.saturating_sub(self.prepared.others_on_card).max(arena));
        self.tally.peak_vram = self.tally.peak_vram.max(looks.vram.map_or(0, |vram| vram.0));
        self.tally.peak_ram = self.tally.peak_ram.max(peak.0);
    }

    /// Lets the program's pages of one phase (start, steps, evaluation, save) go before the next, which has code of its own.
    /// Looks first: a reading adds up what the kernel's record of the peak (`VmHWM`) has not been handed yet.
    pub(super) fn between_phases(&mut self) {
        self.look();
        plimsoll_recover::shed();
    }

    /// Looks if the last look is old, and takes note of a step of `seconds`.
    pub(super) fn look_after_step(&mut self, seconds: f64) {
        if self.looks.looked.is_none_or(|at| at.elapsed() > LOOK) {
            self.look();
        }
        if let Some(told) = self.looks.swap.step(self.looks.ours.swap, seconds) {
            self.warn(told);
        }
        if self.looks.sampled.elapsed() > SAMPLE {
            self.sample(Moment::Steps);
        }
    }

    /// Puts a sample into the journal.
    pub(super) fn sample(&mut self, at: Moment) {
        self.look();
        let event = self.looks.sample(at, self.step, self.folder, &self.prepared.plan);
        self.note(&event);
    }
}

/// What is used of the lines of the plan. The arena is taken and touched whole, so its lines are as planned; of the
/// others, those that can be told apart are measured.
fn parts(plan: &Plan, ours: &ProcessMemory, supervisor: &ProcessMemory) -> BTreeMap<String, Bytes> {
    const ARENA: [&str; 8] = [
        "weights",
        "frozen weights",
        "gradients",
        "optimizer state",
        "activations",
        "op workspace",
        "batch",
        "snapshot",
    ];
    let planned = plan.ram.parts.iter();
    let arena = planned.filter(|part| ARENA.contains(&part.name.as_str()));
    let mut used: BTreeMap<String, Bytes> = arena.map(|part| (part.name.clone(), part.bytes)).collect();
    used.insert("loader".to_string(), Bytes(heap::held(Role::Loader)));
    used.insert("supervisor".to_string(), supervisor.rss);
    used.insert("page tables".to_string(), ours.page_tables + supervisor.page_tables);
    used
}

/// Step times with and without swap.
#[derive(Clone, Copy, Debug, Default)]
struct SwapCost {
    without: (u32, f64),
    with: (u32, f64),
    noticed: bool,
    told: bool,
}

impl SwapCost {
    /// Takes note of a step; what is to be said about it, if anything.
    fn step(&mut self, swap: Bytes, seconds: f64) -> Option<String> {
        let side = if swap > Bytes::ZERO { &mut self.with } else { &mut self.without };
        *side = (side.0 + 1, side.1 + seconds);
        if swap == Bytes::ZERO {
            return None;
        }
        if !self.noticed {
            self.noticed = true;
            return Some(format!(
                "{swap} of the run are in swap: something else took the memory that was planned for it"
            ));
        }
        if self.told || self.with.0 < SWAP_STEPS || self.without.0 == 0 {
            return None;
        }
        self.told = true;
        let mean = |(steps, seconds): (u32, f64)| seconds / f64::from(steps);
        let (with, without) = (mean(self.with), mean(self.without));
        let percent = (with / without - 1.0) * 100.0;
        Some(format!("a step takes {with:.3} s with {swap} in swap, it took {without:.3} s before ({percent:+.0} %)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_warned_of_once_and_its_cost_told_once_with_both_figures() {
        let mut cost = SwapCost::default();
        for _ in 0..10 {
            assert_eq!(cost.step(Bytes::ZERO, 0.5), None);
        }
        let first = cost.step(Bytes::mib(3), 1.0).unwrap();
        assert!(first.starts_with("3.0 MiB of the run are in swap"), "{first}");
        let told: Vec<String> = (0..20).filter_map(|_| cost.step(Bytes::mib(3), 1.0)).collect();
        assert_eq!(told, ["a step takes 1.000 s with 3.0 MiB in swap, it took 0.500 s before (+100 %)"]);
    }
}
