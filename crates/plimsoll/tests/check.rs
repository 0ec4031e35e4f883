//! `plimsoll check` on commands and jobs: what it marks, and how it exits.

mod support_run;

use serde_json::Value;
use support_run::{Said, Workshop};

/// A trainer of the test's own that needs nothing but a module of Python itself.
const OWN: &str = "name = \"own\"\nsays = \"a trainer of a test\"\n[knobs]\nbatch = { flags = [\"--batch\"] }\n\
                   workers = { flags = [\"--workers\"], default = 0 }\n[needs]\nimports = [\"json\"]\n";

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    fs_err::write(workshop.path("own.toml"), OWN).unwrap();
    fs_err::write(workshop.path("train.py"), "print('step 1')\n").unwrap();
    workshop
}

fn check(workshop: &Workshop, command: &[&str]) -> Said {
    let mut args = vec!["check", "--trainer", "own.toml", "--"];
    args.extend(command);
    workshop.plimsoll(&args)
}

/// The mark of a point, and what was found.
fn point(list: &Value, name: &str) -> Option<(String, String)> {
    let item = list["items"].as_array().unwrap().iter().find(|item| item["name"] == name)?;
    Some((item["mark"].as_str().unwrap().to_string(), item["found"].as_str().unwrap().to_string()))
}

#[test]
fn a_command_that_nothing_speaks_against_passes_with_0_and_what_is_unknown_is_no_pass() {
    let workshop = workshop();
    let said = check(&workshop, &["python3", "train.py", "--batch", "4"]);
    said.must(0, &[]);
    assert!(said.stdout.contains("ok    flags") && said.stdout.contains("??    host memory"), "{}", said.stdout);
    assert!(said.stdout.contains("own: 0 to put right, "), "{}", said.stdout);
    let said = workshop.plimsoll(&["check", "--json", "--trainer", "own.toml", "--", "python3", "train.py"]);
    let list: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&list["subject"], &list["failed"]), (&"own".into(), &0.into()));
    assert_eq!(point(&list, "script").unwrap().0, "pass");
    assert_eq!(point(&list, "module").unwrap(), ("pass".into(), "`json` can be imported".into()));
}

#[test]
fn what_would_fail_minutes_in_is_failed_at_once_with_1() {
    let workshop = workshop();
    let said = check(&workshop, &["python3", "gone.py", "--batch", "4"]);
    said.must(1, &[]);
    assert!(said.stdout.contains("FAIL  script"), "{}", said.stdout);
    let said = check(&workshop, &["no-such-python", "train.py"]);
    said.must(1, &[]);
    assert!(said.stdout.contains("`no-such-python` is no program on the path"), "{}", said.stdout);
    fs_err::write(workshop.path("own.toml"), OWN.replace("\"json\"", "\"no_such_module_here\"")).unwrap();
    let said = check(&workshop, &["python3", "train.py"]);
    said.must(1, &[]);
    assert!(said.stdout.contains("`no_such_module_here` cannot be imported"), "{}", said.stdout);
}

#[test]
fn a_flag_that_stands_twice_and_accelerates_silent_single_process_are_failed() {
    let workshop = workshop();
    let said = check(&workshop, &["python3", "train.py", "--batch", "4", "--batch", "8"]);
    said.must(1, &[]);
    assert!(said.stdout.contains("FAIL") && said.stdout.contains("--batch"), "{}", said.stdout);
    let command = ["accelerate", "launch", "--cpu", "--num_processes", "2", "train.py"];
    let said = check(&workshop, &command);
    said.must(1, &[]);
    assert!(said.stdout.contains("accelerate starts one, and does not say so"), "{}", said.stdout);
}

#[test]
fn pipers_missing_aligner_and_its_score_from_the_internet_are_points() {
    let workshop = workshop();
    let said = workshop.plimsoll(&[
        "check",
        "--json",
        "--",
        "python3",
        "-m",
        "piper.train",
        "fit",
        "--data.espeak_voice",
        "en-us",
        "--trainer.accumulate_grad_batches",
        "2",
    ]);
    said.must(1, &[]);
    let list: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(list["subject"], "piper");
    let items = list["items"].as_array().unwrap();
    let about = |words: &str| items.iter().find(|item| item["found"].as_str().unwrap().contains(words));
    assert!(about("piper.train.vits.monotonic_align.monotonic_align").is_some(), "{list:#}");
    assert_ne!(point(&list, "score for saving").expect("a point").0, "pass", "{list:#}");
    assert_eq!(point(&list, "accumulation").expect("a point").0, "fail", "{list:#}");
}

#[test]
fn a_job_of_our_own_is_checked_by_its_plan() {
    let workshop = workshop();
    workshop.job("effective_batch = 8\nsteps = 4\neval_every = 0");
    let said = workshop.plimsoll(&["check", "job.toml"]);
    said.must(0, &[]);
    assert!(said.stdout.contains("ok    plan") && said.stdout.contains("4 updates"), "{}", said.stdout);
    let small = workshop.plimsoll(&["check", "job.toml", "--ram", "10MiB"]);
    small.must(1, &[]);
    assert!(small.stdout.contains("FAIL  plan"), "{}", small.stdout);
    fs_err::remove_file(workshop.path("train.jsonl")).unwrap();
    let gone = workshop.plimsoll(&["check", "job.toml"]);
    gone.must(1, &[]);
    assert!(gone.stdout.contains("FAIL") && gone.stdout.contains("train.jsonl"), "{}", gone.stdout);
}
