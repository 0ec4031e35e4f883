//! A random job: its model, its data and its flags.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use plimsoll_plan::dtype::Dtype;

use super::draw::Draw;
use super::files;
use super::flags::Flags;
use super::model::{DECODERS, Family, Model, write_weights};
use super::tokenizer::Words;

/// Weight updates of a small job: one before the first evaluation and checkpoint, and one behind; of a large one without.
const STEPS: usize = 3;
const LARGE_STEPS: usize = 2;
/// Updates between evaluations and between checkpoints of a drawn job.
const EVERY: usize = 2;
/// A step costs at most so many operations, so that all jobs together take a few minutes.
const MOST_FLOPS: f64 = 8e9;
/// Numbers of a large model that is trained whole (checkpoints are written and synced), and of one that gets factors.
const TRAINED: RangeInclusive<usize> = 12_000_000..=20_000_000;
const WITH_FACTORS: RangeInclusive<usize> = 40_000_000..=70_000_000;
/// Numbers of a small model, at most.
const SMALL: usize = 8_000_000;

/// What `--ram` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Nothing: what the machine can give.
    Machine,
    /// More than enough.
    Generous,
    /// So much of the way from the smallest plan to the one without a budget.
    Between(f64),
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pairs,
    Chat,
    Text,
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Train {
    All,
    /// The first block and the table stay as they are.
    Freeze,
    /// Rank, whether every product of a block has factors, dropout of their input.
    Lora {
        r: usize,
        everywhere: bool,
        dropout: bool,
    },
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    pub number: u64,
    pub model: Model,
    /// The form of the weights in the model's folder; none: they are drawn.
    pub weights: Option<Dtype>,
    pub train: Train,
    pub base: Option<&'static str>,
    pub precision: Option<&'static str>,
    pub words: Words,
    /// ChatML, with the assistant's part marked or not; none: no template.
    pub template: Option<bool>,
    pub kind: Kind,
    /// Whether the job says what a row is.
    pub says_kind: bool,
    pub packed: bool,
    pub cut: bool,
    /// Tokens of source and target; of a decoder's sample both are the same.
    pub lengths: (usize, usize),
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
    pub steps: usize,
    pub eval_every: usize,
    /// None: the last step alone is saved.
    pub save_every: Option<usize>,
}

pub const OPTIMIZERS: [&str; 8] = [
    r#"{ name = "adamw", lr = 1e-3 }"#,
    r#"{ name = "adafactor", lr = 1e-3 }"#,
    r#"{ name = "adafactor", lr = 1e-3, beta1 = 0.9 }"#,
    r#"{ name = "sgd", lr = 1e-2 }"#,
    r#"{ name = "sgd", lr = 1e-2, momentum = 0.9 }"#,
    r#"{ name = "adamw8bit", lr = 1e-3 }"#,
    r#"{ name = "lion", lr = 1e-4 }"#,
    r#"{ name = "adamw", lr = 1e-3, weight_decay = 0.01 }"#,
];

/// Most jobs are of the size where a share of the plan weighs more than what is fixed, as those of real use are.
fn large(number: u64) -> bool {
    number % 7 > 1
}

impl Job {
    /// The job of a number; drawn again until it is affordable. The family, what is trained and whether it is large go by
    /// the number, so that each meets each.
    pub fn draw(number: u64) -> Job {
        let mut draw = Draw::new(0x9111_5011 ^ (number << 32));
        loop {
            let job = Job::any(number, &mut draw);
            let sizes = match job.train {
                _ if !large(number) => 0..=SMALL,
                Train::Lora { .. } => WITH_FACTORS,
                Train::All | Train::Freeze => TRAINED,
            };
            if sizes.contains(&job.model.params()) && job.flops() <= MOST_FLOPS {
                return job;
            }
        }
    }

    fn any(number: u64, draw: &mut Draw) -> Job {
        let (large, nth) = (large(number), number as usize / 7);
        let family = match number % 4 {
            0 => Family::T5,
            _ => DECODERS[(number as usize - number as usize / 4) % 5],
        };
        let t5 = family == Family::T5;
        let model = if t5 { Model::t5(draw, large) } else { Model::decoder(family, draw, large) };
        let train = match nth % 5 {
            0 | 1 => Train::All,
            2 => Train::Freeze,
            _ => Train::Lora { r: draw.within(1..=16), everywhere: draw.once_in(2), dropout: draw.once_in(3) },
        };
        let lora = matches!(train, Train::Lora { .. });
        let drawn = !lora && draw.once_in(2);
        let weights = (!drawn).then(|| *draw.one_of(&[Dtype::F32, Dtype::Bf16]));
        let kind = if t5 { Kind::Pairs } else { *draw.one_of(&[Kind::Chat, Kind::Text]) };
        let words = if t5 { *draw.one_of(&[Words::WordLevel, Words::Unigram]) } else { Words::Bpe };
        let batch = draw.within(1..=if large { 8 } else { 16 });
        let divisors: Vec<usize> = (1..=batch).filter(|n| batch.is_multiple_of(*n)).collect();
        let tokens = draw.within(if large { 16..=128 } else { 24..=384 });
        let pinned = draw.once_in(3);
        let fraction = draw.within(0..=100) as f64 / 100.0;
        Job {
            number,
            weights,
            train,
            base: if lora { *draw.one_of(&[None, Some("f32"), Some("int8"), Some("nf4"), Some("nf4")]) } else { None },
            precision: (!lora && draw.once_in(3)).then_some("bf16"),
            words,
            template: (kind == Kind::Chat && !draw.once_in(3)).then(|| draw.once_in(2)),
            kind,
            says_kind: draw.once_in(2),
            packed: !t5 && draw.once_in(2),
            cut: draw.once_in(3),
            lengths: if t5 { (draw.within(8..=128), draw.within(8..=tokens)) } else { (tokens, tokens) },
            rows: draw.within(20..=1500),
            parquet: draw.once_in(2),
            batch,
            micro_batch: pinned.then(|| *draw.one_of(&divisors)),
            recompute: if pinned { *draw.one_of(&[None, Some("all"), Some("none"), Some("1")]) } else { None },
            optimizer: draw.one_of::<&str>(&OPTIMIZERS),
            clip: draw.once_in(2),
            eval: !draw.once_in(3),
            shuffle: !draw.once_in(4),
            loader_threads: draw.within(1..=if large { 2 } else { 3 }),
            threads: draw.within(1..=2),
            budget: match draw.within(0..=4) {
                0 => Budget::Machine,
                1 => Budget::Generous,
                2 => Budget::Between(0.0),
                _ => Budget::Between(fraction),
            },
            steps: if large { LARGE_STEPS } else { STEPS },
            eval_every: EVERY,
            save_every: draw.once_in(2).then_some(EVERY),
            model,
        }
    }

    /// A job of T5-small's size: hundreds of MiB, where a share of the plan weighs more than what is fixed.
    pub fn t5_small(number: u64) -> Job {
        let model = Model {
            family: Family::T5,
            vocab: 32128,
            d_model: 512,
            d_head: 64,
            heads: 8,
            kv_heads: 8,
            d_ff: 2048,
            layers: 6,
            decoder_layers: 6,
            gated: false,
            tied: true,
            positions: 0,
            window: None,
        };
        Job {
            number,
            model,
            weights: None,
            train: Train::All,
            base: None,
            precision: None,
            words: Words::Unigram,
            lengths: (64, 64),
            batch: 2,
            micro_batch: None,
            recompute: None,
            optimizer: OPTIMIZERS[1],
            clip: false,
            eval: true,
            threads: 2,
            budget: Budget::Machine,
            steps: 2,
            ..Job::draw(0)
        }
    }

    /// A small job that evaluates after every step and saves after every twentieth.
    pub fn of_steps(number: u64, steps: usize) -> Job {
        let small = Job::draw(0);
        let model = Model {
            d_model: 32,
            d_head: 8,
            heads: 2,
            d_ff: 64,
            layers: 2,
            decoder_layers: 2,
            vocab: 500,
            ..small.model.clone()
        };
        Job {
            number,
            model,
            weights: None,
            train: Train::All,
            precision: None,
            lengths: (16, 16),
            rows: 300,
            batch: 4,
            micro_batch: Some(2),
            recompute: None,
            eval: true,
            budget: Budget::Generous,
            steps,
            eval_every: 1,
            save_every: Some(20),
            ..small
        }
    }

    /// Evaluations of the whole run: the last step is always followed by one.
    pub fn evaluations(&self) -> usize {
        if self.eval { self.steps.div_ceil(self.eval_every) } else { 0 }
    }

    /// Operations of one update, about.
    fn flops(&self) -> f64 {
        let m = &self.model;
        let table = m.vocab * m.d_model;
        let blocks = m.params() - table * if m.tied { 1 } else { 2 };
        let (source, target) = self.lengths;
        let tokens = if m.family == Family::T5 { source.max(target) } else { source };
        6.0 * (self.batch * (blocks * tokens + table * target)) as f64
    }

    /// Writes model and data into `dir`.
    pub fn write(&self, dir: &Path) {
        files::model_folder(self, &dir.join("config"));
        if let Some(dtype) = self.weights {
            write_weights(&dir.join("config"), &dir.join("model"), dtype);
        }
        let write = if self.parquet { files::write_parquet } else { files::write_jsonl };
        write(&self.data(dir), &files::rows(self, self.rows, self.number));
        write(&self.eval_data(dir), &files::rows(self, 4, self.number + 1));
    }

    /// The folder to start from.
    pub fn model(&self, dir: &Path) -> PathBuf {
        dir.join(if self.weights.is_some() { "model" } else { "config" })
    }

    /// The file of weights that the run leaves.
    pub fn result(&self) -> &'static str {
        match self.train {
            Train::Lora { .. } => "model/adapter_model.safetensors",
            Train::All | Train::Freeze => "model/model.safetensors",
        }
    }

    pub fn data(&self, dir: &Path) -> PathBuf {
        dir.join(if self.parquet { "train.parquet" } else { "train.jsonl" })
    }

    fn eval_data(&self, dir: &Path) -> PathBuf {
        dir.join(if self.parquet { "eval.parquet" } else { "eval.jsonl" })
    }

    /// The flags of `plan` and `train`, without a budget.
    pub fn flags(&self, dir: &Path) -> Flags {
        let mut flags = Flags::default();
        flags.set("--model", self.model(dir).display());
        flags.set("--init", if self.weights.is_some() { "weights" } else { "random" });
        flags.set("--train", self.train.said(&self.model));
        self.base.into_iter().for_each(|base| flags.set("--base", base));
        self.precision.into_iter().for_each(|precision| flags.set("--precision", precision));
        self.data_flags(dir, &mut flags);
        flags.set("--effective-batch", self.batch);
        flags.set("--steps", self.steps);
        flags.set("--save-every", self.save_every.unwrap_or(0));
        if self.save_every.is_none() {
            flags.set("--save-minutes", 0);
        }
        flags.set("--keep", 1);
        flags.set("--optimizer", self.optimizer);
        flags.set("--threads", self.threads);
        flags.set("--loader-threads", self.loader_threads);
        self.micro_batch.into_iter().for_each(|micro| flags.set("--micro-batch", micro));
        self.recompute.into_iter().for_each(|recompute| flags.set("--recompute", recompute));
        if self.clip {
            flags.set("--clip-norm", 1.0);
        }
        if self.eval {
            flags.set("--eval", self.eval_data(dir).display());
            flags.set("--eval-every", self.eval_every);
        }
        flags
    }

    fn data_flags(&self, dir: &Path, flags: &mut Flags) {
        flags.set("--data", self.data(dir).display());
        let kind = match self.kind {
            Kind::Pairs => "pairs",
            Kind::Chat => "chat",
            Kind::Text => "text",
        };
        if self.says_kind {
            flags.set("--kind", kind);
        }
        match self.kind {
            Kind::Pairs => {
                flags.set("--max-source", self.lengths.0);
                flags.set("--max-target", self.lengths.1);
            }
            Kind::Chat | Kind::Text => flags.set("--max-len", self.lengths.0),
        }
        if self.packed {
            flags.set("--packed", "on");
        }
        if self.cut {
            flags.set("--long", "cut");
        }
        if !self.shuffle {
            flags.bare("--no-shuffle");
        }
    }
}

impl Train {
    /// As `--train` says it.
    fn said(self, model: &Model) -> String {
        let (first, table, all): (&str, &str, &[&str]) = match model.family {
            Family::T5 => ("encoder.block.0", "shared", &["q", "k", "v", "o", "wo"]),
            Family::Gpt2 => ("transformer.h.0", "transformer.wte", &["c_attn", "c_proj", "c_fc"]),
            _ => (
                "model.layers.0",
                "model.embed_tokens",
                &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            ),
        };
        match self {
            Train::All => "all".into(),
            Train::Freeze => format!("{{ freeze = [\"{first}\", \"{table}\"] }}"),
            Train::Lora { r, everywhere, dropout } => {
                let targets = if everywhere { format!(", targets = {all:?}") } else { String::new() };
                let dropout = if dropout { ", dropout = 0.1" } else { "" };
                format!("{{ lora = {{ r = {r}{dropout}{targets} }} }}")
            }
        }
    }
}
