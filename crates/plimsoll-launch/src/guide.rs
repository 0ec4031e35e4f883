//! What five public guides say about training in little memory: their presets by name, their rules as functions.
//!
//! The numbers are data (`profiles/*.toml`), the rules read them. All of it is labelled `guide`: what we compute
//! (`computed`) or measured (`measured`) wins. Beside each profile stand the corrections of what is wrong in it, and
//! where a guide is wrong about a fact (what ZeRO shards, what SIGKILL proves) the product's own functions (`estimate`,
//! `failure`, `command`) have the fact, and nothing here repeats it.
//!
//! Invariant: pure. It refuses to know this machine, a process or a file; guides disagree with each other, and no rule
//! here mixes two of them.

pub mod advice;
pub mod argv;
pub mod beside;
mod book;
pub mod checklist;
pub mod cleanup;
pub mod consistency;
pub mod correction;
pub mod dataset;
pub mod figure;
pub mod host_ram;
pub mod model;
pub mod oom;
pub mod policy;
pub mod preset;
pub mod profile;
pub mod refusal;

pub use advice::{Event, Phase, Situation, Step, advice};
pub use book::{Book, Component, GuideCommand};
pub use correction::{Correction, Severity, correction, corrections};
pub use figure::{Gb, Span};
pub use profile::{Profile, Server, UnknownProfile, all, profile};
pub use refusal::Refusal;

/// Samples per weight update: samples per rank and pass, times ranks, times accumulated passes.
pub fn effective_batch(batch: u64, gpus: u64, accumulation: u64) -> u64 {
    batch.saturating_mul(gpus).saturating_mul(accumulation)
}
