//! A job's input on disk: a model folder, and rows as JSONL or Parquet.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Map, Value, json};

use super::draw::Draw;
use super::job::{Job, Kind};
use super::tokenizer::{SPECIAL_T5, Words, chat_ml, tokenizer};

/// Words that texts for tokenizers of bytes are made of.
const WORDS: usize = 10_000;

/// Writes config.json and tokenizer.json, and the chat template where the job has one.
pub fn model_folder(job: &Job, dir: &Path) {
    fs_err::create_dir_all(dir).unwrap();
    let write = |name: &str, value: &Value| fs_err::write(dir.join(name), value.to_string()).unwrap();
    write("config.json", &job.model.config());
    write("tokenizer.json", &tokenizer(job.words, job.model.vocab));
    if let Some(marked) = job.template {
        write("tokenizer_config.json", &chat_ml(marked));
    }
}

/// Rows with named columns.
pub struct Table {
    names: Vec<&'static str>,
    rows: Vec<Vec<Value>>,
}

/// Rows for a job, some of them longer than it keeps.
pub fn rows(job: &Job, rows: usize, seed: u64) -> Table {
    let mut draw = Draw::new(seed);
    let (known, per_word) = match job.words {
        Words::Bpe => (WORDS, 3),
        _ => (job.model.vocab - SPECIAL_T5.len(), 1),
    };
    let mut text = |most: usize| {
        let most = (most / per_word).max(1);
        let words = draw.within(1..=most + most / 4);
        let words: Vec<String> = (0..words).map(|_| format!("w{}", draw.within(0..=known - 1))).collect();
        words.join(" ")
    };
    let (source, target) = job.lengths;
    let (names, rows) = match job.kind {
        Kind::Pairs => {
            let row = |_| vec![json!(text(source)), json!(text(target))];
            (vec!["source", "target"], (0..rows).map(row).collect())
        }
        Kind::Text => (vec!["text"], (0..rows).map(|_| vec![json!(text(2 * source))]).collect()),
        // A list of messages is for JSONL; Parquet has a question and an answer here.
        Kind::Chat if job.parquet => {
            let row = |_| vec![json!(text(source / 2)), json!(text(source / 2))];
            (vec!["prompt", "response"], (0..rows).map(row).collect())
        }
        Kind::Chat => {
            let row = |nth: usize| {
                let turns = 1 + nth % 3;
                let mut messages = Vec::new();
                if nth.is_multiple_of(4) {
                    messages.push(json!({"role": "system", "content": text(8)}));
                }
                for _ in 0..turns {
                    messages.push(json!({"role": "user", "content": text(source / (2 * turns))}));
                    messages.push(json!({"role": "assistant", "content": text(source / (2 * turns))}));
                }
                vec![Value::Array(messages)]
            };
            (vec!["messages"], (0..rows).map(row).collect())
        }
    };
    Table { names, rows }
}

/// Writes JSON lines.
pub fn write_jsonl(path: &Path, table: &Table) {
    let line = |row: &Vec<Value>| {
        let object: Map<String, Value> =
            table.names.iter().map(|name| name.to_string()).zip(row.iter().cloned()).collect();
        Value::Object(object).to_string() + "\n"
    };
    fs_err::write(path, table.rows.iter().map(line).collect::<String>()).unwrap();
}

/// Writes Parquet, in two row groups; every cell is a text.
pub fn write_parquet(path: &Path, table: &Table) {
    let columns: String = table.names.iter().map(|name| format!("REQUIRED BYTE_ARRAY {name} (UTF8); ")).collect();
    let schema = Arc::new(parse_message_type(&format!("message m {{ {columns} }}")).unwrap());
    let file = fs_err::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    for part in table.rows.chunks(table.rows.len().div_ceil(2)) {
        let mut group = writer.next_row_group().unwrap();
        for nth in 0..table.names.len() {
            let cells: Vec<ByteArray> = part.iter().map(|row| row[nth].as_str().expect("a text").into()).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&cells, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}
