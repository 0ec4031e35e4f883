//! What each process of a tree is to the training: launcher, rank, loader, compiler. Pure.
//!
//! Ranks are known by the environment that launchers give them (`RANK`, `LOCAL_RANK`), loaders by their parent or by the
//! name that newer PyTorch gives them, compilers by the name of their program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::recognise::{SHELLS, WRAPPERS, is_python as runs_python, name_of};

/// A process and what can be seen of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// The kernel's name for it.
    pub comm: String,
    /// What it was started with.
    pub words: Vec<String>,
    /// `RANK`, or `LOCAL_RANK`, of its environment.
    pub rank: Option<u32>,
    /// `WORLD_SIZE` of its environment.
    pub world: Option<u32>,
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It trains.
    Rank(u32),
    /// It starts and waits for those that train.
    Launcher,
    /// It prepares batches for a rank.
    Loader(u32),
    /// It compiles what the training uses for the first time.
    Compiler,
    /// It does something else: a tracker, a logger.
    Helper,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Rank(rank) => write!(f, "rank {rank}"),
            Role::Launcher => write!(f, "launcher"),
            Role::Loader(rank) => write!(f, "loader of rank {rank}"),
            Role::Compiler => write!(f, "compiler"),
            Role::Helper => write!(f, "helper"),
        }
    }
}

const COMPILERS: [&str; 14] = [
    "cc1plus", "cc1", "ninja", "nvcc", "cicc", "ptxas", "cudafe++", "g++", "c++", "gcc", "as", "ld", "collect2",
    "clang",
];
/// Words of Python's own helper processes.
const TRACKERS: [&str; 3] = ["resource_tracker", "forkserver", "semaphore_tracker"];

/// The roles of a tree's processes, in the order of `tree`; `main` is its first process.
pub fn roles(tree: &[Sight], main: u32) -> Vec<Role> {
    let tree = Tree::new(tree, main);
    tree.all.iter().map(|one| tree.role(one)).collect()
}

struct Tree<'a> {
    all: &'a [Sight],
    by_pid: BTreeMap<u32, &'a Sight>,
    /// The process that trains where no environment names a rank, and its rank.
    first: u32,
    first_rank: u32,
    /// The parents of ranks.
    starters: BTreeSet<u32>,
}

impl<'a> Tree<'a> {
    fn new(all: &'a [Sight], main: u32) -> Tree<'a> {
        let by_pid = all.iter().map(|one| (one.pid, one)).collect();
        let mut tree = Tree { all, by_pid, first: main, first_rank: 0, starters: BTreeSet::new() };
        tree.starters = all.iter().filter(|one| tree.is_rank(one)).map(|one| one.parent).collect();
        tree.first = tree.trains(main);
        tree.first_rank = tree.by_pid.get(&tree.first).and_then(|one| one.rank).unwrap_or(0);
        tree
    }

    /// The outermost process with its number: what a rank forks has the same environment.
    fn is_rank(&self, one: &Sight) -> bool {
        let above = |parent: &&Sight| parent.rank != one.rank || starts_others(parent);
        one.rank.is_some()
            && self.by_pid.get(&one.parent).is_none_or(above)
            && !(is_compiler(one) || is_tracker(one) || starts_others(one))
    }

    /// The process that a chain of wrappers and launchers with one child ends in: `uv run`, `bash -c`, `accelerate
    /// launch` with one process. It is the first one where that only launches: a rank 0 is among the others.
    fn trains(&self, main: u32) -> u32 {
        let only_launches = self.all.iter().any(|one| one.pid != main && one.rank == Some(0) && self.is_rank(one));
        let mut at = main;
        for _ in 0..self.all.len() {
            if only_launches || !self.by_pid.get(&at).is_some_and(|one| starts_others(one)) {
                break;
            }
            let children = || self.all.iter().filter(|one| one.parent == at && !is_tracker(one) && !is_compiler(one));
            // Of a pipe (`python t.py | tee log`) the Python is meant.
            let Some(child) = children().find(|one| is_python(one)).or_else(|| children().next()) else { break };
            at = child.pid;
        }
        at
    }

    fn first_launches(&self) -> bool {
        self.all.iter().any(|one| one.pid != self.first && one.rank == Some(0) && self.is_rank(one))
    }

    fn rank_above(&self, one: &Sight) -> Option<u32> {
        let mut at = self.by_pid.get(&one.parent);
        for _ in 0..self.all.len() {
            let above = at?;
            if self.is_rank(above) {
                return above.rank;
            }
            // In Lightning's DDP the first process is rank 0 and starts the others.
            if above.pid == self.first && !self.first_launches() {
                return Some(self.first_rank);
            }
            at = self.by_pid.get(&above.parent);
        }
        None
    }

    fn role(&self, one: &Sight) -> Role {
        if is_compiler(one) {
            Role::Compiler
        } else if is_tracker(one) {
            Role::Helper
        } else if one.comm.starts_with("pt_data_worker") {
            Role::Loader(self.rank_above(one).or(one.rank).unwrap_or(0))
        } else if self.is_rank(one) {
            Role::Rank(one.rank.unwrap_or(0))
        } else if one.pid == self.first {
            if self.first_launches() { Role::Launcher } else { Role::Rank(self.first_rank) }
        } else if let Some(rank) = self.rank_above(one) {
            if is_python(one) { Role::Loader(rank) } else { Role::Helper }
        } else if self.starters.contains(&one.pid) || starts_others(one) {
            Role::Launcher
        } else {
            Role::Helper
        }
    }
}

/// Whether a process is a launcher, a shell or another program that runs others and does not train itself.
fn starts_others(one: &Sight) -> bool {
    const LAUNCHERS: [&str; 4] = ["torchrun", "accelerate", "accelerate-launch", "deepspeed"];
    let named = |word: &str| {
        let name = name_of(word);
        LAUNCHERS.contains(&name) || WRAPPERS.contains(&name) || SHELLS.contains(&name)
    };
    // A script that Python runs is its second word.
    let first = one.words.iter().take(if one.words.first().is_some_and(|word| runs_python(word)) { 2 } else { 1 });
    one.comm == "pt_elastic" || first.map(String::as_str).any(named)
}

fn is_compiler(one: &Sight) -> bool {
    COMPILERS.contains(&one.comm.as_str()) || one.comm.starts_with("x86_64-linux-gn")
}

fn is_tracker(one: &Sight) -> bool {
    one.words.iter().any(|word| TRACKERS.iter().any(|tracker| word.contains(tracker)))
}

/// A process that was forked or spawned by Python runs Python; threads of a pool may rename it.
fn is_python(one: &Sight) -> bool {
    one.comm.starts_with("python") || one.comm.starts_with("pt_") || one.words.first().is_some_and(|w| runs_python(w))
}

/// The ranks that are there.
pub fn world(roles: &[Role]) -> usize {
    let mut ranks: Vec<u32> =
        roles.iter().filter_map(|role| if let Role::Rank(rank) = role { Some(*rank) } else { None }).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: u32, parent: u32, comm: &str, rank: Option<u32>) -> Sight {
        let words = vec![if comm.starts_with("pt_") { "python3" } else { comm }.to_string()];
        Sight { pid, parent, comm: comm.to_string(), words, rank, world: rank.map(|_| 2) }
    }

    #[test]
    fn torchrun_has_an_agent_two_ranks_and_their_loaders() {
        let tree = [
            one(10, 1, "pt_elastic", None),
            one(11, 10, "python3", Some(0)),
            one(12, 10, "python3", Some(1)),
            one(13, 11, "pt_data_worker", Some(0)),
            one(14, 12, "python3", Some(1)),
            one(15, 12, "cc1plus", Some(1)),
        ];
        let found = roles(&tree, 10);
        let expected = [Role::Launcher, Role::Rank(0), Role::Rank(1), Role::Loader(0), Role::Loader(1), Role::Compiler];
        assert_eq!(found, expected);
        assert_eq!(world(&found), 2);
    }

    #[test]
    fn deepspeed_keeps_two_launchers() {
        let tree = [
            one(10, 1, "deepspeed", None),
            one(11, 10, "python3", None),
            one(12, 11, "python3", Some(0)),
            one(13, 11, "python3", Some(1)),
        ];
        assert_eq!(roles(&tree, 10), [Role::Launcher, Role::Launcher, Role::Rank(0), Role::Rank(1)]);
    }

    #[test]
    fn a_single_process_is_rank_0_and_its_forks_are_loaders() {
        let mut tracker = one(12, 10, "python3", None);
        tracker.words = ["python3", "-c", "from multiprocessing.resource_tracker import main"].map(String::from).into();
        let tree = [one(10, 1, "python3", None), one(11, 10, "python3", None), tracker];
        assert_eq!(roles(&tree, 10), [Role::Rank(0), Role::Loader(0), Role::Helper]);
    }

    #[test]
    fn in_lightnings_ddp_the_first_process_is_rank_0() {
        let tree = [one(10, 1, "python3", None), one(11, 10, "python3", Some(1)), one(12, 11, "python3", Some(1))];
        assert_eq!(roles(&tree, 10), [Role::Rank(0), Role::Rank(1), Role::Loader(1)]);
    }

    #[test]
    fn behind_a_wrapper_or_a_launcher_of_one_the_child_is_the_rank() {
        for (comm, words) in [
            ("uv", "uv run train.py"),
            ("bash", "bash -c exec"),
            ("accelerate", "python3 /opt/bin/accelerate launch t.py"),
        ] {
            let mut main = one(10, 1, comm, None);
            main.words = words.split(' ').map(String::from).collect();
            let tree = [main, one(11, 10, "tee", None), one(12, 10, "python3", None), one(13, 12, "python3", None)];
            assert_eq!(roles(&tree, 10), [Role::Launcher, Role::Helper, Role::Rank(0), Role::Loader(0)], "{words}");
        }
        let alone = [one(10, 1, "train", None), one(11, 10, "tee", None)];
        assert_eq!(roles(&alone, 10), [Role::Rank(0), Role::Helper]);
    }

    #[test]
    fn a_launcher_with_a_nodes_rank_in_its_environment_is_no_rank() {
        let mut main = one(10, 1, "torchrun", Some(0));
        main.words = ["python3", "/opt/bin/torchrun", "t.py"].map(String::from).into();
        let tree = [main, one(11, 10, "python3", Some(0)), one(12, 10, "python3", Some(1))];
        assert_eq!(roles(&tree, 10), [Role::Launcher, Role::Rank(0), Role::Rank(1)]);
    }

    #[test]
    fn ranks_whose_launcher_is_gone_are_still_ranks() {
        let tree = [one(11, 1, "python3", Some(0)), one(12, 1, "python3", Some(1))];
        assert_eq!(roles(&tree, 10), [Role::Rank(0), Role::Rank(1)]);
    }
}
