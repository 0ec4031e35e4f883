//! What a run over series comes to: it learns, its evaluations are what `eval` says, and its model can be trained on.

use plimsoll_watch::{EvalScores, Event};
use rustix::process::Signal;
use serde_json::Value;

use crate::support_run::series::{PINS, SERIES, SeriesJob, V1, market, write_csv, write_parquet};
use crate::support_run::trainer::{Trainer, records};
use crate::support_run::{Result, Workshop};

const COURSE: &str = "effective_batch = 24\nepochs = 6\neval_every = 20\nsave_every = 20\nclip_norm = 1.0\n\
                      optimizer = { name = \"adamw\", lr = 5e-3 }\n";

fn workshop() -> Workshop {
    let workshop = Workshop::of_series();
    workshop.series_job(SeriesJob { model: V1, series: SERIES, train: &format!("{COURSE}{PINS}") });
    workshop
}

fn losses(result: &Result) -> Vec<f64> {
    result.losses.iter().map(|(_, bits)| f64::from_bits(*bits)).collect()
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// All that an evaluation says, its time aside.
fn said(of: &Value) -> Vec<&Value> {
    let scores = if of["scores"].is_object() { &of["scores"] } else { of };
    vec![&of["loss"], &scores["accuracy"], &scores["macro_f1"], &scores["confusion"], &scores["mae"], &scores["rmse"]]
}

fn sum(matrix: &Value) -> u64 {
    let rows = matrix.as_array().expect("a matrix");
    rows.iter().flat_map(|row| row.as_array().unwrap()).map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn a_run_learns_and_eval_says_of_its_model_what_its_last_evaluation_said_to_the_bit() {
    let workshop = workshop();
    let result = workshop.trained("run", &[]);
    let all = losses(&result);
    let (first, last) = (mean(&all[..10]), mean(&all[all.len() - 10..]));
    assert!(last < 0.75 * first, "the loss went from {first} to {last}");

    let summary = workshop.json("run/summary.json");
    let evals = summary["evals"].as_array().unwrap();
    assert_eq!(evals.len(), all.len().div_ceil(20));
    let at_end = evals.last().unwrap();
    let accuracy = at_end["scores"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.7, "{at_end:#}");
    let again = workshop.plimsoll(&["eval", "run", "--json"]);
    again.must(0, &[]);
    assert_eq!(said(&again.json()), said(at_end));

    // The journal says the same at each of them, all matrices among it; the summary has those of the last and of the best.
    let noted: Vec<(u64, u64, EvalScores)> = records(&workshop.path("run"))
        .into_iter()
        .filter_map(|record| match record.event {
            Event::Eval { step, loss, scores, .. } => Some((step, loss.to_bits(), scores.unwrap())),
            _ => None,
        })
        .collect();
    assert!(noted.iter().all(|(_, _, scores)| !scores.confusion.is_empty()));
    let best = noted.iter().min_by(|a, b| f64::from_bits(a.1).total_cmp(&f64::from_bits(b.1))).unwrap().0;
    let kept = |step: u64| step == best || step == noted.last().unwrap().0;
    let expected = noted.iter().cloned().map(|(step, loss, mut scores)| {
        scores.confusion.retain(|_| kept(step));
        (step, loss, format!("{:?}", Some(scores)))
    });
    let summed = result.evals.iter().zip(&result.scores).map(|((step, bits), scores)| (*step, bits[0], scores.clone()));
    assert_eq!(expected.collect::<Vec<_>>(), summed.collect::<Vec<_>>());
    assert!(noted.iter().any(|(step, ..)| !kept(*step)), "every evaluation was the best");

    let inspected = workshop.plimsoll(&["data", "inspect", "--job", "job.toml", "--json"]);
    let inspected = inspected.must(0, &[]).json();
    let windows = inspected["validation_samples"].as_u64().unwrap();
    assert!(windows > 50, "{inspected:#}");
    assert_eq!((sum(&at_end["scores"]["confusion"]), again.json()["rows"].as_u64()), (windows, Some(windows)));
    assert_eq!(all.len() as u64, (6 * inspected["training_samples"].as_u64().unwrap()).div_ceil(24));

    for name in ["config.json", "model.safetensors", "normalisation.json"] {
        assert!(workshop.path("run/model").join(name).is_file(), "the model has no `{name}`");
    }
    let fitted = workshop.json("run/model/normalisation.json");
    assert_eq!(fitted, inspected["normalisation"]);
}

#[test]
fn series_that_are_normalised_by_themselves_are_judged_and_trained_on_as_they_were() {
    let workshop = workshop();
    workshop.edit_job("validation = {", "normalise = \"series\"\nvalidation = {");
    // Series that differ in nothing but their unit are the same to the model.
    let mut rows = market(1);
    rows.iter_mut().filter(|row| row.symbol == "s1").for_each(|row| row.close *= 1e4);
    write_csv(&workshop.path("market.csv"), &rows, |_| false);
    let whole = workshop.trained("run", &[]);
    let fitted = workshop.json("run/model/normalisation.json");
    let names: Vec<&str> =
        fitted["series"].as_array().unwrap().iter().map(|own| own["name"].as_str().unwrap()).collect();
    assert_eq!((fitted["over"].as_str(), &names[..]), (Some("series"), &["s0", "s1", "s2"][..]));
    let again = workshop.plimsoll(&["eval", "run", "--json"]);
    let summary = workshop.json("run/summary.json");
    let at_end = summary["evals"].as_array().unwrap().last().unwrap();
    assert_eq!(said(&again.must(0, &[]).json()), said(at_end));

    let mut trainer = Trainer::train(&workshop, "stopped");
    trainer.wait_for_step(7).signal(Signal::INT);
    trainer.end().must(4, &["go on: plimsoll resume stopped"]);
    workshop.plimsoll(&["resume", "stopped"]).must(0, &["done: "]);
    Result::of(&workshop.path("stopped")).must_equal(&whole, "stopped and resumed");
    assert_eq!(workshop.json("stopped/model/normalisation.json"), fitted);

    // Another series is none that the model knows, and it is said.
    rows.iter_mut().filter(|row| row.symbol == "s2").for_each(|row| row.symbol = "new".into());
    rows.iter_mut().for_each(|row| row.time += 1000);
    write_csv(&workshop.path("market.csv"), &rows, |_| false);
    let unknown = "1 of 3 series are normalised as all together";
    let other = workshop.plimsoll(&["eval", "run", "--data", "market.csv", "--json"]);
    other.must(0, &[unknown]);
    assert!(other.json()["remarks"][0].as_str().unwrap().starts_with(unknown), "{}", other.stdout);
    workshop.edit_job("path = \"model.toml\"\ninit = \"random\"", "path = \"run/model\"");
    workshop.plimsoll(&["plan", "job.toml"]).must(0, &[unknown]);
}

#[test]
fn csv_parquet_and_both_in_one_job_give_the_same_run_to_the_bit() {
    let workshop = workshop();
    let csv = workshop.trained("csv", &[]);
    write_parquet(&workshop.path("market.parquet"), &market(1));
    workshop.edit_job("market.csv", "market.parquet");
    workshop.trained("parquet", &[]).must_equal(&csv, "Parquet");
    // The first half of the rows from one file, the second from another.
    let rows = market(1);
    let (early, late) = rows.split_at(rows.len() / 2);
    write_csv(&workshop.path("1-early.csv"), early, |_| false);
    write_parquet(&workshop.path("2-late.parquet"), late);
    workshop.edit_job("[\"market.parquet\"]", "[\"1-early.csv\", \"2-late.parquet\"]");
    workshop.trained("both", &[]).must_equal(&csv, "CSV and Parquet");
    assert_eq!(workshop.json("both/model/normalisation.json"), workshop.json("csv/model/normalisation.json"));
}

#[test]
fn rows_in_a_file_of_the_cache_train_as_those_in_memory_do_and_the_file_is_made_once() {
    let workshop = workshop().with_own_cache();
    // Enough rows to be more than half of the least memory that data may have.
    let rows: Vec<_> = (0..640)
        .flat_map(|nth| {
            let rows = market(1);
            rows.into_iter().map(move |mut row| {
                row.time += nth * 240;
                row
            })
        })
        .collect();
    write_parquet(&workshop.path("large.parquet"), &rows);
    workshop.edit_job("market.csv", "large.parquet");
    workshop.edit_job("epochs = 6", "steps = 12");
    workshop.edit_job("eval_every = 20", "eval_every = 12");
    workshop.edit_job("fraction = 0.2", "fraction = 0.002");
    let held = workshop.trained("held", &[]);
    workshop.edit_job("kind = \"series\"", "kind = \"series\"\nmemory = \"16MiB\"");
    let talk = workshop.plimsoll(&["train", "job.toml", "--out", "filed"]);
    talk.must(0, &["in one file of the cache", "done: 12 steps"]);
    Result::of(&workshop.path("filed")).must_equal(&held, "rows in a file");
    let files = || crate::support_run::tree(workshop.cache());
    let before = files();
    workshop.trained("filed again", &[]).must_equal(&held, "rows in a file that was there");
    assert!(files() == before, "the file of rows was made anew");
}

#[test]
fn a_model_that_is_trained_on_begins_with_its_loss_and_keeps_its_normalisation() {
    let workshop = workshop();
    workshop.trained("first", &[]);
    let loss = workshop.json("first/summary.json")["evals"].as_array().unwrap().last().unwrap()["loss"].clone();
    // Other numbers of the same columns, whose mean and spread are not those of the first, and later ones.
    let mut other = market(2);
    other.iter_mut().for_each(|row| {
        row.close *= 3.0;
        row.time += 1000;
    });
    write_csv(&workshop.path("other.csv"), &other, |_| false);
    workshop.edit_job("path = \"model.toml\"\ninit = \"random\"", "path = \"first/model\"");
    let words = ["features are normalised as those that the model was trained on", "done: "];
    // A rate of next to nothing: what it begins with is what it ends with, but for the running statistics, which only training moves.
    workshop.edit_job("epochs = 6", "steps = 1");
    workshop.edit_job("lr = 5e-3", "lr = 1e-12");
    let still = workshop.plimsoll(&["train", "job.toml", "--out", "still"]);
    still.must(0, &words);
    let begun = workshop.json("still/summary.json")["evals"][0]["loss"].as_f64().unwrap();
    let loss = loss.as_f64().unwrap();
    assert!((begun - loss).abs() <= 0.05 * loss, "it ended with {loss}, and begins with {begun}");

    workshop.edit_job("steps = 1", "steps = 40");
    workshop.edit_job("lr = 1e-12", "lr = 5e-3");
    workshop.edit_job("market.csv", "other.csv");
    workshop.plimsoll(&["train", "job.toml", "--out", "second"]).must(0, &words);
    let fitted = |run: &str| {
        let mut fitted = workshop.json(&format!("{run}/model/normalisation.json"));
        let until = fitted.as_object_mut().unwrap().remove("until");
        (fitted, until.and_then(|until| until.as_i64()).expect("a time"))
    };
    let (first, second) = (fitted("first"), fitted("second"));
    assert_eq!(second, (first.0, first.1 + 1000));
    // What was trained on cannot judge it: the cut of a larger part is earlier than what it has seen.
    workshop.edit_job("other.csv", "market.csv");
    workshop.edit_job("fraction = 0.2", "fraction = 0.4");
    let planned = workshop.plimsoll(&["plan", "job.toml"]);
    planned.must(0, &["and the model was trained until", "what it is judged by it may have seen"]);
    // And what is evaluated is normalised by it, whatever the data are.
    let again = workshop.plimsoll(&["eval", "second", "--json"]);
    let summary = workshop.json("second/summary.json");
    assert_eq!(said(&again.must(0, &[]).json()), said(summary["evals"].as_array().unwrap().last().unwrap()));
}

#[test]
fn eval_says_where_a_model_may_have_seen_what_it_is_judged_by() {
    let workshop = workshop();
    workshop.trained("run", &[]);
    let remarks = |args: &[&str]| -> Vec<String> {
        let said = workshop.plimsoll(&[&["eval", "run", "--json"], args].concat());
        let list: Vec<String> = serde_json::from_value(said.must(0, &[]).json()["remarks"].clone()).unwrap();
        for remark in list.iter().map(String::as_str) {
            said.must(0, &[remark]);
        }
        list
    };
    assert_eq!(remarks(&[]), [""; 0]);
    // The file that it was trained on, and one that is later than all of that.
    let seen = remarks(&["--data", "market.csv"]);
    assert_eq!(seen.len(), 1, "{seen:?}");
    let words = "these data begin at 0, and the model was trained until 191: what it is judged by it may have seen";
    assert_eq!(seen[0], words);
    let mut later = market(1);
    later.iter_mut().for_each(|row| row.time += 192);
    write_csv(&workshop.path("later.csv"), &later, |_| false);
    assert_eq!(remarks(&["--data", "later.csv"]), [""; 0]);
    // Times that are instants say nothing of times that are numbers.
    let dated = fs_err::read_to_string(workshop.path("later.csv")).unwrap();
    let dated: String = dated
        .lines()
        .map(|line| match line.split_once(',') {
            Some((time, rest)) if time != "time" => {
                let (days, hours) = (time.parse::<u32>().unwrap() / 24, time.parse::<u32>().unwrap() % 24);
                format!("2026-01-{:02} {hours:02}:00,{rest}\n", 1 + days)
            }
            _ => format!("{line}\n"),
        })
        .collect();
    fs_err::write(workshop.path("dated.csv"), dated).unwrap();
    let told = remarks(&["--data", "dated.csv"]);
    assert!(
        told.len() == 1 && told[0].contains("times are instants") && told[0].contains("cannot be said"),
        "{told:?}"
    );
    // Without its last rows the same part of the data begins earlier, in what was trained on.
    write_csv(&workshop.path("market.csv"), &market(1)[..600], |_| false);
    let moved = remarks(&[]);
    assert_eq!(moved.len(), 2, "{moved:?}");
    assert!(moved[0].starts_with("validation begins at 160, and the model was trained until 191"), "{moved:?}");
    let words = "the data are not those that the run was trained on: it had 720 rows of 3 series (digest ";
    assert!(moved[1].starts_with(words) && moved[1].contains("these are 600 rows of 3 series"), "{moved:?}");
}

#[test]
fn eval_of_other_files_takes_every_window_of_them() {
    let workshop = workshop();
    workshop.trained("run", &[]);
    write_parquet(&workshop.path("other.parquet"), &market(5));
    let other = workshop.plimsoll(&["eval", "run", "--data", "other.parquet", "--json"]);
    let other = other.must(0, &[]).json();
    // 240 rows of 3 series, 12 steps, one ahead.
    assert_eq!((other["rows"].as_u64(), sum(&other["confusion"])), (Some(3 * (240 - 12)), 3 * (240 - 12)));
    assert!(other["accuracy"].as_f64().unwrap() > 0.6, "{other:#}");
}
