//! What an optimizer keeps between steps.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::shape::{Shape, Trainable};

/// An optimizer, by what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Two moments.
    AdamW,
    /// A factored second moment, no first.
    Adafactor,
    /// Nothing.
    Sgd,
    /// A momentum.
    SgdMomentum,
    /// A momentum.
    Lion,
    /// Two moments of 8 bits, in blocks with a scale each.
    AdamW8bit,
}

/// Elements that share a scale in an 8-bit state.
const BLOCK: u64 = 256;

impl Optimizer {
    /// From the names that Hugging Face, DeepSpeed and PyTorch use.
    pub fn from_word(word: &str) -> Option<Optimizer> {
        let word = word.to_ascii_lowercase();
        match word.as_str() {
            "adam" | "adamw" | "adamw_torch" | "adamw_torch_fused" | "adamw_hf" | "fusedadam" | "deepspeedcpuadam" => {
                Some(Optimizer::AdamW)
            }
            "adafactor" => Some(Optimizer::Adafactor),
            "sgd" => Some(Optimizer::Sgd),
            "sgd-momentum" | "sgd_momentum" => Some(Optimizer::SgdMomentum),
            "lion" | "lion_32bit" => Some(Optimizer::Lion),
            "adamw8bit" | "adamw_8bit" | "adamw_bnb_8bit" | "paged_adamw_8bit" => Some(Optimizer::AdamW8bit),
            _ => None,
        }
    }

    /// Bytes of its state, each element of which has `each` bytes where it is not fixed by the optimizer.
    pub fn state(self, shape: &Shape, trainable: Trainable, each: u64) -> Bytes {
        let params = shape.trainable(trainable);
        Bytes(match self {
            Optimizer::AdamW => 2 * each * params,
            Optimizer::Adafactor => 4 * shape.factored(trainable),
            Optimizer::Sgd => 0,
            Optimizer::SgdMomentum | Optimizer::Lion => each * params,
            Optimizer::AdamW8bit => 2 * params + 2 * 4 * params.div_ceil(BLOCK),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::from_config;
    use super::*;

    fn chatlm() -> Shape {
        from_config(&serde_json::json!({"model_type": "t5", "num_layers": 10, "num_heads": 12, "d_model": 768,
            "d_kv": 64, "d_ff": 3072, "vocab_size": 29298}))
        .unwrap()
    }

    #[test]
    fn adafactor_keeps_rows_and_columns_alone() {
        let shape = chatlm();
        assert_eq!(shape.factored(Trainable::All), 408_010);
        assert_eq!(Optimizer::Adafactor.state(&shape, Trainable::All, 4), Bytes(4 * 408_010));
    }

    #[test]
    fn each_kind_keeps_what_it_is_known_to_keep() {
        let (shape, params) = (chatlm(), 187_692_288);
        let state = |optimizer: Optimizer| optimizer.state(&shape, Trainable::All, 4).0;
        assert_eq!(state(Optimizer::AdamW), 1_501_538_304);
        assert_eq!(state(Optimizer::Sgd), 0);
        assert_eq!((state(Optimizer::Lion), state(Optimizer::SgdMomentum)), (4 * params, 4 * params));
        assert!((2 * params..2 * params + params / 20).contains(&state(Optimizer::AdamW8bit)));
        assert_eq!(Optimizer::AdamW.state(&shape, Trainable::Decoder, 4).0, 8 * 94_396_032);
    }

    #[test]
    fn names_of_the_frameworks_are_known() {
        assert_eq!(Optimizer::from_word("adamw_torch_fused"), Some(Optimizer::AdamW));
        assert_eq!(Optimizer::from_word("paged_adamw_8bit"), Some(Optimizer::AdamW8bit));
        assert_eq!(Optimizer::from_word("prodigy"), None);
    }
}
