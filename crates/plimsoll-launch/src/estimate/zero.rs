//! ZeRO: what each stage divides over the ranks, what offloading moves, and what is left where.
//!
//! Two sets of formulas. [`states`] is ours: bytes that are really held, without a fudge factor. [`deepspeed`] is what
//! DeepSpeed prints itself, its factor of 1.5 included, and is labelled as such. LoRA trains few parameters, so there is
//! little to divide: the whole point of `trainable` beside `params`.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::EstimateError;
use super::optimizer::Optimizer;
use super::precision::Precision;
use super::shape::{Shape, Trainable};

pub mod deepspeed;

/// Where something lies that a card need not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// On the card.
    #[default]
    None,
    /// In host memory.
    Cpu,
    /// On a disk, with a window in host memory.
    Nvme,
}

impl Offload {
    /// From the knob's word.
    pub fn from_word(word: &str) -> Option<Offload> {
        match word {
            "none" | "false" => Some(Offload::None),
            "cpu" => Some(Offload::Cpu),
            "nvme" => Some(Offload::Nvme),
            _ => None,
        }
    }
}

/// DeepSpeed's settings that move memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Zero {
    /// 0: not used.
    pub stage: u8,
    /// Where optimizer state and master weights lie.
    pub offload_optimizer: Offload,
    /// Where parameters lie.
    pub offload_params: Offload,
    /// Elements that are reduced together.
    pub reduce_bucket: u64,
    /// Whether a second bucket fills while one is sent.
    pub overlap: bool,
    /// Elements of parameters that stage 3 may hold gathered.
    pub max_live: u64,
    /// Whether host buffers are page-locked.
    pub pinned: bool,
}

impl Default for Zero {
    fn default() -> Zero {
        Zero {
            stage: 0,
            offload_optimizer: Offload::None,
            offload_params: Offload::None,
            reduce_bucket: 500_000_000,
            overlap: true,
            max_live: 1_000_000_000,
            pinned: true,
        }
    }
}

impl Zero {
    /// Whether DeepSpeed runs.
    pub fn active(&self) -> bool {
        self.stage > 0
    }

    /// Whether DeepSpeed would take these.
    pub fn check(&self) -> Result<(), EstimateError> {
        match (self.stage, self.offload_params, self.offload_optimizer) {
            (4.., _, _) => Err(EstimateError::NoSuchStage { stage: self.stage.into() }),
            (stage @ 0..=2, Offload::Cpu | Offload::Nvme, _) => Err(EstimateError::OffloadNeedsStage3 { stage }),
            (0, _, Offload::Cpu | Offload::Nvme) => Err(EstimateError::OffloadNeedsZero { stage: 0 }),
            _ => Ok(()),
        }
    }
}

/// What can be divided over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharded {
    /// Moments and master weights.
    OptimizerState,
    /// Gradients.
    Gradients,
    /// The weights themselves.
    Parameters,
}

/// What a stage divides. Stage 2 does not divide parameters, whatever guides say.
pub fn sharded(stage: u8) -> &'static [Sharded] {
    use Sharded::*;
    match stage {
        0 => &[],
        1 => &[OptimizerState],
        2 => &[OptimizerState, Gradients],
        _ => &[OptimizerState, Gradients, Parameters],
    }
}

/// Whether DeepSpeed accepts these batch numbers together.
pub fn check_batch(train: u64, micro: u64, accumulation: u64, world: u64) -> Result<(), EstimateError> {
    if Some(train) == micro.checked_mul(accumulation).and_then(|n| n.checked_mul(world)) {
        return Ok(());
    }
    Err(EstimateError::BatchMismatch { train, micro, accumulation, world })
}

/// What a model's state takes, of one rank on its card and of all ranks of a machine in host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct States {
    /// Weights, frozen ones too.
    pub weights: Bytes,
    /// LoRA's own weights.
    pub lora: Bytes,
    /// Gradients.
    pub gradients: Bytes,
    /// Moments.
    pub optimizer: Bytes,
    /// Full copies of half weights.
    pub master: Bytes,
    /// In host memory by offloading, all ranks together.
    pub host: Bytes,
    /// The page-locked part of that, as rounded by the allocator.
    pub host_pinned: Bytes,
}

/// What a rank of `ranks` holds; nothing is divided with one.
pub fn states(
    shape: &Shape,
    trainable: Trainable,
    optimizer: Optimizer,
    precision: Precision,
    zero: &Zero,
    ranks: u64,
) -> States {
    let (ranks, deepspeed) = (ranks.max(1), zero.active());
    let part = |what: Sharded, bytes: u64| {
        let bytes = if sharded(zero.stage).contains(&what) { bytes.div_ceil(ranks) } else { bytes };
        Bytes(bytes)
    };
    let each = precision.weight(deepspeed);
    let trained = shape.trainable(trainable);
    let lora = if matches!(trainable, Trainable::Lora { .. }) { trained } else { 0 };
    let moments = optimizer.state(shape, trainable, precision.state(deepspeed)).0;
    let mut states = States {
        weights: part(Sharded::Parameters, shape.params() * each),
        lora: part(Sharded::Parameters, lora * each),
        gradients: part(Sharded::Gradients, trained * each),
        optimizer: part(Sharded::OptimizerState, moments),
        master: part(Sharded::OptimizerState, trained * precision.master(deepspeed)),
        ..States::default()
    };
    if zero.offload_optimizer != Offload::None {
        // The CPU optimizer steps on full gradients, 4 bytes each; a disk keeps the rest and a window of it stays here.
        let whole = moments + trained * precision.master(deepspeed).max(4);
        let held = if zero.offload_optimizer == Offload::Nvme { whole / 10 } else { whole };
        states.host = Bytes(held + trained * 4);
        states.optimizer = Bytes::ZERO;
        states.master = Bytes::ZERO;
        if zero.stage >= 2 {
            states.gradients = Bytes::ZERO;
        }
        states.host_pinned = if zero.pinned { pinned(Bytes(trained * 4)) } else { Bytes::ZERO };
    }
    if zero.offload_params != Offload::None {
        let whole = Bytes((shape.params() + lora) * each);
        let held = if zero.offload_params == Offload::Nvme { Bytes(whole.0 / 10) } else { whole };
        states.host += held;
        states.weights = Bytes::ZERO;
        states.lora = Bytes::ZERO;
        states.host_pinned += if zero.pinned { pinned(held) } else { Bytes::ZERO };
    }
    states
}

/// What a page-locked block takes: PyTorch rounds each up to a power of two.
pub fn pinned(block: Bytes) -> Bytes {
    Bytes(if block.0 == 0 { 0 } else { block.0.checked_next_power_of_two().unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::vits;

    fn of(stage: u8, ranks: u64) -> States {
        let zero = Zero { stage, ..Zero::default() };
        states(&vits::medium(), Trainable::All, Optimizer::AdamW, Precision::Mixed, &zero, ranks)
    }

    #[test]
    fn one_rank_gains_nothing_from_any_stage() {
        let total = |s: States| s.weights.0 + s.gradients.0 + s.optimizer.0 + s.master.0;
        assert_eq!(total(of(1, 1)), total(of(3, 1)));
        assert_eq!(total(of(2, 1)), 16 * 70_400_000);
    }

    #[test]
    fn stage_two_divides_gradients_and_state_but_no_parameter() {
        assert_eq!(of(2, 4).weights, of(2, 1).weights);
        assert_eq!(of(2, 4).gradients.0 * 4, of(2, 1).gradients.0);
        assert_eq!(of(1, 4).gradients, of(1, 1).gradients);
        assert_eq!(of(3, 4).weights.0 * 4, of(3, 1).weights.0);
        assert_eq!(sharded(2), [Sharded::OptimizerState, Sharded::Gradients]);
    }

    #[test]
    fn offloading_parameters_needs_stage_three() {
        let zero = Zero { stage: 2, offload_params: Offload::Cpu, ..Zero::default() };
        assert_eq!(zero.check().unwrap_err().to_string(), "`offload_param` is valid only with stage 3, found stage 2");
        assert!(Zero { stage: 3, ..zero }.check().is_ok());
        assert!(Zero { stage: 0, offload_optimizer: Offload::Cpu, ..Zero::default() }.check().is_err());
    }

    #[test]
    fn offloaded_state_is_sixteen_bytes_a_parameter_in_host_memory() {
        let zero = Zero { stage: 2, offload_optimizer: Offload::Cpu, ..Zero::default() };
        let states = states(&vits::medium(), Trainable::All, Optimizer::AdamW, Precision::Mixed, &zero, 8);
        assert_eq!(states.host, Bytes(16 * 70_400_000));
        assert_eq!((states.optimizer, states.master, states.gradients), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
        assert_eq!(states.host_pinned, Bytes::mib(512));
    }

    #[test]
    fn batch_numbers_must_multiply() {
        let refused = check_batch(64, 4, 4, 1).unwrap_err();
        assert_eq!(refused.to_string(), "train_batch_size 64 != 4 * 4 * 1");
        assert!(check_batch(64, 4, 4, 4).is_ok());
    }

    #[test]
    fn a_pinned_block_is_rounded_to_a_power_of_two() {
        assert_eq!(pinned(Bytes::mib(2304)), Bytes::gib(4));
        assert_eq!(pinned(Bytes::mib(64)), Bytes::mib(64));
        assert_eq!(pinned(Bytes::ZERO), Bytes::ZERO);
    }
}
