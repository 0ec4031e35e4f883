//! Claims about real processes: this test starts itself again as a supervisor, which starts it again as a worker.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use plimsoll_machine::Bytes;
use plimsoll_recover::{Beat, Events, Exit, ExitCode, Outcome, StopFlag, StopSignal, Terms, Wish, supervise};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const WORKER: &str = "PLIMSOLL_TEST_WORKER";
const WITHIN: &str = "PLIMSOLL_TEST_WITHIN";

fn again(entry: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", entry, "--nocapture", "--test-threads=1"]);
    command
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    write!(out, "\n{line}\n").and_then(|()| out.flush()).unwrap();
}

#[expect(clippy::exit, reason = "the test process plays a program")]
fn end_with(code: i32) -> ! {
    std::process::exit(code)
}

#[test]
#[ignore = "the worker's process"]
#[expect(clippy::zombie_processes, reason = "one role is to leave a child behind")]
fn worker_process() {
    let Ok(role) = std::env::var(WORKER) else { return };
    let flag = StopFlag::install().unwrap();
    let touched = vec![1u8; 32 << 20];
    let score = fs_err::read_to_string("/proc/self/oom_score_adj").unwrap();
    let group = rustix::process::getpgrp().as_raw_nonzero();
    say(&format!("worker {} group {group} oom {} bytes {}", std::process::id(), score.trim(), touched.len()));
    match role.as_str() {
        "saves" => {
            while !flag.requested() {
                std::thread::yield_now();
            }
            say("saved");
            end_with(i32::from(ExitCode::Stopped.code()));
        }
        "hands over" => {
            while !flag.handing_over() {
                std::thread::yield_now();
            }
            end_with(i32::from(ExitCode::Stopped.code()));
        }
        "saves and goes on" => {
            while !flag.take_save() {
                std::thread::yield_now();
            }
            assert!(!flag.requested());
            end_with(0);
        }
        "stubborn" => {
            let mut said = false;
            loop {
                if flag.requested() && !said {
                    said = true;
                    say("asked");
                }
                std::thread::yield_now();
            }
        }
        "leaves a child" => {
            let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
            say(&format!("left {}", child.id()));
            end_with(0);
        }
        code => end_with(code.parse().unwrap()),
    }
}

#[test]
#[ignore = "the supervisor's process"]
fn supervisor_process() {
    if std::env::var(WORKER).is_err() {
        return;
    }
    let mut events = Events::install().unwrap();
    let within = std::env::var(WITHIN).ok().map(|ms| Duration::from_millis(ms.parse().unwrap()));
    let terms = Terms { stop_within: within, ..Terms::default() };
    let role = std::env::var(WORKER).unwrap();
    let outcome = supervise(&mut again("worker_process"), &mut events, terms, |beat| match (beat, role.as_str()) {
        (Beat::Started(_), _) => Wish::GoOn,
        (_, "hands over") => Wish::HandOver,
        (_, "saves and goes on") => Wish::Save,
        _ => Wish::GoOn,
    });
    let Outcome { exit, stopped_by, cut_short, handed_over, peak, own_peak, .. } = outcome.as_ref().unwrap();
    let stopped = stopped_by.is_some();
    say(&format!(
        "outcome {exit:?} stopped {stopped} peak {} own {} cut {cut_short} handed {handed_over}",
        peak.0, own_peak.0
    ));
    let outcome = outcome.unwrap();
    end_with(i32::from(outcome.exit_code().code()));
}

struct Supervisor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    worker: u32,
    hello: Vec<String>,
}

impl Supervisor {
    fn start(role: &str, ignored: Option<Signal>) -> Supervisor {
        Supervisor::start_with(role, ignored, None)
    }

    fn start_with(role: &str, ignored: Option<Signal>, within: Option<&str>) -> Supervisor {
        let mut command = again("supervisor_process");
        if let Some(within) = within {
            command.env(WITHIN, within);
        }
        command.env(WORKER, role).stdout(Stdio::piped()).stderr(Stdio::null());
        // SAFETY: only dispositions are set between fork and exec.
        unsafe {
            command.pre_exec(move || {
                for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
                    let way = if Some(signal) == ignored { libc::SIG_IGN } else { libc::SIG_DFL };
                    libc::signal(signal.as_raw(), way);
                }
                Ok(())
            })
        };
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut supervisor = Supervisor { child, lines, worker: 0, hello: Vec::new() };
        supervisor.hello = supervisor.until("worker ").split(' ').map(str::to_string).collect();
        supervisor.worker = supervisor.hello[0].parse().unwrap();
        supervisor
    }

    /// The rest of the next line that starts with `word`.
    fn until(&mut self, word: &str) -> String {
        let find = |line: std::io::Result<String>| line.unwrap().strip_prefix(word).map(str::to_string);
        self.lines.find_map(find).unwrap_or_else(|| panic!("no line `{word}`"))
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(mut self) -> (String, ExitStatus) {
        let outcome = self.until("outcome ");
        (outcome, self.child.wait().unwrap())
    }
}

/// Whether a process ends; one that was sent `SIGKILL` takes the kernel a moment.
fn ends(pid: u32) -> bool {
    let pid = Pid::from_raw(pid as i32).unwrap();
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&minute)).unwrap() == 1
        }
        Err(error) => error == rustix::io::Errno::SRCH,
    }
}

#[test]
fn the_workers_own_end_is_passed_on() {
    for (code, expected) in [("0", 0), ("1", 1), ("2", 2), ("3", 3), ("4", 4), ("101", 1)] {
        let (outcome, status) = Supervisor::start(code, None).end();
        assert!(outcome.starts_with(&format!("Exited({code}) stopped false")), "{outcome}");
        assert_eq!(status.code(), Some(expected));
    }
}

#[test]
fn one_stop_of_any_kind_lets_the_worker_save() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut supervisor = Supervisor::start("saves", None);
        supervisor.send(signal);
        supervisor.until("saved");
        let (outcome, status) = supervisor.end();
        assert!(outcome.starts_with("Exited(4) stopped true"), "{outcome}");
        assert_eq!(status.code(), Some(4));
    }
}

#[test]
fn a_second_stop_ends_a_worker_that_does_not_listen() {
    let mut supervisor = Supervisor::start("stubborn", None);
    supervisor.send(Signal::INT);
    supervisor.until("asked");
    supervisor.send(Signal::HUP);
    supervisor.send(Signal::INT);
    let worker = supervisor.worker;
    let (outcome, status) = supervisor.end();
    assert!(outcome.starts_with("Killed(9) stopped true"), "{outcome}");
    assert_eq!(status.code(), Some(4));
    assert!(ends(worker));
}

#[test]
fn a_stop_that_takes_too_long_is_cut_short() {
    let mut supervisor = Supervisor::start_with("stubborn", None, Some("200"));
    supervisor.send(Signal::TERM);
    supervisor.until("asked");
    let (outcome, status) = supervisor.end();
    assert!(outcome.starts_with("Killed(9) stopped true") && outcome.contains("cut true"), "{outcome}");
    assert_eq!(status.code(), Some(4));
}

#[test]
fn a_wish_reaches_the_worker_as_what_it_is() {
    let (outcome, _) = Supervisor::start("hands over", None).end();
    assert!(outcome.starts_with("Exited(4) stopped false") && outcome.contains("handed true"), "{outcome}");
    let (outcome, _) = Supervisor::start("saves and goes on", None).end();
    assert!(outcome.starts_with("Exited(0) stopped false") && outcome.contains("handed false"), "{outcome}");
}

#[test]
fn a_kill_from_outside_is_reported_as_that_signal_and_no_stop() {
    let supervisor = Supervisor::start("stubborn", None);
    let pid = Pid::from_raw(supervisor.worker as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let (outcome, status) = supervisor.end();
    assert!(outcome.starts_with("Killed(9) stopped false"), "{outcome}");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_worker_whose_supervisor_is_killed_saves_and_ends() {
    let mut supervisor = Supervisor::start("saves", None);
    supervisor.send(Signal::KILL);
    supervisor.until("saved");
    assert_eq!(supervisor.child.wait().unwrap().signal(), Some(9));
    // The pipe closes when the last process that holds it is gone.
    assert!(supervisor.lines.all(|line| line.is_ok()));
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let mut supervisor = Supervisor::start("saves", Some(Signal::HUP));
    supervisor.send(Signal::HUP);
    let pid = Pid::from_raw(supervisor.worker as i32).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    for process in [supervisor.child.id(), supervisor.worker] {
        let status = fs_err::read_to_string(format!("/proc/{process}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 1, 1, "{process}");
    }
    supervisor.send(Signal::TERM);
    supervisor.until("saved");
    assert_eq!(supervisor.end().1.code(), Some(4));
}

#[test]
fn the_worker_is_alone_in_its_group_and_is_what_the_kernel_would_kill_first() {
    let supervisor = Supervisor::start("0", None);
    let ours: i32 = fs_err::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    let [pid, _, group, _, oom, ..] = &supervisor.hello[..] else { panic!("{:?}", supervisor.hello) };
    assert_eq!(pid, group);
    assert!(oom.parse::<i32>().unwrap() >= (ours + 1).min(1000), "{oom}");
    supervisor.end();
}

#[test]
fn nothing_of_the_group_outlives_the_worker() {
    let mut supervisor = Supervisor::start("leaves a child", None);
    let left: u32 = supervisor.until("left ").parse().unwrap();
    supervisor.end();
    assert!(ends(left));
}

#[test]
fn the_peak_is_the_workers_and_the_supervisor_stays_small() {
    let (outcome, _) = Supervisor::start("0", None).end();
    let words: Vec<&str> = outcome.split(' ').collect();
    let (peak, own) = (Bytes(words[4].parse().unwrap()), Bytes(words[6].parse().unwrap()));
    assert!(peak >= Bytes::mib(32) && peak < Bytes::mib(48), "worker {peak}");
    assert!(own > Bytes::ZERO && own < Bytes::mib(8), "supervisor {own}");
    println!("worker {peak}, supervisor {own}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let mut events = Events::install().unwrap();
    let terms = Terms::default();
    let error = supervise(&mut Command::new("/no/such/plimsoll"), &mut events, terms, |_| Wish::GoOn).unwrap_err();
    assert!(error.to_string().starts_with("could not start `/no/such/plimsoll`"), "{error}");
    let killed = |stopped_by| {
        let exit = Exit::Killed(9);
        let (cut_short, handed_over, peak, own_peak) = (false, false, Bytes::ZERO, Bytes::ZERO);
        let (stopped_at, killed) = (None, true);
        Outcome { exit, stopped_by, stopped_at, killed, cut_short, handed_over, peak, own_peak }.exit_code()
    };
    assert_eq!((killed(Some(StopSignal::Interrupt)), killed(None)), (ExitCode::Stopped, ExitCode::Failed));
}
