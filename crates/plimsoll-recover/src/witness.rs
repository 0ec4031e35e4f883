//! What is seen of a worker from its start to its death, for `cause` to judge.
//!
//! [`Witness::begin`] reads the counters before the worker starts, [`Witness::testify`] reads them again at its death,
//! with what the kernel and other daemons wrote in between. [`after_the_fact`] does what is left to do when the
//! supervisor died too. What cannot be read is `None` and no error: a witness that fails would hide the death.
//!
//! Nothing is read between start and death, so it costs nothing. Nothing is judged here.

mod after;
mod change;
mod journalctl;
mod kmsg;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_machine::{
    MemoryCounters, Place, Root, Sighting, VmStat, boot_id, identity, in_first_cgroup_namespace, in_first_pid_namespace,
};

pub use after::after_the_fact;

use crate::Exit;
use crate::cause::{DiskAtDeath, Evidence, Kind, LastEvent, LastSample, RunProcess, Worker};
use crate::leaf::Leaf;
use kmsg::{Kmsg, Tail};

/// How long the kernel's line of a kill is waited for: it kills first and writes after.
const KERNEL_WRITES_WITHIN: Duration = Duration::from_millis(300);

/// What was seen of a worker so far.
#[derive(Debug)]
pub struct Witness {
    root: Root,
    started: Started,
    counted: Option<(Place, MemoryCounters)>,
    cgroup_path: Option<String>,
    kmsg: Option<Kmsg>,
}

/// What is worth keeping in a journal of a worker's start, so that its death can be judged even if nobody sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The machine's boot.
    pub boot_id: Option<String>,
    /// OOM kills on the machine so far.
    pub vmstat_oom_kill: Option<u64>,
    /// The worker's own cgroup as `/proc` names it, where it has one.
    pub cgroup: Option<String>,
    /// The processes of the run.
    pub processes: Vec<RunProcess>,
}

/// What others know of a death: the supervisor, the journal, the worker itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Death {
    /// Whose exit codes these are.
    pub worker: Worker,
    /// How the worker ended; `None` where nobody was left to see it.
    pub exit: Option<Exit>,
    /// The signal by which the supervisor was asked to stop.
    pub stop_signal: Option<i32>,
    /// What our own worker says that it ended itself for.
    pub told: Option<Kind>,
    /// The last lines of its standard error, or its last words in the journal, oldest first.
    pub last_words: Vec<String>,
    /// The last memory sample.
    pub last_sample: Option<LastSample>,
    /// The last journal event.
    pub last_event: Option<LastEvent>,
    /// The run folder's file system.
    pub disk: Option<DiskAtDeath>,
}

impl Witness {
    /// Looks before a worker starts. Without a leaf of its own, the counters are those of the cgroup that it shares
    /// with us.
    pub fn begin(root: &Root, leaf: Option<&Leaf>) -> Witness {
        let place = match leaf {
            Some(leaf) => Some(leaf.place().clone()),
            None => Place::own(root).ok().and_then(|own| match own {
                Sighting::Seen(place) => Some(place),
                Sighting::Unseen { .. } => None,
            }),
        };
        let cgroup_path = place.as_ref().filter(|_| in_first_cgroup_namespace(root)).map(|place| place.name.clone());
        let counted = place.and_then(|place| {
            let counters = MemoryCounters::read(root, &place).ok()?;
            Some((place, counters))
        });
        let started = Started {
            unix_ms: unix_ms(),
            boot_id: boot_id(root).ok().flatten(),
            vmstat_oom_kill: oom_kills(root),
            cgroup: leaf.map(|leaf| leaf.name().to_string()),
            processes: Vec::new(),
        };
        Witness { root: root.clone(), started, counted, cgroup_path, kmsg: Kmsg::at_end(root) }
    }

    /// Remembers a process of the run by what the kernel's log would call it. Called while it lives.
    pub fn saw(&mut self, role: &str, pid: u32) {
        let Ok(found) = identity(&self.root, pid) else { return };
        let process = RunProcess { role: role.to_string(), comm: found.comm, nspid: found.nspid };
        let known = &mut self.started.processes;
        match known.iter_mut().find(|known| known.nspid == process.nspid) {
            Some(known) => *known = process,
            None => known.push(process),
        }
    }

    /// What to keep in the journal.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// All that is to be had of the worker's death, after it was seen to end. Takes up to 300 ms where the kernel killed
    /// somebody and has not written whom, and up to 4 s where only `journalctl` may read the logs.
    pub fn testify(&mut self, death: Death) -> Evidence {
        let now = oom_kills(&self.root);
        let counters = self.counted.as_ref().and_then(|(place, before)| {
            let after = MemoryCounters::read(&self.root, place).ok()?;
            change::since(before, &after)
        });
        let first_pid_namespace = in_first_pid_namespace(&self.root);
        let started = &self.started;
        let kills = change::of(started.vmstat_oom_kill, now);
        let asked = needs_logs(death.exit, kills.map(|kills| kills.rise()));
        let victims = first_pid_namespace.then(|| numbers(&started.processes));
        let kernel_log = match &mut self.kmsg {
            Some(kmsg) => {
                let wait = may_be_the_kernel(death.exit, kills.map(|kills| kills.rise()));
                Some(overhear(kmsg, victims.as_deref(), if wait { KERNEL_WRITES_WITHIN } else { Duration::ZERO }))
            }
            None if asked => journalctl::kernel_log(&self.root, started.unix_ms),
            None => None,
        };
        let boot_id = change::of(started.boot_id.clone(), boot_id(&self.root).ok().flatten());
        Evidence {
            worker: death.worker,
            exit: death.exit,
            stop_signal: death.stop_signal,
            told: death.told,
            stderr_tail: death.last_words,
            cgroup: counters,
            vmstat_oom_kill: kills,
            kernel_log,
            daemon_log: if asked { journalctl::daemon_log(&self.root, started.unix_ms) } else { None },
            last_sample: death.last_sample,
            last_event: death.last_event,
            disk: death.disk,
            boot_id,
            processes: started.processes.clone(),
            first_pid_namespace,
            cgroup_path: self.cgroup_path.clone(),
        }
    }
}

/// Whether the kernel may have killed a worker that ended so. It counts before it kills, so a machine that counts and
/// did not has killed nobody.
fn may_be_the_kernel(exit: Option<Exit>, machine_kills: Option<u64>) -> bool {
    match machine_kills {
        Some(kills) => kills > 0,
        None => exit == Some(Exit::Killed(libc::SIGKILL)),
    }
}

/// Whether a death asks for the logs of others: one by a signal, one that nobody saw, one beside a kill.
fn needs_logs(exit: Option<Exit>, machine_kills: Option<u64>) -> bool {
    let by_itself = matches!(exit, Some(Exit::Exited(status)) if status <= 128);
    !by_itself || machine_kills.is_some_and(|kills| kills > 0)
}

/// The kernel's log since it was opened, waiting a while for a line about a kill of one of `victims`, or, where their
/// numbers are not known, of anybody.
fn overhear(kmsg: &mut Kmsg, victims: Option<&[u32]>, patience: Duration) -> String {
    let end = Instant::now() + patience;
    let mut tail = Tail::default();
    loop {
        kmsg.read_on(&mut tail, Duration::ZERO);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || tail.lines().any(|line| tells_of(line, victims)) || !kmsg.wait(left) {
            return tail.text();
        }
    }
}

fn tells_of(line: &str, victims: Option<&[u32]>) -> bool {
    let Some((_, rest)) = line.split_once("Killed process ") else { return false };
    let pid = rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u32>().ok());
    match (victims, pid) {
        (Some(victims), Some(pid)) => victims.contains(&pid),
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

/// Their numbers in the outermost namespace.
fn numbers(processes: &[RunProcess]) -> Vec<u32> {
    processes.iter().filter_map(|process| process.nspid.first().copied()).collect()
}

fn oom_kills(root: &Root) -> Option<u64> {
    VmStat::read(root).ok()?.oom_kill
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_waited_for_only_where_it_counts_a_kill_or_does_not_count() {
        let killed = Some(Exit::Killed(9));
        assert!(may_be_the_kernel(killed, Some(1)) && may_be_the_kernel(killed, None));
        assert!(!may_be_the_kernel(killed, Some(0)) && !may_be_the_kernel(Some(Exit::Exited(1)), None));
    }

    #[test]
    fn logs_are_read_for_deaths_from_outside_and_beside_a_kill() {
        for exit in [None, Some(Exit::Killed(15)), Some(Exit::Exited(137))] {
            assert!(needs_logs(exit, Some(0)), "{exit:?}");
        }
        assert!(!needs_logs(Some(Exit::Exited(2)), Some(0)) && !needs_logs(Some(Exit::Exited(0)), None));
        assert!(needs_logs(Some(Exit::Exited(1)), Some(1)));
    }

    #[test]
    fn only_a_line_about_our_process_ends_the_waiting() {
        let line = "[    1.000000] Memory cgroup out of memory: Killed process 42 (x) total-vm:1kB";
        assert!(tells_of(line, Some(&[7, 42])) && tells_of(line, None));
        assert!(!tells_of(line, Some(&[4])) && !tells_of(line, Some(&[])));
        assert!(!tells_of("Killed process of others", None));
    }

    #[test]
    fn a_line_that_comes_late_is_still_heard() {
        let tree = tempfile::tempdir().unwrap();
        fs_err::create_dir(tree.path().join("dev")).unwrap();
        let file = tree.path().join("dev/kmsg");
        fs_err::write(&file, "6,1,1000000,-;Killed process 42 (before)\n").unwrap();
        let mut kmsg = Kmsg::at_end(&Root::at(tree.path())).unwrap();
        let mut log = fs_err::OpenOptions::new().append(true).open(&file).unwrap();
        std::io::Write::write_all(&mut log, b"6,2,2000000,-;Killed process 42 (x)\n DEVICE=+a:b\n").unwrap();
        assert_eq!(overhear(&mut kmsg, Some(&[42]), Duration::ZERO), "[    2.000000] Killed process 42 (x)\n");
    }

    #[test]
    fn the_witness_knows_a_process_by_its_latest_name() {
        let mut witness = Witness::begin(&Root::system(), None);
        witness.saw("worker", std::process::id());
        witness.saw("worker", std::process::id());
        witness.saw("nobody", u32::MAX);
        let [seen] = &witness.started().processes[..] else { panic!("{:?}", witness.started()) };
        assert_eq!((seen.role.as_str(), seen.nspid.last()), ("worker", Some(&std::process::id())));
        assert!(witness.started().boot_id.is_some() && witness.started().cgroup.is_none());
    }
}
