//! Foreign trainers: how they are recognised, where each knob goes, what they need, how they fail, how they resume.
//!
//! What differs between trainers is data (`trainers/*.toml`), what is the same for all is code. In reading order:
//! [`trainer`] and [`command`] (what somebody typed), [`knob`] (what can be set), [`estimate`] (what a setting costs),
//! [`guide`] (what the guides said of it), [`telling`], [`role`], [`stall`] and [`verify`] (what runs), [`failure`] (what a
//! death was), [`ladder`] and [`course`] (what to do about it), [`checkpoints`] (what to go on from), [`check`] and
//! [`swap`] (what to look at before a start).
//!
//! Architecture invariant: it knows argv, environment, config files and log text. It starts no process, sends no signal
//! and holds no tensor.

pub mod check;
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
mod launcher;
pub mod role;
pub mod stall;
pub mod swap;
pub mod telling;
pub mod trainer;
pub mod verify;
pub mod write;

pub use command::Command;
pub use error::LaunchError;
pub use knob::{Knob, Settings, Value};
pub use launcher::Launcher;
pub use role::Role;
pub use trainer::{Shelf, Trainer};
