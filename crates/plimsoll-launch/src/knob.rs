//! What can be set of a training, under one name for all trainers.
//!
//! A trainer file says where each goes (`--data.batch_size`, `per_device_train_batch_size`, a key of a DeepSpeed file).
//! What a knob costs is the business of `estimate`, which may be turned is that of `ladder`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// Samples per rank and forward pass.
    Batch,
    /// The same for validation.
    EvalBatch,
    /// Micro-batches per weight update.
    Accumulation,
    /// Loader processes per rank.
    Workers,
    /// Batches that each loader process holds ready.
    Prefetch,
    /// Whether batches are copied to pinned memory.
    PinMemory,
    /// Whether loader processes live over epochs.
    PersistentWorkers,
    /// `fp32`, `fp16-mixed`, `bf16-mixed`, `fp16` or `bf16`.
    Precision,
    /// Whether activations are computed twice instead of kept.
    Checkpointing,
    /// Tokens, or seconds of sound, of a sample at most.
    Length,
    /// DeepSpeed's ZeRO stage, 0 to 3.
    ZeroStage,
    /// Where optimizer state lies: `none`, `cpu` or `nvme`.
    OffloadOptimizer,
    /// Where parameters lie: `none`, `cpu` or `nvme` (stage 3 alone).
    OffloadParams,
    /// Ranks on this machine.
    Processes,
    /// The optimizer, by the trainer's own name.
    Optimizer,
    /// Whether attention keeps its matrix: `eager`, `sdpa` or `flash`.
    Attention,
    /// `expandable` or `default`: how the card's allocator cuts its segments.
    Segments,
    /// Validation batches before the first step.
    SanitySteps,
    /// Steps between checkpoints.
    SaveEvery,
    /// The checkpoint to go on from.
    Resume,
    /// Where the trainer writes.
    Output,
    /// The rank of LoRA's matrices.
    LoraRank,
    /// How many kinds of modules LoRA adapts.
    LoraModules,
}

impl Knob {
    /// All of them.
    pub const ALL: [Knob; 23] = [
        Knob::Batch,
        Knob::EvalBatch,
        Knob::Accumulation,
        Knob::Workers,
        Knob::Prefetch,
        Knob::PinMemory,
        Knob::PersistentWorkers,
        Knob::Precision,
        Knob::Checkpointing,
        Knob::Length,
        Knob::ZeroStage,
        Knob::OffloadOptimizer,
        Knob::OffloadParams,
        Knob::Processes,
        Knob::Optimizer,
        Knob::Attention,
        Knob::Segments,
        Knob::SanitySteps,
        Knob::SaveEvery,
        Knob::Resume,
        Knob::Output,
        Knob::LoraRank,
        Knob::LoraModules,
    ];

    /// Its name in trainer files, journals and flags.
    pub fn name(self) -> &'static str {
        match self {
            Knob::Batch => "batch",
            Knob::EvalBatch => "eval_batch",
            Knob::Accumulation => "accumulation",
            Knob::Workers => "workers",
            Knob::Prefetch => "prefetch",
            Knob::PinMemory => "pin_memory",
            Knob::PersistentWorkers => "persistent_workers",
            Knob::Precision => "precision",
            Knob::Checkpointing => "checkpointing",
            Knob::Length => "length",
            Knob::ZeroStage => "zero_stage",
            Knob::OffloadOptimizer => "offload_optimizer",
            Knob::OffloadParams => "offload_params",
            Knob::Processes => "processes",
            Knob::Optimizer => "optimizer",
            Knob::Attention => "attention",
            Knob::Segments => "segments",
            Knob::SanitySteps => "sanity_steps",
            Knob::SaveEvery => "save_every",
            Knob::Resume => "resume",
            Knob::Output => "output",
            Knob::LoraRank => "lora_rank",
            Knob::LoraModules => "lora_modules",
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a knob is set to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// On or off.
    On(bool),
    /// So many.
    Count(u64),
    /// A word.
    Word(String),
}

impl Value {
    /// The number, where it is one.
    pub fn count(&self) -> Option<u64> {
        match self {
            Value::Count(count) => Some(*count),
            Value::Word(word) => word.parse().ok(),
            Value::On(_) => None,
        }
    }

    /// On or off, where it is that; the words that Python and YAML use count.
    pub fn on(&self) -> Option<bool> {
        match self {
            Value::On(on) => Some(*on),
            Value::Count(0) => Some(false),
            Value::Count(1) => Some(true),
            Value::Count(_) => None,
            Value::Word(word) => match word.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true),
                "false" | "no" | "off" | "0" => Some(false),
                _ => None,
            },
        }
    }

    /// The word, where it is one.
    pub fn word(&self) -> Option<&str> {
        match self {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::On(on) => write!(f, "{on}"),
            Value::Count(count) => write!(f, "{count}"),
            Value::Word(word) => f.write_str(word),
        }
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<bool> for Value {
    fn from(on: bool) -> Value {
        Value::On(on)
    }
}

impl From<&str> for Value {
    fn from(word: &str) -> Value {
        Value::Word(word.to_string())
    }
}

/// What a training is set to; a knob that is not named has the trainer's default.
pub type Settings = BTreeMap<Knob, Value>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_written_as_it_is_named() {
        for knob in Knob::ALL {
            let written = serde_json::to_value(knob).unwrap();
            assert_eq!(written, serde_json::json!(knob.name()));
            assert_eq!(serde_json::from_value::<Knob>(written).unwrap(), knob);
        }
    }

    #[test]
    fn values_are_read_as_they_are_meant() {
        assert_eq!(Value::from("8").count(), Some(8));
        assert_eq!(Value::from("True").on(), Some(true));
        assert_eq!((Value::from(true).count(), Value::from(2).on()), (None, None));
    }
}
