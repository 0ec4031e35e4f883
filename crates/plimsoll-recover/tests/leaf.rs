//! Claims about a real cgroup of one's own, on this machine: skipped, with the reason, where it may not be had.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_machine::{Bytes, CgroupVersion, Root};
use plimsoll_recover::cause::{Cause, Confidence, Evidence, Kind, Source, cause};
use plimsoll_recover::leaf::{Leaf, NoLeaf};
use plimsoll_recover::sampler::Sampler;
use plimsoll_recover::witness::{Death, Started, Witness, after_the_fact};
use plimsoll_recover::{Exit, RecoverError};

const ROLE: &str = "PLIMSOLL_TEST_ROLE";

/// This program again, as a child that plays `role`.
fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "child_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A child's side: says `ready`, then does as it is told by each line: `take N` MiB, or `end`.
#[test]
#[ignore = "the child's process"]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "supervisor in a tight cgroup" {
        return supervisor_in_a_tight_cgroup();
    }
    say("ready");
    let mut held: Vec<Vec<u8>> = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.strip_prefix("take ") {
            Some(mib) => {
                for _ in 0..mib.parse::<usize>().unwrap() {
                    held.push(vec![7u8; 1 << 20]);
                }
                say("taken");
            }
            None => break,
        }
    }
    assert!(held.iter().all(|block| block[0] == 7));
}

fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout();
    write!(out, "\n{line}\n").and_then(|()| out.flush()).unwrap();
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a child in the leaf, and waits until it is up.
    fn start(leaf: Option<&Leaf>) -> Process {
        let mut command = again("child");
        if let Some(leaf) = leaf {
            let door = leaf.door().unwrap();
            // SAFETY: `enter` is one system call: no allocation, no lock.
            unsafe { command.pre_exec(move || door.enter()) };
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines };
        assert!(process.says("ready"));
        process
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, line: &str) {
        use std::io::Write;
        // A child that was killed at once may have closed its end.
        let _ = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    /// Waits for the line; `false` if the child ends first.
    fn says(&mut self, line: &str) -> bool {
        self.lines.any(|said| said.unwrap() == line)
    }

    fn end(mut self) -> Exit {
        drop(self.child.stdin.take());
        exit_of(self.child.wait().unwrap())
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match status.signal() {
        Some(signal) => Exit::Killed(signal),
        None => Exit::Exited(status.code().unwrap()),
    }
}

/// On v2 a leaf moves this whole process, so the tests of one process have theirs one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A leaf and the right to have one, or the printed reason why there is none.
fn leaf() -> Option<(Leaf, MutexGuard<'static, ()>)> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Leaf::make(&Root::system()) {
        Ok(leaf) => Some((leaf, turn)),
        Err(no) => {
            say(&format!("skipped: {no}"));
            None
        }
    }
}

fn folder(leaf: &Leaf) -> PathBuf {
    leaf.place().dir().to_path_buf()
}

/// Whether this process sees the kernel's log and numbers, so that a kill can be proven.
fn proof_can_be_had() -> bool {
    let readable = fs_err::File::open("/dev/kmsg").is_ok();
    let first = plimsoll_machine::in_first_pid_namespace(&Root::system());
    if !(readable && first) {
        say(&format!("no proof here: kernel log readable {readable}, first PID namespace {first}"));
    }
    readable && first
}

/// The limit that was hit is that of `cgroup`. The kernel says whose it was for ten kills in five seconds at most, and
/// other tests kill too; that a process was killed it always says.
fn assert_limit_of(found: &Cause, cgroup: &str) {
    let told = found.because.iter().find_map(|fact| fact.text.strip_prefix("the limit was that of the cgroup "));
    assert!(told.is_none_or(|told| told == format!("`{cgroup}`")), "{found:#?}");
}

fn testify(witness: &mut Witness, exit: Exit) -> Evidence {
    witness.testify(Death { exit: Some(exit), ..Death::default() })
}

#[test]
fn an_overshoot_kills_the_worker_and_is_proven_by_the_kernels_own_line() {
    let Some((mut leaf, _turn)) = leaf() else { return };
    let mut witness = Witness::begin(&Root::system(), Some(&leaf));
    let mut worker = Process::start(Some(&leaf));
    let pid = worker.pid();
    witness.saw("worker", pid);
    leaf.limit(Bytes::mib(40), Bytes::mib(8)).unwrap();
    worker.tell("take 200");
    assert!(!worker.says("taken"));
    let exit = worker.end();
    assert_eq!(exit, Exit::Killed(9));
    let evidence = testify(&mut witness, exit);
    let found = cause(&evidence);
    assert_eq!(found.kind, Kind::KernelOomInOurCgroup, "{found:#?}");
    if proof_can_be_had() {
        assert_eq!(found.confidence, Confidence::Proven, "{found:#?}");
        let line = format!("Killed process {pid} ");
        let told = found.because.iter().find(|fact| fact.source == Source::KernelLog && fact.text.contains(&line));
        println!("{}", told.unwrap_or_else(|| panic!("{found:#?}")).text);
        assert_limit_of(&found, leaf.kernel_path().unwrap());
    }
    assert!(leaf.counters().unwrap().oom_kills().is_some_and(|kills| kills >= 1));
    if let Some(peak) = leaf.peak() {
        assert!(peak > Bytes::mib(40) && peak <= Bytes::mib(48), "{peak}");
    }
    let dir = folder(&leaf);
    drop(leaf);
    assert!(!dir.exists());
}

#[test]
fn without_the_kernels_log_the_leafs_counter_makes_the_same_kill_likely() {
    let Some((mut leaf, _turn)) = leaf() else { return };
    let mut witness = Witness::begin(&Root::system(), Some(&leaf));
    let mut worker = Process::start(Some(&leaf));
    witness.saw("worker", worker.pid());
    leaf.limit(Bytes::mib(40), Bytes::mib(8)).unwrap();
    worker.tell("take 200");
    assert!(!worker.says("taken"));
    let mut evidence = testify(&mut witness, worker.end());
    evidence.kernel_log = None;
    let found = cause(&evidence);
    assert_eq!((found.kind, found.confidence), (Kind::KernelOomInOurCgroup, Confidence::Likely));
}

#[test]
fn a_kill_by_hand_is_unproven_with_a_leaf_and_without() {
    let leaf = leaf();
    for leaf in [leaf.as_ref().map(|(leaf, _)| leaf), None] {
        let mut witness = Witness::begin(&Root::system(), leaf);
        let mut worker = Process::start(leaf);
        witness.saw("worker", worker.pid());
        worker.child.kill().unwrap();
        let evidence = testify(&mut witness, worker.end());
        let found = cause(&evidence);
        assert_eq!((found.kind, found.confidence), (Kind::KilledUnproven { signal: 9 }, Confidence::Unproven));
    }
}

#[test]
fn a_worker_that_stays_below_its_limit_lives_and_the_guard_counts_only_when_it_is_near() {
    let Some((mut leaf, _turn)) = leaf() else { return };
    let root = Root::system();
    let mut worker = Process::start(Some(&leaf));
    let folder = tempfile::tempdir().unwrap();
    let mut sampler = Sampler::new(&root, folder.path()).unwrap();
    leaf.limit(Bytes::mib(100), Bytes::mib(40)).unwrap();
    worker.tell("take 40");
    assert!(worker.says("taken"));
    let early = sampler.look(worker.pid(), Duration::from_secs(1), Some(&leaf)).unwrap();
    assert!(early.sample.headroom > Bytes::mib(140), "{early:?}");
    assert!(early.worker.rss >= Bytes::mib(40), "{early:?}");
    worker.tell("take 85");
    assert!(worker.says("taken"));
    let near = sampler.look(worker.pid(), Duration::from_secs(2), Some(&leaf)).unwrap();
    assert!(near.sample.headroom < Bytes::mib(20), "{near:?}");
    worker.tell("end");
    assert_eq!(worker.end(), Exit::Exited(0));
}

#[test]
fn a_limit_below_what_is_used_is_refused_and_nobody_is_killed() {
    let Some((mut leaf, _turn)) = leaf() else { return };
    let mut worker = Process::start(Some(&leaf));
    worker.tell("take 64");
    assert!(worker.says("taken"));
    let error = leaf.limit(Bytes::mib(16), Bytes::mib(8)).unwrap_err();
    assert!(matches!(error, RecoverError::LeafTooFull { limit, .. } if limit == Bytes::mib(24)), "{error}");
    worker.tell("end");
    assert_eq!(worker.end(), Exit::Exited(0));
    assert_eq!(leaf.counters().unwrap().oom_kills(), Some(0));
}

#[test]
fn a_leaf_that_nobody_removed_still_testifies_and_is_removed_by_the_next() {
    let Some((mut leaf, _turn)) = leaf() else { return };
    let root = Root::system();
    let mut witness = Witness::begin(&root, Some(&leaf));
    let mut worker = Process::start(Some(&leaf));
    witness.saw("worker", worker.pid());
    let started: Started = witness.started().clone();
    assert_eq!(started.cgroup.as_deref(), Some(leaf.name()));
    leaf.limit(Bytes::mib(40), Bytes::mib(8)).unwrap();
    worker.tell("take 200");
    assert_eq!(worker.end(), Exit::Killed(9));
    let evidence = after_the_fact(&root, &started, Death::default());
    let found = cause(&evidence);
    assert_eq!(found.kind, Kind::KernelOomInOurCgroup, "{found:#?}");
    assert!(evidence.cgroup.is_some() && (found.confidence == Confidence::Proven || !proof_can_be_had()));

    // As a supervisor that died leaves it: named by a process that is gone.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let left = folder(&leaf).with_file_name(format!("plimsoll-{}-1", gone.id()));
    fs_err::create_dir(&left).unwrap();
    drop(leaf);
    let next = Leaf::make(&root).unwrap();
    assert!(!left.exists() && folder(&next).exists());
}

/// The supervisor's side of the next test: its own cgroup has the limit, a neighbour is in it, the leaf has no limit.
fn supervisor_in_a_tight_cgroup() {
    let leaf = match Leaf::make(&Root::system()) {
        Ok(leaf) => leaf,
        Err(no) => return say(&format!("skipped: {no}")),
    };
    let mut witness = Witness::begin(&Root::system(), Some(&leaf));
    let mut neighbour = Process::start(None);
    neighbour.tell("take 20");
    assert!(neighbour.says("taken"));
    let mut worker = Process::start(Some(&leaf));
    witness.saw("worker", worker.pid());
    fs_err::write(format!("/proc/{}/oom_score_adj", worker.pid()), "500").unwrap();
    worker.tell("take 300");
    let exit = worker.end();
    let found = cause(&testify(&mut witness, exit));
    say(&format!("found {}", serde_json::to_string(&found).unwrap()));
    say(&format!("leaf {}", leaf.kernel_path().unwrap_or_default()));
    neighbour.tell("end");
    say(&format!("neighbour {:?}", neighbour.end()));
}

#[test]
fn a_limit_above_the_leaf_that_a_neighbour_helps_to_fill_is_attributed_to_its_cgroup() {
    let Some((own, _turn)) = leaf() else { return };
    // Kept while the test runs: on v2 it is what makes room for another cgroup beside it.
    let parent = folder(&own).with_file_name(format!("plimsoll-test-tight-{}", std::process::id()));
    let limit = match own.place().version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    fs_err::create_dir(&parent).unwrap();
    fs_err::write(parent.join(limit), Bytes::mib(80).0.to_string()).unwrap();
    let procs = fs_err::OpenOptions::new().write(true).open(parent.join("cgroup.procs")).unwrap();
    let mut command = again("supervisor in a tight cgroup");
    let enter = move || rustix::io::write(procs.file(), b"0").map(|_| ()).map_err(std::io::Error::from);
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(enter) };
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let patience = Instant::now() + Duration::from_secs(60);
    while let Err(error) = fs_err::remove_dir(&parent) {
        assert!(Instant::now() < patience, "{error}");
        std::thread::yield_now();
    }
    let find = |word: &str| said.lines().find_map(|line| line.strip_prefix(word).map(str::to_string));
    let found = find("found ").unwrap_or_else(|| panic!("{said}"));
    let found: Cause = serde_json::from_str(&found).unwrap();
    assert_eq!(found.kind, Kind::KernelOomInOurCgroup, "{found:#?}");
    if proof_can_be_had() {
        assert_eq!(found.confidence, Confidence::Proven, "{found:#?}");
        let leaf = find("leaf ").unwrap();
        assert_limit_of(&found, leaf.rsplit_once('/').unwrap().0);
    }
    assert_eq!(find("neighbour ").as_deref(), Some("Exited(0)"));
}

#[test]
fn a_machine_that_gives_no_leaf_says_why() {
    let tree = |membership: &str| {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        };
        at("proc/self/cgroup", membership);
        at("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        at("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        at("sys/fs/cgroup/a/cgroup.controllers", "cpu memory\n");
        at("sys/fs/cgroup/a/cgroup.subtree_control", "\n");
        at("sys/fs/cgroup/a/cgroup.type", "domain\n");
        at("sys/fs/cgroup/a/memory.max", "max\n");
        dir
    };
    let make = |dir: &tempfile::TempDir| Leaf::make(&Root::at(dir.path())).unwrap_err();
    let own = std::process::id();

    let dir = tree("0::/a\n");
    let procs = dir.path().join("sys/fs/cgroup/a/cgroup.procs");
    fs_err::write(&procs, format!("{own}\n0\n1\n")).unwrap();
    assert!(matches!(make(&dir), NoLeaf::OtherProcesses { count: 2, .. }));
    fs_err::write(dir.path().join("sys/fs/cgroup/a/cgroup.controllers"), "cpu\n").unwrap();
    assert_eq!(make(&dir).to_string().split(" was ").nth(1), Some("not given the memory controller, only `cpu`"));
    fs_err::write(&procs, "1\n").unwrap();
    assert!(matches!(make(&dir), NoLeaf::NotShown { .. }));
    let dir = tree("");
    assert!(matches!(make(&dir), NoLeaf::NoController { .. }));
}
