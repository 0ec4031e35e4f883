//! Model folders and adapters in the layouts of Hugging Face and PEFT: config, weights and tokenizer files, in and out; and models
//! of series, by a folder of the same form or by a description in TOML.
//!
//! Memory is lent: weights are streamed from files straight into the slices of whoever owns them, and out of them
//! again. Nothing is mapped and no file of weights is ever held whole.
//!
//! Invariant: a file is believed only after its header agrees with its length; no byte of weights is read before every
//! parameter is known to be there with its shape. This crate knows files and specs, never an engine or a device.

mod adapter;
mod chat;
mod config;
mod description;
mod error;
mod folder;
mod header;
pub mod init;
mod merge;
mod names;
mod normalisation;
mod partial;
mod save;
mod small_file;
mod source;
mod stream;
mod weights;
mod write;

pub use adapter::{AdapterFolder, adapter_params, save_adapter};
pub use chat::ChatTemplate;
pub use description::SeriesInput;
pub use error::ModelError;
pub use folder::ModelFolder;
pub use merge::merge;
pub use normalisation::{NORMALISATION_LIMIT, WriteText};
pub use partial::Existing;
pub use save::{save_model, save_series};
pub use source::{TensorSource, Views};
pub use weights::WeightFiles;
pub use write::{StoredTensor, TensorView, safetensors_bytes, write_safetensors, write_stored};
