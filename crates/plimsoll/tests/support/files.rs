//! A job's input on disk: a model folder without weights, and pairs as JSONL or Parquet.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use super::draw::Draw;
use super::job::{Job, Words};

const SPECIAL: [&str; 3] = ["<pad>", "</s>", "<unk>"];

/// Writes config.json and tokenizer.json.
pub fn model_folder(job: &Job, dir: &Path) {
    fs_err::create_dir_all(dir).unwrap();
    let config = json!({
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": job.vocab,
        "d_model": job.d_model,
        "d_kv": job.d_kv,
        "d_ff": job.d_ff,
        "num_layers": job.encoder_layers,
        "num_decoder_layers": job.decoder_layers,
        "num_heads": job.heads,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0,
        "feed_forward_proj": if job.gated { "gated-gelu" } else { "relu" },
        "is_encoder_decoder": true,
        "tie_word_embeddings": job.tied,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    });
    fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
    fs_err::write(dir.join("tokenizer.json"), tokenizer(job).to_string()).unwrap();
}

fn tokenizer(job: &Job) -> Value {
    let words = || (0..job.vocab - SPECIAL.len()).map(|n| format!("w{n}"));
    let special = |id: usize| {
        json!({"id": id, "content": SPECIAL[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let blank = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let (pre_tokenizer, decoder, model) = match job.words {
        Words::WordLevel => {
            let all = SPECIAL.iter().map(|s| s.to_string()).chain(words());
            let vocab: serde_json::Map<String, Value> = all.enumerate().map(|(id, w)| (w, json!(id))).collect();
            let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"});
            (json!({"type": "WhitespaceSplit"}), Value::Null, model)
        }
        Words::Unigram => {
            let special = SPECIAL.iter().map(|s| json!([s, 0.0]));
            let pieces = words().enumerate().map(|(n, w)| json!([format!("\u{2581}{w}"), -1.0 - (n as f64).ln_1p()]));
            let vocab: Vec<Value> = special.chain(pieces).collect();
            let model = json!({"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": false});
            (blank.clone(), blank, model)
        }
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(0), special(1), special(2)],
        "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model,
    })
}

/// Pairs of texts, some of them longer than the job keeps.
pub fn pairs(job: &Job, rows: usize, seed: u64) -> Vec<(String, String)> {
    let mut draw = Draw::new(seed);
    let known = job.vocab - SPECIAL.len();
    let mut text = |most: usize| {
        let words = draw.within(1..=most + most / 4);
        let words: Vec<String> = (0..words).map(|_| format!("w{}", draw.within(0..=known - 1))).collect();
        words.join(" ")
    };
    (0..rows).map(|_| (text(job.source_len), text(job.target_len))).collect()
}

/// Writes pairs as JSON lines.
pub fn write_jsonl(path: &Path, pairs: &[(String, String)]) {
    let line = |(source, target): &(String, String)| json!({"source": source, "target": target}).to_string() + "\n";
    fs_err::write(path, pairs.iter().map(line).collect::<String>()).unwrap();
}

/// Writes pairs as Parquet, in two row groups.
pub fn write_parquet(path: &Path, pairs: &[(String, String)]) {
    let schema = "message m { REQUIRED BYTE_ARRAY source (UTF8); REQUIRED BYTE_ARRAY target (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs_err::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    for part in pairs.chunks(pairs.len().div_ceil(2)) {
        let mut group = writer.next_row_group().unwrap();
        let sources: Vec<ByteArray> = part.iter().map(|(s, _)| s.as_str().into()).collect();
        let targets: Vec<ByteArray> = part.iter().map(|(_, t)| t.as_str().into()).collect();
        for values in [sources, targets] {
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}
