//! Recorded machines on which a worker dies: what the witness reads is what `cause` needs.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::Exit;
use plimsoll_recover::cause::{CgroupCounters, Change, Confidence, Kind, cause};
use plimsoll_recover::witness::{Death, Witness};

/// A machine made of files.
struct Machine(tempfile::TempDir);

impl Machine {
    fn with(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| machine.set(path, text));
        machine
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.path(path);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new(to), path).unwrap();
    }

    fn log(&self, lines: &str) {
        let mut log = fs_err::OpenOptions::new().append(true).open(self.path("dev/kmsg")).unwrap();
        log.write_all(lines.as_bytes()).unwrap();
    }

    fn root(&self) -> Root {
        Root::at(self.0.path())
    }
}

const KILLED: Death = Death {
    worker: plimsoll_recover::cause::Worker::Native,
    told: None,
    exit: Some(Exit::Killed(9)),
    stop_signal: None,
    last_words: Vec::new(),
    last_sample: None,
    last_event: None,
    disk: None,
};

/// As recorded on kernel 6.18 with cgroup v1, the names changed.
fn v1() -> Machine {
    let machine = Machine::with(&[
        ("proc/self/cgroup", "4:memory:/box\n0::/\n"),
        ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
        ("proc/vmstat", "pswpin 0\npswpout 0\noom_kill 3\n"),
        ("proc/sys/kernel/random/boot_id", "27824927-bdf8-4455-87a9-2c758203f157\n"),
        ("proc/11089/status", "Name:\tplimsoll\nPid:\t11089\nPPid:\t11080\nNSpid:\t11089\n"),
        ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "50331648\n"),
        ("sys/fs/cgroup/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("sys/fs/cgroup/memory/box/memory.failcnt", "7\n"),
        ("sys/fs/cgroup/memory/box/memory.max_usage_in_bytes", "50331648\n"),
        ("dev/kmsg", "6,800,7000000000,-;Memory cgroup out of memory: Killed process 11089 (of another time)\n"),
    ]);
    machine.link("proc/self/ns/pid", "pid:[4026531836]");
    machine.link("proc/self/ns/cgroup", "cgroup:[4026531835]");
    machine
}

#[test]
fn on_v1_a_kill_is_proven_by_the_log_since_the_start() {
    let machine = v1();
    let mut witness = Witness::begin(&machine.root(), None);
    witness.saw("worker", 11089);
    machine.set("proc/vmstat", "pswpin 0\npswpout 0\noom_kill 4\n");
    let dir = "sys/fs/cgroup/memory/box";
    machine.set(&format!("{dir}/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    machine.set(&format!("{dir}/memory.failcnt"), "93\n");
    machine.log(
        "6,812,7429091553,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
         oom_memcg=/box,task_memcg=/box,task=plimsoll,pid=11089,uid=0\n\
         3,813,7429091577,-;Memory cgroup out of memory: Killed process 11089 (plimsoll) total-vm:58712kB, \
         anon-rss:48896kB, file-rss:6636kB, shmem-rss:0kB, UID:0 pgtables:152kB oom_score_adj:500\n",
    );
    let evidence = witness.testify(KILLED);
    let counters = CgroupCounters::V1 {
        oom_kill: Some(Change { before: 1, after: 2 }),
        failcnt: Some(Change { before: 7, after: 93 }),
        max_usage: Some(Bytes::mib(48)),
        limit: Some(Bytes::mib(48)),
    };
    assert_eq!(evidence.cgroup, Some(counters));
    assert_eq!(evidence.vmstat_oom_kill, Some(Change { before: 3, after: 4 }));
    assert_eq!(evidence.cgroup_path.as_deref(), Some("/box"));
    assert!(!evidence.kernel_log.as_ref().unwrap().contains("another time"));
    let found = cause(&evidence);
    assert_eq!((found.kind, found.confidence), (Kind::KernelOomInOurCgroup, Confidence::Proven));
}

#[test]
fn on_v1_counters_that_stood_still_clear_the_kernel() {
    let machine = v1();
    let mut witness = Witness::begin(&machine.root(), None);
    witness.saw("worker", 11089);
    let found = cause(&witness.testify(KILLED));
    assert_eq!((found.kind, found.confidence), (Kind::KilledUnproven { signal: 9 }, Confidence::Unproven));
}

#[test]
fn in_a_v2_container_without_a_log_the_counters_make_it_likely() {
    let events = |kills: u64| format!("low 0\nhigh 0\nmax {}\noom {kills}\noom_kill {kills}\n", 40 + kills);
    let machine = Machine::with(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        ("proc/vmstat", "oom_kill 9\n"),
        ("proc/7/status", "Name:\tplimsoll\nPid:\t7\nPPid:\t1\nNSpid:\t7\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/memory.events", &events(0)),
    ]);
    machine.link("proc/self/ns/pid", "pid:[4026532281]");
    machine.link("proc/self/ns/cgroup", "cgroup:[4026532284]");
    let mut witness = Witness::begin(&machine.root(), None);
    witness.saw("worker", 7);
    machine.set("sys/fs/cgroup/memory.events", &events(1));
    machine.set("proc/vmstat", "oom_kill 10\n");
    let evidence = witness.testify(KILLED);
    assert_eq!((evidence.cgroup_path.as_deref(), evidence.first_pid_namespace), (None, false));
    assert_eq!((&evidence.kernel_log, &evidence.boot_id), (&None, &None));
    let found = cause(&evidence);
    assert_eq!((found.kind, found.confidence), (Kind::KernelOomInOurCgroup, Confidence::Likely));
}

#[test]
fn a_machine_that_shows_nothing_gives_evidence_that_proves_nothing() {
    let machine = Machine::with(&[]);
    let evidence = Witness::begin(&machine.root(), None).testify(KILLED);
    assert_eq!((evidence.cgroup, evidence.vmstat_oom_kill, &evidence.kernel_log), (None, None, &None));
    assert_eq!(cause(&evidence).kind, Kind::KilledUnproven { signal: 9 });
}
