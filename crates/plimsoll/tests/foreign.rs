//! `plimsoll run` around a program that is nobody's framework: kills, stops, stalls, launchers that leave their ranks
//! behind, checkpoints that are torn or not taken up. The frameworks themselves are in `trainers.rs`.
//!
//! Needs a Python 3 (`PLIMSOLL_PYTHON`, or `python3` on the path); skipped with the reason where there is none.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

#[allow(dead_code, reason = "only its cgroups are used here")]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_watch::{Event, Record};

/// A test that waits longer than this for something has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with the program in it.
struct Bench {
    folder: tempfile::TempDir,
    python: String,
}

impl Bench {
    /// `None`, with the reason printed, where there is no Python.
    fn new() -> Option<Bench> {
        let python = std::env::var("PLIMSOLL_PYTHON").unwrap_or_else(|_| "python3".to_string());
        if Command::new(&python).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: no `{python}`");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trainers/plain.py");
        fs_err::copy(source, folder.path().join("plain.py")).unwrap();
        Some(Bench { folder, python })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `plimsoll run` with `flags` of ours and `words` for the program.
    fn command(&self, flags: &str, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.current_dir(self.folder.path()).args(["run", "--out", "run"]);
        command.args(flags.split_whitespace()).arg("--").arg(&self.python).args(["plain.py", "--out", "out"]);
        command.args(words.split_whitespace()).env("XDG_STATE_HOME", self.path("state"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, flags: &str, words: &str) -> Output {
        self.command(flags, words).output().unwrap()
    }

    fn records(&self) -> Vec<Record> {
        plimsoll_watch::read(&self.path("run/journal.jsonl")).map(|reading| reading.records).unwrap_or_default()
    }

    fn incidents(&self) -> Vec<String> {
        let kind = |record: Record| match record.event {
            Event::Incident { kind, .. } => Some(kind),
            _ => None,
        };
        self.records().into_iter().filter_map(kind).collect()
    }

    /// Waits until `found` finds something.
    fn wait<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(Instant::now() < until, "{what} did not happen; journal: {:#?}", self.records());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process of a rank, once it has come to `step` or beyond.
    fn rank_at(&self, rank: u32, step: u64) -> i32 {
        self.wait(&format!("step {step} of rank {rank}"), || {
            let beat: u64 = fs_err::read_to_string(self.path(&format!("out/beat-{rank}"))).ok()?.parse().ok()?;
            let pid = fs_err::read_to_string(self.path(&format!("out/pid-{rank}"))).ok()?.parse().ok()?;
            (beat >= step).then_some(pid)
        })
    }

    fn go(&self) {
        fs_err::write(self.path("out/go"), "").unwrap();
    }
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn must(output: &Output, status: i32, told: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    for words in told {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn end(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// Whether the machine gives a trainer a cgroup of its own.
fn has_cgroups() -> bool {
    match support::cgroup::Cgroup::limited_to(1 << 30) {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {reason}");
            false
        }
    }
}

#[test]
fn a_command_runs_as_it_is_typed_and_what_it_writes_is_kept() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run("", "--batch-size 8 --steps 4 --pause 0.2");
    must(&output, 0, &["training finished with 32", "plimsoll: done"]);
    let summary = fs_err::read_to_string(bench.path("run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["steps"], &summary["effective_batch"]), (&4.into(), &8.into()));
    assert!(summary["peak_ram_bytes"].as_u64().unwrap() > 1 << 20, "{summary}");
    let logs = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("logs").arg(bench.path("run")).args(words).output().unwrap()
    };
    must(&logs(&[]), 0, &["step 1/4", "step 4/4"]);
    must(&logs(&["--grep", "step [34]/"]), 0, &["logs/start-1.out:3: step 3/4"]);
    assert_eq!(logs(&["--grep", "no such words"]).status.code(), Some(1));
    must(&logs(&["--rank", "7"]), 2, &["has no log of rank 7"]);
}

#[test]
fn out_of_memory_steps_down_with_the_same_effective_batch_and_goes_on_from_the_checkpoint() {
    let Some(bench) = Bench::new() else { return };
    if !has_cgroups() {
        return;
    }
    let words = "--batch-size 8 --accum 1 --mib 32 --grow-at 6 --steps 8 --save-every 2";
    let output = bench.run("--ram 180MiB", words);
    must(
        &output,
        0,
        &[
            "the kernel killed a rank at the memory limit of its cgroup, rank 0",
            "4 samples at a time, 2 times an update: the effective batch stays 8 a rank (same result)",
            "resumed at step 4",
            "training finished with 64",
        ],
    );
    assert_eq!(bench.incidents(), ["host_oom"]);
    assert_eq!(text(&output).matches("step 2/8").count(), 1, "nothing that was saved is done again");
}

#[test]
fn what_cannot_be_made_smaller_is_given_up_with_what_would_help() {
    let Some(bench) = Bench::new() else { return };
    if !has_cgroups() {
        return;
    }
    let output = bench.run("--ram 60MiB", "--batch-size 1 --mib 128 --steps 4");
    must(&output, 1, &["giving up: no setting with the same result is left", "plimsoll doctor run"]);
    assert_eq!(bench.incidents(), ["host_oom"]);
}

#[test]
fn a_kill_from_outside_is_unproven_and_changes_no_setting() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 8 --hold-at 5").spawn().unwrap();
    let pid = bench.rank_at(0, 4);
    bench.wait("the checkpoint of step 4", || bench.path("out/step-000004.pt").exists().then_some(()));
    bench.go();
    signal(pid, rustix::process::Signal::KILL);
    let output = end(child);
    must(&output, 0, &["killed by signal 9, cause unproven", "resumed at step 4", "training finished with 64"]);
    assert_eq!(bench.incidents(), ["killed_unproven"]);
    assert!(!text(&output).contains("instead of"), "{}", text(&output));
}

#[test]
fn a_stop_ends_it_resumably_and_resume_finishes() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 8 --hold-at 5").spawn().unwrap();
    bench.rank_at(0, 4);
    bench.wait("the checkpoint of step 4", || bench.path("out/step-000004.pt").exists().then_some(()));
    signal(child.id() as i32, rustix::process::Signal::TERM);
    must(&end(child), 4, &["plimsoll: stopped; go on: plimsoll resume run"]);
    bench.go();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let resumed = command.current_dir(bench.folder.path()).args(["resume", "run"]).output().unwrap();
    must(&resumed, 0, &["resumed at step 4", "training finished with 64"]);
    let again = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .current_dir(bench.folder.path())
        .args(["resume", "run"])
        .output()
        .unwrap();
    must(&again, 0, &["is finished"]);
}

#[test]
fn a_torn_checkpoint_is_passed_over() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 8 --hold-at 7").spawn().unwrap();
    let pid = bench.rank_at(0, 6);
    let newest = bench.path("out/step-000006.pt");
    bench.wait("the checkpoint of step 6", || newest.exists().then_some(()));
    let whole = fs_err::read(&newest).unwrap();
    fs_err::write(&newest, &whole[..whole.len() - 30]).unwrap();
    bench.go();
    signal(pid, rustix::process::Signal::KILL);
    must(&end(child), 0, &["resumed at step 4", "training finished with 64"]);
}

#[test]
fn a_trainer_that_silently_begins_anew_is_stopped_and_loses_nothing() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 8 --hold-at 5 --forget").spawn().unwrap();
    let pid = bench.rank_at(0, 4);
    bench.wait("the checkpoint of step 4", || bench.path("out/step-000004.pt").exists().then_some(()));
    bench.go();
    signal(pid, rustix::process::Signal::KILL);
    let output = end(child);
    must(&output, 1, &["not as asked: the checkpoint of step 4 was asked for", "giving up"]);
    assert_eq!(bench.incidents(), ["killed_unproven", "not_restored"]);
}

#[test]
fn a_dead_rank_ends_the_others_although_its_launcher_sees_nothing() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 8 --hold-at 5 --ranks 2").spawn().unwrap();
    let (first, second) = (bench.rank_at(0, 4), bench.rank_at(1, 4));
    bench.wait("the checkpoint of step 4", || bench.path("out/step-000004.pt").exists().then_some(()));
    signal(second, rustix::process::Signal::KILL);
    bench.go();
    let output = end(child);
    must(&output, 0, &["rank 1 is gone and the others wait for it", "resumed at step 4", "training finished with 64"]);
    assert!(!Path::new(&format!("/proc/{first}")).exists(), "the first rank 0 was ended");
}

#[test]
fn ranks_that_a_dead_launcher_left_behind_are_ended_before_the_next_start() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("", "--steps 4 --hold-at 2 --ranks 2 --leave").spawn().unwrap();
    let first = bench.rank_at(0, 1);
    let output = end(child);
    must(&output, 1, &["ended what it left behind", "killed by signal 9, cause unproven"]);
    assert!(!Path::new(&format!("/proc/{first}")).exists());
}

#[test]
fn a_stopped_rank_is_noticed_and_the_run_goes_on_without_it() {
    let Some(bench) = Bench::new() else { return };
    let child = bench.command("--stall-after 8", "--steps 8 --hold-at 5 --ranks 2").spawn().unwrap();
    let second = bench.rank_at(1, 4);
    bench.wait("the checkpoint of step 4", || bench.path("out/step-000004.pt").exists().then_some(()));
    signal(second, rustix::process::Signal::STOP);
    bench.go();
    let output = end(child);
    must(&output, 0, &["rank 1 (process", "has been stopped for", "resumed at step 4", "training finished with 64"]);
    assert_eq!(bench.incidents(), ["stalled"]);
}

#[test]
fn what_is_wrong_with_a_command_is_said_before_anything_is_made() {
    let Some(bench) = Bench::new() else { return };
    let cases = [
        ("", "--batch-size 4 --batch-size=8", "`--batch-size` is given twice: `4` and `8`"),
        ("--set batsch=4", "", "there is no knob `batsch`"),
        ("--set batch=4 --set batch=8", "", "`batch` is given twice"),
        ("--set zero_stage=2", "", "`generic` cannot set `zero_stage`"),
        ("--allow bach", "", "`--allow bach`: there is no such rung"),
        ("--trainer pipper", "", "did you mean `piper`?"),
        ("--trainer nowhere.toml", "", "nowhere.toml"),
    ];
    for (flags, words, told) in cases {
        must(&bench.run(flags, words), 2, &[told]);
        assert!(!bench.path("run").exists(), "{flags} {words}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let missing = command.current_dir(bench.folder.path()).args(["run", "--", "no-such-program"]).output().unwrap();
    must(&missing, 2, &["no-such-program"]);
}

#[test]
fn settings_and_flags_can_be_given_for_a_program_that_is_not_known() {
    let Some(bench) = Bench::new() else { return };
    let output =
        bench.run("--set batch=2 --set accumulation=4 --knob accumulation=--accum", "--batch-size 8 --steps 2");
    must(&output, 0, &["batch 2 instead of 8", "--batch-size 2", "--accum 4", "training finished with 16"]);
}

#[test]
fn a_run_that_gave_way_to_a_neighbour_steps_up_again_after_a_checkpoint() {
    let Some(bench) = Bench::new() else { return };
    let Ok(cgroup) = support::cgroup::Cgroup::limited_to(360 << 20) else {
        println!("skipped: no memory cgroup that may be written to");
        return;
    };
    let hog = "import time; held = bytearray(200 * 1048576); print('held', flush=True); time.sleep(600)";
    let mut neighbour = Command::new(&bench.python);
    neighbour.args(["-c", hog]).stdout(Stdio::piped());
    cgroup.enter(&mut neighbour);
    let mut neighbour = neighbour.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(neighbour.stdout.take().unwrap()), &mut line).unwrap();
    let words = "--batch-size 8 --accum 1 --mib 24 --grow-at 3 --steps 40 --save-every 2 --pause 0.3";
    // Its own limit is above what there is beside the neighbour.
    let mut command = bench.command("--ram 340MiB", words);
    command.env("PLIMSOLL_GROW_AFTER", "1");
    cgroup.enter(&mut command);
    let child = command.spawn().unwrap();
    bench.wait("a step down", || bench.incidents().first().cloned());
    bench.wait("a step under the smaller settings", || {
        let stepped = |record: &Record| matches!(record.event, Event::Progress { step, .. } if step > 4);
        bench.records().iter().any(stepped).then_some(())
    });
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    let output = end(child);
    must(&output, 0, &["one step down", "there is room again; going on with the settings of before"]);
    must(&output, 0, &["training finished with 320"]);
}
