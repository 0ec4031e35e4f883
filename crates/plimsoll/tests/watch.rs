//! `plimsoll watch` on a real pseudo-terminal: what stands on the screen while the journal grows, and how the terminal
//! is left. Also its text form and its refusals.

#[path = "watch/pty.rs"]
mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use plimsoll_machine::Bytes;
use plimsoll_recover::RunLock;
use plimsoll_watch::{Event, Journal, SaveReason};
use pty::Pty;
use serde_json::Value;

/// A run folder whose journal the test writes.
struct Run {
    dir: tempfile::TempDir,
    journal: Journal,
}

impl Run {
    fn new() -> Run {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("chat-1");
        fs_err::create_dir(&folder).unwrap();
        let journal = Journal::create(&folder.join("journal.jsonl")).unwrap();
        Run { dir, journal }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("chat-1")
    }

    fn note(&mut self, event: Event) {
        self.journal.record(&event).unwrap();
    }

    fn begin(&mut self) {
        self.note(Event::RunStarted {
            version: "0.1.0".into(),
            plan: "plan.json".into(),
            total_steps: 400,
            effective_batch: 16,
            threads: 2,
            simd: "avx2".into(),
            planned_ram_bytes: Bytes::mib(240),
            planned_vram_bytes: Bytes::ZERO,
            facts: Value::Null,
        });
    }

    fn step(&mut self, step: u64) {
        self.note(Event::Step {
            step,
            loss: 2.0 + 1.0 / step as f64,
            lr: 1e-3,
            grad_norm: Some(0.5),
            tokens: 4000,
            seconds: 0.5,
            data_seconds: 0.1,
            tokens_per_second: 8000.0,
            ram_bytes: Bytes::mib(212),
        });
    }

    fn lock(&self) -> RunLock {
        RunLock::take(&self.folder(), Duration::ZERO).unwrap()
    }

    fn watch(&self, columns: u16, rows: u16) -> Pty {
        Pty::start(command().arg("watch").arg(self.folder()).env_remove("NO_COLOR"), columns, rows)
    }
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
}

fn watch_once(folder: &Path) -> Output {
    command().arg("watch").arg(folder).output().unwrap()
}

#[test]
fn a_live_run_is_followed_resized_scrolled_and_left_with_the_terminal_as_it_was() {
    let mut run = Run::new();
    let _lock = run.lock();
    run.begin();
    (1..=20).for_each(|step| run.step(step));
    let mut pty = run.watch(80, 24);
    let before = pty.before;
    pty.wait_for("step 20 of 400");
    assert!(pty.contents().contains("chat-1  running for 0:0"), "{}", pty.contents());
    assert!(pty.screen().alternate_screen() && pty.screen().hide_cursor(), "not a full screen");
    assert_ne!(pty.settings(), before, "not raw");
    assert!(pty.is_coloured());

    run.step(21);
    pty.wait_for("step 21 of 400");
    let saved = Event::Saved {
        step: 21,
        path: run.folder().join("checkpoints/step-21"),
        bytes: Bytes::mib(97),
        seconds: 0.4,
        waited_seconds: 0.4,
        reason: SaveReason::Steps,
    };
    run.note(saved);
    pty.wait_for("step 21: saved step-21: 97.0 MiB in 0.4 s");

    let saved_row = |screen: &vt100::Screen| screen.rows(0, 120).position(|row| row.contains("step 21: saved"));
    pty.resize(60, 20);
    pty.wait_until("the events stand on the last rows of 20", |screen| saved_row(screen).is_some_and(|row| row >= 16));
    pty.resize(120, 40);
    pty.wait_until("the events stand on the last rows of 40", |screen| saved_row(screen).is_some_and(|row| row >= 31));

    pty.send(b"?");
    pty.wait_for("q, Esc, Ctrl-C");
    pty.send(b"?");
    pty.wait_until("the keys are gone", |screen| !screen.contents().contains("q, Esc, Ctrl-C"));
    for step in 22..=60 {
        run.note(Event::Warning { step, message: format!("warning {step}") });
    }
    pty.wait_for("warning 60");
    pty.send(b"\x1b[5~");
    pty.wait_until("a page of events back", |screen| {
        screen.contents().contains("lines below") && !screen.contents().contains("warning 60")
    });
    pty.send(b"\x1b[F");
    pty.wait_for("warning 60");

    pty.send(b"q");
    assert!(pty.wait().success());
    assert!(!pty.screen().alternate_screen() && !pty.screen().hide_cursor(), "the screen was not given back");
    assert_eq!(pty.settings(), before, "the terminal was left raw");
}

#[test]
fn every_way_of_ending_gives_the_terminal_back() {
    let mut run = Run::new();
    run.begin();
    run.step(1);
    type End = fn(&mut Pty);
    let ends: [(&str, End); 5] = [
        ("Esc", |pty| pty.send(b"\x1b")),
        ("Ctrl-C", |pty| pty.send(b"\x03")),
        ("SIGTERM", |pty| pty.signal(libc::SIGTERM)),
        ("SIGHUP", |pty| pty.signal(libc::SIGHUP)),
        ("SIGINT", |pty| pty.signal(libc::SIGINT)),
    ];
    for (name, end) in ends {
        let mut pty = run.watch(80, 24);
        pty.wait_for("step 1 of 400");
        end(&mut pty);
        assert!(pty.wait().success(), "{name}");
        assert!(!pty.screen().alternate_screen() && !pty.screen().hide_cursor(), "{name}");
        assert_eq!(pty.settings(), pty.before, "{name}");
    }
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let mut run = Run::new();
    run.begin();
    run.step(1);
    let mut pty = run.watch(80, 24);
    pty.wait_for("step 1 of 400");
    pty.hang_up();
    pty.wait();
}

#[test]
fn a_dead_run_shows_its_incident_and_a_resume_brings_it_back_to_life() {
    let mut run = Run::new();
    run.begin();
    (1..=12).for_each(|step| run.step(step));
    run.note(Event::Incident {
        step: 12,
        saved_step: 10,
        kind: "kernel_oom_in_our_cgroup".into(),
        told: "the kernel killed it: its cgroup was out of memory".into(),
        confidence: "proven".into(),
        because: vec!["memory.events: oom_kill 0 -> 1".into()],
        evidence: Value::Null,
    });
    let mut pty = Pty::start(command().arg("watch").arg(run.folder()).env("NO_COLOR", "1"), 100, 30);
    pty.wait_for("worker died: the kernel killed it: its cgroup was out of memory (proven)");
    assert!(pty.contents().contains("chat-1  dead for"), "{}", pty.contents());
    assert!(!pty.is_coloured(), "NO_COLOR is set");
    let _lock = run.lock();
    run.note(Event::Resumed { step: 10, from: run.folder().join("checkpoints/step-10") });
    pty.wait_for("running for");
    pty.wait_for("step 10 of 400");
    pty.send(b"q");
    assert!(pty.wait().success());
}

#[test]
fn a_live_run_without_a_journal_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let lock = RunLock::take(dir.path(), Duration::ZERO).unwrap();
    let mut pty = Pty::start(command().arg("watch").arg(dir.path()), 80, 24);
    pty.wait_for("no journal yet: the run is being planned");
    let mut journal = Journal::create(&dir.path().join("journal.jsonl")).unwrap();
    journal.record(&Event::Warning { step: 0, message: "here it is".into() }).unwrap();
    pty.wait_for("here it is");
    pty.send(b"q");
    assert!(pty.wait().success());
    drop(lock);
}

#[test]
fn without_a_terminal_one_view_is_printed_as_plain_text() {
    let mut run = Run::new();
    run.begin();
    (1..=5).for_each(|step| run.step(step));
    for output in [watch_once(&run.folder()), command().args(["watch", "--once"]).arg(run.folder()).output().unwrap()] {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for wanted in ["chat-1  dead for", "step 5 of 400", "run began: 400 steps of 16 samples"] {
            assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
        }
        assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn what_is_no_run_is_refused_with_the_reason_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs_err::write(&file, "x").unwrap();
    let planned = dir.path().join("planned");
    fs_err::create_dir(&planned).unwrap();
    fs_err::write(planned.join(".lock"), "").unwrap();
    let empty = dir.path().join("empty");
    fs_err::create_dir(&empty).unwrap();
    let cases = [
        (dir.path().join("none"), "does not exist; expected a run folder"),
        (file, "is not a folder; expected a run folder"),
        (planned, "has no journal.jsonl yet, and nobody works on it"),
        (empty.clone(), "is not a run: it has no journal.jsonl"),
    ];
    for (path, wanted) in cases {
        let output = watch_once(&path);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(wanted) && error.contains(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(fs_err::read_dir(&empty).unwrap().count(), 0, "looking makes nothing");
}
