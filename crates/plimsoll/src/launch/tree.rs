//! The processes of a trainer: who they are, what each takes, how they move.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_launch::role::{Role, Sight, roles};
use plimsoll_launch::stall::{Pulse, RankPulse};
use plimsoll_machine::{
    Bytes, Cards, ProcessMemory, Relative, Root, environment, fair_share, process_memory, relative, words,
};
use plimsoll_watch::Member;

/// A process that is known.
#[derive(Clone, Debug)]
struct Known {
    sight: Sight,
    relative: Relative,
}

/// The processes as last seen.
#[derive(Debug, Default)]
pub struct Tree {
    known: BTreeMap<u32, Known>,
    roles: BTreeMap<u32, Role>,
    memory: BTreeMap<u32, ProcessMemory>,
}

/// A rank that is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
}

impl Tree {
    /// Looks at the processes `pids`; the ranks that are gone since the last look.
    pub fn look(&mut self, root: &Root, pids: &[u32], main: u32) -> Vec<Gone> {
        let mut now = BTreeMap::new();
        for pid in pids {
            let Ok(seen) = relative(root, *pid) else { continue };
            if matches!(seen.state, 'Z' | 'X') {
                continue;
            }
            // Number and start name a process; what it was started with is read once it has its own program.
            let sight = match self.known.remove(pid) {
                Some(known)
                    if known.relative.started_ticks == seen.started_ticks && known.relative.comm == seen.comm =>
                {
                    Sight { parent: seen.parent, ..known.sight }
                }
                _ => sight(root, &seen),
            };
            now.insert(*pid, Known { sight, relative: seen });
        }
        let sights: Vec<Sight> = now.values().map(|known| known.sight.clone()).collect();
        let named = roles(&sights, main);
        let new: BTreeMap<u32, Role> = sights.iter().map(|sight| sight.pid).zip(named).collect();
        let gone = self.roles.iter().filter_map(|(pid, role)| match role {
            Role::Rank(rank) if !new.contains_key(pid) => Some(Gone { rank: *rank, pid: *pid }),
            _ => None,
        });
        let gone = gone.collect();
        // A role stays: a loader whose rank is gone was a loader.
        for (pid, role) in &new {
            let role = match (self.roles.get(pid), role) {
                (Some(before @ Role::Loader(_)), Role::Helper | Role::Rank(_)) => *before,
                _ => *role,
            };
            now.entry(*pid).and_modify(|known| known.sight.pid = *pid);
            self.roles.insert(*pid, role);
        }
        self.roles.retain(|pid, _| now.contains_key(pid));
        self.known = now;
        gone
    }

    /// The processes and their roles.
    pub fn roles(&self) -> impl Iterator<Item = (u32, Role)> + '_ {
        self.roles.iter().map(|(pid, role)| (*pid, *role))
    }

    /// How many ranks there are: as many as run, or as the ranks were told.
    pub fn world(&self) -> u64 {
        plimsoll_launch::role::world(&self.roles.values().copied().collect::<Vec<_>>()) as u64
    }

    /// Ranks, and launchers: whom a stop for everybody goes to.
    pub fn to_ask(&self) -> Vec<u32> {
        let asked = |role: &Role| matches!(role, Role::Rank(_) | Role::Launcher);
        self.roles.iter().filter(|(_, role)| asked(role)).map(|(pid, _)| *pid).collect()
    }

    /// The pulse of the ranks; a loader's work is its rank's.
    pub fn pulse(&self, at: Duration, lines: u64, step: Option<u64>) -> Pulse {
        let work = |of: u32| -> u64 {
            let own = self.roles.iter().filter(|(_, role)| matches!(role, Role::Rank(r) | Role::Loader(r) if *r == of));
            own.filter_map(|(pid, _)| self.known.get(pid)).map(|known| known.relative.cpu_ticks).sum()
        };
        let compiling: u64 = self
            .roles
            .iter()
            .filter(|(_, role)| **role == Role::Compiler)
            .filter_map(|(pid, _)| self.known.get(pid))
            .map(|known| known.relative.cpu_ticks)
            .sum();
        let ranks = self.roles.iter().filter_map(|(pid, role)| match role {
            Role::Rank(rank) => {
                let state = self.known.get(pid)?.relative.state;
                Some(RankPulse { rank: *rank, pid: *pid, state, cpu: work(*rank) + compiling })
            }
            _ => None,
        });
        Pulse { at, ranks: ranks.collect(), lines, step }
    }

    /// What the processes held more than they do now, at a moment since the last call: a step's peak is shorter than the time
    /// between two looks. The kernel keeps each process's highest; only what is new in it counts, so that peaks that did not
    /// meet are not added.
    pub fn burst(&mut self, root: &Root) -> Bytes {
        let read = |pid: &u32| process_memory(root, *pid).ok().map(|memory| (*pid, memory));
        let now: BTreeMap<u32, ProcessMemory> = self.known.keys().filter_map(read).collect();
        let before = std::mem::replace(&mut self.memory, now);
        self.memory.iter().map(|(pid, now)| above(before.get(pid), now)).sum()
    }

    /// What each takes, its fair share included (a walk over page tables), and their share of mapped files: the pages of
    /// libraries, which all of them use.
    pub fn members(&self, root: &Root, cards: Option<&Cards>) -> (Vec<Member>, Bytes) {
        let on_cards = cards.map(Cards::look).unwrap_or_default();
        let vram = |pid: u32| -> Option<Bytes> {
            let all: Vec<Bytes> = on_cards.iter().filter_map(|card| card.processes.get(&pid)).copied().collect();
            (!all.is_empty()).then(|| all.into_iter().sum())
        };
        let mut files = Bytes::ZERO;
        let mut members = Vec::new();
        for (pid, role) in self.roles() {
            let Ok(memory) = process_memory(root, pid) else { continue };
            let share = fair_share(root, pid).ok();
            files += share.map_or(Bytes::ZERO, |share| share.file);
            members.push(Member {
                pid,
                role: role.to_string(),
                rss_bytes: memory.rss,
                pss_bytes: share.map(|share| share.pss),
                vram_bytes: vram(pid),
            });
        }
        (members, files)
    }
}

/// What a process held of its own more than it does now, if its highest is new. A highest with more files mapped is theirs.
fn above(before: Option<&ProcessMemory>, now: &ProcessMemory) -> Bytes {
    let (peak, files) = before.map_or((Bytes::ZERO, Bytes::ZERO), |before| (before.peak, before.rss_file));
    if now.peak <= peak {
        return Bytes::ZERO;
    }
    now.peak.saturating_sub(files.max(now.rss_file)).saturating_sub(now.rss_anon + now.rss_shmem)
}

fn sight(root: &Root, seen: &Relative) -> Sight {
    let found = environment(root, seen.pid, &["RANK", "LOCAL_RANK", "WORLD_SIZE"]);
    let number = |name: &str| found.get(name).and_then(|text| text.parse().ok());
    Sight {
        pid: seen.pid,
        parent: seen.parent,
        comm: seen.comm.clone(),
        words: words(root, seen.pid),
        rank: number("RANK").or_else(|| number("LOCAL_RANK")),
        world: number("WORLD_SIZE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(peak: u64, anon: u64, file: u64) -> ProcessMemory {
        let [peak, rss_anon, rss_file] = [peak, anon, file].map(Bytes::mib);
        ProcessMemory { rss: rss_anon + rss_file, peak, rss_anon, rss_file, ..ProcessMemory::default() }
    }

    #[test]
    fn a_peak_between_two_looks_counts_once_and_without_the_files_that_were_mapped() {
        let first = memory(1300, 700, 100);
        assert_eq!(above(None, &first), Bytes::mib(500));
        // It does not count again while it stays the highest.
        assert_eq!(above(Some(&first), &memory(1300, 600, 100)), Bytes::ZERO);
        assert_eq!(above(Some(&first), &memory(1400, 700, 100)), Bytes::mib(600));
        // A file that was mapped, and is or is not any more.
        assert_eq!(above(Some(&first), &memory(2800, 700, 2100)), Bytes::ZERO);
        assert_eq!(above(Some(&memory(2700, 600, 2100)), &memory(2800, 700, 100)), Bytes::ZERO);
    }
}
