//! What a foreign trainer needs: card memory and host memory, phase by phase, before it starts.
//!
//! In reading order: [`shape`] (a model as a list of tensors), [`config`] (from a `config.json`), [`terms`] (all that an
//! estimate depends on), [`activation`], [`optimizer`] and [`zero`] (the bytes of a step), [`runtime`] and [`loader`]
//! (what Python costs), [`mod@vram`] and [`mod@host`] (the two tables), [`measured`] (what runs taught us).
//!
//! Everything here is a pure function of values; the store of [`measured`] alone touches a file. A figure says where
//! it comes from: computed from shapes, measured, a labelled default, or a guide.

pub mod activation;
pub mod cnn_lstm;
pub mod config;
pub mod described;
pub mod error;
pub mod host;
pub mod layout;
pub mod loader;
pub mod measured;
mod of_command;
pub mod optimizer;
pub mod precision;
pub mod runtime;
pub mod shape;
pub mod table;
pub mod terms;
pub mod vits;
pub mod vram;
pub mod zero;

pub use config::from_config;
pub use described::described;
pub use error::EstimateError;
pub use host::host;
pub use loader::{Dataset, Loader, Rows, WorkerStart};
pub use measured::{Key, Record, correct};
pub use of_command::terms_of;
pub use optimizer::Optimizer;
pub use precision::{Device, Precision};
pub use runtime::{Runtime, Saving, Software};
pub use shape::{Family, Shape, Trainable};
pub use table::{Figure, Memory, Part, Phase, PhaseName, Source, Table};
pub use terms::{Attention, Terms};
pub use vram::vram;
pub use zero::{Offload, Zero};

pub use crate::Launcher;
