//! `plimsoll doctor` and `watch` on recorded runs of somebody else's trainers.
//!
//! `foreign/` holds folders that `plimsoll run` left: a training that was OOM-killed in its cgroup and stepped down, one
//! with a stopped rank, one that was given up, and one that started fewer ranks than it was asked for. Their paths are
//! made neutral; nothing else is changed.

#[path = "browser/served.rs"]
#[allow(dead_code, reason = "shared with the tests of the page")]
mod served;
mod support_run;

use std::path::{Path, PathBuf};

use serde_json::Value;
use served::Served;
use support_run::Workshop;

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

fn said(workshop: &Workshop, args: &[&str]) -> String {
    let said = workshop.plimsoll(args);
    said.must(0, &[]);
    assert!(said.stderr.is_empty(), "the story is data: {}", said.stderr);
    said.stdout
}

fn page(workshop: &Workshop, run: &Path) -> String {
    said(workshop, &["doctor", run.to_str().unwrap()])
}

fn json(workshop: &Workshop, run: &Path) -> Value {
    serde_json::from_str(&said(workshop, &["doctor", run.to_str().unwrap(), "--json"])).unwrap()
}

fn holds(page: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(page.contains(word), "`{word}` is missing:\n{page}"));
}

/// A copy of a recorded run that a test may cut.
fn copy(workshop: &Workshop, name: &str) -> PathBuf {
    let to = workshop.path(name);
    let mut folders = vec![(recorded(name), to.clone())];
    while let Some((from, to)) = folders.pop() {
        fs_err::create_dir_all(&to).unwrap();
        for entry in fs_err::read_dir(&from).unwrap() {
            let path = entry.unwrap().path();
            let to = to.join(path.file_name().unwrap());
            if path.is_dir() { folders.push((path, to)) } else { fs_err::copy(&path, &to).map(|_| ()).unwrap() }
        }
    }
    to
}

#[test]
fn a_training_that_was_oom_killed_and_stepped_down_is_told_start_by_start() {
    let workshop = Workshop::new();
    let page = page(&workshop, &recorded("oom"));
    assert!(page.starts_with("finished, after 1 death: 60 steps in 39 s, loss 1.7850, peak RAM 659 MiB\n"), "{page}");
    holds(
        &page,
        &[
            "  generic, in /srv/train\n  python cnn_lstm.py --out out --batch-size 32 ",
            "as typed, at most 660 MiB of RAM",
            "at step 4: the kernel killed a rank at the memory limit of its cgroup: rank 0 (process 9918) (proven)",
            "kernel log: [26665.489187] Memory cgroup out of memory: Killed process 9918 (python)",
            "16 samples at a time, 2 times an update: the effective batch stays 32 a rank (same result)",
            "batch 16 instead of 32, accumulation 2 instead of 1, at most 660 MiB of RAM",
            "went on from /srv/train/out/step-000004.pt (step 4)",
            "next time begin with what it ended with: --set batch=16 --set accumulation=2",
            "rank 0  845 MiB in RAM, fair share 862 MiB",
        ],
    );
    let wrong = ["plimsoll resume", " 0 steps", "0 threads", "0.0 MiB of RAM planned", "the worker"];
    wrong.iter().for_each(|word| assert!(!page.contains(word), "`{word}`:\n{page}"));
    let found = json(&workshop, &recorded("oom"));
    assert_eq!((&found["status"], &found["next"]), (&"finished".into(), &Value::Null));
    let starts = found["trainer"]["starts"].as_array().unwrap();
    assert_eq!((starts.len(), &starts[0]["end"], &starts[1]["end"]), (2, &"died".into(), &"finished".into()));
    let cause = &starts[0]["cause"];
    assert_eq!(cause["detail"]["host_oom"], serde_json::json!({ "by": "cgroup", "victim": "rank" }));
    assert_eq!((&cause["kind"], &cause["culprit"]), (&"host_oom".into(), &"rank 0 (process 9918)".into()));
    assert_eq!(found["trainer"]["settings"]["batch"], 16);
}

#[test]
fn a_training_that_was_given_up_says_why_what_to_change_and_that_swap_cannot_help() {
    let workshop = Workshop::new();
    let page = page(&workshop, &recorded("given_up"));
    assert!(page.starts_with("given up after 2 deaths, after step 4 of 10: the kernel killed a rank"), "{page}");
    holds(
        &page,
        &[
            "proven: a witness names this death",
            "then: gave up: no setting with the same result is left to make it smaller",
            "raise the memory limit of the cgroup",
            "\nswap\n  swap cannot help\n",
            "the limit of 400 MiB is the run's own",
            "\ngo on: plimsoll resume ",
        ],
    );
    assert!(!page.contains("sudo"), "{page}");
}

#[test]
fn a_stopped_rank_and_a_missing_rank_are_named() {
    let workshop = Workshop::new();
    holds(
        &page(&workshop, &recorded("stalled")),
        &[
            "hf-trainer by torchrun, in /srv/train",
            "rank 1 (process 28006) has been stopped for 5 s; the others wait for it without a word",
            "it stands still, waiting for rank 1: rank 1 (process 28006) (proven)",
            "last sample: nothing moved for 30 s",
            "went on from /srv/train/hf/checkpoint-5 (step 5)",
        ],
    );
    let alone = page(&workshop, &recorded("one_rank"));
    holds(&alone, &["\nnot as asked\n  2 ranks was asked for, but: 1 rank\n", "look into what is not as asked"]);
    assert_eq!(json(&workshop, &recorded("one_rank"))["trainer"]["not_as_asked"].as_array().unwrap().len(), 1);
}

#[test]
fn an_end_that_no_supervisor_saw_is_judged_by_the_logs_of_the_last_start() {
    let workshop = Workshop::new();
    let run = copy(&workshop, "oom");
    fs_err::remove_file(run.join("summary.json")).unwrap();
    let journal = run.join("journal.jsonl");
    let text = fs_err::read_to_string(&journal).unwrap();
    let cut: Vec<&str> = text.lines().take_while(|line| !line.contains("\"event\":\"finished\"")).collect();
    fs_err::write(&journal, cut.join("\n") + "\n").unwrap();
    let words = "loading\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a \
                 total capacity of 23.64 GiB of which 1.12 GiB is free.\n";
    fs_err::write(run.join("logs/start-2.err"), words).unwrap();
    let found = json(&workshop, &run);
    assert_eq!((&found["status"], &found["cause"]["kind"]), (&"died".into(), &"card_oom".into()), "{found:#}");
    assert_eq!((&found["cause"]["found_by"], &found["swap"]["helps"]), (&"doctor".into(), &"no".into()));
    let page = page(&workshop, &run);
    holds(&page, &["its supervisor too: the card's memory ran out", "micro-batch 8 instead of 16", "`--set batch=8`"]);
    holds(&page, &["swap gives it nothing", "\ngo on: plimsoll resume "]);
}

#[test]
fn watch_shows_trainer_limit_and_processes_and_the_page_has_them_as_figures() {
    let workshop = Workshop::new();
    let run = recorded("stalled");
    let once = said(&workshop, &["watch", run.to_str().unwrap(), "--once"]);
    holds(
        &once,
        &[
            "step 40 of 40",
            "hf-trainer by torchrun, start 2",
            "limit 16.42 GiB",
            "role                                RSS       PSS",
            "rank 1                         1000 MiB   715 MiB",
            "run began: hf-trainer, 4 samples an update",
            "step 7: it died: it stands still, waiting for rank 1",
        ],
    );
    ["threads", "plan by part", "plan 0.0", "worker"].iter().for_each(|word| assert!(!once.contains(word), "{once}"));
    let served = Served::start(&run, 0);
    let metrics = served.get("/metrics").body;
    for line in [
        "plimsoll_process_pss_bytes{role=\"rank 0\"} 760695808.0",
        "plimsoll_process_rss_bytes{role=\"launcher\"} 555839488.0",
        "plimsoll_processes{role=\"rank 1\"} 1.0",
        "plimsoll_ram_limit_bytes 17628272231.0",
        "plimsoll_incidents_total{kind=\"stalled\"} 1",
        "trainer=\"hf-trainer by torchrun\"",
    ] {
        assert!(metrics.contains(line), "`{line}` is missing:\n{metrics}");
    }
    assert!(!metrics.contains("plimsoll_learning_rate") && !metrics.contains("planned_peak"), "{metrics}");
    let view: Value = serde_json::from_str(&served.get("/view.json").body).unwrap();
    assert_eq!(view["trainer"]["processes"][0]["role"], "rank 0");
}
