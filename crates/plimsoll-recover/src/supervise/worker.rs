//! The worker as a process: its start, the signals it gets, its end and what it used.
//!
//! Invariant: the process is looked at without being reaped until its whole group has been ended, so that neither pid
//! nor group number can have passed to a stranger when a signal is sent.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use fs_err as fs;
use plimsoll_machine::Bytes;
use rustix::io::{Errno, FdFlags};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, waitid,
};

use super::{Exit, NewsWriter, Terms};
use crate::RecoverError;

/// How much likelier than us the kernel shall find the worker when memory runs out (of 1000).
const OOM_RAISE: i32 = 500;

pub(super) struct Worker {
    pid: Pid,
}

impl Worker {
    /// Starts it, in the cgroup whose `cgroup.procs` is given, and with its end of the pipe of news.
    pub(super) fn start(
        command: &mut Command,
        terms: &mut Terms,
        news: Option<&NewsWriter>,
    ) -> Result<Worker, RecoverError> {
        let supervisor = getpid();
        let (door, inherited) = (terms.door.take(), [terms.lock, news.map(NewsWriter::number)]);
        let prepare = move || {
            if let Some(door) = &door {
                door.enter()?;
            }
            for number in inherited.into_iter().flatten() {
                // SAFETY: open in the parent until `spawn` has returned, and so in the child.
                rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::empty())?;
            }
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The supervisor may have died before the line above took effect; then nobody would ever tell us.
            if getppid() != Some(supervisor) {
                return Err(io::Error::from(Errno::SRCH));
            }
            // SAFETY: sets a disposition to "ignore", which involves no handler. Without it a terminal with `tostop`
            // would halt the worker, a background group, at its first line of progress.
            unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
            Ok(())
        };
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
        unsafe { command.pre_exec(prepare) };
        // The handle is let go on purpose: it is `reap` that waits, with the resource usage that `Child` would drop.
        let pid = match command.spawn() {
            Ok(child) => Pid::from_child(&child),
            Err(source) => {
                let program = command.get_program().to_string_lossy().into_owned();
                return Err(RecoverError::NotStarted { program, source });
            }
        };
        raise_oom_score(pid, terms.oom_score);
        Ok(Worker { pid })
    }

    /// How the worker ended, if it has.
    pub(super) fn ended(&self) -> Result<Option<Exit>, RecoverError> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = loop {
            match waitid(WaitId::Pid(self.pid), options) {
                Err(Errno::INTR) => {}
                other => break other.map_err(|error| self.failed("waitid", error))?,
            }
        };
        let exit = status.and_then(|status| {
            let exited = status.exit_status().map(Exit::Exited);
            exited.or_else(|| status.terminating_signal().map(Exit::Killed))
        });
        Ok(exit)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    pub(super) fn ask_to_save(&self) -> Result<(), RecoverError> {
        kill_process(self.pid, Signal::USR1).map_err(|error| self.failed("kill", error))
    }

    pub(super) fn ask_to_hand_over(&self) -> Result<(), RecoverError> {
        kill_process(self.pid, Signal::USR2).map_err(|error| self.failed("kill", error))
    }

    pub(super) fn ask_to_stop(&self) -> Result<(), RecoverError> {
        kill_process(self.pid, Signal::TERM).map_err(|error| self.failed("kill", error))
    }

    pub(super) fn kill(&self) -> Result<(), RecoverError> {
        kill_process_group(self.pid, Signal::KILL).map_err(|error| self.failed("kill", error))
    }

    /// Ends what is left of the group, releases the process, and returns its peak.
    pub(super) fn reap(self) -> Result<Bytes, RecoverError> {
        // The zombie still counts as a member, so the group exists and is ours.
        let _ = kill_process_group(self.pid, Signal::KILL);
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        loop {
            // SAFETY: `wait4` takes a null status and writes the usage, for which there is room.
            let done =
                unsafe { libc::wait4(self.pid.as_raw_nonzero().get(), std::ptr::null_mut(), 0, usage.as_mut_ptr()) };
            if done >= 0 {
                break;
            }
            let source = io::Error::last_os_error();
            if source.kind() != io::ErrorKind::Interrupted {
                return Err(RecoverError::Call { call: "wait4", place: self.place(), source });
            }
        }
        // SAFETY: an all-zero `rusage` is a valid value, and `wait4` has succeeded and filled it in.
        let kib = unsafe { usage.assume_init() }.ru_maxrss;
        Ok(Bytes::kib(kib.max(0) as u64))
    }

    fn failed(&self, call: &'static str, error: Errno) -> RecoverError {
        RecoverError::Call { call, place: self.place(), source: error.into() }
    }

    fn place(&self) -> String {
        format!("worker process {}", self.pid.as_raw_nonzero())
    }
}

/// Makes the worker, not us, the kernel's choice. Some containers forbid it; the run is no worse off than before.
fn raise_oom_score(pid: Pid, ours: Option<i32>) {
    let now = || fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok();
    let ours: i32 = ours.or_else(now).unwrap_or(0);
    let raised = (ours + OOM_RAISE).min(1000).to_string();
    let _ = fs::write(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero()), raised);
}

/// `VmHWM` of this process. `getrusage` would not do: it counts what our parent had before the `exec`.
pub(super) fn own_peak() -> Bytes {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse().ok());
    Bytes::kib(kib.unwrap_or(0))
}
