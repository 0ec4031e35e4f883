//! Everything that can be known to be wrong before step 1 is: the exit code says which kind, the message names the place,
//! and the folder is as it was.

mod support_run;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use support_run::{PINS, Said, Workshop};

const JOB: &str = "effective_batch = 8\nsteps = 3\n";

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    workshop.job(JOB);
    workshop
}

/// Trains with `flags`, which must be refused and leave no trace.
#[track_caller]
fn refused(workshop: &Workshop, flags: &[&str], code: i32, words: &[&str]) -> Said {
    workshop.refused(flags, code, words)
}

fn parquet_file(path: &Path) {
    let schema = "message pairs { REQUIRED BYTE_ARRAY prompt (UTF8); REQUIRED BYTE_ARRAY response (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs_err::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for text in ["what is my dog called?", "your dog is called Pickle."] {
        let cells: Vec<ByteArray> = (0..200).map(|row| format!("{text} {row}").as_str().into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&cells, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_budget_too_small_is_refused_with_what_is_missing_and_what_would_fit() {
    let workshop = workshop();
    let said =
        refused(&workshop, &["--ram", "8MiB"], 3, &["too big: ", "more than the budget of 8.0 MiB", "what would fit:"]);
    // What it names does fit.
    let line =
        said.stderr.lines().find_map(|line| line.trim().strip_prefix("a RAM budget of ")).expect("a budget that fits");
    let budget = line.split(" (").next().unwrap().replace(' ', "");
    workshop.plimsoll(&["train", "job.toml", "--ram", &budget, "--out", "run"]).must(0, &["done: 3 steps"]);
    refused(&workshop, &["--disk", "1MiB"], 3, &["too big: ", "of disk", "the budget of 1.0 MiB"]);
}

#[test]
fn weights_that_are_cut_garbled_or_of_another_shape_are_refused_by_file_and_tensor() {
    let workshop = workshop();
    let model = workshop.weighted();
    let file = model.join("model.safetensors");
    let whole = fs_err::read(&file).unwrap();
    let flags = ["--model", "weighted", "--init", "weights"];

    fs_err::write(&file, &whole[..whole.len() - 100]).unwrap();
    let lengths = format!("header describes {} bytes, the file has {}", whole.len(), whole.len() - 100);
    refused(&workshop, &flags, 2, &["error: `", "weighted/model.safetensors` is truncated: ", &lengths]);

    fs_err::write(&file, &whole[..20]).unwrap();
    refused(&workshop, &flags, 2, &["weighted/model.safetensors` ends inside its header"]);

    let mut garbled = whole.clone();
    garbled[8..16].copy_from_slice(b"no json!");
    fs_err::write(&file, &garbled).unwrap();
    refused(&workshop, &flags, 2, &["weighted/model.safetensors`: header is not valid: "]);

    garbled[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs_err::write(&file, &garbled).unwrap();
    refused(&workshop, &flags, 2, &["weighted/model.safetensors` announces a header of 18446744073709551615 bytes"]);

    fs_err::write(&file, &whole).unwrap();
    let config = fs_err::read_to_string(model.join("config.json")).unwrap();
    fs_err::write(model.join("config.json"), config.replace("\"d_ff\": 64", "\"d_ff\": 65")).unwrap();
    let shapes = ["tensor `", "must have shape [65, 32], found [64, 32]"];
    refused(&workshop, &flags, 2, &shapes);

    fs_err::write(model.join("config.json"), config.replace("\"num_layers\": 2", "\"num_layers\": 3")).unwrap();
    refused(&workshop, &flags, 2, &["weighted` has no tensor `encoder.block.2."]);

    fs_err::remove_file(&file).unwrap();
    fs_err::write(model.join("config.json"), config).unwrap();
    refused(&workshop, &flags, 2, &["weighted` has no `model.safetensors`", "it holds `config.json`"]);
}

#[test]
fn a_model_folder_that_lacks_something_is_refused_with_what_it_holds() {
    let workshop = workshop();
    refused(&workshop, &["--model", "nowhere"], 2, &["error: `--model` = `", "nowhere` does not exist"]);
    fs_err::create_dir(workshop.path("bare")).unwrap();
    refused(&workshop, &["--model", "bare"], 2, &["bare` has no `config.json`; it holds nothing"]);
    fs_err::remove_file(workshop.path("model/tokenizer.json")).unwrap();
    refused(&workshop, &[], 2, &["model` has no `tokenizer.json`; it holds `config.json`"]);
    fs_err::write(workshop.path("model/tokenizer.json"), "{\"version\": \"1.0\"}").unwrap();
    refused(&workshop, &[], 2, &["model/tokenizer.json` is not a readable tokenizer: "]);
    fs_err::write(workshop.path("model/config.json"), "{\"model_type\": \"bert\"}").unwrap();
    refused(&workshop, &[], 2, &["model/config.json`: key `model_type` must be ", "found `bert`"]);
}

#[test]
fn a_tokenizer_that_knows_more_tokens_than_the_model_is_refused_by_the_first_token_outside() {
    let workshop = workshop();
    let path = workshop.path("model/config.json");
    let config = fs_err::read_to_string(&path).unwrap();
    fs_err::write(&path, config.replace("\"vocab_size\": 184", "\"vocab_size\": 150")).unwrap();
    let words = ["model/tokenizer.json`: token `", "has the id 150, but the model's vocabulary has 150 entries"];
    refused(&workshop, &[], 2, &words);
}

#[test]
fn data_that_cannot_be_read_is_refused_by_file_and_line() {
    let workshop = workshop();
    let data = workshop.path("bad.jsonl");
    let good = "{\"prompt\": \"a\", \"response\": \"b\"}\n";
    let cases: [(&str, &[&str]); 7] = [
        ("", &["no rows in 1 file(s), the first is `", "bad.jsonl`"]),
        ("\n \n", &["no rows in 1 file(s)", "bad.jsonl`"]),
        (
            "{\"prompt\": \"a\"",
            &["bad.jsonl`, line 3: expected a JSON object, found text that is not JSON: ", "at column 14"],
        ),
        ("not json", &["bad.jsonl`, line 3: expected a JSON object, found text that is not JSON"]),
        ("[1, 2]", &["bad.jsonl`, line 3: expected a JSON object, found an array"]),
        (
            "{\"prompt\": \"a\", \"answer\": \"b\"}",
            &["bad.jsonl`, line 3: expected the column `response`, found `prompt, answer`"],
        ),
        ("{\"prompt\": \"a\", \"response\": 7}", &["line 3: expected a string in column `response`, found a number"]),
    ];
    for (line, words) in cases {
        let text = if line.trim().is_empty() { line.to_string() } else { format!("{good}\n{line}\n{good}") };
        fs_err::write(&data, &text).unwrap();
        refused(&workshop, &["--data", "bad.jsonl"], 2, words);
        // The evaluation data is read before step 1 too.
        refused(&workshop, &["--eval", "bad.jsonl"], 2, words);
    }
}

#[test]
fn a_column_that_is_missing_or_cannot_be_guessed_is_refused_with_those_that_are_there() {
    let workshop = workshop();
    let missing = "train.jsonl`, line 1: expected the column `question`, found `prompt, response`";
    refused(&workshop, &["--source", "question"], 2, &[missing]);
    fs_err::write(workshop.path("odd.jsonl"), "{\"alpha\": \"a\", \"beta\": \"b\"}\n").unwrap();
    let odd = ["odd.jsonl`: cannot guess the source and target columns among `alpha, beta`", "columns = { source"];
    refused(&workshop, &["--data", "odd.jsonl"], 2, &odd);
    parquet_file(&workshop.path("good.parquet"));
    let schema = ["good.parquet`, schema: expected the column `question`, found `prompt, response`"];
    refused(&workshop, &["--data", "good.parquet", "--source", "question"], 2, &schema);
}

#[test]
fn a_parquet_file_that_is_cut_anywhere_is_refused_and_the_whole_one_trains() {
    let workshop = workshop();
    let path = workshop.path("pairs.parquet");
    parquet_file(&path);
    workshop.plimsoll(&["train", "job.toml", "--data", "pairs.parquet", "--out", "run"]).must(0, &["done: 3 steps"]);
    let whole = fs_err::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 10, 3] {
        fs_err::write(&path, &whole[..length]).unwrap();
        refused(
            &workshop,
            &["--data", "pairs.parquet"],
            2,
            &["pairs.parquet`, footer", ": not a readable Parquet file: "],
        );
    }
    // The footer is whole, and what it points at is not there.
    fs_err::write(&path, [&whole[..4], &whole[1500..]].concat()).unwrap();
    refused(&workshop, &["--data", "pairs.parquet"], 2, &["pairs.parquet`, ", "not a readable Parquet file"]);
    fs_err::write(&path, "").unwrap();
    refused(&workshop, &["--data", "pairs.parquet"], 2, &["pairs.parquet`"]);
}

#[test]
fn csv_and_packed_files_train_as_the_plain_one_and_a_cut_one_is_refused() {
    let workshop = workshop().with_own_cache();
    workshop.job(&format!("{JOB}{PINS}"));
    let rows: String = (0..200).map(|row| format!("\"what is, say, {row}?\",your dog\r\n")).collect();
    let csv = "prompt,response\r\n".to_string() + &rows;
    fs_err::write(workshop.path("pairs.csv"), &csv).unwrap();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(csv.as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    fs_err::write(workshop.path("pairs.csv.gz"), &packed).unwrap();
    let loss = |data: &str, out: &str| {
        let args = ["train", "job.toml", "--data", data, "--out", out, "--no-shuffle"];
        workshop.plimsoll(&args).must(0, &["done: 3 steps"]);
        let summary: Value =
            serde_json::from_slice(&fs_err::read(workshop.path(out).join("summary.json")).unwrap()).unwrap();
        summary["final_loss"].as_f64().unwrap()
    };
    assert_eq!(loss("pairs.csv", "plain"), loss("pairs.csv.gz", "packed"));
    let said = workshop.plimsoll(&["plan", "job.toml", "--data", "pairs.csv.gz"]);
    said.must(0, &[]);
    assert!(said.stdout.contains("unpacked data"), "{}", said.stdout);
    fs_err::write(workshop.path("pairs.csv.gz"), &packed[..packed.len() / 2]).unwrap();
    refused(&workshop, &["--data", "pairs.csv.gz"], 2, &["pairs.csv.gz`, line ", "cannot be unpacked"]);
    fs_err::write(workshop.path("pairs.csv"), csv + "alone\n").unwrap();
    refused(&workshop, &["--data", "pairs.csv"], 2, &["pairs.csv`, line 202: expected 2 cells", "found 1"]);
}

#[test]
fn a_key_or_flag_that_does_not_exist_is_refused_with_the_nearest_that_does() {
    let workshop = workshop();
    refused(&workshop, &["--efective-batch", "8"], 2, &["'--efective-batch'", "'--effective-batch'"]);
    refused(&workshop, &["--effective-batch", "0"], 2, &["error: `--effective-batch` must be at least 1, found `0`"]);
    workshop.job("efective_batch = 8\nsteps = 3\n");
    refused(
        &workshop,
        &[],
        2,
        &["error: job.toml:9:1: unknown key `efective_batch`", "hint: did you mean `effective_batch`?"],
    );
    workshop.job("effective_batch = 0\n");
    refused(&workshop, &[], 2, &["error: job.toml:9:19: `train.effective_batch` must be at least 1, found `0`"]);
    workshop.job("steps = 3\nsteps = 4\n");
    refused(&workshop, &[], 2, &["error: job.toml:10:1: ", "duplicate key"]);
}

#[test]
fn a_folder_that_holds_a_run_or_anything_else_is_not_written_to() {
    let workshop = workshop();
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(0, &[]);
    fs_err::create_dir(workshop.path("mine")).unwrap();
    fs_err::write(workshop.path("mine/notes.txt"), "mine").unwrap();
    let before = workshop.tree();
    let train = |out: &str| workshop.plimsoll(&["train", "job.toml", "--out", out]);
    train("run").must(2, &["error: `run` holds a run already", "hint: go on with it: plimsoll resume run"]);
    train("mine").must(2, &["error: `mine` is not empty"]);
    train("job.toml").must(2, &["error: `job.toml` is not a folder"]);
    assert!(workshop.tree() == before, "something was written");
    // A refused job leaves an empty folder that was there before it.
    fs_err::create_dir(workshop.path("empty")).unwrap();
    workshop.plimsoll(&["train", "job.toml", "--out", "empty", "--ram", "8MiB"]).must(3, &[]);
    assert_eq!(fs_err::read_dir(workshop.path("empty")).unwrap().count(), 0);
}
