//! A run whose evaluations no longer get better is done, names its best checkpoint, and ends at the same step however often it
//! was interrupted.

mod support_run;

use std::process::Command;

use plimsoll_watch::{EvalResult, Event, Summary};
use rustix::process::{Signal, kill_process};
use support_run::trainer::{Trainer, any_of, records, resumed_from};
use support_run::{PINS, Result, Workshop};

/// No improvement is more than 100: of evaluations every 4 steps the first is the best, and the fourth ends the run.
const ENDS_AT: u64 = 16;

fn workshop(early_stop: &str) -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!(
        "effective_batch = 8\nepochs = 8\nsave_every = 3\nkeep = 1\neval_every = 4\n{early_stop}\
         optimizer = {{ name = \"adamw\", lr = 3e-3 }}\n{PINS}"
    ));
    workshop
}

fn patient() -> Workshop {
    workshop("early_stop = { patience = 3, min_delta = 100.0 }\n")
}

fn summary(workshop: &Workshop) -> Summary {
    Summary::from_json(&fs_err::read_to_string(workshop.path("run/summary.json")).unwrap()).unwrap()
}

#[test]
fn a_run_that_gets_no_better_is_done_and_names_its_best_checkpoint() {
    let workshop = patient();
    let said = Trainer::train(&workshop, "run").end();
    said.must(0, &["done: 16 steps", "ended early, after step 16 of 60", "best checkpoint: run/checkpoints/step-"]);
    let summary = summary(&workshop);
    assert_eq!((summary.steps, summary.evals.len()), (ENDS_AT, 4));
    let best = summary.evals.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)).unwrap();
    let told = &summary.more["early_stop"];
    assert_eq!((told["best_step"].as_u64(), told["best"].as_f64()), (Some(best.step), Some(best.loss)));
    assert_eq!((&told["evaluations"], &told["rule"]["patience"]), (&3.into(), &3.into()));
    assert!(workshop.path(&format!("run/checkpoints/step-{}", best.step)).is_dir());
    assert!(workshop.path("run/model/model.safetensors").is_file());
    let early = records(&workshop.path("run")).into_iter().find_map(|record| match record.event {
        Event::Finished { early, steps: ENDS_AT, .. } => early,
        _ => None,
    });
    let why = early.expect("the journal says why");
    assert!(why.starts_with("3 evaluations in a row without an improvement of the loss by more than 100"), "{why}");
    // It is done, not stopped: there is nothing to go on with.
    Trainer::resume(&workshop, "run").end().must(0, &["16 steps"]);
}

#[test]
fn an_interrupted_run_ends_early_at_the_same_step_with_the_same_weights() {
    let whole = patient();
    Trainer::train(&whole, "run").end().must(0, &["ended early, after step 16 of 60"]);
    let expected = Result::of(&whole.path("run"));

    let stopped = patient();
    let at = any_of(5..=11);
    let mut trainer = Trainer::train(&stopped, "run");
    trainer.wait_for_step(at).signal(Signal::INT);
    trainer.end().must(4, &["stopped after step"]);
    Trainer::resume(&stopped, "run").end().must(0, &["ended early, after step 16 of 60"]);
    Result::of(&stopped.path("run")).must_equal(&expected, &format!("stopped at {at}"));
    assert_eq!(resumed_from(&stopped.path("run")).len(), 1);

    let killed = patient();
    let at = any_of(9..=13);
    let mut trainer = Trainer::train(&killed, "run");
    kill_process(trainer.wait_for_step(at).worker(), Signal::KILL).unwrap();
    trainer.end().must(0, &["going on after step", "ended early, after step 16 of 60"]);
    Result::of(&killed.path("run")).must_equal(&expected, &format!("killed at {at}"));
}

#[test]
fn a_run_that_gets_better_does_all_its_steps() {
    let workshop = workshop("early_stop = { patience = 15 }\n");
    Trainer::train(&workshop, "run").end().must(0, &["done: 60 steps"]);
    assert!(!summary(&workshop).more.contains_key("early_stop"));
}

#[test]
fn a_run_over_series_may_end_by_its_accuracy() {
    let workshop = Workshop::new();
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/series/job.toml");
    let rule = "{ patience = 2, min_delta = 1.0, on = 'accuracy' }";
    let flags = ["--steps", "40", "--eval-every", "4", "--early-stop", rule, "--out", "run"];
    let said = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", job])
        .args(flags)
        .current_dir(workshop.path(""))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{text}");
    // No share of right answers is better than another by more than 1.
    assert!(text.contains("ended early, after step 12 of 40: 2 evaluations in a row"), "{text}");
    let summary = summary(&workshop);
    let accuracy = |eval: &EvalResult| eval.scores.as_ref().unwrap().accuracy.unwrap();
    let best = summary.evals.iter().map(accuracy).fold(0.0, f64::max);
    let told = &summary.more["early_stop"];
    assert_eq!((told["best"].as_f64(), told["rule"]["on"].as_str()), (Some(best), Some("accuracy")));
    let step = told["best_step"].as_u64().unwrap();
    assert!(workshop.path(&format!("run/checkpoints/step-{step}")).is_dir(), "the best by accuracy is kept");
    assert_eq!(summary.evals.iter().find(|eval| eval.step == step).map(accuracy), Some(best));
}
