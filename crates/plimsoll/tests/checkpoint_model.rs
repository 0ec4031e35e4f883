//! A model folder of any checkpoint: that of the last one is the run's own model to the bit, whatever was trained, and that of
//! the best one is what a run that ended there would have left.

mod support_run;

use std::path::Path;

use support_run::series::{SERIES, SeriesJob, V1, market, write_csv};
use support_run::{PINS, Said, Workshop, tree};

fn workshop(lr: &str, rest: &str) -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!(
        "effective_batch = 8\nsave_every = 3\nkeep = 4\neval_every = 4\n{rest}\
         optimizer = {{ name = \"adamw\", lr = {lr} }}\n{PINS}"
    ));
    workshop
}

fn made(workshop: &Workshop, run: &str, which: &str, out: &str) -> Said {
    workshop.plimsoll(&["checkpoints", run, "--model", which, "--out", out])
}

/// Two folders hold the same files.
#[track_caller]
fn must_equal(one: &Path, other: &Path) {
    let files = |dir: &Path| -> Vec<_> {
        let inside =
            |(path, content): (std::path::PathBuf, _)| (path.strip_prefix(dir).unwrap().to_path_buf(), content);
        tree(dir).into_iter().map(inside).collect()
    };
    let (one, other) = (files(one), files(other));
    assert!(one.len() > 1);
    assert_eq!(
        one.iter().map(|file| &file.0).collect::<Vec<_>>(),
        other.iter().map(|file| &file.0).collect::<Vec<_>>()
    );
    for (a, b) in one.iter().zip(&other) {
        assert!(a == b, "`{}` differs", a.0.display());
    }
}

#[test]
fn the_last_checkpoint_holds_the_model_of_the_run_whatever_was_trained() {
    let workshop = workshop("3e-3", "steps = 6\n");
    let weights = workshop.weighted().display().to_string();
    let ways: [(&str, &[&str]); 5] = [
        ("all", &[]),
        ("drawn and frozen", &["--train", "{ freeze = ['encoder.*'] }"]),
        ("read and frozen", &["--train", "{ freeze = ['shared*'] }", "--init", "weights", "--model", &weights]),
        ("halves", &["--precision", "bf16"]),
        ("factors", &["--train", "{ lora = { r = 2 } }", "--init", "weights", "--model", &weights]),
    ];
    for (name, flags) in ways {
        let run = format!("run of {name}");
        workshop.plimsoll(&[&["train", "job.toml", "--out", &run], flags].concat()).must(0, &["done: 6 steps"]);
        let out = format!("model of {name}");
        made(&workshop, &run, "last", &out).must(0, &["of step 6"]);
        must_equal(&workshop.path(&out), &workshop.path(&run).join("model"));
    }
}

#[test]
fn the_best_checkpoint_holds_what_a_run_that_ended_there_would_have_left() {
    // No improvement is more than 100: the fourth evaluation ends the run.
    let patient = "steps = 40\nearly_stop = { patience = 3, min_delta = 100.0 }\n";
    // Steps that grow until they are far too large: the first evaluation finds the best.
    let growing = format!("{patient}schedule = {{ name = \"constant\", warmup_steps = 16 }}\n");
    for (name, lr, rest, best) in [("gets better", "3e-3", patient, 16), ("gets worse", "3.0", &growing, 4)] {
        let workshop = workshop(lr, rest);
        let said = workshop.plimsoll(&["train", "job.toml", "--out", "run"]);
        let told = "as a model: plimsoll checkpoints run --model best --out DIR";
        said.must(0, &["ended early, after step 16 of 40", told]);
        let told = workshop.plimsoll(&["checkpoints", "run", "--model", "best", "--out", "best", "--json"]);
        assert_eq!(told.must(0, &[]).json()["step"], best, "{name}");
        let step = best.to_string();
        workshop.plimsoll(&["train", "job.toml", "--steps", &step, "--early-stop", "0", "--out", "short"]).must(0, &[]);
        must_equal(&workshop.path("best"), &workshop.path("short/model"));
        made(&workshop, "run", &step, "by step").must(0, &[]);
        must_equal(&workshop.path("best"), &workshop.path("by step"));
    }
}

#[test]
fn a_model_of_series_is_normalised_as_its_run_was_finished_or_not() {
    let workshop = Workshop::new();
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/series/job.toml");
    workshop.plimsoll(&["train", job, "--steps", "8", "--eval-every", "4", "--out", "run"]).must(0, &["done: 8 steps"]);
    made(&workshop, "run", "last", "finished").must(0, &["of step 8"]);
    must_equal(&workshop.path("finished"), &workshop.path("run/model"));
    assert!(workshop.path("finished/normalisation.json").is_file());
    fs_err::rename(workshop.path("run/model"), workshop.path("model then")).unwrap();
    made(&workshop, "run", "last", "unfinished").must(0, &["of step 8"]);
    must_equal(&workshop.path("unfinished"), &workshop.path("model then"));
    // It is a model folder like any other.
    fs_err::rename(workshop.path("unfinished"), workshop.path("run/model")).unwrap();
    workshop.plimsoll(&["eval", "run"]).must(0, &[]);
}

#[test]
fn a_model_that_was_trained_on_says_until_when_before_its_run_is_finished() {
    let workshop = Workshop::of_series();
    let series = SERIES.replace("validation = { fraction = 0.2 }\n", "");
    let train = "effective_batch = 32\nsteps = 4\n";
    workshop.series_job(SeriesJob { model: V1, series: &series, train });
    workshop.plimsoll(&["train", "job.toml", "--out", "first"]).must(0, &["done: 4 steps"]);
    let mut later = market(2);
    later.iter_mut().for_each(|row| row.time += 1000);
    write_csv(&workshop.path("market.csv"), &later, |_| false);
    workshop.edit_job("path = \"model.toml\"\ninit = \"random\"", "path = \"first/model\"");
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(0, &["done: 4 steps"]);
    fs_err::rename(workshop.path("run/model"), workshop.path("model then")).unwrap();
    // What a checkpoint says is enough.
    fs_err::remove_file(workshop.path("market.csv")).unwrap();
    made(&workshop, "run", "last", "unfinished").must(0, &["of step 4"]);
    must_equal(&workshop.path("unfinished"), &workshop.path("model then"));
    assert_eq!(workshop.json("unfinished/normalisation.json")["until"], 1239);
}

#[test]
fn what_is_not_there_is_named_and_nothing_is_overwritten() {
    let workshop = workshop("3e-3", "steps = 4\n");
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(0, &["done: 4 steps"]);
    let none = "`run` has no checkpoint of step 7";
    made(&workshop, "run", "7", "new").must(2, &[none, "it has those of steps 3, 4"]);
    made(&workshop, "run", "worst", "new").must(2, &["expected `best`, `last` or the number of a step"]);
    workshop.plimsoll(&["checkpoints", "run", "--model", "best"]).must(2, &["--out"]);
    made(&workshop, "run", "last", "model").must(2, &["`model`"]);
    let weights = workshop.path("run/checkpoints/step-3/weights.safetensors");
    let mut bytes = fs_err::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs_err::write(&weights, bytes).unwrap();
    made(&workshop, "run", "3", "new").must(2, &["weights.safetensors"]);
    assert!(!workshop.path("new").exists());
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
    let job = job.replace("eval = \"eval.jsonl\"\n", "").replace("eval_every = 4\n", "");
    fs_err::write(workshop.path("blind.toml"), job).unwrap();
    workshop.plimsoll(&["train", "blind.toml", "--out", "other"]).must(0, &["done: 4 steps"]);
    made(&workshop, "other", "best", "new").must(2, &["`other` has not been evaluated", "`--model last`"]);
}
