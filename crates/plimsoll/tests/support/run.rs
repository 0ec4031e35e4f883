//! The real binary, run to its end and watched from outside.
//!
//! The watcher trusts nothing that the program says: it finds supervisor and worker in /proc and keeps the highest
//! `VmHWM` of each. A process that is dropped before its end is killed, with its worker.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::cgroup::Cgroup;
use super::flags::Flags;

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status; none where a signal ended it.
    pub code: Option<i32>,
    /// stdout.
    pub data: String,
    /// stderr.
    pub talk: String,
    /// What was seen of its memory.
    pub seen: Seen,
}

/// The highest memory seen, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// `VmHWM` of the process that was started.
    pub supervisor: u64,
    /// The highest `VmHWM` among its children.
    pub worker: u64,
    /// `VmPTE` of both, highest of each.
    pub page_tables: u64,
    /// Anonymous memory and pages of files of the worker, when both together were highest.
    pub at_peak: (u64, u64),
}

impl Seen {
    pub fn sum(&self) -> u64 {
        self.supervisor + self.worker
    }
}

impl Ended {
    /// stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data)
            .unwrap_or_else(|e| panic!("stdout is not JSON: {e}\n{}\n{}", self.data, self.talk))
    }
}

/// Runs `plimsoll VERB FLAGS... MORE...`, in a cgroup where one is given.
pub fn plimsoll(verb: &str, flags: &Flags, more: &[&str], talk: &Path, cgroup: Option<&Cgroup>) -> Ended {
    let (out, err) = (talk.join("stdout"), talk.join("stderr"));
    // On a machine without a toolchain the program is where it was carried to.
    let carried = std::env::var_os("PLIMSOLL_BINARY");
    let mut command = Command::new(carried.unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into()));
    command.arg(verb).args(flags.args()).args(more).stdin(Stdio::null());
    command.stdout(fs_err::File::create(&out).unwrap().into_file());
    command.stderr(fs_err::File::create(&err).unwrap().into_file());
    if let Some(cgroup) = cgroup {
        cgroup.enter(&mut command);
    }
    let mut started = Started(command.spawn().unwrap());
    let mut seen = Seen::default();
    let status: ExitStatus = loop {
        look(started.0.id(), &mut seen);
        match started.0.try_wait().unwrap() {
            Some(status) => break status,
            // Peaks only grow, so looking seldom loses at most the last moments.
            None => std::thread::sleep(Duration::from_millis(3)),
        }
    };
    let read = |path: &Path| fs_err::read_to_string(path).unwrap();
    Ended { code: status.code(), data: read(&out), talk: read(&err), seen }
}

/// A process of ours; killed if we leave before it does.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            for child in children(self.0.id()) {
                kill(child);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Kills a process.
pub fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs_err::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn look(pid: u32, seen: &mut Seen) {
    let supervisor = memory(pid);
    seen.supervisor = seen.supervisor.max(supervisor.highest);
    let mut tables = supervisor.tables;
    for child in children(pid) {
        let worker = memory(child);
        seen.worker = seen.worker.max(worker.highest);
        if worker.now.0 + worker.now.1 > seen.at_peak.0 + seen.at_peak.1 {
            seen.at_peak = worker.now;
        }
        tables += worker.tables;
    }
    seen.page_tables = seen.page_tables.max(tables);
}

/// A process's memory in bytes.
struct Memory {
    /// `VmHWM`.
    highest: u64,
    /// `VmPTE`.
    tables: u64,
    /// `RssAnon` and `RssFile`.
    now: (u64, u64),
}

/// All zero for a process that is gone.
fn memory(pid: u32) -> Memory {
    let text = fs_err::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        kib.unwrap_or(0) << 10
    };
    Memory { highest: field("VmHWM"), tables: field("VmPTE"), now: (field("RssAnon"), field("RssFile")) }
}
