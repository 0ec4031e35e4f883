//! transformers makes a model and a tokenizer, Plimsoll fine-tunes it with nothing but `--model` and `--data`, and
//! transformers loads the result and computes the same: losses, and answers by greedy and by beam search.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it the test says so and passes.

mod support_run;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support_run::{Workshop, python};

fn peer(python: &Path, verb: &str, root: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support_run/peer.py");
    let out = Command::new(python).arg(script).arg(verb).arg(root).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{verb}: {}\n{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn what_transformers_made_and_we_fine_tuned_computes_the_same_in_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let workshop = Workshop::new();
    peer(&python, "make", &workshop.path(""));
    // Each version from both kinds of file; the names of the columns are guessed.
    let runs = [("v1.0", "jsonl"), ("v1.0", "parquet"), ("v1.1", "jsonl"), ("v1.1", "parquet")];
    for (version, format) in runs {
        let (data, out) = (format!("pairs.{format}"), format!("{version}-{format}"));
        let words = ["columns: source `question`, target `answer` (guessed", "done: 45 steps"];
        let args =
            ["train", "--model", version, "--data", &data, "--ram", "1GiB", "--out", &out, "--optimizer", "adafactor"];
        workshop.plimsoll(&[&args[..], &["--effective-batch", "8", "--lr", "5e-3"]].concat()).must(0, &words);
    }
    peer(&python, "judge", &workshop.path(""));

    let judged: Value = serde_json::from_str(&fs_err::read_to_string(workshop.path("judged.json")).unwrap()).unwrap();
    let prompts = fs_err::read_to_string(workshop.path("prompts.txt")).unwrap();
    for (version, format) in runs {
        let run = format!("{version}-{format}");
        let theirs = &judged[&run];
        let said = workshop.plimsoll(&["eval", &run, "--data", "held-out.jsonl", "--json"]);
        let ours: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
        let (ours, loss) = (ours["loss"].as_f64().unwrap(), theirs["loss"].as_f64().unwrap());
        assert!((ours - loss).abs() <= 1e-4 * loss, "{run}: our loss is {ours}, theirs {loss}");
        let before = theirs["loss_before"].as_f64().unwrap();
        assert!(loss < 0.7 * before, "{run}: fine-tuning went from {before} to {loss}");
        for (beams, name) in [("1", "greedy"), ("4", "beams")] {
            let said = workshop.plimsoll_with(&["generate", &run, "--max-new", "16", "--beams", beams], &prompts);
            let ours: Vec<&str> = said.must(0, &[]).stdout.lines().collect();
            let answers: Vec<&str> = theirs[name].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
            assert_eq!(answers.len(), 20);
            assert_eq!(ours, answers, "{run}, {name}");
        }
    }
}
