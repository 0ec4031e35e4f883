//! The decoder families: (spec, shapes, choices) to tapes.
//!
//! GPT-2, Llama, Mistral, Qwen2 and Qwen3 are one family here; the spec says where they differ. `block` has the layers,
//! forward and backward, `train` the tapes of a micro-batch and of evaluation, `generate` prompt and decoding step.

mod block;
mod generate;
mod train;

pub(crate) use generate::generation;
pub(crate) use train::{eval_tape, micro_tape};
