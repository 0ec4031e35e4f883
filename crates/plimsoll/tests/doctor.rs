//! `plimsoll doctor` on run folders, real runs and logs: what it prints, and how it exits.

mod support_run;

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_machine::Bytes;
use plimsoll_recover::RunLock;
use plimsoll_watch::{Event, Journal, SaveReason};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support_run::trainer::Trainer;
use support_run::{Said, Workshop};

fn doctor(workshop: &Workshop, of: &Path) -> Value {
    let said = workshop.plimsoll(&["doctor", of.to_str().unwrap(), "--json"]);
    said.must(0, &[]);
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stdout))
}

fn page(workshop: &Workshop, of: &Path) -> String {
    let said = workshop.plimsoll(&["doctor", of.to_str().unwrap()]);
    said.must(0, &[]);
    assert!(said.stderr.is_empty(), "the story is data: {}", said.stderr);
    assert!(!said.stdout.contains('\x1b'), "a pipe gets no colour");
    said.stdout
}

fn log(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor").join(name)
}

#[test]
fn each_log_gives_its_cause_with_the_line_that_tells_it() {
    let workshop = Workshop::new();
    let cases: &[(&str, &str, &str, u64, &[&str])] = &[
        (
            "cuda_oom_traceback.log",
            "card_fragmented",
            "likely",
            9,
            &[
                "2.00 GiB were asked for, 1.12 GiB of 23.64 GiB were free",
                "PyTorch held 3.10 GiB that it did not use",
                "expandable_segments:True",
                "process 4711 holds 3.50 GiB of the same card",
            ],
        ),
        (
            "dmesg_oom.log",
            "host_oom",
            "likely",
            5,
            &[
                "at the memory limit of its cgroup",
                "raise the memory limit of 16.00 GiB",
                "14.64 GiB of heap",
                "does not say that process 19024 was yours",
            ],
        ),
        ("disk_full.log", "disk_full", "proven", 6, &["free disk"]),
        (
            "dataloader_killed.log",
            "loader_worker_died",
            "unproven",
            5,
            &["dmesg", "no line of the kernel's OOM killer"],
        ),
        (
            "dataloader_killed_with_dmesg.log",
            "host_oom",
            "proven",
            14,
            &["because the machine had no memory left: loader (process 23031)", "pinned memory or /dev/shm"],
        ),
        ("nccl_hides_oom.log", "card_oom", "proven", 3, &["ran out: rank 1", "halve the micro-batch"]),
        ("nccl_alone.log", "peer_lost", "unproven", 1, &["a log of each rank"]),
        ("status_137.log", "killed_unproven", "unproven", 2, &["do not say who killed"]),
        ("docker_inspect.log", "host_oom", "likely", 6, &["at the memory limit", "raise the memory limit"]),
        ("slurm_time_limit.log", "stopped", "proven", 2, &["nothing is wrong"]),
        ("systemd_oomd.log", "host_oom", "likely", 1, &["systemd-oomd killed a process"]),
        ("panic.log", "bug", "proven", 2, &["src/loader.rs:127:9"]),
    ];
    for (file, kind, confidence, line, says) in cases {
        let found = doctor(&workshop, &log(file));
        let cause = &found["cause"];
        let first = cause["because"].as_array().and_then(|grounds| grounds.first()).expect("a ground");
        let judged = (cause["kind"].as_str(), cause["confidence"].as_str(), first["line"].as_u64());
        assert_eq!(judged, (Some(*kind), Some(*confidence), Some(*line)), "{file}: {found:#}");
        assert_eq!(found["status"], "log_of_a_death", "{file}");
        let page = page(&workshop, &log(file));
        says.iter().for_each(|word| assert!(page.contains(word), "{file}: `{word}` is missing:\n{page}"));
    }
}

#[test]
fn a_log_of_success_tells_of_no_death() {
    let workshop = Workshop::new();
    let found = doctor(&workshop, &log("success.log"));
    assert_eq!((&found["status"], &found["cause"]), (&Value::from("log_without_a_death"), &Value::Null));
    assert!(page(&workshop, &log("success.log")).starts_with("nothing in 4 lines tells of a death\n"));
}

#[test]
fn what_is_no_log_and_no_run_is_refused_with_exit_2() {
    let workshop = Workshop::new();
    let refused = |name: &str| -> Said { workshop.plimsoll(&["doctor", name]) };
    refused("nothing-here").must(2, &["does not exist"]);
    refused("model").must(2, &["is not a run", "hint:"]);
    fs_err::write(workshop.path("empty.log"), "").unwrap();
    refused("empty.log").must(2, &["`empty.log` is empty"]);
    fs_err::write(workshop.path("core"), b"\x7fELF\x02\x01\x01\x00").unwrap();
    refused("core").must(2, &["not a text log: byte 7 is zero"]);
    fs_err::write(workshop.path("train.log.gz"), b"\x1f\x8b\x08\x00abc").unwrap();
    refused("train.log.gz").must(2, &["not a text log", "gzip", "zcat"]);
}

#[test]
fn a_kernel_log_beside_a_trainers_log_names_the_killer_of_the_loader() {
    let workshop = Workshop::new();
    let words = "step 3 loss 0.5\nRuntimeError: DataLoader worker (pid 2757) is killed by signal: Killed. \n";
    fs_err::write(workshop.path("train.log"), words).unwrap();
    let kernel = "[1.0] usb 1-1: new device\n[2.0] Memory cgroup out of memory: Killed process 2757 (pt_data_worker) \
                  total-vm:3658656kB, anon-rss:688652kB, file-rss:22500kB, shmem-rss:0kB, UID:0 pgtables:1900kB \
                  oom_score_adj:0\n";
    fs_err::write(workshop.path("kernel.log"), kernel).unwrap();
    let unproven = doctor(&workshop, Path::new("train.log"));
    assert_eq!(unproven["cause"]["kind"], "loader_worker_died", "{unproven:#}");
    let said = workshop.plimsoll(&["doctor", "train.log", "--dmesg", "kernel.log", "--json"]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    let cause = &found["cause"];
    assert_eq!(cause["detail"]["host_oom"], serde_json::json!({ "by": "cgroup", "victim": "loader" }), "{found:#}");
    assert_eq!((&cause["confidence"], &cause["culprit"]), (&"proven".into(), &"loader (process 2757)".into()));
    let places: Vec<(&str, u64)> = cause["because"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|ground| Some((ground["file"].as_str()?, ground["line"].as_u64()?)))
        .collect();
    assert_eq!(places, [("kernel.log", 2), ("train.log", 2)]);
    let page = workshop.plimsoll(&["doctor", "train.log", "--dmesg", "kernel.log"]).stdout;
    assert!(page.contains("  kernel.log line 2  [2.0] Memory cgroup out of memory"), "{page}");
}

#[test]
fn of_several_ranks_logs_the_one_that_failed_first_is_named_with_its_file() {
    let workshop = Workshop::new();
    for rank in ["0", "1"] {
        fs_err::create_dir(workshop.path(rank)).unwrap();
    }
    let echo =
        "step 1 loss 2.0\nRuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:7\n";
    fs_err::write(workshop.path("0/stderr.log"), echo).unwrap();
    let oom = "step 1 loss 2.0\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total \
               capacity of 23.64 GiB of which 1.12 GiB is free.\n";
    fs_err::write(workshop.path("1/stderr.log"), oom).unwrap();
    let said = workshop.plimsoll(&["doctor", "0/stderr.log", "1/stderr.log", "--json"]);
    said.must(0, &[]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(
        (&found["cause"]["kind"], &found["cause"]["culprit"]),
        (&"card_oom".into(), &"rank 1".into()),
        "{found:#}"
    );
    let headline = found["headline"].as_str().unwrap();
    assert!(headline.ends_with("rank 1 (proven), 1/stderr.log line 2"), "{headline}");
}

#[test]
fn a_log_with_a_zero_byte_or_in_no_encoding_at_all_is_read() {
    let workshop = Workshop::new();
    let crash =
        b"step 3 loss 0.5\nERROR: Unexpected segmentation fault encountered in worker.\n\x00RuntimeError: DataLoader \
                  worker (pid 77) is killed by signal: Segmentation fault. \n";
    fs_err::write(workshop.path("train.log"), crash).unwrap();
    let found = doctor(&workshop, Path::new("train.log"));
    assert_eq!(found["cause"]["detail"]["loader_worker_died"]["signal"], 11, "{found:#}");
    fs_err::write(workshop.path("latin.log"), b"Modell l\xe4dt\nOSError: [Errno 28] No space left on device: '\xfc'\n")
        .unwrap();
    assert_eq!(doctor(&workshop, Path::new("latin.log"))["cause"]["kind"], "disk_full");
    let mixed = workshop.plimsoll(&["doctor", "train.log", "model"]);
    mixed.must(2, &["is a run folder, which is told alone"]);
}

fn step(step: u64) -> Event {
    Event::Step {
        step,
        loss: 1.0,
        lr: 1e-3,
        grad_norm: None,
        tokens: 100,
        seconds: 0.01,
        data_seconds: 0.0,
        tokens_per_second: 1e4,
        ram_bytes: Bytes::mib(30),
    }
}

/// A run folder with a journal of these events.
fn run_with(workshop: &Workshop, events: &[Event]) -> PathBuf {
    let run = workshop.path("run");
    fs_err::create_dir(&run).unwrap();
    let mut journal = Journal::create(&run.join("journal.jsonl")).unwrap();
    events.iter().for_each(|event| journal.record(event).unwrap());
    run
}

#[test]
fn every_key_of_the_json_is_there_for_a_run_and_for_a_log() {
    let workshop = Workshop::new();
    let run = run_with(&workshop, &[step(1), step(2)]);
    let keys = [
        "subject",
        "asked_unix_ms",
        "status",
        "headline",
        "progress",
        "cause",
        "timeline",
        "lost",
        "done",
        "pace",
        "advice",
        "swap",
        "trainer",
        "next",
        "remarks",
    ];
    for found in [doctor(&workshop, &run), doctor(&workshop, &log("success.log"))] {
        let found: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found.len(), keys.len());
        keys.iter().for_each(|key| assert!(found.contains(key), "{key}"));
    }
}

#[test]
fn a_damaged_journal_is_told_with_what_is_left_of_it() {
    let workshop = Workshop::new();
    let run = run_with(&workshop, &[step(1), step(2), step(3)]);
    let journal = run.join("journal.jsonl");
    let text = fs_err::read_to_string(&journal).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1] = "{\"unix_ms\": 7, \"eve";
    fs_err::write(&journal, lines.join("\n") + "\n").unwrap();
    let found = doctor(&workshop, &journal);
    assert_eq!(found["progress"]["step"], 3, "whoever names the journal means the run");
    let remarks = found["remarks"].as_array().unwrap();
    assert!(remarks.iter().any(|remark| remark.as_str().unwrap().contains("line 2 of the journal")), "{remarks:?}");
}

#[test]
fn an_escape_sequence_in_a_journal_does_not_reach_the_terminal() {
    let workshop = Workshop::new();
    let message = "\x1b]0;owned\x07\x1b[2Jx".to_string();
    let run = run_with(
        &workshop,
        &[
            step(1),
            Event::Warning { step: 1, message },
            Event::Failed { step: 1, message: "boom\x1b[31m".into(), place: Some("\x1b[2Ja.rs:1:1".into()) },
        ],
    );
    let page = page(&workshop, &run);
    assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
}

#[test]
fn a_real_run_is_running_then_dead_without_a_witness_then_finished() {
    let workshop = Workshop::new();
    workshop.job("effective_batch = 8\nsteps = 40\nsave_every = 5\neval_every = 0");
    let run = workshop.path("run");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(12);
    let worker = trainer.worker();
    // Halted, both are alive for as long as the doctor looks, and neither can react to the other's death.
    trainer.signal(Signal::STOP);
    kill_process(worker, Signal::STOP).unwrap();
    let alive = doctor(&workshop, &run);
    assert_eq!(alive["status"], "running", "{alive:#}");
    assert_eq!(alive["next"], format!("plimsoll watch {}", run.display()));
    kill_process(worker, Signal::KILL).unwrap();
    trainer.signal(Signal::KILL);
    trainer.end();
    // A killed process holds the lock until the kernel has taken it apart.
    drop(RunLock::take(&run, Duration::from_secs(60)).unwrap());
    let dead = doctor(&workshop, &run);
    assert_eq!(dead["status"], "dead_without_a_witness", "{dead:#}");
    assert_eq!((&dead["cause"]["kind"], &dead["cause"]["confidence"]), (&"unknown".into(), &"unproven".into()));
    let (at, saved) = (dead["progress"]["step"].as_u64().unwrap(), dead["progress"]["saved_step"].as_u64().unwrap());
    assert!(at >= 12 && saved >= 5 && saved <= at, "{dead:#}");
    assert_eq!(dead["lost"]["steps"].as_u64().unwrap_or(0), at - saved);
    let page = page(&workshop, &run);
    assert!(
        page.contains("cause unproven") && page.contains(&format!("go on: plimsoll resume {}", run.display())),
        "{page}"
    );
    assert!(!page.to_lowercase().contains("oom kill of"), "{page}");

    Trainer::resume(&workshop, "run").end().must(0, &[]);
    let done = doctor(&workshop, &run);
    assert_eq!((&done["status"], &done["progress"]["step"]), (&"finished".into(), &40.into()), "{done:#}");
    let gap = done["timeline"].as_array().unwrap().iter().any(|at| at["what"] == "gap");
    assert!(gap, "the silence after the kill is told: {done:#}");
}

#[test]
fn a_save_for_pressure_is_on_the_timeline_and_among_what_was_done() {
    let workshop = Workshop::new();
    let saved = Event::Saved {
        step: 1,
        path: "checkpoints/step-1".into(),
        bytes: Bytes::mib(9),
        seconds: 0.1,
        waited_seconds: 0.1,
        reason: SaveReason::Pressure,
    };
    let run = run_with(&workshop, &[step(1), saved, Event::Stopped { step: 1, reason: "asked to stop".into() }]);
    let found = doctor(&workshop, &run);
    assert_eq!(found["status"], "stopped");
    assert!(found["done"][0].as_str().unwrap().contains("memory or disk was running out"), "{found:#}");
    assert_eq!(found["timeline"][0]["what"], "pressure");
}
