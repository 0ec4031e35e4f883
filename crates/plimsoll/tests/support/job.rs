//! A random job: its model, its data and its flags.

use std::path::{Path, PathBuf};

use super::draw::Draw;
use super::files;

/// Weight updates of a drawn job: one before the first evaluation and checkpoint, and one behind.
const STEPS: usize = 3;
/// Updates between evaluations and between checkpoints of a drawn job.
const EVERY: usize = 2;
/// A step costs at most so many operations, so that all jobs together take about half a minute.
const MOST_FLOPS: f64 = 8e9;

/// How the tokenizer cuts texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    WordLevel,
    Unigram,
}

/// What `--ram` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Nothing: what the machine can give.
    Machine,
    /// More than enough.
    Generous,
    /// A little more than the smallest plan.
    Tight,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    pub number: u64,
    pub d_model: usize,
    pub d_kv: usize,
    pub heads: usize,
    pub d_ff: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
    pub gated: bool,
    pub tied: bool,
    pub vocab: usize,
    pub words: Words,
    pub source_len: usize,
    pub target_len: usize,
    pub rows: usize,
    pub parquet: bool,
    pub batch: usize,
    pub micro_batch: Option<usize>,
    pub recompute: Option<&'static str>,
    pub optimizer: &'static str,
    pub clip: bool,
    pub eval: bool,
    pub shuffle: bool,
    pub loader_threads: usize,
    pub threads: usize,
    pub budget: Budget,
    /// Weights come from a folder that a run has written, not from the seed.
    pub from_weights: bool,
    pub steps: usize,
    pub eval_every: usize,
    pub save_every: usize,
}

const OPTIMIZERS: [&str; 5] = [
    r#"{ name = "adamw", lr = 1e-3 }"#,
    r#"{ name = "adafactor", lr = 1e-3 }"#,
    r#"{ name = "adafactor", lr = 1e-3, beta1 = 0.9 }"#,
    r#"{ name = "sgd", lr = 1e-2 }"#,
    r#"{ name = "sgd", lr = 1e-2, momentum = 0.9 }"#,
];

impl Job {
    /// The job of a number; drawn again until it is affordable.
    pub fn draw(number: u64) -> Job {
        let mut draw = Draw::new(0x9111_5011 ^ (number << 32));
        loop {
            let job = Job::any(number, &mut draw);
            if job.flops() <= MOST_FLOPS {
                return job;
            }
        }
    }

    fn any(number: u64, draw: &mut Draw) -> Job {
        let batch = draw.within(1..=16);
        let divisors: Vec<usize> = (1..=batch).filter(|n| batch.is_multiple_of(*n)).collect();
        let d_model = 8 * draw.within(4..=32);
        Job {
            number,
            d_model,
            d_kv: *draw.one_of(&[8, 16, 32, 64]),
            heads: draw.within(1..=4),
            d_ff: d_model * draw.within(1..=4),
            encoder_layers: draw.within(1..=4),
            decoder_layers: draw.within(1..=4),
            gated: draw.once_in(2),
            tied: draw.once_in(2),
            vocab: draw.within(100..=8000),
            words: *draw.one_of(&[Words::WordLevel, Words::Unigram]),
            source_len: draw.within(8..=128),
            target_len: draw.within(8..=128),
            rows: draw.within(20..=1500),
            parquet: draw.once_in(2),
            batch,
            micro_batch: draw.once_in(2).then(|| *draw.one_of(&divisors)),
            recompute: *draw.one_of(&[None, None, Some("all"), Some("none"), Some("1")]),
            optimizer: draw.one_of::<&str>(&OPTIMIZERS),
            clip: draw.once_in(2),
            eval: !draw.once_in(3),
            shuffle: !draw.once_in(4),
            loader_threads: draw.within(1..=3),
            threads: draw.within(1..=2),
            budget: *draw.one_of(&[Budget::Machine, Budget::Machine, Budget::Generous, Budget::Tight]),
            from_weights: draw.once_in(8),
            steps: STEPS,
            eval_every: EVERY,
            save_every: EVERY,
        }
    }

    /// A job of T5-small's size: hundreds of MiB, where a share of the plan weighs more than what is fixed.
    pub fn t5_small(number: u64) -> Job {
        Job {
            d_model: 512,
            d_kv: 64,
            heads: 8,
            d_ff: 2048,
            encoder_layers: 6,
            decoder_layers: 6,
            gated: false,
            tied: true,
            vocab: 32128,
            words: Words::Unigram,
            source_len: 64,
            target_len: 64,
            batch: 2,
            micro_batch: None,
            recompute: None,
            optimizer: OPTIMIZERS[1],
            clip: false,
            eval: true,
            threads: 2,
            budget: Budget::Machine,
            from_weights: false,
            steps: 2,
            ..Job::draw(number)
        }
    }

    /// A small job that evaluates after every step and saves after every twentieth.
    pub fn of_steps(number: u64, steps: usize) -> Job {
        Job {
            d_model: 32,
            d_kv: 8,
            heads: 2,
            d_ff: 64,
            encoder_layers: 2,
            decoder_layers: 2,
            vocab: 500,
            source_len: 16,
            target_len: 16,
            rows: 300,
            batch: 4,
            micro_batch: Some(2),
            recompute: None,
            eval: true,
            budget: Budget::Generous,
            from_weights: false,
            steps,
            eval_every: 1,
            save_every: 20,
            ..Job::draw(number)
        }
    }

    /// Evaluations of the whole run: the last step is always followed by one.
    pub fn evaluations(&self) -> usize {
        if self.eval { self.steps.div_ceil(self.eval_every) } else { 0 }
    }

    /// Operations of one update, about.
    fn flops(&self) -> f64 {
        let attention = 4 * self.d_model * self.d_kv * self.heads;
        let forward = self.d_model * self.d_ff * if self.gated { 3 } else { 2 };
        let encoder = self.encoder_layers * (attention + forward) * self.source_len;
        let decoder = (self.decoder_layers * (2 * attention + forward) + self.d_model * self.vocab) * self.target_len;
        6.0 * (self.batch * (encoder + decoder)) as f64
    }

    /// Writes model and data into `dir`.
    pub fn write(&self, dir: &Path) {
        files::model_folder(self, &self.model(dir));
        let write = if self.parquet { files::write_parquet } else { files::write_jsonl };
        write(&self.data(dir), &files::pairs(self, self.rows, self.number));
        write(&self.eval_data(dir), &files::pairs(self, 5, self.number + 1));
    }

    pub fn model(&self, dir: &Path) -> PathBuf {
        dir.join("model")
    }

    pub fn data(&self, dir: &Path) -> PathBuf {
        dir.join(if self.parquet { "train.parquet" } else { "train.jsonl" })
    }

    fn eval_data(&self, dir: &Path) -> PathBuf {
        dir.join(if self.parquet { "eval.parquet" } else { "eval.jsonl" })
    }

    /// The flags of `plan` and `train`, without a budget; `model` is the folder to start from.
    pub fn flags(&self, dir: &Path, model: &Path) -> Flags {
        let mut flags = Flags::default();
        flags.set("--model", model.display());
        flags.set("--init", if model == self.model(dir) { "random" } else { "weights" });
        flags.set("--data", self.data(dir).display());
        flags.set("--max-source", self.source_len);
        flags.set("--max-target", self.target_len);
        flags.set("--effective-batch", self.batch);
        flags.set("--steps", self.steps);
        flags.set("--save-every", self.save_every);
        flags.set("--keep", 1);
        flags.set("--optimizer", self.optimizer);
        flags.set("--threads", self.threads);
        flags.set("--loader-threads", self.loader_threads);
        if let Some(micro) = self.micro_batch {
            flags.set("--micro-batch", micro);
        }
        if let Some(recompute) = self.recompute {
            flags.set("--recompute", recompute);
        }
        if self.clip {
            flags.set("--clip-norm", 1.0);
        }
        if self.eval {
            flags.set("--eval", self.eval_data(dir).display());
            flags.set("--eval-every", self.eval_every);
        }
        if !self.shuffle {
            flags.words.push(("--no-shuffle".into(), None));
        }
        flags
    }
}

/// Flags with their values, each at most once.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    words: Vec<(String, Option<String>)>,
}

impl Flags {
    /// Sets a flag, in place of what it was.
    pub fn set(&mut self, flag: &str, value: impl ToString) {
        self.drop(flag);
        self.words.push((flag.into(), Some(value.to_string())));
    }

    /// Takes a flag away.
    pub fn drop(&mut self, flag: &str) {
        self.words.retain(|(name, _)| name != flag);
    }

    /// As the program gets them.
    pub fn args(&self) -> impl Iterator<Item = &str> {
        self.words.iter().flat_map(|(flag, value)| std::iter::once(flag.as_str()).chain(value.as_deref()))
    }
}
