//! What each process of a tree is to the training: launcher, rank, loader, compiler. Pure.
//!
//! Ranks are known by the environment that launchers give them (`RANK`, `LOCAL_RANK`), loaders by their parent or by the
//! name that newer PyTorch gives them, compilers by the name of their program.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    let by_pid = |pid: u32| tree.iter().find(|one| one.pid == pid);
    // A rank is the outermost process with its number: what it forks has the same environment.
    let is_rank = |one: &Sight| {
        one.rank.is_some()
            && by_pid(one.parent).is_none_or(|parent| parent.rank != one.rank)
            && !is_compiler(one)
            && !is_tracker(one)
    };
    let ranked = tree.iter().any(is_rank);
    let main_rank = by_pid(main).and_then(|one| one.rank).unwrap_or(0);
    let rank_above = |one: &Sight| -> Option<u32> {
        let mut at = by_pid(one.parent);
        for _ in 0..tree.len() {
            let above = at?;
            if is_rank(above) {
                return above.rank;
            }
            // Without a launcher the first process is the rank; in Lightning's DDP it is rank 0 and starts the others.
            if above.pid == main && !(ranked && launches(tree, main)) {
                return Some(main_rank);
            }
            at = by_pid(above.parent);
        }
        None
    };
    tree.iter()
        .map(|one| {
            if is_compiler(one) {
                Role::Compiler
            } else if is_tracker(one) {
                Role::Helper
            } else if one.comm.starts_with("pt_data_worker") {
                Role::Loader(rank_above(one).or(one.rank).unwrap_or(0))
            } else if is_rank(one) {
                Role::Rank(one.rank.unwrap_or(0))
            } else if one.pid == main {
                if ranked && launches(tree, main) { Role::Launcher } else { Role::Rank(main_rank) }
            } else if one.comm == "pt_elastic" {
                Role::Launcher
            } else if let Some(rank) = rank_above(one) {
                if is_python(one) { Role::Loader(rank) } else { Role::Helper }
            } else if tree.iter().any(|child| child.parent == one.pid && is_rank(child)) {
                Role::Launcher
            } else {
                Role::Helper
            }
        })
        .collect()
}

/// Whether the first process only launches: a rank 0 is among the others.
fn launches(tree: &[Sight], main: u32) -> bool {
    tree.iter().any(|one| one.pid != main && one.rank == Some(0))
}

fn is_compiler(one: &Sight) -> bool {
    COMPILERS.contains(&one.comm.as_str()) || one.comm.starts_with("x86_64-linux-gn")
}

fn is_tracker(one: &Sight) -> bool {
    one.words.iter().any(|word| TRACKERS.iter().any(|tracker| word.contains(tracker)))
}

/// A process that was forked or spawned by Python runs Python; threads of a pool may rename it.
fn is_python(one: &Sight) -> bool {
    one.comm.starts_with("python") || one.comm.starts_with("pt_") || {
        one.words.first().is_some_and(|word| word.rsplit('/').next().unwrap_or(word).starts_with("python"))
    }
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
    fn ranks_whose_launcher_is_gone_are_still_ranks() {
        let tree = [one(11, 1, "python3", Some(0)), one(12, 1, "python3", Some(1))];
        assert_eq!(roles(&tree, 10), [Role::Rank(0), Role::Rank(1)]);
    }
}
