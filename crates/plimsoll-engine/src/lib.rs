//! The step: arenas, kernels, optimizers, generation.
//!
//! Invariant: memory is taken when the engine starts and at no other time; ops write into memory that the plan placed.
//! It knows no files, no terminal, no signals and no checkpoint format.
//!
//! Read in this order: `engine` (what a caller can do), `execute` (a tape becomes kernel calls), `cpu` (the kernels).

mod arena;
pub mod cpu;
pub mod cuda;
mod engine;
mod error;
mod execute;
mod generate;
mod math;
mod optimize;
mod philox;
mod pool;
mod rates;
mod series_staging;
pub mod simd;
mod snapshot;
mod staging;
mod step;
mod stepper;

pub use engine::{ENGINE_STACK, Engine, SeriesHead, Updates, WORKER_STACK, with_cores};
pub use error::EngineError;
pub use generate::{Answer, GenerateOptions, Sampling};
pub use rates::{Care, Clock, measure_rates, measure_rates_by, timed_update};
pub use snapshot::Snapshot;
pub use step::{Loss, MicroStep, NotFinite, Updated};
pub use stepper::Stepper;
