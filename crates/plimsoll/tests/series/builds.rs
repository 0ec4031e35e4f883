//! Every part of a model and every key of the data that a small job can have, trained and evaluated again.

use serde_json::Value;

use crate::support_run::Workshop;
use crate::support_run::series::{SERIES, SeriesJob, V1, V2, header, market, write_csv, write_parquet};

const COURSE: &str = "effective_batch = 32\nsteps = 80\neval_every = 80\nsave_every = 0\n\
                      optimizer = { name = \"adamw\", lr = 5e-3 }\n";

/// Trains; loss must fall, and `eval` must say what the run said. The evaluation, and the names of the model's tensors.
#[track_caller]
fn trained(workshop: &Workshop, model: &str, series: &str) -> (Value, Vec<String>) {
    workshop.series_job(SeriesJob { model, series, train: COURSE });
    let result = workshop.trained("run", &[]);
    let losses: Vec<f64> = result.losses.iter().map(|(_, bits)| f64::from_bits(*bits)).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&losses[70..]) < mean(&losses[..10]), "{losses:?}");
    let eval = workshop.plimsoll(&["eval", "run", "--json"]);
    let eval = eval.must(0, &[]).json();
    let noted = &workshop.json("run/summary.json")["evals"][0];
    assert_eq!((&eval["loss"], &eval["accuracy"]), (&noted["loss"], &noted["scores"]["accuracy"]));
    let names = header(&result.weights).as_object().unwrap().keys().cloned().collect();
    fs_err::remove_dir_all(workshop.path("run")).unwrap();
    (eval, names)
}

fn have(names: &[String], part: &str) -> bool {
    names.iter().any(|name| name.starts_with(part))
}

/// A description without a preset: only what it says is there.
fn bare(rest: &str) -> String {
    format!("family = \"cnn-lstm\"\nlstm = {{ hidden = 16 }}\n{rest}")
}

const CLASSES: &str = "classes = { name = \"direction\", hidden = [{ width = 8 }], outputs = 3 }\n";
const VALUES: &str = "values = { name = \"change\", outputs = 1 }\n";
const ONLY_CLASSES: (&str, &str) = ("values = [{ column = \"close\", of = \"return\" }]\n", "");
const ONLY_VALUES: (&str, &str) = ("class = { direction = { column = \"close\", flat = 0.001 } }\n", "");

fn without((part, _): (&str, &str)) -> String {
    assert!(SERIES.contains(part));
    SERIES.replace(part, "")
}

#[test]
fn an_lstm_alone_convolutions_without_attention_and_positions_all_train() {
    let workshop = Workshop::of_series();
    let (eval, names) = trained(&workshop, &bare(&format!("{CLASSES}{VALUES}")), SERIES);
    assert!(have(&names, "lstm.") && !have(&names, "cnn_blocks.") && !have(&names, "attention."), "{names:?}");
    assert!(eval["accuracy"].is_number() && eval["mae"].as_array().is_some_and(|mae| mae.len() == 1), "{eval:#}");

    let plain = "conv = [{ channels = 8, kernel = 3 }]\nattention = { kind = \"none\" }\n";
    let (_, names) = trained(&workshop, &bare(&format!("{plain}{CLASSES}{VALUES}")), SERIES);
    assert!(have(&names, "cnn_blocks.0.batch_norm.") && !have(&names, "attention."), "{names:?}");

    let (_, names) = trained(&workshop, V2, SERIES);
    assert!(have(&names, "attention.pos_embedding") && have(&names, "lstm.layer_norm"), "{names:?}");
    // More steps than positions: the parameter is there and not used.
    trained(&workshop, &V2.replace("positions = 24", "positions = 2"), SERIES);
    trained(&workshop, &V2.replace("preset = \"hybrid-v2\"", "preset = \"hybrid-v2\"\nlayout = \"channels\""), SERIES);
}

#[test]
fn classes_alone_values_alone_and_classes_of_each_sort_are_scored_as_what_they_are() {
    let workshop = Workshop::of_series();
    let (eval, names) = trained(&workshop, &bare(CLASSES), &without(ONLY_CLASSES));
    assert!(!have(&names, "change.") && eval["accuracy"].is_number(), "{eval:#}");
    assert!(eval["mae"].as_array().is_none_or(Vec::is_empty), "{eval:#}");

    let two = "values = { name = \"change\", outputs = 2 }\n";
    let series = without(ONLY_VALUES)
        .replace("of = \"return\" }]", "of = \"return\" }, { column = \"signal\", of = \"value\" }]");
    let (eval, names) = trained(&workshop, &bare(two), &series);
    assert!(!have(&names, "direction.") && eval["accuracy"].is_null(), "{eval:#}");
    assert!(eval["confusion"].as_array().is_none_or(Vec::is_empty), "{eval:#}");
    assert_eq!((eval["mae"].as_array().unwrap().len(), eval["rmse"].as_array().unwrap().len()), (2, 2));

    // What a column says at the last step itself.
    let series = without(ONLY_CLASSES).replace("horizon = 1", "horizon = 0");
    let (from, to) =
        ("direction = { column = \"close\", flat = 0.001 }", "column = { column = \"label\", classes = 3 }");
    assert!(series.contains(from));
    let (eval, _) = trained(&workshop, &bare(CLASSES), &series.replace(from, to));
    assert_eq!(eval["confusion"].as_array().unwrap().len(), 3);

    let to = "thresholds = { column = \"close\", of = \"change\", at = [-0.5, -0.1, 0.0, 0.4] }";
    let (eval, _) = trained(
        &workshop,
        &bare(&CLASSES.replace("outputs = 3", "outputs = 5")),
        &without(ONLY_CLASSES).replace(from, to),
    );
    assert_eq!(eval["confusion"].as_array().unwrap().len(), 5);
}

#[test]
fn missing_values_are_filled_as_asked_and_series_by_column_are_those_by_file() {
    let workshop = Workshop::of_series();
    let rows = market(1);
    // Not the first row of a series, and some of the last, which are of the validation.
    let missing = |nth: usize| nth > 30 && nth.is_multiple_of(11);
    write_csv(&workshop.path("market.csv"), &rows, missing);
    let mut seen = Vec::new();
    for how in ["forward", "zero", "mean"] {
        let (eval, _) = trained(&workshop, V1, &format!("{SERIES}missing = \"{how}\"\n"));
        seen.push(eval["loss"].as_f64().unwrap());
    }
    // What fills a gap is of the data, so it has its part in what comes out.
    assert!(seen[0] != seen[1] && seen[1] != seen[2], "{seen:?}");

    // The same rows, each series in a file of its own.
    write_csv(&workshop.path("market.csv"), &rows, |_| false);
    let (by_column, _) = trained(&workshop, V1, SERIES);
    for symbol in ["s0", "s1", "s2"] {
        let own: Vec<_> = rows.iter().filter(|row| row.symbol == symbol).cloned().collect();
        write_parquet(&workshop.path(&format!("of-{symbol}.parquet")), &own);
    }
    workshop.series_job(SeriesJob {
        model: V1,
        series: &SERIES.replace("{ column = \"symbol\" }", "\"file\""),
        train: COURSE,
    });
    workshop.edit_job("\"market.csv\"", "\"of-*.parquet\"");
    workshop.trained("run", &[]);
    let by_file = workshop.plimsoll(&["eval", "run", "--json"]);
    let by_file = by_file.must(0, &[]).json();
    assert_eq!((&by_file["loss"], &by_file["confusion"]), (&by_column["loss"], &by_column["confusion"]));
}
