//! The T5 family: (spec, shapes, choices) to tapes.
//!
//! `store` declares what outlives a step, `train` the forward and backward pass of a micro-batch, `generate` the encoder
//! pass and one decoding step. The layers are written once, in `layers`, and used by all of them.

mod backward;
mod generate;
mod layers;
mod store;
mod train;

pub use generate::{GenerateShape, Generation, generation};
pub(crate) use store::matrix;
pub use store::{optimizer_state, store};
pub use train::{Choices, eval_tape, micro_tape, update_tape};
