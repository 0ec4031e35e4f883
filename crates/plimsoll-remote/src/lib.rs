//! Runs on another machine, over the system's SSH.
//!
//! Start reading at [`Session`] (a far folder, reached by `ssh`), then [`push`] and [`pull`] (files), [`serve`] (what the
//! same program does on the far side), [`keep`] (a process that outlives the connection) and [`echo`] (whether what was
//! asked for is what arrived).
//!
//! Architecture invariant: this crate knows files, processes and one wire. It knows no job, no plan and no journal; what
//! only the program knows comes in through [`serve::Deeds`]. No password passes through it and none is stored.

pub mod address;
pub mod book;
mod bootstrap;
mod digest;
pub mod echo;
mod error;
mod far_path;
mod file_blocks;
mod harmless;
pub mod keep;
mod keeping;
mod link;
mod origin;
mod own_folder;
mod patient_pipe;
pub mod pull;
mod pulse;
pub mod push;
mod record;
mod refusal;
pub mod select;
pub mod serve;
pub mod session;
mod ssh;
mod ssh_process;
pub mod wire;

pub use address::Address;
pub use book::Book;
pub use digest::{Digest, digest_of, digest_of_file};
pub use error::RemoteError;
pub use far_path::FarPath;
pub use link::Link;
pub use origin::{Origin, token};
pub use pulse::Patience;
pub use refusal::Refusal;
pub use session::Session;
pub use ssh::Ssh;
