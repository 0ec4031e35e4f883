//! DeepSpeed's own estimate of model states, as it prints it: Adam, half weights, a factor of 1.5 on host memory.
//!
//! Kept for comparison and labelled as theirs. It leaves out activations, buckets, the context and everything else; misses
//! of 0.5 against 15 GB are on record.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::Offload;

/// Which text of the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edition {
    /// The documentation (memory.rst): gradients of stage 2 whole on each card.
    Documented,
    /// The code of 0.19: gradients divided.
    Code,
}

/// What DeepSpeed says that model states take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelStates {
    /// On each card.
    pub card: Bytes,
    /// In the host memory of a machine, times DeepSpeed's 1.5.
    pub host: Bytes,
}

/// Its buffer factor, in halves.
const FACTOR_HALVES: u64 = 3;

fn host(params: u64, bytes: u64) -> Bytes {
    Bytes((u128::from(params) * u128::from(bytes) * u128::from(FACTOR_HALVES) / 2).min(u64::MAX.into()) as u64)
}

/// Stage 2.
pub fn zero2(params: u64, cards: u64, machines: u64, optimizer: Offload, edition: Edition) -> ModelStates {
    let world = (cards * machines).max(1);
    if optimizer != Offload::None {
        return ModelStates { card: Bytes(2 * params), host: host(params, (4 * world).max(16)) };
    }
    let card = match edition {
        Edition::Documented => 4 * params + 16 * params / world,
        Edition::Code => 2 * params + 18 * params / world,
    };
    ModelStates { card: Bytes(card), host: host(params, 4 * cards) }
}

/// Stage 3; `init_divided` is what `zero.Init` does: the model is never whole in host memory.
pub fn zero3(
    params: u64,
    largest_layer: u64,
    cards: u64,
    machines: u64,
    optimizer: Offload,
    parameters: Offload,
    init_divided: bool,
) -> ModelStates {
    let (world, machines) = ((cards * machines).max(1), machines.max(1));
    let layer = 4 * largest_layer;
    // All ranks of one machine hold a machine's share.
    let share = |bytes: u64| if init_divided { bytes / machines } else { (4 * cards).max(bytes / machines) };
    match (optimizer, parameters) {
        (Offload::None, _) => {
            let start = if init_divided { host(largest_layer, 4 * cards) } else { host(params, 4 * cards) };
            ModelStates { card: Bytes(layer + 18 * params / world), host: start }
        }
        (_, Offload::None) => ModelStates { card: Bytes(layer + 2 * params / world), host: host(params, share(16)) },
        (_, _) => ModelStates { card: Bytes(layer), host: host(params, share(18)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(states: ModelStates) -> (f64, f64) {
        let two = |bytes: Bytes| (bytes.0 as f64 / (1u64 << 30) as f64 * 100.0).round() / 100.0;
        (two(states.card), two(states.host))
    }

    #[test]
    fn stage_two_says_what_the_documentation_prints() {
        let documented = |params, cards, offload| gib(zero2(params, cards, 1, offload, Edition::Documented));
        assert_eq!(documented(2_851_000_000, 8, Offload::Cpu), (5.31, 127.45));
        assert_eq!(documented(2_851_000_000, 8, Offload::None), (15.93, 127.45));
        assert_eq!(documented(494_032_768, 1, Offload::None), (9.2, 2.76));
        assert_eq!(documented(494_032_768, 1, Offload::Cpu), (0.92, 11.04));
    }

    #[test]
    fn stage_three_says_what_the_documentation_prints() {
        let of = |optimizer, parameters| gib(zero3(2_851_000_000, 32_000_000, 8, 1, optimizer, parameters, false));
        assert_eq!(of(Offload::None, Offload::None), (6.09, 127.45));
        assert_eq!(of(Offload::Cpu, Offload::Cpu), (0.12, 127.45));
    }

    #[test]
    fn the_code_and_the_documentation_differ_with_several_cards_alone() {
        let of = |cards, edition| zero2(1000, cards, 1, Offload::None, edition).card;
        assert_eq!(of(1, Edition::Code), of(1, Edition::Documented));
        assert!(of(8, Edition::Code) < of(8, Edition::Documented));
    }
}
