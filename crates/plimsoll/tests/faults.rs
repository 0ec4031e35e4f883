//! What goes wrong in the middle of a run costs the step that was begun, not those before it: the run says what happened,
//! keeps what is good, and can go on.

mod support_run;

use plimsoll_watch::{Event, Summary};
use rustix::process::{Signal, kill_process};
use support_run::trainer::{Trainer, last_step, records};
use support_run::{Result, Workshop};

const PINS: &str =
    "[pin]\nmicro_batch = 2\nrecompute = 1\nloss_chunk = 16\noptimizer_in_backward = false\nloader_threads = 1\n";

fn workshop(course: &str) -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!("effective_batch = 8\neval_every = 0\n{course}\n{PINS}"));
    workshop
}

#[test]
fn data_that_breaks_under_a_run_costs_only_the_step_that_was_begun() {
    let course = "steps = 40\nsave_every = 0\noptimizer = { name = \"adamw\", lr = 1e-3 }";
    let workshop = workshop(course);
    Trainer::train(&workshop, "whole").end().must(0, &["done: 40 steps"]);

    let (run, data) = (workshop.path("run"), workshop.path("train.jsonl"));
    let good = fs_err::read(&data).unwrap();
    let mut trainer = Trainer::train(&workshop, "run");
    let worker = trainer.wait_for_step(3).worker();
    // Halted while its data is overwritten.
    kill_process(worker, Signal::STOP).unwrap();
    fs_err::write(&data, vec![b'x'; good.len()]).unwrap();
    kill_process(worker, Signal::CONT).unwrap();
    let said = trainer.end();
    let step = last_step(&run);
    said.must(
        1,
        &["error: ", "train.jsonl`", &format!("hint: everything up to step {step} is saved"), "plimsoll resume run"],
    );
    assert!(step < 40);
    let reason = |record: &plimsoll_watch::Record| match &record.event {
        Event::Failed { step: s, message, .. } if *s == step => Some(message.clone()),
        _ => None,
    };
    let reason = records(&run).iter().find_map(reason).expect("the journal says that it failed");
    assert!(reason.contains("train.jsonl"), "{reason}");

    fs_err::write(&data, good).unwrap();
    Trainer::resume(&workshop, "run").end().must(0, &[&format!("going on after step {step}"), "done: 40 steps"]);
    Result::of(&run).must_equal(&Result::of(&workshop.path("whole")), "data broke and came back");
}

#[test]
fn weights_that_are_not_numbers_are_never_saved() {
    // A rate that no f32 holds.
    let workshop = workshop("steps = 1\nsave_every = 1\noptimizer = { name = \"sgd\", lr = 1e39 }");
    let run = workshop.path("run");
    let words = [
        "error: the weights after step 1 are not all finite",
        "hint: lower the learning rate",
        "there is no checkpoint",
    ];
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(1, &words);
    for name in ["checkpoints", "model", "summary.json"] {
        assert!(!run.join(name).exists(), "{name}");
    }
    assert!(records(&run).iter().any(|r| matches!(r.event, Event::Warning { step: 1, .. })));
}

#[test]
fn a_worker_that_was_killed_before_anything_was_saved_begins_again() {
    let workshop = workshop("steps = 40\nsave_every = 0");
    let mut trainer = Trainer::train(&workshop, "run");
    kill_process(trainer.wait_for_step(1).worker(), Signal::KILL).unwrap();
    let said = trainer.end();
    said.must(0, &["killed by signal 9, cause unproven", "beginning again at step 1", "done: 40 steps"]);
    assert!(!said.stderr.contains("going on after"), "{}", said.stderr);
}

#[test]
fn the_job_of_a_run_says_what_the_data_answered_and_keeps_where_the_rest_came_from() {
    let workshop = workshop("steps = 3");
    workshop.plimsoll(&["train", "job.toml", "--out", "run", "--seed", "5"]).must(0, &["done: 3 steps"]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    let plan: serde_json::Value =
        serde_json::from_slice(&fs_err::read(workshop.path("run/plan.json")).unwrap()).unwrap();
    let lines = [
        "columns.source = \"prompt\"  # found in the data".to_string(),
        "columns.target = \"response\"  # found in the data".to_string(),
        format!("max_len.source = {}  # found in the data", plan["source_len"]),
        format!("max_len.target = {}  # found in the data", plan["target_len"]),
        "seed = 5  # flag".to_string(),
        "steps = 3  # given in job.toml, line ".to_string(),
    ];
    for line in lines {
        assert!(job.contains(&line), "`{line}` is not in: {job}");
    }
    // Evaluated with the same columns, of a file in which they would not be guessed so.
    let odd = "{\"input\": \"a\", \"output\": \"b\", \"prompt\": \"c\", \"response\": \"d\"}\n";
    fs_err::write(workshop.path("odd.jsonl"), odd).unwrap();
    let said = workshop.plimsoll(&["eval", "run", "--data", "odd.jsonl", "--json"]);
    said.must(0, &[]);

    // Padding is no work: of the planned arithmetic only the share of real tokens counts.
    let summary = fs_err::read_to_string(workshop.path("run/summary.json")).unwrap();
    let summary = Summary::from_json(&summary).unwrap();
    let number = |key: &str| plan[key].as_f64().unwrap();
    let full = number("effective_batch") * (number("source_len") + number("target_len"));
    let rate = number("flops_per_update") * summary.tokens_per_second / full / 1e9;
    let found = summary.gflops.unwrap();
    assert!((found / rate - 1.0).abs() < 1e-9, "{found} and {rate}");
}

#[test]
fn two_runs_that_begin_at_once_get_a_folder_each() {
    let workshop = workshop("steps = 3");
    let said = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| workshop.plimsoll(&["train", "job.toml"])));
        both.map(|thread| thread.join().unwrap())
    });
    for said in &said {
        said.must(0, &["done: 3 steps", "try it: plimsoll generate runs/"]);
    }
    let runs = fs_err::read_dir(workshop.path("runs")).unwrap().map(|entry| entry.unwrap().path());
    let models = runs.filter(|run| run.join("model/model.safetensors").exists()).count();
    assert_eq!(models, 2);
}

#[test]
fn checkpoints_that_cannot_be_written_are_told_and_the_one_before_them_stands() {
    let workshop = workshop("steps = 60\nsave_every = 1\nkeep = 1");
    let (run, checkpoints) = (workshop.path("run"), workshop.path("run/checkpoints"));
    let mut trainer = Trainer::train(&workshop, "run");
    let saved = |run: &std::path::Path| records(run).iter().any(|r| matches!(r.event, Event::Saved { .. }));
    let worker = trainer.wait_for(saved).worker();
    kill_process(worker, Signal::STOP).unwrap();
    fs_err::rename(&checkpoints, workshop.path("aside")).unwrap();
    fs_err::write(&checkpoints, "in the way").unwrap();
    kill_process(worker, Signal::CONT).unwrap();
    // It goes on, and at its end it waits rather than lose what it has done; until it is told not to.
    trainer.wait_for_words("waiting until it can be written").signal(Signal::INT);
    trainer
        .end()
        .must(1, &["is not saved: ", "stands; the run goes on", "error: ", "checkpoints", "plimsoll resume run"]);
    assert_eq!(last_step(&run), 60);
    assert!(records(&run).iter().any(|r| matches!(r.event, Event::NotSaved { .. })));
    assert!(records(&run).iter().any(|r| matches!(r.event, Event::Failed { .. })));
    fs_err::remove_file(&checkpoints).unwrap();
    fs_err::rename(workshop.path("aside"), &checkpoints).unwrap();

    // Another seed is said, since nothing will be as it would have been.
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    let lines: Vec<&str> =
        job.lines().map(|line| if line.starts_with("seed =") { "seed = 77" } else { line }).collect();
    fs_err::write(workshop.path("run/job.toml"), lines.join("\n").replace("steps = 60", "steps = 8") + "\n").unwrap();
    let said = Trainer::resume(&workshop, "run").end();
    said.must(0, &["going on after step", "the seed was ", " and is 77: losses will differ", "done: "]);
}
