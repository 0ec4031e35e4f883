//! Files, tokenizers and batches for the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use serde_json::json;

pub const PAD: u32 = 0;
pub const EOS: u32 = 1;

/// A WordLevel tokenizer: `<pad>` 0, `</s>` 1, `<unk>` 2, then `w0` to `w{words-1}`.
pub fn word_level(dir: &Path, words: u32, appends_eos: bool) -> PathBuf {
    let mut vocab = serde_json::Map::new();
    for (id, token) in ["<pad>", "</s>", "<unk>"].into_iter().enumerate() {
        vocab.insert(token.into(), json!(id));
    }
    for word in 0..words {
        vocab.insert(format!("w{word}"), json!(word + 3));
    }
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}
    });
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let file = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<pad>"},
        "added_tokens": [special(0, "<pad>"), special(1, "</s>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": if appends_eos { template } else { json!(null) },
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    });
    let path = dir.join(format!("word-level-{words}-{appends_eos}.json"));
    fs_err::write(&path, file.to_string()).unwrap();
    path
}

pub fn words_tokenizer(dir: &Path, words: u32) -> Arc<TextTokenizer> {
    let path = word_level(dir, words, true);
    Arc::new(TextTokenizer::load(&path, words as usize + 3, EOS, PAD).unwrap())
}

/// Writes rows as JSONL.
pub fn jsonl(path: &Path, rows: &[(String, String)]) {
    let lines: String = rows.iter().map(|(s, t)| json!({"source": s, "target": t}).to_string() + "\n").collect();
    fs_err::write(path, lines).unwrap();
}

/// Row i is ("w{i}", "w{i} w{i+1}...") with lengths that vary.
pub fn numbered(rows: usize, words: usize) -> Vec<(String, String)> {
    let text = |i: usize, n: usize| (0..n).map(|k| format!("w{}", (i + k) % words)).collect::<Vec<_>>().join(" ");
    (0..rows).map(|i| (text(i, 1 + i % 3), text(i, 1 + i % 5))).collect()
}

pub fn open(path: &Path) -> Result<Sources, DataError> {
    Sources::open(&[path.to_path_buf()], Columns::default())
}

pub fn open_error(path: &Path) -> String {
    open(path).unwrap_err().to_string()
}

pub fn settings(shape: BatchShape, threads: usize, prefetch_batches: usize, cursor: Cursor) -> LoaderSettings {
    LoaderSettings {
        shape,
        effective_batch: shape.samples,
        threads,
        prefetch_batches,
        cursor,
        limit: None,
        ranks: Ranks::ONE,
        on_thread_start: None,
    }
}

/// One batch, as lists of tokens per sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub facts: BatchFacts,
    pub samples: Vec<(Vec<u32>, Vec<u32>)>,
}

/// Slices that a slot is lent from.
pub struct Owned {
    source: Vec<u32>,
    target: Vec<u32>,
    source_lens: Vec<u32>,
    target_lens: Vec<u32>,
}

impl Owned {
    pub fn new(shape: BatchShape) -> Owned {
        Owned {
            source: vec![77; shape.samples * shape.source_len],
            target: vec![77; shape.samples * shape.target_len],
            source_lens: vec![77; shape.most_documents()],
            target_lens: vec![77; shape.samples],
        }
    }

    pub fn slot(&mut self) -> BatchSlot<'_> {
        BatchSlot {
            source: &mut self.source,
            target: &mut self.target,
            source_lens: &mut self.source_lens,
            target_lens: &mut self.target_lens,
        }
    }

    pub fn batch(&self, facts: BatchFacts) -> Batch {
        let unpack = |tokens: &[u32], lens: &[u32]| -> Vec<Vec<u32>> {
            let mut at = 0;
            lens[..facts.samples]
                .iter()
                .map(|&len| {
                    at += len as usize;
                    tokens[at - len as usize..at].to_vec()
                })
                .collect()
        };
        assert!(self.source_lens[facts.samples..].iter().all(|len| *len == 0));
        assert_eq!(facts.source_tokens, self.source_lens.iter().map(|l| u64::from(*l)).sum::<u64>());
        let samples =
            unpack(&self.source, &self.source_lens).into_iter().zip(unpack(&self.target, &self.target_lens)).collect();
        Batch { facts, samples }
    }
}

/// A document as its rows: inputs and labels.
pub type Rows = (Vec<u32>, Vec<u32>);

impl Owned {
    /// The samples of the batch, each a list of documents.
    pub fn documents(&self, facts: BatchFacts) -> Vec<Vec<Rows>> {
        let (mut at, mut document) = (0, 0);
        let samples = self.target_lens[..facts.samples].iter().map(|&rows| {
            let (end, mut found) = (at + rows as usize, Vec::new());
            while at < end {
                let next = at + self.source_lens[document] as usize;
                found.push((self.source[at..next].to_vec(), self.target[at..next].to_vec()));
                (at, document) = (next, document + 1);
            }
            assert_eq!(at, end, "no document crosses a sample");
            found
        });
        let samples: Vec<_> = samples.collect();
        assert_eq!((document, at as u64), (facts.documents, facts.source_tokens));
        assert!(self.source_lens[document..].iter().chain(&self.target_lens[facts.samples..]).all(|len| *len == 0));
        samples
    }
}

/// The Python beside us, with a module, or why not.
pub fn python(module: &str) -> Result<PathBuf, String> {
    let python = match std::env::var_os("PLIMSOLL_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    };
    if !python.is_file() {
        return Err(format!("no Python at `{}`; scripts/test makes one", python.display()));
    }
    let import = std::process::Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if !import.is_ok_and(|o| o.status.success()) {
        return Err(format!("the Python at `{}` has no {module}", python.display()));
    }
    Ok(python)
}

pub fn take(loader: &mut Loader, shape: BatchShape, batches: usize) -> Vec<Batch> {
    let mut owned = Owned::new(shape);
    (0..batches)
        .map(|_| {
            let facts = loader.next(owned.slot()).unwrap();
            owned.batch(facts)
        })
        .collect()
}

/// Python that makes `rows`, conversations, and writes them to `rows.jsonl` in the folder `out` that it is given.
pub const CHAT_ROWS: &str = r#"
import json, sys
out = sys.argv[1]
names = {"user": "human", "assistant": "gpt", "system": "system"}
rows = []
for i in range(700):
    row = [{"role": "system", "content": f"be {i}"}] if i % 3 == 0 else []
    for turn in range(1 + i % 4):
        row += [{"role": "user", "content": f"q{i}.{turn} " + "é\n" * (i % 40)}, {"role": "assistant", "content": "" if i == 5 else f"a{i}"}]
    rows.append(row)
rows[17][-1]["content"] = "long " * 100000
with open(out + "/rows.jsonl", "w") as f:
    for r in rows:
        f.write(json.dumps({"messages": r}) + "\n")
"#;
