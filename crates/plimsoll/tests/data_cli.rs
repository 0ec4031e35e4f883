//! `plimsoll data inspect`: what is in files, and what is said of an order that a shuffle cannot mix.

mod support_run;

use serde_json::Value;
use support_run::Workshop;

#[test]
fn inspect_tells_rows_lengths_repeats_and_what_would_be_cut() {
    let workshop = Workshop::new().with_own_cache();
    let line = |n: usize| format!("{{\"prompt\":\"what is my {n} dog called?\",\"response\":\"Pickle {n}\"}}\n");
    // Of 100 rows the last 20 are there already.
    let rows: String = (0..100).map(|n| line(n % 80)).collect();
    fs_err::write(workshop.path("a.jsonl"), rows).unwrap();
    let said = workshop.plimsoll(&["data", "inspect", "a.jsonl", "--model", "model", "--max-len", "6", "--json"]);
    said.must(0, &[]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&found["rows"], &found["files"], &found["kind"]), (&100.into(), &1.into(), &"pairs".into()));
    assert_eq!(found["columns"]["source"], "prompt");
    assert_eq!(found["repeats"]["share"], 0.2);
    assert_eq!(found["bytes"]["count"], 100);
    assert_eq!(found["max_len"]["of"], 100);
    assert!(found["max_len"]["longer"].as_u64().unwrap() > 0);
    assert_eq!(found["mixing"]["needed"], Value::Null);
    let said = workshop.plimsoll(&["data", "inspect", "a.jsonl"]);
    said.must(0, &[]);
    for words in ["100 rows in 1 file(s)", "source `prompt`, target `response`", "repeated: 20.00 %", "one window"] {
        assert!(said.stdout.contains(words), "`{words}` is not in: {}", said.stdout);
    }
    workshop
        .plimsoll(&["data", "inspect", "a.jsonl", "--max-len", "6"])
        .must(2, &["`--max-len` counts tokens", "--model"]);
    workshop.plimsoll(&["data", "inspect", "a.jsonl", "--kind", "x"]).must(2, &["must be `pairs`, `chat` or `text`"]);
    workshop.plimsoll(&["data", "inspect", "none.jsonl"]).must(2, &["none.jsonl"]);
}

#[test]
fn a_file_of_groups_is_told_with_the_window_that_would_mix_it_and_that_one_does() {
    let workshop = Workshop::new().with_own_cache();
    // Groups of 600 rows, about a block each, in no order.
    let letter = |n: usize| char::from(b'a' + (n / 600 * 7919 % 20) as u8).to_string();
    let rows: String = (0..60_000).map(|n| format!("{},{n}\n", letter(n).repeat(100))).collect();
    fs_err::write(workshop.path("groups.csv"), "prompt,response\n".to_string() + &rows).unwrap();
    let inspect = |more: &[&str]| {
        let said = workshop.plimsoll(&[&["data", "inspect", "groups.csv", "--json"], more].concat());
        said.must(0, &[]);
        serde_json::from_str::<Value>(&said.stdout).unwrap()["mixing"].clone()
    };
    let found = inspect(&["--window", "16"]);
    let needed = found["needed"].as_u64().expect("a window that would mix");
    assert!(found["excess"].as_f64().unwrap() > 0.1 && needed > 16, "{found}");
    assert_eq!(inspect(&["--window", &needed.to_string()])["needed"], Value::Null);
    let said = workshop.plimsoll(&["data", "inspect", "groups.csv", "--window", "16"]);
    assert!(said.stdout.contains(&format!("--window {needed}")), "{}", said.stdout);
    // And a run takes it.
    workshop.job("effective_batch = 8\nsteps = 2\n");
    let args = ["train", "job.toml", "--data", "groups.csv", "--window", &needed.to_string(), "--out", "run"];
    workshop.plimsoll(&args).must(0, &["done: 2 steps"]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    assert!(job.contains(&format!("window = {needed}")), "{job}");
}
