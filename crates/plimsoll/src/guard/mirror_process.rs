//! The mirror as a process: started with the run, started again when it dies, and given time to finish at the end.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_recover::Events;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

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
        if Instant::now() < self.not_before {
            return;
        }
        self.not_before = Instant::now() + PAUSE;
        let Ok(program) = std::env::current_exe() else { return };
        let mut command = Command::new(program);
        command.arg("mirror").arg(&self.folder).arg("--follow");
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        // SAFETY: between fork and exec only a system call is made: no allocation, no lock.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        match command.spawn() {
            Ok(child) => {
                // It inherits the supervisor's protection, which is not meant for it.
                let score = format!("/proc/{}/oom_score_adj", child.id());
                let _ = fs_err::write(score, self.oom_score.to_string());
                self.child = Some(child);
            }
            Err(error) => render::talk(format!("the mirror cannot be started: {error}")),
        }
    }

    /// Lets it finish; a stop meanwhile ends it at once, and what is missing can be sent later.
    pub fn drain(mut self, events: &mut Events) -> Result<(), Fail> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = Pid::from_child(&child);
        let ask = |signal| _ = kill_process(pid, signal);
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Ok(());
        }
        ask(Signal::TERM);
        let (mut told, mut ended_at_once) = (Instant::now() + Duration::from_secs(2), false);
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                if !status.success() {
                    let folder = self.folder.display();
                    render::talk(format!("the mirror lacks something of this run; send it: plimsoll mirror {folder}"));
                }
                return Ok(());
            }
            if events.rest(Instant::now() + Duration::from_millis(200))?.is_some() {
                ask(if ended_at_once { Signal::KILL } else { Signal::TERM });
                ended_at_once = true;
            } else if Instant::now() > told {
                told += Duration::from_secs(3600);
                render::talk("waiting for the mirror to have everything; Ctrl-C leaves it for later");
            }
        }
    }
}
