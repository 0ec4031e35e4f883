//! A run over series that was stopped, by any means, and resumed ends as the one that was never stopped: losses,
//! evaluations, weights, running statistics and counts of batches, to the bit.

use plimsoll_watch::Event;
use rustix::process::{Signal, kill_process};

use crate::support_run::series::{PINS, SERIES, SeriesJob, V1, V2, header, market, tensor, write_csv};
use crate::support_run::trainer::{Trainer, any_of, last_step, records, resumed_from};
use crate::support_run::{Result, Workshop};

const STEPS: u64 = 90;

/// A build and an optimizer.
#[derive(Clone, Copy, Debug)]
enum Lane {
    V1,
    V2,
}

impl Lane {
    fn workshop(self) -> Workshop {
        let workshop = Workshop::of_series();
        // Evaluations at other steps than checkpoints, and at the same; no pass ends where a batch does.
        let (model, optimizer, schedule) = match self {
            Lane::V1 => {
                (V1, "{ name = \"adamw\", lr = 3e-3, weight_decay = 0.01 }", "{ name = \"cosine\", warmup_steps = 4 }")
            }
            Lane::V2 => (
                V2,
                "{ name = \"sgd\", lr = 1e-2, momentum = 0.9 }",
                "{ name = \"cosine-warm-restarts\", t_0 = 7, t_mult = 2, eta_min = 1e-4 }",
            ),
        };
        let train = format!(
            "effective_batch = 64\nsteps = {STEPS}\neval_every = 5\nsave_every = 3\nkeep = 3\nclip_norm = 1.0\n\
             schedule = {schedule}\noptimizer = {optimizer}\n{PINS}"
        );
        workshop.series_job(SeriesJob { model, series: SERIES, train: &train });
        workshop
    }

    /// The run that was never stopped.
    fn reference(self) -> Result {
        let result = self.workshop().trained("run", &[]);
        assert_eq!((result.losses.len() as u64, result.evals.len() as u64), (STEPS, STEPS / 5));
        result
    }
}

const DONE: &str = "done: 90 steps";

#[test]
fn a_run_that_was_stopped_twice_by_signals_repeats_losses_scores_and_statistics_exactly() {
    for lane in [Lane::V1, Lane::V2] {
        let reference = lane.reference();
        let workshop = lane.workshop();
        let run = workshop.path("run");
        let (first, second) = (any_of(1..=14), any_of(20..=40));
        let mut trainer = Trainer::train(&workshop, "run");
        trainer.wait_for_step(first).signal(Signal::INT);
        trainer.end().must(4, &["stopped after step", "of 90, saved", "go on: plimsoll resume run"]);
        let stopped_at = last_step(&run);
        let mut trainer = Trainer::resume(&workshop, "run");
        trainer.wait_for_step(second).signal(Signal::TERM);
        trainer.end().must(4, &["going on after step", "stopped after step"]);
        Trainer::resume(&workshop, "run").end().must(0, &[DONE]);
        let result = Result::of(&run);
        result.must_equal(&reference, &format!("{lane:?}, stopped at {first} and {second}"));
        assert_eq!(resumed_from(&run)[0], stopped_at);

        // Each batch norm has seen every batch once, whatever came between.
        let norms: Vec<String> = header(&result.weights)
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| name.ends_with(".num_batches_tracked"))
            .cloned()
            .collect();
        assert_eq!(norms.len(), 2);
        for name in norms {
            let count = i64::from_le_bytes(tensor(&result.weights, &name).try_into().unwrap());
            assert_eq!(count as u64, STEPS, "{name}");
            let variance = tensor(&result.weights, &name.replace("num_batches_tracked", "running_var"));
            let moved = variance.chunks(4).any(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()) != 1.0);
            assert!(moved, "{name}: the running variance is that of a fresh model");
        }
    }
}

#[test]
fn a_killed_worker_and_a_killed_run_cost_only_the_steps_since_the_last_checkpoint() {
    for lane in [Lane::V1, Lane::V2] {
        let reference = lane.reference();
        let workshop = lane.workshop();
        let run = workshop.path("run");
        let (first, second) = (any_of(8..=30), any_of(40..=60));
        let mut trainer = Trainer::train(&workshop, "run");
        kill_process(trainer.wait_for_step(first).worker(), Signal::KILL).unwrap();
        // It is started again by its supervisor; then both are killed.
        let worker = trainer.wait_for_step(second).worker();
        kill_process(worker, Signal::STOP).unwrap();
        trainer.signal(Signal::KILL);
        kill_process(worker, Signal::KILL).unwrap();
        assert_eq!(trainer.end().code, None);
        Trainer::resume(&workshop, "run").end().must(0, &[DONE]);
        Result::of(&run).must_equal(&reference, &format!("{lane:?}, killed at {first} and {second}"));
        let incidents = records(&run).iter().filter(|r| matches!(r.event, Event::Incident { .. })).count();
        assert!(incidents >= 1, "nothing is noted of the worker's death");
        let boundary = |from: &u64| from.is_multiple_of(3) || from.is_multiple_of(5);
        assert!(resumed_from(&run).iter().all(boundary), "{:?}", resumed_from(&run));
    }
}

#[test]
fn a_run_that_ends_by_its_macro_f1_ends_where_it_would_have_however_it_was_stopped() {
    let workshop = || {
        let workshop = Lane::V1.workshop();
        workshop.edit_job(&format!("steps = {STEPS}"), "steps = 4000");
        workshop.edit_job("keep = 3", "keep = 3\nearly_stop = { patience = 4, on = \"macro_f1\" }");
        workshop
    };
    let whole = workshop();
    Trainer::train(&whole, "run").end().must(0, &["ended early, after step"]);
    let reference = Result::of(&whole.path("run"));
    let steps = reference.losses.len() as u64;
    assert!((25..4000).contains(&steps), "{steps} steps are too few or too many for what is asked here");

    let stopped = workshop();
    let at = any_of(11..=steps - 6);
    let mut trainer = Trainer::train(&stopped, "run");
    trainer.wait_for_step(at).signal(Signal::INT);
    trainer.end().must(4, &["stopped after step"]);
    Trainer::resume(&stopped, "run").end().must(0, &["ended early, after step"]);
    Result::of(&stopped.path("run")).must_equal(&reference, &format!("stopped at {at} of {steps}"));
}

#[test]
fn series_that_changed_by_one_cell_or_went_are_refused_until_they_are_back() {
    let lane = Lane::V1;
    let reference = lane.reference();
    let workshop = lane.workshop();
    let data = workshop.path("market.csv");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(4).signal(Signal::INT);
    trainer.end().must(4, &[]);
    let held = fs_err::read(workshop.path("run/journal.jsonl")).unwrap();
    let refused = |words: &[&str]| {
        Trainer::resume(&workshop, "run").end().must(2, words);
        assert!(fs_err::read(workshop.path("run/journal.jsonl")).unwrap() == held, "a refused resume writes");
    };
    let words = ["the training data is not what it was at step", "expected 720 rows of 3 series", "put the files back"];
    let rows = market(1);
    // One number of training, one of validation, and a row more: each is seen.
    for nth in [100, rows.len() - 1] {
        let mut other = rows.clone();
        other[nth].noise += 1e-3;
        write_csv(&data, &other, |_| false);
        refused(&words);
    }
    let mut longer = rows.clone();
    let last = rows.last().unwrap().clone();
    longer.push(crate::support_run::series::Row { time: last.time + 1, ..last });
    write_csv(&data, &longer, |_| false);
    refused(&[words[0], words[1], "found 721 rows of 3 series"]);
    fs_err::remove_file(&data).unwrap();
    refused(&["market.csv"]);
    // The same numbers from another kind of file are the same data.
    write_csv(&data, &rows, |_| false);
    Trainer::resume(&workshop, "run").end().must(0, &[DONE]);
    Result::of(&workshop.path("run")).must_equal(&reference, "after its data came back");
}
