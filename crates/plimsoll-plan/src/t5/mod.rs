//! The T5 family: (spec, shapes, choices) to tapes.
//!
//! `layers` has the layers, forward and backward, `train` the tapes of a micro-batch and of evaluation, `generate` the
//! encoder pass and one decoding step.

mod backward;
mod generate;
mod layers;
mod train;

pub(crate) use generate::generation;
pub(crate) use train::{eval_tape, micro_tape};
