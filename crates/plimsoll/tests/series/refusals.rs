//! What is wrong with a job over series is found before step 1, named with its place, and leaves nothing behind.

use crate::support_run::Workshop;
use crate::support_run::series::{SERIES, SeriesJob, V1, market, write_csv};

const COURSE: &str = "effective_batch = 8\nsteps = 3\neval_every = 2\n";

fn workshop() -> Workshop {
    let workshop = Workshop::of_series();
    workshop.series_job(SeriesJob { model: V1, series: SERIES, train: COURSE });
    workshop
}

/// `job.toml` with `from` replaced by `to` is refused; then it is as it was.
#[track_caller]
fn refused(workshop: &Workshop, from: &str, to: &str, words: &[&str]) {
    let before = fs_err::read(workshop.path("job.toml")).unwrap();
    workshop.edit_job(from, to);
    workshop.refused(&[], 2, words);
    fs_err::write(workshop.path("job.toml"), before).unwrap();
}

#[test]
fn a_column_that_is_not_there_and_a_cell_that_is_no_number_are_named_with_file_and_place() {
    let workshop = workshop();
    let there = "found `time, symbol, close, signal, noise, label`";
    refused(&workshop, "\"noise\"]", "\"nosie\"]", &["market.csv`, line 1: expected the column `nosie`", there]);
    refused(&workshop, "time = \"time\"", "time = \"when\"", &["market.csv`, line 1: expected the column `when`"]);
    refused(&workshop, "column = \"symbol\"", "column = \"name\"", &["line 1: expected the column `name`"]);
    refused(&workshop, "market.csv", "mraket.csv", &["mraket.csv"]);

    let path = workshop.path("market.csv");
    let good = fs_err::read_to_string(&path).unwrap();
    let with_cell = |line: usize, column: usize, cell: &str| {
        let lines = good.lines().enumerate().map(|(nth, text)| {
            let mut cells: Vec<&str> = text.split(',').collect();
            if nth + 1 == line {
                cells[column] = cell;
            }
            cells.join(",") + "\n"
        });
        fs_err::write(&path, lines.collect::<String>()).unwrap();
    };
    let cases: [(usize, usize, &str, &[&str]); 6] = [
        (100, 2, "12,5", &["line 100", "market.csv`"]),
        (100, 2, "high", &["market.csv`, line 100: expected a number in column `close`, found `high`"]),
        (77, 4, "", &["line 77: expected a number in column `noise`, found none; `data.series.missing` says"]),
        (9, 3, "inf", &["line 9: expected", "a finite number in column `signal`, found inf"]),
        (500, 0, "3", &["line 500: expected a time in column `time` after ", "found 3"]),
        (500, 0, "noon", &["line 500: expected ", "in column `time`, found `noon`"]),
    ];
    for (line, column, cell, words) in cases {
        with_cell(line, column, cell);
        workshop.refused(&[], 2, words);
    }
    // So few rows that none is a window behind the cut.
    write_csv(&path, &market(1)[..60], |_| false);
    workshop.refused(&[], 2, &["no windows of validation: a window of 12 steps that foretells 1 ahead needs"]);
}

#[test]
fn what_a_model_reads_and_answers_must_be_what_the_data_have() {
    let workshop = workshop();
    let model = |rest: &str, from: &str, to: &str| {
        assert!(V1.contains(from));
        fs_err::write(workshop.path("model.toml"), V1.replace(from, to) + rest).unwrap();
    };
    let layout = "layout = \"channels\"";
    model("", layout, "features = 5\nlayout = \"channels\"");
    workshop.refused(&[], 2, &["model.toml` describes a model with features = 5, the data have 3"]);
    model("", layout, "window = 60\nlayout = \"channels\"");
    workshop.refused(&[], 2, &["model.toml` describes a model with window = 60, the data have 12"]);
    model("", "classes = { ", "classes = { outputs = 4, ");
    workshop.refused(&[], 2, &["the model has 4 classes, and the data (`data.series.class`) have 3"]);
    model("", "values = { ", "values = { outputs = 2, ");
    workshop.refused(&[], 2, &["the model has 2 values, and the data (`data.series.values`) have 1"]);
    // A norm over one value has no spread.
    model("pool = 1\n", "preset", "preset");
    let before = fs_err::read(workshop.path("job.toml")).unwrap();
    workshop.edit_job("window = 12", "window = 1");
    workshop.refused(&["--effective-batch", "1"], 2, &["batch norms would be over one value: a sample of one step"]);
    workshop.plimsoll(&["plan", "job.toml", "--effective-batch", "2"]).must(0, &[]);
    fs_err::write(workshop.path("job.toml"), before).unwrap();
    // A folder is held to it, too.
    fs_err::write(workshop.path("model.toml"), V1).unwrap();
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(0, &["done: 3 steps"]);
    let folder = ["path = \"model.toml\"\ninit = \"random\"\n", "path = \"run/model\"\n"];
    workshop.edit_job(folder[0], folder[1]);
    refused(&workshop, "window = 12", "window = 13", &["run/model", "window = 12, the data have 13"]);
    workshop.refused(&["--train", "lora"], 2, &["`--train` = `lora` is for models of texts, and the data are series"]);
    refused(&workshop, "[\"close\", ", "[", &["run/model", "features = 3, the data have 2"]);
    let order = "[\"close\", \"signal\", \"noise\"]";
    refused(&workshop, order, "[\"signal\", \"noise\", \"close\"]", &["the normalisation was fitted on features"]);
    let of = ["of = \"return\"", "the normalisation was fitted on values the return of `close`, and is asked for with"];
    refused(&workshop, of[0], "of = \"value\"", &[of[1], "values the value of `close`"]);
    // Data that are series and a model of texts, and the other way round.
    let texts = Workshop::new();
    fs_err::rename(texts.path("model"), workshop.path("t5")).unwrap();
    let words = ["the data are series, and the model is one of texts", "hint: a `cnn-lstm` reads windows of numbers"];
    refused(&workshop, folder[1], "path = \"t5\"\ninit = \"random\"\n", &words);
}

#[test]
fn keys_of_texts_and_keys_that_no_series_have_are_refused_at_their_place() {
    let workshop = workshop();
    let kind = "kind = \"series\"\n";
    let texts = [
        ("columns = { source = \"a\", target = \"b\" }", "data.columns.source"),
        ("eval = \"market.csv\"", "data.eval"),
        ("max_len = { tokens = 64 }", "data.max_len.tokens"),
        ("packed = true", "data.packed"),
        ("window = 4", "data.window"),
        ("long = \"cut\"", "data.long"),
        ("unpack = false", "data.unpack"),
    ];
    for (line, key) in texts {
        let words = ["error: job.toml:6:", &format!("`{key}` is for texts, and the data are series")];
        let before = fs_err::read(workshop.path("job.toml")).unwrap();
        refused(&workshop, kind, &format!("{kind}{line}\n"), &words);
        workshop.edit_job(kind, &format!("{kind}{line}\n"));
        workshop.plimsoll(&["data", "inspect", "--job", "job.toml"]).must(2, &words);
        fs_err::write(workshop.path("job.toml"), before).unwrap();
    }
    let choices = [
        ("[allow]\nprecision = [\"bf16\"]", "`allow.precision` is"),
        ("[allow]\nlength = 8", "`allow.length` is"),
        ("[allow]\nlora = true", "`allow.lora` is"),
        ("[allow]\nbase = \"int8\"", "`allow.base` is"),
        ("[pin]\nloss_chunk = 64", "`pin.loss_chunk` is"),
        ("[pin]\noptimizer_in_backward = true", "`pin.optimizer_in_backward` = `true` is"),
    ];
    for (lines, what) in choices {
        let words = ["error: job.toml:", &format!("{what} for models of texts, and the data are series")];
        refused(&workshop, "[budget]\n", &format!("{lines}\n[budget]\n"), &words);
    }
    let words = ["error: job.toml:", "`train.precision` = `bf16` is for models of texts, and the data are series"];
    refused(&workshop, "threads = 2\n", "threads = 2\nprecision = \"bf16\"\n", &words);
    workshop.refused(&["--loss-chunk", "5"], 2, &["`--loss-chunk` is for models of texts, and the data are series"]);
    refused(&workshop, kind, "kind = \"chat\"\n", &["`data.series` is for `data.kind` = `series`", "`chat`"]);
    let table = format!("[data.series]\n{SERIES}");
    refused(&workshop, &table, "", &["`data.kind` = `series` needs to know columns and window"]);
    let line = "window = 12\n";
    refused(
        &workshop,
        line,
        "windwo = 12\n",
        &["error: job.toml:11:1: unknown key `windwo`", "did you mean `window`?"],
    );
    refused(
        &workshop,
        line,
        "window = 0\n",
        &["error: job.toml:7:1: ", "`data.series.window`: expected from 1 to 1048576, found 0"],
    );
    refused(&workshop, "horizon = 1", "horizon = 0", &["`data.series.horizon`: expected from 1 to 1048576, found 0"]);
    refused(
        &workshop,
        "fraction = 0.2",
        "fraction = 1.5",
        &["`data.series.validation.fraction`: expected above 0 and below 1, found 1.5"],
    );
    refused(
        &workshop,
        "fraction = 0.2",
        "from = 2026-01-31",
        &["error: job.toml:", "expected a whole number, or a date in quotes, as \"2026-01-31T12:00:00Z\""],
    );
    refused(
        &workshop,
        "validation = { fraction = 0.2 }\n",
        "",
        &["`train.eval_every` needs data to evaluate on", "hint: give `validation` in `[data.series]`"],
    );
}

#[test]
fn what_looks_at_the_data_of_a_job_takes_it_as_a_run_does_or_says_that_it_is_for_texts() {
    let workshop = workshop();
    let inspect = ["data", "inspect", "--job", "job.toml"];
    let flags = [
        ["--kind", "text"],
        ["--source", "close"],
        ["--target", "close"],
        ["--window", "4"],
        ["--max-len", "9"],
        ["--model", "model.toml"],
    ];
    for flag in flags {
        let words = format!("`{}` is for texts, and the data of the job are series", flag[0]);
        workshop.plimsoll(&[&inspect[..], &flag[..]].concat()).must(2, &[&words]);
    }
    let words = ["`plimsoll data prepare` makes tokens of texts, and the data of this job are series"];
    workshop.plimsoll(&["data", "prepare", "job.toml", "--out", "prepared"]).must(2, &words);
    assert!(!workshop.path("prepared").exists());
    let kind = "kind = \"series\"\n";
    let words = ["`data.memory` is 8.0 MiB, expected at least 16.0 MiB"];
    refused(&workshop, kind, &format!("{kind}memory = \"8MiB\"\n"), &words);
    workshop.edit_job(kind, &format!("{kind}memory = \"8MiB\"\n"));
    workshop.plimsoll(&inspect).must(2, &words);
}

#[test]
fn windows_that_take_more_than_the_data_may_are_refused_with_what_is_needed() {
    let workshop = workshop();
    let kind = "kind = \"series\"\n";
    workshop.edit_job(kind, &format!("{kind}memory = \"16MiB\"\n"));
    // Two batches of 40000 windows of 12 steps and 3 features are 12 MB; the validation has two of its own.
    workshop.edit_job("effective_batch = 8", "effective_batch = 40000");
    let refused =
        workshop.refused(&[], 2, &["`data.memory` is 16.0 MiB, but the loader takes ", " for windows that are ready"]);
    let enough = refused.stderr.split("hint: `data.memory = \"").nth(1).and_then(|rest| rest.split('"').next());
    let enough = enough.expect("a hint");
    workshop.edit_job("16MiB", enough);
    let planned = workshop.plimsoll(&["plan", "job.toml"]);
    assert!([Some(0), Some(3)].contains(&planned.code), "{}", planned.stderr);
}

#[test]
fn a_description_with_a_wrong_key_is_refused_with_file_line_and_column() {
    let workshop = workshop();
    let cases = [
        ("layout = \"channels\"", "layuot = \"channels\"", "model.toml:3:1` is not valid: unknown field `layuot`"),
        ("lstm = { hidden = 13 }", "lstm = { hidden = 0 }", "model.toml:6:19`: key `lstm.hidden` must be"),
        ("units = 7", "units = \"7\"", "model.toml:5:13` is not valid: invalid type: string \"7\""),
        ("\"hybrid-v1\"", "\"hybrid-v9\"", "model.toml:2:10`: key `preset` must be `hybrid-v1` or `hybrid-v2`"),
        (
            "kernel = 5",
            "kernel = 4",
            "model.toml:4:65`: key `conv.1.kernel` must be an odd number from 1 to 4095, found `4`",
        ),
        ("family = \"cnn-lstm\"", "family = \"lstm\"", "model.toml:1:10`: key `family` must be `cnn-lstm`"),
    ];
    for (from, to, words) in cases {
        assert!(V1.contains(from));
        fs_err::write(workshop.path("model.toml"), V1.replace(from, to)).unwrap();
        workshop.refused(&[], 2, &[words]);
    }
}
