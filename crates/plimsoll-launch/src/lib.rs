//! Foreign trainers: how they are recognised, where each knob goes, what they need, how they fail, how they resume.
//!
//! What differs between trainers is data (`trainers/*.toml`), what is the same for all is code. In reading order:
//! [`knob`] (what can be set), [`estimate`] (what a setting costs), [`guide`] (what the guides said of it), [`failure`]
//! (what a death was).
//!
//! Architecture invariant: it knows argv, environment, config files and log text. It starts no process, sends no signal
//! and holds no tensor.

pub mod checkpoints;
pub mod command;
pub mod course;
pub mod cut;
mod error;
pub mod estimate;
pub mod failure;
pub mod guide;
pub mod knob;
pub mod ladder;
pub mod role;
pub mod stall;
pub mod telling;
pub mod trainer;
pub mod verify;

pub use command::Command;
pub use error::LaunchError;
pub use knob::{Knob, Settings, Value};
pub use role::Role;
pub use trainer::{Shelf, Trainer};
