//! The same tapes on an NVIDIA card: VRAM is one arena, taken whole; ops are kernels of `kernels/` or products of cuBLASLt.
//!
//! Nothing of CUDA is needed to build or to start the program: driver, compiler and matrix library are looked for when a
//! card is opened, and what is missing is said by name.
//!
//! Read in this order: `engine` (what a caller can do; with `start` and `tensors`), `execute` (an op becomes launches; with
//! `attention`, `loss`, `series`, `lstm` and `update`), `staged` and `tables` (what is
//! on the card besides tensors), `kernels` and `compile`, `lt` (products) and `tuned`, `card` and `find` (the driver).

mod attention;
mod attention_products;
mod call;
mod card;
mod compile;
mod engine;
mod error;
mod execute;
mod find;
mod graph;
mod hold;
mod kernels;
mod loss;
mod lstm;
mod lt;
mod numbers;
mod rates;
mod scale;
mod series;
mod split;
mod staged;
mod start;
mod tables;
mod tensors;
mod tuned;
mod update;

pub use card::Card;
pub use engine::CudaEngine;
pub use error::CudaError;
pub use hold::Hold;
pub use rates::card_rates;
pub use scale::LossScale;
pub use start::{CardUse, CudaOptions};
