//! Number formats and what they make of a weight, a gradient and an optimizer state.
//!
//! Mixed precision by autocast keeps full weights and casts them for each product; DeepSpeed keeps half weights and a
//! full master copy; a model loaded in half precision has neither.

use serde::Serialize;

/// Where the model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// In host memory: weights, gradients and activations are host bytes.
    Cpu,
    /// On a card.
    Cuda,
}

/// The number format of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Precision {
    /// 32 bits throughout.
    Full,
    /// 16-bit products of 32-bit weights.
    Mixed,
    /// 16-bit weights, gradients and state.
    Half,
}

impl Precision {
    /// From the words of the knob, or of Lightning and Hugging Face.
    pub fn from_word(word: &str) -> Option<Precision> {
        match word {
            "fp32" | "32" | "32-true" | "no" | "float32" => Some(Precision::Full),
            "fp16-mixed" | "bf16-mixed" | "16-mixed" => Some(Precision::Mixed),
            "fp16" | "bf16" | "16-true" | "bf16-true" | "float16" | "bfloat16" => Some(Precision::Half),
            _ => None,
        }
    }

    /// Bytes of a weight as the model holds it; DeepSpeed holds half weights in mixed precision too.
    pub fn weight(self, deepspeed: bool) -> u64 {
        match self {
            Precision::Full => 4,
            Precision::Mixed if deepspeed => 2,
            Precision::Mixed => 4,
            Precision::Half => 2,
        }
    }

    /// Bytes of an element of an optimizer state.
    pub fn state(self, deepspeed: bool) -> u64 {
        match self {
            Precision::Half if !deepspeed => 2,
            _ => 4,
        }
    }

    /// Bytes of the full-precision copy that an optimizer steps on, where weights are half.
    pub fn master(self, deepspeed: bool) -> u64 {
        if deepspeed && self != Precision::Full { 4 } else { 0 }
    }

    /// Bytes of an activation element in a product.
    pub fn element(self) -> u64 {
        if self == Precision::Full { 4 } else { 2 }
    }
}
