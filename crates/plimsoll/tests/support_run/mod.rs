//! Real runs of the real binary, made small: a workshop with a model, a tokenizer and data, and runs in it.
//!
//! Invariant: a workshop is a temporary folder of its own, and everything that a test starts works inside it. What a
//! run does is learnt from its folder and its exit code, never from the clock.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod chance;
pub mod decoder;
pub mod disk;
#[path = "../support/draw.rs"]
#[allow(clippy::duplicate_mod, reason = "a file with both supports has it twice")]
mod draw;
#[path = "../support/model.rs"]
#[allow(clippy::duplicate_mod, reason = "a file with both supports has it twice")]
pub mod model;
pub mod moment;
pub mod series;
pub mod shelf;
#[path = "../support/tokenizer.rs"]
#[allow(clippy::duplicate_mod, reason = "a file with both supports has it twice")]
mod tokenizer;
pub mod trainer;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use plimsoll_plan::dtype::Dtype;
use plimsoll_watch::Summary;

/// A T5 of 40,000 weights, with the tokenizer of the chat example.
const CONFIG: &str = r#"{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 184,
"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4,
"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout_rate": 0.1,
"layer_norm_epsilon": 1e-06, "initializer_factor": 1.0, "feed_forward_proj": "relu", "is_encoder_decoder": true,
"tie_word_embeddings": true, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}"#;

/// Rows of the training data: with an effective batch of 8 no epoch ends where a batch does.
pub const ROWS: usize = 60;

/// Every choice is held: a plan follows the rates that the machine shows at the moment, and two runs that are planned
/// apart need not be equal to the bit. A run that is resumed holds its own.
pub const PINS: &str =
    "[pin]\nmicro_batch = 2\nrecompute = 1\nloss_chunk = 16\noptimizer_in_backward = false\nloader_threads = 2\n";

/// A folder with `model/` (config and tokenizer), `train.jsonl` and `eval.jsonl`.
pub struct Workshop {
    dir: tempfile::TempDir,
    /// What is kept between runs, where it is not to be the user's own.
    cache: Option<tempfile::TempDir>,
}

impl Workshop {
    pub fn new() -> Workshop {
        let workshop = Workshop { dir: tempfile::tempdir().unwrap(), cache: None };
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/chat");
        fs_err::create_dir(workshop.path("model")).unwrap();
        fs_err::write(workshop.path("model/config.json"), CONFIG).unwrap();
        fs_err::copy(example.join("model/tokenizer.json"), workshop.path("model/tokenizer.json")).unwrap();
        for (file, rows) in [("train.jsonl", ROWS), ("eval.jsonl", 10)] {
            let text = fs_err::read_to_string(example.join("data").join(file)).unwrap();
            let few: String = text.lines().take(rows).map(|line| format!("{line}\n")).collect();
            fs_err::write(workshop.path(file), few).unwrap();
        }
        workshop
    }

    /// With a cache of its own.
    #[allow(dead_code, reason = "few tests leave something there")]
    pub fn with_own_cache(self) -> Workshop {
        Workshop { cache: Some(tempfile::tempdir().unwrap()), ..self }
    }

    /// That cache.
    pub fn cache(&self) -> &Path {
        self.cache.as_ref().expect("a cache of its own").path()
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes `job.toml`: random weights, the data here, and `rest` below its `[train]`.
    pub fn job(&self, rest: &str) {
        let head =
            "[model]\npath = \"model\"\ninit = \"random\"\n[data]\ntrain = [\"train.jsonl\"]\neval = \"eval.jsonl\"\n";
        fs_err::write(
            self.path("job.toml"),
            format!("{head}[train]\nthreads = 2\n{rest}\n[budget]\nram = \"256MiB\"\n"),
        )
        .unwrap();
    }

    /// Gives the model weights: a folder `weighted/` beside `model/`.
    pub fn weighted(&self) -> PathBuf {
        let to = self.path("weighted");
        model::write_weights(&self.path("model"), &to, Dtype::F32);
        to
    }

    /// Runs the program to its end, with `input` (less than a pipe holds) on its standard input.
    pub fn plimsoll_with(&self, args: &[&str], input: &str) -> Said {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("plimsoll starts");
        // One that ends without reading closes the pipe; what it says of that is the test's business.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        Said::of(child.wait_with_output().expect("plimsoll runs"))
    }

    /// Runs the program to its end.
    pub fn plimsoll(&self, args: &[&str]) -> Said {
        self.plimsoll_with(args, "")
    }

    fn command(&self, args: &[&str]) -> Command {
        // On a machine without a toolchain the program is where it was carried to.
        let carried = std::env::var_os("PLIMSOLL_BINARY");
        let mut command = Command::new(carried.unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into()));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        if let Some(cache) = &self.cache {
            command.env("XDG_CACHE_HOME", cache.path());
        }
        command
    }

    /// Trains `job.toml` with `flags`, which must be refused and leave no trace.
    #[track_caller]
    pub fn refused(&self, flags: &[&str], code: i32, words: &[&str]) -> Said {
        let before = self.tree();
        // Once into a folder that is named, once into one that is chosen.
        let refuse = |out: &[&str]| {
            let args = [&["train", "job.toml"], flags, out].concat();
            let said = self.plimsoll(&args);
            said.must(code, words);
            assert_eq!(said.stdout, "", "{args:?}");
            assert!(!said.stderr.contains("step 1/"), "{args:?} trained: {}", said.stderr);
            let after = self.tree();
            let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
            assert!(new.is_empty(), "{args:?} left {new:?}");
            assert!(after == before, "{args:?} changed a file");
            said
        };
        refuse(&["--out", "deep/run"]);
        refuse(&[])
    }

    /// Every file and folder, with its content.
    pub fn tree(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        tree(self.dir.path())
    }
}

/// Every file and folder below `root`, with its content.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut tree = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs_err::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
                tree.insert(path, Vec::new());
            } else {
                let content = fs_err::read(&path).unwrap();
                tree.insert(path, content);
            }
        }
    }
    tree
}

/// What the program said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn of(output: Output) -> Said {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The exit code, and words that stderr must hold.
    #[track_caller]
    pub fn must(&self, code: i32, words: &[&str]) -> &Said {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in: {}", self.stderr);
        }
        self
    }

    /// Stdout as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// Everything of a finished run that a resume must not change, to the bit.
#[derive(Clone, Debug, PartialEq)]
pub struct Result {
    pub losses: Vec<(u64, u64)>,
    /// Step, loss, BLEU-4, share of right answers.
    pub evals: Vec<(u64, [u64; 3])>,
    /// Scores of each of them, where it has some; written so that every bit counts.
    pub scores: Vec<String>,
    pub weights: Vec<u8>,
}

impl Result {
    pub fn of(run: &Path) -> Result {
        let losses = plimsoll_watch::losses(&run.join("journal.jsonl")).unwrap();
        let summary = fs_err::read_to_string(run.join("summary.json")).unwrap();
        let evals = Summary::from_json(&summary).unwrap().evals;
        let bits = |x: Option<f64>| x.unwrap_or(f64::NAN).to_bits();
        Result {
            losses: losses.into_iter().map(|(step, loss)| (step, loss.to_bits())).collect(),
            evals: evals.iter().map(|e| (e.step, [e.loss.to_bits(), bits(e.bleu), bits(e.exact)])).collect(),
            scores: evals.iter().map(|e| format!("{:?}", e.scores)).collect(),
            weights: ["model", "adapter_model"]
                .iter()
                .find_map(|name| fs_err::read(run.join(format!("model/{name}.safetensors"))).ok())
                .expect("a model, or an adapter"),
        }
    }

    /// Says where two results part, instead of printing both.
    #[track_caller]
    pub fn must_equal(&self, other: &Result, told: &str) {
        assert_eq!(self.losses.len(), other.losses.len(), "{told}: number of steps");
        for (a, b) in self.losses.iter().zip(&other.losses) {
            assert_eq!(
                a,
                b,
                "{told}: the losses part at step {}: {} and {}",
                a.0,
                f64::from_bits(a.1),
                f64::from_bits(b.1)
            );
        }
        assert_eq!(self.evals, other.evals, "{told}: evaluations");
        assert_eq!(self.scores, other.scores, "{told}: scores");
        assert!(self.weights == other.weights, "{told}: the weights differ");
    }

    /// The same, where the journal could not be written for a while: the losses that it has are equal.
    #[track_caller]
    pub fn must_equal_as_far_as_noted(&self, other: &Result, told: &str) {
        let noted = |step: u64| self.losses.iter().any(|(done, _)| *done == step);
        let losses = other.losses.iter().copied().filter(|(step, _)| noted(*step)).collect();
        let Result { evals, scores, weights, .. } = other.clone();
        self.must_equal(&Result { losses, evals, scores, weights }, told);
    }
}

/// The Python with transformers, or why there is none.
pub fn python() -> std::result::Result<PathBuf, String> {
    let path = match std::env::var_os("PLIMSOLL_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("no Python at `{}`; scripts/test makes one", path.display())),
    }
}
