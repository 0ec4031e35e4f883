//! The mirror as a process: started with the run, started again when it dies, and given time to finish at the end.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_recover::Events;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::render::{self, Fail};

/// Before a mirror that died is started again.
const PAUSE: Duration = Duration::from_secs(10);

pub(super) struct MirrorProcess {
    folder: PathBuf,
    oom_score: i32,
    child: Option<Child>,
    not_before: Instant,
}

impl MirrorProcess {
    pub fn new(folder: &Path, oom_score: i32) -> MirrorProcess {
        MirrorProcess { folder: folder.to_path_buf(), oom_score, child: None, not_before: Instant::now() }
    }

    /// Starts it if it does not run. A mirror that cannot be started stops no training.
    pub fn look_after(&mut self) {
        if let Some(child) = &mut self.child {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                return;
            }
            self.child = None;
            self.not_before = Instant::now() + PAUSE;
        }
        if Instant::now() >= self.not_before {
            self.not_before = Instant::now() + PAUSE;
            self.child = self.begin(true);
        }
    }

    fn begin(&self, follow: bool) -> Option<Child> {
        let mut command = Command::new(super::program().ok()?);
        command.arg("mirror").arg(&self.folder).args(follow.then_some("--follow"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let supervisor = getpid();
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The supervisor may have died before the line above took effect; then nobody would ever tell it.
            if getppid() != Some(supervisor) {
                return Err(std::io::Error::from(rustix::io::Errno::SRCH));
            }
            // SAFETY: sets a disposition to "ignore": with `tostop` a terminal would halt a background group that talks.
            unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
        unsafe { command.pre_exec(prepare) };
        match command.spawn() {
            Ok(child) => {
                // It inherits the supervisor's protection, which is not meant for it.
                let score = format!("/proc/{}/oom_score_adj", child.id());
                let _ = fs_err::write(score, self.oom_score.to_string());
                Some(child)
            }
            Err(error) => {
                render::talk(format!("the mirror cannot be started: {error}"));
                None
            }
        }
    }

    /// Lets it finish, until `stop_by`; a stop meanwhile ends it at once, and what is missing can be sent later.
    pub fn drain(mut self, events: &mut Events, stop_by: Option<Instant>) -> Result<(), Fail> {
        let mut running = self.child.take();
        if let Some(child) = &mut running
            && matches!(child.try_wait(), Ok(None))
        {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            if let Waited::Ended(true) | Waited::Interrupted = wait(child, events, stop_by)? {
                self.said(running);
                return Ok(());
            }
        }
        // It had ended, or was told twice to end (a manager signals every process), before the last checkpoint was there.
        running = self.begin(false);
        if let Some(child) = &mut running {
            wait(child, events, stop_by)?;
        }
        self.said(running);
        Ok(())
    }

    /// Says what is left to do, where something is.
    fn said(&self, child: Option<Child>) {
        let all_there = child.is_some_and(|mut child| matches!(child.try_wait(), Ok(Some(status)) if status.success()));
        if !all_there {
            let folder = self.folder.display();
            render::talk(format!("the mirror lacks something of this run; send it: plimsoll mirror {folder}"));
        }
    }
}

/// How a wait for a mirror ended.
enum Waited {
    /// It ended by itself; whether all is there.
    Ended(bool),
    /// It was ended.
    Interrupted,
}

fn wait(child: &mut Child, events: &mut Events, stop_by: Option<Instant>) -> Result<Waited, Fail> {
    let pid = Pid::from_child(child);
    let (mut tell_at, mut asked) = (Instant::now() + Duration::from_secs(2), 0);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(if asked > 0 { Waited::Interrupted } else { Waited::Ended(status.success()) });
        }
        let stop = events.rest(Instant::now() + Duration::from_millis(200))?.is_some();
        if stop || (asked < 2 && stop_by.is_some_and(|stop_by| Instant::now() >= stop_by)) {
            asked += 1;
            // It was asked to finish once; the second request ends it, and the third does not ask.
            let _ = kill_process(pid, if asked > 1 { Signal::KILL } else { Signal::TERM });
        } else if Instant::now() > tell_at {
            tell_at += Duration::from_secs(3600);
            render::talk("waiting for the mirror to have everything; Ctrl-C leaves it for later");
        }
    }
}
