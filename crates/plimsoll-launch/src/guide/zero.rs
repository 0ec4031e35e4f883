//! What DeepSpeed's ZeRO stages shard, what they refuse, and what model states take (DeepSpeed's `memory.rst`).
//!
//! Facts, not a guide's belief: guide 002 has stage 2 shard parameters (C-002-1). The states are those of a full
//! fine-tuning in mixed precision with Adam.

use plimsoll_machine::Bytes;

use super::refusal::Refusal;

/// A part of the model's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// fp32 weights and two moments: 12 bytes a parameter.
    Optimizer,
    /// 2 bytes a parameter.
    Gradients,
    /// 2 bytes a parameter.
    Parameters,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Optimizer => "optimizer_state",
            State::Gradients => "gradients",
            State::Parameters => "parameters",
        }
    }

    fn bytes_per_parameter(self) -> u64 {
        match self {
            State::Optimizer => 12,
            State::Gradients | State::Parameters => 2,
        }
    }
}

/// What a stage shards over the ranks.
pub fn shards(stage: u64) -> Result<&'static [State], Refusal> {
    const ALL: [State; 3] = [State::Optimizer, State::Gradients, State::Parameters];
    ALL.get(..stage as usize).ok_or(Refusal::NoSuchStage { stage })
}

/// Whether DeepSpeed takes this stage with parameters offloaded.
pub fn check_offload(stage: u64, offload_param: bool) -> Result<(), Refusal> {
    shards(stage)?;
    if offload_param && stage != 3 {
        return Err(Refusal::OffloadParam { stage });
    }
    Ok(())
}

/// What sharding saves a rank: the sharded states, less its own part of them.
pub fn sharding_saves(stage: u64, world: u64, parameters: u64) -> Result<Bytes, Refusal> {
    let sharded: u64 = shards(stage)?.iter().map(|state| state.bytes_per_parameter() * parameters).sum();
    Ok(Bytes(sharded - sharded / world.max(1)))
}

/// DeepSpeed's condition on its three batch sizes.
pub fn check_batches(train: u64, micro: u64, accumulation: u64, world: u64) -> Result<(), Refusal> {
    if train != super::effective_batch(micro, world, accumulation) {
        return Err(Refusal::BatchSizes { train, micro, accumulation, world });
    }
    Ok(())
}

/// Bytes of model states, per card and on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelStates {
    /// Per card.
    pub card: Bytes,
    /// On the host, all ranks together.
    pub host: Bytes,
}

/// ZeRO-2 on one machine. Card: 2P with the optimizer offloaded, else 4P + 16P/n. Host: P max(4n, 16) 1.5, else 4nP 1.5.
pub fn zero2(parameters: u64, gpus: u64, offload_optimizer: bool) -> ModelStates {
    let (p, n) = (parameters, gpus.max(1));
    if offload_optimizer {
        return ModelStates { card: Bytes(2 * p), host: with_buffers(p * (4 * n).max(16)) };
    }
    ModelStates { card: Bytes(4 * p + 16 * p / n), host: with_buffers(4 * n * p) }
}

/// What ZeRO-3 moves to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    Nothing,
    /// Optimizer state.
    Optimizer,
    /// Optimizer state and parameters.
    All,
}

/// ZeRO-3 on one machine, the model made whole on each rank before it is sharded (no `zero.Init`). Card: 4L + 18P/n,
/// 4L + 2P/n or 4L, L being the largest layer. Host: P max(4n, 16 or 18) 1.5 with offload, else 4nP 1.5.
pub fn zero3(parameters: u64, largest_layer: u64, gpus: u64, offload: Offload) -> ModelStates {
    let (p, n, layer) = (parameters, gpus.max(1), 4 * largest_layer);
    let (card, host) = match offload {
        Offload::Nothing => (layer + 18 * p / n, 4 * n * p),
        Offload::Optimizer => (layer + 2 * p / n, p * (4 * n).max(16)),
        Offload::All => (layer, p * (4 * n).max(18)),
    };
    ModelStates { card: Bytes(card), host: with_buffers(host) }
}

/// DeepSpeed's factor of 1.5 for buffers on the host.
fn with_buffers(bytes: u64) -> Bytes {
    Bytes(bytes + bytes / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_save_more_and_one_saves_nothing() {
        for stage in 1..=3 {
            let saved = [1, 2, 4].map(|world| sharding_saves(stage, world, 1000).unwrap());
            assert!(saved[0] == Bytes::ZERO && saved[0] < saved[1] && saved[1] < saved[2], "{stage}");
        }
        assert_eq!(sharding_saves(3, 2, 1000), Ok(Bytes(8000)));
        assert_eq!(shards(4), Err(Refusal::NoSuchStage { stage: 4 }));
    }

    #[test]
    fn parameters_are_offloaded_at_stage_three_alone() {
        assert_eq!(check_offload(3, true), Ok(()));
        assert_eq!(check_offload(2, false), Ok(()));
        assert_eq!(check_offload(1, true), Err(Refusal::OffloadParam { stage: 1 }));
    }
}
