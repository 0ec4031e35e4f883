//! A run that was stopped, by any means and at any step, and resumed ends as the run that was never stopped: the same
//! losses, evaluations and weights, to the bit.

mod support_run;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plimsoll_watch::Event;
use rustix::process::{Signal, kill_process};
use support_run::trainer::{Trainer, any_of, last_step, records, resumed_from};
use support_run::{PINS, Result, Workshop};

/// 8 epochs of 60 rows are 60 steps. Dropout, shuffling, accumulation, evaluation and clipping are on.
const STEPS: u64 = 60;
const COURSE: &str = "effective_batch = 8\nepochs = 8\nsave_every = 3\nkeep = 3\nclip_norm = 1.0\n\
                      schedule = { name = \"cosine\", warmup_steps = 4 }\n";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Optimizer {
    AdamW,
    Adafactor,
}

impl Optimizer {
    fn job(self) -> String {
        // Evaluations at other steps than checkpoints, and at the same.
        let (table, eval_every) = match self {
            Optimizer::AdamW => ("{ name = \"adamw\", lr = 3e-3, weight_decay = 0.01 }", 5),
            Optimizer::Adafactor => ("{ name = \"adafactor\", lr = 3e-3, beta1 = 0.9 }", 3),
        };
        format!("{COURSE}eval_every = {eval_every}\noptimizer = {table}\n{PINS}")
    }

    fn workshop(self) -> Workshop {
        let workshop = Workshop::new();
        workshop.job(&self.job());
        workshop
    }

    /// The run that was never stopped.
    fn reference(self) -> &'static Result {
        static REFERENCES: [OnceLock<Result>; 2] = [const { OnceLock::new() }; 2];
        REFERENCES[self as usize].get_or_init(|| {
            let workshop = self.workshop();
            Trainer::train(&workshop, "run").end().must(0, &["done: 60 steps"]);
            let result = Result::of(&workshop.path("run"));
            assert_eq!(result.losses.len() as u64, STEPS);
            assert!(resumed_from(&workshop.path("run")).is_empty());
            result
        })
    }
}

/// Resumes the run to its end and holds it against the one that was never stopped.
#[track_caller]
fn finish(workshop: &Workshop, optimizer: Optimizer, told: &str) {
    Trainer::resume(workshop, "run").end().must(0, &["done: 60 steps"]);
    Result::of(&workshop.path("run")).must_equal(optimizer.reference(), &format!("{optimizer:?}, {told}"));
}

/// The checkpoint folder with the highest step.
fn newest(run: &Path) -> PathBuf {
    let step = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let folders = fs_err::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    folders.max_by_key(step).expect("there are checkpoints")
}

fn flip_a_byte(path: &Path) {
    let mut bytes = fs_err::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs_err::write(path, bytes).unwrap();
}

#[test]
fn a_run_that_was_stopped_twice_by_signals_repeats_the_losses_exactly() {
    for optimizer in [Optimizer::AdamW, Optimizer::Adafactor] {
        let workshop = optimizer.workshop();
        let run = workshop.path("run");
        let (first, second) = (any_of(1..=14), any_of(20..=32));

        let mut trainer = Trainer::train(&workshop, "run");
        trainer.wait_for_step(first).signal(Signal::INT);
        trainer.end().must(4, &["stopped after step", "of 60, saved", "go on: plimsoll resume run"]);
        let stopped_at = last_step(&run);

        let mut trainer = Trainer::resume(&workshop, "run");
        trainer.wait_for_step(second).signal(Signal::TERM);
        trainer.end().must(4, &["going on after step", "stopped after step", "go on: plimsoll resume run"]);

        finish(&workshop, optimizer, &format!("stopped at {first} and {second}"));
        // Nothing that was done before a stop is done again.
        assert_eq!(resumed_from(&run)[0], stopped_at);
    }
}

#[test]
fn a_worker_that_was_killed_costs_only_the_steps_since_its_last_checkpoint() {
    for optimizer in [Optimizer::AdamW, Optimizer::Adafactor] {
        let workshop = optimizer.workshop();
        // Late enough for a save to be complete that was begun in the background.
        let step = any_of(8..=32);
        let mut trainer = Trainer::train(&workshop, "run");
        kill_process(trainer.wait_for_step(step).worker(), Signal::KILL).unwrap();
        let said = trainer.end();
        said.must(0, &["killed by signal 9, cause unproven (unproven)", "going on after step", "done: 60 steps"]);
        let run = workshop.path("run");
        Result::of(&run).must_equal(optimizer.reference(), &format!("{optimizer:?}, worker killed at {step}"));
        let (mut killed, mut restarted) = (0, 0);
        for record in records(&run) {
            match record.event {
                Event::Incident { kind, confidence, .. } => {
                    assert_eq!((kind.as_str(), confidence.as_str()), ("killed_unproven", "unproven"));
                    killed += 1;
                }
                Event::Decided { decision, .. } => restarted += usize::from(decision == "restart"),
                _ => {}
            }
        }
        assert_eq!((killed, restarted), (1, 1));
        let boundary = |from: &u64| from.is_multiple_of(3) || from.is_multiple_of(5);
        assert!(resumed_from(&run).iter().all(boundary), "{:?}", resumed_from(&run));
    }
}

#[test]
fn supervisor_and_worker_that_were_both_killed_cost_no_more() {
    let optimizer = Optimizer::AdamW;
    let workshop = optimizer.workshop();
    let step = any_of(1..=32);
    let mut trainer = Trainer::train(&workshop, "run");
    let worker = trainer.wait_for_step(step).worker();
    // Halted first, so that the worker cannot save when it sees its supervisor go.
    kill_process(worker, Signal::STOP).unwrap();
    trainer.signal(Signal::KILL);
    kill_process(worker, Signal::KILL).unwrap();
    assert_eq!(trainer.end().code, None);
    finish(&workshop, optimizer, &format!("both killed at {step}"));
}

#[test]
fn a_worker_whose_supervisor_was_killed_saves_and_a_hasty_resume_waits_for_it() {
    let optimizer = Optimizer::Adafactor;
    let workshop = optimizer.workshop();
    let step = any_of(1..=32);
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(step).signal(Signal::KILL);
    assert_eq!(trainer.end().code, None);
    finish(&workshop, optimizer, &format!("supervisor killed at {step}"));
    let run = workshop.path("run");
    let stopped = |record: &plimsoll_watch::Record| matches!(record.event, Event::Stopped { .. });
    assert!(records(&run).iter().any(stopped), "the worker says that it stopped");
}

#[test]
fn a_second_stop_kills_at_once_and_the_run_can_be_resumed_all_the_same() {
    let optimizer = Optimizer::Adafactor;
    let workshop = optimizer.workshop();
    let mut trainer = Trainer::train(&workshop, "run");
    let worker = trainer.wait_for_step(any_of(4..=20)).worker();
    // Halted, the worker cannot follow the first request: only the second can end it.
    kill_process(worker, Signal::STOP).unwrap();
    trainer.signal(Signal::TERM).signal(Signal::INT);
    trainer.end().must(4, &["stopped at once (signal 9)", "go on: plimsoll resume run"]);
    finish(&workshop, optimizer, "killed by the second stop");
}

#[test]
fn a_run_that_was_stopped_before_its_first_step_starts_when_it_is_resumed() {
    let optimizer = Optimizer::AdamW;
    // While the supervisor starts the worker, and while the worker plans or has just planned.
    let moments: [fn(&Path) -> bool; 2] =
        [|run| fs_err::read(run.join(".lock")).is_ok_and(|pid| !pid.is_empty()), |run| run.join("plan.json").exists()];
    for seen in moments {
        let workshop = optimizer.workshop();
        let mut trainer = Trainer::train(&workshop, "run");
        trainer.wait_for(seen).signal(Signal::INT);
        trainer.end().must(4, &["stopped", "go on: plimsoll resume run"]);
        finish(&workshop, optimizer, "stopped at the start");
    }
}

#[test]
fn a_broken_checkpoint_is_passed_over_for_the_one_before() {
    let optimizer = Optimizer::AdamW;
    let workshop = optimizer.workshop();
    let run = workshop.path("run");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(any_of(10..=20)).signal(Signal::INT);
    trainer.end().must(4, &[]);
    let broken = newest(&run);
    flip_a_byte(&broken.join("weights.safetensors"));
    let name = broken.file_name().unwrap().to_str().unwrap().to_string();
    let passed_over = format!("the checkpoint of step {} is not whole and is passed over", &name["step-".len()..]);
    let said = Trainer::resume(&workshop, "run").end();
    said.must(0, &[&passed_over, "weights.safetensors`: expected checksum", "going on after step"]);
    Result::of(&run).must_equal(optimizer.reference(), "newest checkpoint broken");
}

#[test]
fn where_every_checkpoint_is_broken_the_run_begins_again_and_says_so() {
    let optimizer = Optimizer::Adafactor;
    let workshop = optimizer.workshop();
    let run = workshop.path("run");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(8).signal(Signal::INT);
    trainer.end().must(4, &[]);
    for entry in fs_err::read_dir(run.join("checkpoints")).unwrap() {
        fs_err::remove_file(entry.unwrap().path().join("optimizer.safetensors")).unwrap();
    }
    let said = Trainer::resume(&workshop, "run").end();
    said.must(0, &["is passed over", "optimizer.safetensors` is not there", "no checkpoint is whole: beginning again"]);
    Result::of(&run).must_equal(optimizer.reference(), "every checkpoint broken");
}

#[test]
fn a_finished_run_is_said_to_be_finished_and_left_as_it_is() {
    let workshop = Optimizer::AdamW.workshop();
    Trainer::train(&workshop, "run").end().must(0, &[]);
    let before = workshop.tree();
    workshop.plimsoll(&["resume", "run"]).must(0, &["`run` is finished: 60 steps, loss ", "model: run/model"]);
    assert!(workshop.tree() == before, "a finished run was written to");

    // Killed between the last checkpoint and the model: the model is written, and no step is taken again.
    for name in ["summary.json", "model/config.json"] {
        fs_err::remove_file(workshop.path("run").join(name)).unwrap();
    }
    finish(&workshop, Optimizer::AdamW, "killed before the model was written");
    let steps = records(&workshop.path("run")).iter().filter(|r| matches!(r.event, Event::Step { .. })).count();
    assert_eq!(steps as u64, STEPS);
}

#[test]
fn what_is_not_a_run_cannot_be_resumed() {
    let workshop = Optimizer::AdamW.workshop();
    let before = workshop.tree();
    workshop.plimsoll(&["resume", "nowhere"]).must(2, &["error: `nowhere` does not exist"]);
    workshop.plimsoll(&["resume", "job.toml"]).must(2, &["error: `job.toml` is not a folder"]);
    workshop.plimsoll(&["resume", "model"]).must(2, &["error: `model` is not a run: it has no plan.json"]);
    workshop
        .plimsoll(&["resume", "."])
        .must(2, &["error: `.` is not a run", "hint: start a run: plimsoll train ./job.toml"]);
    assert!(workshop.tree() == before, "something was written");
}

#[test]
fn a_run_that_is_being_trained_is_not_resumed_beside_itself() {
    let optimizer = Optimizer::Adafactor;
    let workshop = optimizer.workshop();
    let mut trainer = Trainer::train(&workshop, "run");
    let worker = trainer.wait_for_step(2).worker();
    // Halted, so that it is still there, whatever the machine does meanwhile.
    kill_process(worker, Signal::STOP).unwrap();
    let refused = workshop.plimsoll(&["resume", "run"]);
    kill_process(worker, Signal::CONT).unwrap();
    let holder = format!("error: `run` is in use by process {}", trainer.id());
    refused.must(2, &[&holder, "hint: one process trains a run"]);
    trainer.end().must(0, &["done: 60 steps"]);
    Result::of(&workshop.path("run")).must_equal(optimizer.reference(), "undisturbed by the second");
}

#[test]
fn data_that_changed_or_went_is_refused_until_it_is_back() {
    let optimizer = Optimizer::AdamW;
    let workshop = optimizer.workshop();
    let data = workshop.path("train.jsonl");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(4).signal(Signal::INT);
    trainer.end().must(4, &[]);
    let before = fs_err::read_to_string(&data).unwrap();
    let held = fs_err::read(workshop.path("run/journal.jsonl")).unwrap();

    fs_err::write(&data, format!("{before}{}\n", before.lines().next().unwrap())).unwrap();
    let words = [
        "the training data is not what it was at step",
        "expected 60 rows",
        "found 61 rows",
        "hint: put the files back",
    ];
    Trainer::resume(&workshop, "run").end().must(2, &words);
    fs_err::remove_file(&data).unwrap();
    Trainer::resume(&workshop, "run").end().must(2, &["train.jsonl"]);
    assert!(fs_err::read(workshop.path("run/journal.jsonl")).unwrap() == held, "a refused resume writes");

    fs_err::write(&data, before).unwrap();
    finish(&workshop, optimizer, "after its data came back");
}

#[test]
fn a_plan_that_no_longer_fits_is_made_anew_and_the_losses_agree_to_rounding() {
    let workshop = Workshop::new();
    // Large enough for its steps to need more than its start.
    let course = "effective_batch = 192\nsteps = 60\neval_every = 0\nsave_every = 5\noptimizer = { name = \"adamw\", lr = 1e-3 }\n";
    workshop.job(&format!("{course}[pin]\nmicro_batch = 192\nrecompute = 0\n"));
    Trainer::train(&workshop, "whole").end().must(0, &[]);
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(6).signal(Signal::INT);
    trainer.end().must(4, &[]);

    // The budget shrinks below the plan, and the choices are free.
    let plan = |run: &str| -> serde_json::Value {
        serde_json::from_slice(&fs_err::read(workshop.path(run).join("plan.json")).unwrap()).unwrap()
    };
    let budget = plan("run")["ram"]["peak"].as_u64().unwrap() - (1 << 20);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    let keep =
        |line: &&str| !["micro_batch", "recompute", "ram"].iter().any(|key| line.starts_with(&format!("{key} =")));
    let job: Vec<&str> = job.lines().filter(keep).collect();
    let job = job.join("\n").replace("[budget]", &format!("[budget]\nram = \"{budget}\""));
    fs_err::write(workshop.path("run/job.toml"), job + "\n").unwrap();
    let words = ["does not fit any more; it is planned anew", "to rounding, not to the bit", "done: 60 steps"];
    Trainer::resume(&workshop, "run").end().must(0, &words);

    assert!(plan("run")["ram"]["peak"].as_u64().unwrap() <= budget);
    assert_eq!(plan("run")["effective_batch"], 192);
    assert_ne!(plan("run")["choices"], plan("whole")["choices"]);
    let losses = |run: &str| plimsoll_watch::losses(&workshop.path(run).join("journal.jsonl")).unwrap();
    for ((step, a), (_, b)) in losses("run").into_iter().zip(losses("whole")) {
        assert!((a - b).abs() <= 1e-4 * b, "step {step}: {a} and {b}");
    }
    assert_eq!(losses("run").len(), 60);
    // Planned and measured are of the same plan.
    let summary = fs_err::read_to_string(workshop.path("run/summary.json")).unwrap();
    let summary = plimsoll_watch::Summary::from_json(&summary).unwrap();
    assert_eq!(summary.planned_ram_bytes.0, plan("run")["ram"]["peak"].as_u64().unwrap());
    assert!(summary.peak_ram_bytes <= summary.planned_ram_bytes, "{summary:?}");
}

/// Rewrites a JSON file of the run.
fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    change(&mut value);
    fs_err::write(path, value.to_string()).unwrap();
}

#[test]
fn a_plan_that_is_measured_a_little_higher_than_its_budget_is_kept_and_one_without_disk_is_refused() {
    let optimizer = Optimizer::AdamW;
    let workshop = optimizer.workshop();
    let run = workshop.path("run");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(any_of(4..=20)).signal(Signal::INT);
    trainer.end().must(4, &[]);

    let job = fs_err::read_to_string(run.join("job.toml")).unwrap();
    let plan = fs_err::read(run.join("plan.json")).unwrap();
    fs_err::write(run.join("job.toml"), job.replace("[budget]", "[budget]\ndisk = \"1MiB\"")).unwrap();
    let refused = Trainer::resume(&workshop, "run").end();
    refused.must(3, &["too big: ", "of disk"]);
    assert!(!refused.stderr.contains("planned anew"), "{}", refused.stderr);
    assert!(fs_err::read(run.join("plan.json")).unwrap() == plan, "a refused resume writes");

    // As if the first measurement had been 600 KiB lower and the budget had been just that.
    let mut budget = 0;
    edit(&run.join("plan.json"), |plan| {
        budget = plan["ram"]["peak"].as_u64().unwrap() - (600 << 10);
        plan["ram"]["budget"] = budget.into();
    });
    let plan = fs_err::read(run.join("plan.json")).unwrap();
    let tight = |line: &str| if line.starts_with("ram =") { format!("ram = \"{budget}\"") } else { line.to_string() };
    let tight = job.lines().map(tight).collect::<Vec<_>>().join("\n");
    fs_err::write(run.join("job.toml"), tight + "\n").unwrap();
    let said = Trainer::resume(&workshop, "run").end();
    said.must(0, &["done: 60 steps"]);
    for words in ["planned anew", "to rounding"] {
        assert!(!said.stderr.contains(words), "{}", said.stderr);
    }
    assert!(fs_err::read(run.join("plan.json")).unwrap() == plan, "the run has another plan");
    Result::of(&run).must_equal(optimizer.reference(), "kept plan");
}

#[test]
fn an_evaluation_that_was_given_up_for_a_stop_is_the_first_thing_that_a_resumed_run_does() {
    let job = Optimizer::AdamW.job().replace("epochs = 8", "steps = 6").replace("eval_every = 5", "eval_every = 1");
    let workshop = Workshop::new();
    workshop.job(&job);
    // So long an evaluation that most of the run is evaluation.
    let rows = fs_err::read_to_string(workshop.path("train.jsonl")).unwrap();
    fs_err::write(workshop.path("eval.jsonl"), rows.repeat(5)).unwrap();
    Trainer::train(&workshop, "whole").end().must(0, &["done: 6 steps"]);

    let run = workshop.path("run");
    let mut trainer = Trainer::train(&workshop, "run");
    let evaluated = |step: u64| {
        let is_it = |record: &plimsoll_watch::Record| matches!(record.event, Event::Eval { step: s, .. } if s == step);
        records(&run).iter().any(is_it)
    };
    let mut step = 1;
    let stopped_at = loop {
        let worker = trainer.wait_for_step(step).worker();
        kill_process(worker, Signal::STOP).unwrap();
        step = last_step(&run);
        let caught = !evaluated(step);
        if caught {
            // Halted, it receives the request before it does anything else.
            kill_process(worker, Signal::INT).unwrap();
        }
        kill_process(worker, Signal::CONT).unwrap();
        if caught {
            break step;
        }
        step += 1;
    };
    trainer.end().must(4, &[&format!("stopped after step {stopped_at} of 6, saved")]);
    assert!(!evaluated(stopped_at), "it was evaluated to the end");
    let manifest = fs_err::read_to_string(newest(&run).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["facts"]["eval_due"], true);
    assert!(manifest["files"]["evals.json"].is_object() && manifest["facts"]["evals"].is_null());

    Trainer::resume(&workshop, "run").end().must(0, &["done: 6 steps"]);
    Result::of(&run).must_equal(&Result::of(&workshop.path("whole")), "evaluation given up");
    let after: Vec<_> = records(&run).into_iter().map(|record| record.event).collect();
    let resumed = after.iter().position(|e| matches!(e, Event::Resumed { .. })).unwrap();
    let first = after[resumed..].iter().find(|e| matches!(e, Event::Eval { .. } | Event::Step { .. })).unwrap();
    assert!(matches!(first, Event::Eval { step, .. } if *step == stopped_at), "{first:?}");
}

/// A mixture whose long pairs are left out: where the run is in it is in a checkpoint, and so is what was left out.
#[test]
fn a_mixture_with_pairs_left_out_goes_on_where_it_was() {
    let workshop = || {
        let workshop = Workshop::new();
        let text = |n: usize| "my dog ".repeat(if n.is_multiple_of(5) { 30 } else { 1 + n % 4 });
        let rows: String = (0..50).map(|n| format!("{}what is {n},Pickle {n}\n", text(n))).collect();
        fs_err::write(workshop.path("dogs.csv"), "q,a\n".to_string() + &rows).unwrap();
        workshop.job(&format!("effective_batch = 8\nsteps = 40\nsave_every = 3\neval_every = 7\n{PINS}"));
        let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
        let data = "long = \"drop\"\nmax_len = { source = 24, target = 24 }\n";
        let job = job.replace("train = [\"train.jsonl\"]\n", data);
        let mixture = "\n[[data.mixture]]\ntrain = \"train.jsonl\"\nweight = 0.7\n[[data.mixture]]\ntrain = \"dogs.csv\"\n\
                       weight = 1.6\ncolumns = { source = \"q\", target = \"a\" }\n";
        fs_err::write(workshop.path("job.toml"), job + mixture).unwrap();
        workshop
    };
    let dropped = |workshop: &Workshop| {
        let text = fs_err::read_to_string(workshop.path("run/summary.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["dropped_rows"].as_u64()
    };
    let whole = workshop();
    Trainer::train(&whole, "run").end().must(0, &["done: 40 steps", "set 2: `dogs.csv`", "and were left out"]);
    let stopped = workshop();
    let (first, second) = (any_of(1..=14), any_of(16..=30));
    let mut trainer = Trainer::train(&stopped, "run");
    trainer.wait_for_step(first).signal(Signal::INT);
    trainer.end().must(4, &["stopped after step"]);
    // A place in one mixture says nothing of another.
    let job = stopped.path("run/job.toml");
    let text = fs_err::read_to_string(&job).unwrap();
    fs_err::write(&job, text.replace("weight = 1.6", "weight = 1.5")).unwrap();
    Trainer::resume(&stopped, "run").end().must(2, &["sets and weights of the training data are not those of step"]);
    fs_err::write(&job, text).unwrap();
    let mut trainer = Trainer::resume(&stopped, "run");
    kill_process(trainer.wait_for_step(second).worker(), Signal::KILL).unwrap();
    trainer.end().must(0, &["going on after step", "done: 40 steps"]);
    let told = format!("stopped at {first}, killed at {second}");
    Result::of(&stopped.path("run")).must_equal(&Result::of(&whole.path("run")), &told);
    assert_eq!(dropped(&stopped), dropped(&whole), "{told}");
    assert!(dropped(&whole).is_some_and(|rows| rows > 10));
}
