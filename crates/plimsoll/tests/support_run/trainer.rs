//! A run as a process that is waited for by what it writes, signalled and killed.
//!
//! Invariant: waiting ends with a change in the run folder or with the process, never with the clock. Each process is
//! named by its id; what a test started does not outlive it.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use plimsoll_watch::{Event, Record};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::{Said, Workshop};

/// A `plimsoll train` or `plimsoll resume` that runs.
pub struct Trainer {
    child: Child,
    ended: OwnedFd,
    changes: OwnedFd,
    run: PathBuf,
    stderr: PathBuf,
}

/// A number that nobody chose.
pub fn any_of(range: RangeInclusive<u64>) -> u64 {
    range.start() + RandomState::new().hash_one(0u8) % (range.end() - range.start() + 1)
}

impl Trainer {
    /// Trains `job.toml` of the workshop in its folder `run`, which may be there and empty.
    pub fn train(workshop: &Workshop, run: &str) -> Trainer {
        fs_err::create_dir_all(workshop.path(run)).unwrap();
        Trainer::start(workshop, &["train", "job.toml", "--out", run], run)
    }

    /// The same, after `more` has had its way with the command.
    pub fn train_with(workshop: &Workshop, run: &str, more: impl FnOnce(&mut Command)) -> Trainer {
        fs_err::create_dir(workshop.path(run)).unwrap();
        Trainer::start_with(workshop, &["train", "job.toml", "--out", run], run, more)
    }

    /// Resumes the run in `run`.
    pub fn resume(workshop: &Workshop, run: &str) -> Trainer {
        Trainer::start(workshop, &["resume", run], run)
    }

    /// Runs the program with `args`; `run` is the folder that it writes to, which is there.
    pub fn start(workshop: &Workshop, args: &[&str], run: &str) -> Trainer {
        Trainer::start_with(workshop, args, run, |_| {})
    }

    fn start_with(workshop: &Workshop, args: &[&str], run: &str, more: impl FnOnce(&mut Command)) -> Trainer {
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let run = workshop.path(run);
        add_watch(&changes, &run, WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO).unwrap();
        let stderr = run.with_extension("stderr");
        let file = fs_err::File::create(&stderr).unwrap().into_parts().0;
        let mut command = workshop.command(args);
        // SAFETY: between fork and exec only a disposition is set: no allocation, no lock. Where the tests themselves
        // run in the background, they ignore Ctrl-C, and the program would rightly go on ignoring it.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            })
        };
        more(&mut command);
        let child = command.stderr(file).spawn().expect("plimsoll starts");
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        Trainer { child, ended, changes, run, stderr }
    }

    /// Waits until `seen` holds of the run folder. A process that ends before is a failure.
    #[track_caller]
    pub fn wait_for(&mut self, seen: impl Fn(&Path) -> bool) -> &mut Trainer {
        loop {
            let over = self.child.try_wait().unwrap();
            if seen(&self.run) {
                return self;
            }
            assert!(over.is_none(), "it ended before: {over:?}\n{}", fs_err::read_to_string(&self.stderr).unwrap());
            let mut both = [PollFd::new(&self.changes, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            poll(&mut both, None).unwrap();
            let mut news = [0; 4096];
            while rustix::io::read(&self.changes, &mut news).is_ok_and(|bytes| bytes > 0) {}
        }
    }

    /// Waits until the program has said `words`. A process that ends before is a failure.
    #[track_caller]
    pub fn wait_for_words(&mut self, words: &str) -> &mut Trainer {
        loop {
            let over = self.child.try_wait().unwrap();
            let said = fs_err::read_to_string(&self.stderr).unwrap();
            if said.contains(words) {
                return self;
            }
            assert!(over.is_none(), "it ended before: {over:?}\n{said}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Waits until the journal holds the loss of `step` or of a later one.
    #[track_caller]
    pub fn wait_for_step(&mut self, step: u64) -> &mut Trainer {
        self.wait_for(|run| last_step(run) >= step)
    }

    /// The process that trains.
    pub fn worker(&self) -> Pid {
        self.find_worker().expect("the supervisor has a worker")
    }

    /// The same, if there is one that lives.
    pub fn find_worker(&self) -> Option<Pid> {
        let listed = plimsoll_machine::children(&plimsoll_machine::Root::system(), self.child.id());
        let pids: Vec<i32> = match listed.is_empty() {
            // A kernel may not list them.
            true => self.children_by_stat()?,
            false => listed.into_iter().map(|pid| pid as i32).collect(),
        };
        // One that has ended has no command line, and one that is not yet the program has another.
        let is_worker = |pid: &i32| {
            let line = fs_err::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"worker")
        };
        pids.into_iter().find(is_worker).and_then(Pid::from_raw)
    }

    fn children_by_stat(&self) -> Option<Vec<i32>> {
        let ours = self.child.id().to_string();
        let is_ours = |pid: &i32| {
            let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let behind_the_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            behind_the_name.split_whitespace().nth(1) == Some(ours.as_str())
        };
        let names = fs_err::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Some(names.filter_map(|name| name.parse().ok()).filter(is_ours).collect())
    }

    /// The run's folder.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Whether the supervisor has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The status that it ended with; `None` where it has not, or was killed.
    pub fn code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap()?.code()
    }

    /// What was said so far.
    pub fn said(&self) -> String {
        fs_err::read_to_string(&self.stderr).unwrap()
    }

    /// Signals the supervisor.
    pub fn signal(&mut self, signal: Signal) -> &mut Trainer {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self
    }

    /// The supervisor's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub fn end(mut self) -> Said {
        let code = self.child.wait().unwrap().code();
        Said { code, stdout: String::new(), stderr: fs_err::read_to_string(&self.stderr).unwrap() }
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // Only where a test failed on the way, perhaps with the worker halted.
        if let Some(worker) = self.find_worker() {
            let _ = kill_process(worker, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process that may be anybody's child.
pub fn wait_for_end(process: &OwnedFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    while poll(&mut ended, None).is_err() {}
}

/// What the journal of a run says so far.
pub fn records(run: &Path) -> Vec<Record> {
    let journal = run.join("journal.jsonl");
    if journal.exists() { plimsoll_watch::read(&journal).unwrap().records } else { Vec::new() }
}

/// The last step that the journal has a loss of; 0 before the first.
pub fn last_step(run: &Path) -> u64 {
    let step = |record: &Record| match record.event {
        Event::Step { step, .. } => Some(step),
        _ => None,
    };
    records(run).iter().rev().find_map(step).unwrap_or(0)
}

/// Where each resume of the run began, in order.
pub fn resumed_from(run: &Path) -> Vec<u64> {
    let step = |record: &Record| match record.event {
        Event::Resumed { step, .. } => Some(step),
        _ => None,
    };
    records(run).iter().filter_map(step).collect()
}
