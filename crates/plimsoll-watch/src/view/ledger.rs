//! Memory over a run: what was planned, what was seen, and both by part.

use std::collections::BTreeMap;

use plimsoll_machine::Bytes;

use super::{Curve, Memory, PartView, PlanFrom};
use crate::Seen;

/// Plans that are remembered.
const PLANS: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// Everything but the curve and the parts.
    memory: Memory,
    used: Curve,
    planned_parts: BTreeMap<String, Bytes>,
    used_parts: BTreeMap<String, Bytes>,
}

impl Ledger {
    /// A plan holds from `seconds` on.
    pub fn plan(&mut self, seconds: f64, planned: Option<Bytes>, budget: Option<Bytes>) {
        (self.memory.planned_bytes, self.memory.budget_bytes) = (planned, budget);
        let plans = &mut self.memory.plans;
        if plans.last().is_some_and(|last| (last.planned_bytes, last.budget_bytes) == (planned, budget)) {
            return;
        }
        plans.push(PlanFrom { from_seconds: seconds, planned_bytes: planned, budget_bytes: budget });
        if plans.len() > PLANS {
            plans.remove(0);
        }
    }

    /// The plan's lines.
    pub fn plan_parts(&mut self, smallest: Bytes, parts: &BTreeMap<String, Bytes>) {
        self.memory.smallest_bytes = Some(smallest);
        self.planned_parts.clone_from(parts);
    }

    pub fn planned(&self) -> Option<Bytes> {
        self.memory.planned_bytes
    }

    pub fn budget(&self) -> Option<Bytes> {
        self.memory.budget_bytes
    }

    /// So much was in use at `seconds`; nothing means that nobody could look.
    pub fn used(&mut self, seconds: f64, used: Bytes) {
        if used == Bytes::ZERO {
            return;
        }
        self.memory.used_bytes = Some(used);
        self.peak(used);
        self.used.push(seconds, used.0 as f64);
    }

    pub fn peak(&mut self, peak: Bytes) {
        self.memory.seen_peak_bytes = self.memory.seen_peak_bytes.max(Some(peak));
    }

    /// What a sample saw. Samples are taken by worker and supervisor, who see different things.
    pub fn see(&mut self, seen: &Seen) {
        fn keep<T: Copy>(into: &mut Option<T>, from: Option<T>) {
            *into = from.or(*into);
        }
        let memory = &mut self.memory;
        keep(&mut memory.headroom_bytes, seen.headroom_bytes);
        keep(&mut memory.swap_bytes, seen.swap_bytes);
        keep(&mut memory.vram_bytes, seen.vram_bytes);
        keep(&mut memory.swapping_bytes_per_second, seen.swapping_bytes_per_second);
        keep(&mut memory.stall_some, seen.stall_some);
        keep(&mut memory.stall_full, seen.stall_full);
        keep(&mut memory.disk_free_bytes, seen.disk_free_bytes);
        self.used_parts.extend(seen.parts.iter().map(|(name, &bytes)| (name.clone(), bytes)));
    }

    /// A new worker begins: what was seen of the old one says nothing of it.
    pub fn forget_seen(&mut self) {
        let old = std::mem::take(&mut self.memory);
        let Memory { seen_peak_bytes, planned_bytes, budget_bytes, smallest_bytes, plans, .. } = old;
        let known = Memory { seen_peak_bytes, planned_bytes, budget_bytes, smallest_bytes, plans, ..Memory::default() };
        self.memory = known;
        self.used_parts.clear();
    }

    /// The lines of the journal's plan, or of `plan` where the journal has none, in the order of `plan`.
    pub fn view(&self, plan: &[(String, Bytes)]) -> Memory {
        let mut parts: Vec<PartView> = Vec::new();
        let mut add = |name: &str, planned: Option<Bytes>| {
            if !parts.iter().any(|part| part.name == name) {
                let used_bytes = self.used_parts.get(name).copied();
                parts.push(PartView { name: name.to_string(), planned_bytes: planned, used_bytes });
            }
        };
        for (name, bytes) in plan {
            match self.planned_parts.get(name) {
                Some(&planned) => add(name, Some(planned)),
                None if self.planned_parts.is_empty() => add(name, Some(*bytes)),
                None => {}
            }
        }
        self.planned_parts.iter().for_each(|(name, &planned)| add(name, Some(planned)));
        self.used_parts.keys().for_each(|name| add(name, None));
        Memory { used: self.used.points(), parts, ..self.memory.clone() }
    }
}
