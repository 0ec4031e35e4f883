//! Why there is no estimate. A fact each, with what was expected and what was found.

use crate::knob::Knob;

/// Why a model or a setting has no estimate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EstimateError {
    /// A model type that we have no formulas for.
    #[error("model type `{found}` is not known; known are {known}; give its shape by hand ({needed})")]
    UnknownModelType {
        /// What the config says.
        found: String,
        /// The types that are read.
        known: String,
        /// What a description by hand consists of.
        needed: String,
    },
    /// A config without what its type needs.
    #[error("the config of a `{model_type}` model lacks `{}`", keys.join("`, `"))]
    MissingKeys {
        /// Its type.
        model_type: String,
        /// The keys, all of them.
        keys: Vec<String>,
    },
    /// A key whose value cannot be.
    #[error("`{key}` of the config: expected {expected}, found `{found}`")]
    BadKey {
        /// Which.
        key: String,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A description by hand that contradicts itself.
    #[error("{given} parameters are given, but the shape alone has {computed}")]
    TooFewParams {
        /// As given.
        given: u64,
        /// By the shape.
        computed: u64,
    },
    /// A knob with a value that it cannot have.
    #[error("`{knob}`: expected {expected}, found `{found}`")]
    BadSetting {
        /// Which.
        knob: Knob,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Parameters offloaded below stage 3.
    #[error("`offload_param` is valid only with stage 3, found stage {stage}")]
    OffloadNeedsStage3 {
        /// The stage.
        stage: u8,
    },
    /// Optimizer state offloaded without ZeRO.
    #[error("`offload_optimizer` is valid only with stage 1 to 3, found stage {stage}")]
    OffloadNeedsZero {
        /// The stage.
        stage: u8,
    },
    /// A stage that there is not.
    #[error("there is no ZeRO stage {stage}; expected 0 to 3")]
    NoSuchStage {
        /// The stage.
        stage: u64,
    },
    /// Batch numbers that DeepSpeed refuses.
    #[error("train_batch_size {train} != {micro} * {accumulation} * {world}")]
    BatchMismatch {
        /// `train_batch_size`.
        train: u64,
        /// `train_micro_batch_size_per_gpu`.
        micro: u64,
        /// `gradient_accumulation_steps`.
        accumulation: u64,
        /// Ranks.
        world: u64,
    },
}
