//! What happens when a run breaks: checkpoints, the supervisor, stop signals, exit codes, free space.
//!
//! Start reading at [`checkpoint`] (what survives) and [`supervise()`] (who outlives whom). Every decision
//! (`checkpoint::to_remove`, `supervise::decide`) is a pure function; the deeds around it are short.
//!
//! Architecture invariant: this crate knows processes, signals and files. It knows no tensor (a checkpoint's files are
//! bytes that the caller streams) and no screen.

pub mod cause;
pub mod checkpoint;
mod durable;
mod error;
mod exit_code;
mod fault;
pub mod leaf;
pub mod policy;
pub mod pressure;
pub mod protect;
mod room;
mod run_lock;
pub mod sampler;
mod shed;
mod shell_word;
mod stop_flag;
pub mod supervise;
pub mod witness;

pub use durable::atomic_write;
pub use error::RecoverError;
pub use exit_code::ExitCode;
pub use fault::{FAULT_AROUND, mapped_by_a_fault};
pub use room::room_for;
pub use run_lock::RunLock;
pub use shed::{cache_code, shed};
pub use shell_word::shell_word;
pub use stop_flag::StopFlag;
pub use supervise::{
    Beat, Events, Exit, Keeper, Kin, News, NewsWriter, Outcome, StopSignal, Terms, TreeOutcome, TreeWish, Wish,
    guard_tree, supervise,
};
