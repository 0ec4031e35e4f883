//! All that an estimate depends on, as typed fields.
//!
//! [`Terms::new`] has the defaults of the libraries, the caller sets what it knows of the trainer, and
//! [`Terms::with`] lays a run's settings over it. A knob whose value cannot be is refused by name.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::EstimateError;
use super::loader::{Dataset, Loader, Rows};
use super::optimizer::Optimizer;
use super::precision::{Device, Precision};
use super::runtime::{Runtime, Software};
use super::shape::{Family, Shape, Trainable};
use super::vits;
use super::zero::{Offload, Zero};
use crate::Launcher;
use crate::knob::{Knob, Settings, Value};

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// With a matrix of scores.
    Eager,
    /// `scaled_dot_product_attention`: fused where it can be.
    Sdpa,
    /// Fused.
    Flash,
}

impl Attention {
    fn from_word(word: &str) -> Option<Attention> {
        match word {
            "eager" => Some(Attention::Eager),
            "sdpa" => Some(Attention::Sdpa),
            "flash" | "flash_attention_2" | "flash_attention_3" => Some(Attention::Flash),
            _ => None,
        }
    }
}

/// What is trained, how, with what around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// The model.
    pub shape: Shape,
    /// What of it is trained.
    pub trainable: Trainable,
    /// Where it computes.
    pub device: Device,
    /// Samples per rank and pass.
    pub batch: u64,
    /// The same for validation; as `batch` where not set.
    pub eval_batch: Option<u64>,
    /// Micro-batches per update.
    pub accumulation: u64,
    /// Tokens of a sample, or seconds of a clip.
    pub length: u64,
    /// Tokens of a target, for encoder-decoders.
    pub target_length: u64,
    /// Ranks on this machine.
    pub processes: u64,
    /// Number format.
    pub precision: Precision,
    /// How attention is computed.
    pub attention: Attention,
    /// Whether layers are computed again in the backward pass.
    pub checkpointing: bool,
    /// Whether the model drops out while training.
    pub dropout: bool,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// DeepSpeed.
    pub zero: Zero,
    /// Loader processes.
    pub loader: Loader,
    /// The dataset in memory.
    pub dataset: Dataset,
    /// Python and its libraries.
    pub runtime: Runtime,
    /// What starts the ranks.
    pub launcher: Launcher,
    /// Whether the run goes on from a checkpoint.
    pub resume: bool,
    /// Whether the card's allocator grows its segments.
    pub expandable: bool,
}

impl Terms {
    /// One rank, batch 1, full precision, AdamW on all parameters, no workers.
    pub fn new(shape: Shape, device: Device, software: Software) -> Terms {
        Terms {
            shape,
            trainable: Trainable::All,
            device,
            batch: 1,
            eval_batch: None,
            accumulation: 1,
            length: 1,
            target_length: 1,
            processes: 1,
            precision: Precision::Full,
            attention: Attention::Sdpa,
            checkpointing: false,
            dropout: false,
            optimizer: Optimizer::AdamW,
            zero: Zero::default(),
            loader: Loader::default(),
            dataset: Dataset { bytes: Bytes::ZERO, rows: Rows::Mapped },
            runtime: Runtime::of(software),
            launcher: Launcher::None,
            resume: false,
            expandable: false,
        }
    }

    /// A run's settings laid over what is known of its trainer.
    pub fn from_settings(settings: &Settings, trainer: Terms) -> Result<Terms, EstimateError> {
        trainer.with(settings)
    }

    /// These terms with `settings` laid over them.
    pub fn with(mut self, settings: &Settings) -> Result<Terms, EstimateError> {
        for (&knob, value) in settings {
            self.set(knob, value)?;
        }
        self.zero.check()?;
        Ok(self)
    }

    fn set(&mut self, knob: Knob, value: &Value) -> Result<(), EstimateError> {
        let bad = |expected| EstimateError::BadSetting { knob, expected, found: value.to_string() };
        let count = || value.count().ok_or_else(|| bad("a whole number"));
        let positive = || count().and_then(|n| if n > 0 { Ok(n) } else { Err(bad("a number of at least 1")) });
        let on = || value.on().ok_or_else(|| bad("`true` or `false`"));
        let word = || value.to_string();
        match knob {
            Knob::Batch => self.batch = positive()?,
            Knob::EvalBatch => self.eval_batch = Some(positive()?),
            Knob::Accumulation => self.accumulation = positive()?,
            Knob::Workers => self.loader.workers = count()?,
            Knob::Prefetch => self.loader.prefetch = positive()?,
            Knob::PinMemory => self.loader.pin = on()?,
            Knob::PersistentWorkers => self.loader.persistent = on()?,
            Knob::Precision => {
                let known = "`fp32`, `fp16-mixed`, `bf16-mixed`, `fp16` or `bf16`";
                self.precision = Precision::from_word(&word()).ok_or_else(|| bad(known))?;
            }
            Knob::Checkpointing => self.checkpointing = on()?,
            Knob::Length => {
                let length = positive()?;
                let as_long = self.target_length == self.length;
                self.target_length = if as_long { length } else { self.target_length.min(length) };
                self.length = length;
            }
            Knob::ZeroStage => {
                let stage = count()?;
                self.zero.stage =
                    u8::try_from(stage).ok().filter(|stage| *stage <= 3).ok_or(EstimateError::NoSuchStage { stage })?;
            }
            Knob::OffloadOptimizer => {
                let place = Offload::from_word(&word()).ok_or_else(|| bad("`none`, `cpu` or `nvme`"))?;
                self.zero.offload_optimizer = place;
            }
            Knob::OffloadParams => {
                let place = Offload::from_word(&word()).ok_or_else(|| bad("`none`, `cpu` or `nvme`"))?;
                self.zero.offload_params = place;
            }
            Knob::Processes => self.processes = positive()?,
            Knob::Optimizer => {
                let known = "`adamw`, `adafactor`, `sgd`, `sgd-momentum`, `lion` or `adamw8bit`";
                self.optimizer = Optimizer::from_word(&word()).ok_or_else(|| bad(known))?;
            }
            Knob::Attention => {
                self.attention = Attention::from_word(&word()).ok_or_else(|| bad("`eager`, `sdpa` or `flash`"))?;
            }
            Knob::Segments => self.expandable = word() == "expandable",
            Knob::SanitySteps => self.loader.sanity = count()? > 0,
            Knob::Resume => self.resume = true,
            Knob::LoraRank => {
                let modules = if let Trainable::Lora { modules, .. } = self.trainable { modules } else { 2 };
                self.trainable = Trainable::Lora { rank: positive()?, modules };
            }
            Knob::LoraModules => {
                let rank = if let Trainable::Lora { rank, .. } = self.trainable { rank } else { 8 };
                self.trainable = Trainable::Lora { rank, modules: positive()? };
            }
            // Disk, not memory.
            Knob::SaveEvery | Knob::Output => {}
        }
        Ok(())
    }

    /// Samples of a validation pass.
    pub fn eval(&self) -> u64 {
        self.eval_batch.unwrap_or(self.batch)
    }

    /// Bytes of a sample on its way, where the caller does not know: ids, mask and labels of 8 bytes a token.
    pub fn sample(&self) -> Bytes {
        if self.loader.sample > Bytes::ZERO {
            return self.loader.sample;
        }
        match self.shape.family {
            Family::Vits => vits::sample_bytes(self.length),
            Family::CnnLstm(model) => model.sample_bytes(),
            Family::T5 | Family::GatedT5 => {
                Bytes(self.length.saturating_mul(16) + self.target_length.saturating_mul(8))
            }
            _ => Bytes(self.length.saturating_mul(24)),
        }
    }
}
