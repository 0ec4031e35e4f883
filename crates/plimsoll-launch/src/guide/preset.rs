//! Guide 002: which preset for which card, and what the presets' sizes come to. Guide 004's batch for validation.
//!
//! The sizes follow from batch, length and LoRA's shape, not from the ZeRO stage that a preset is named after
//! (C-002-5).

use plimsoll_machine::Bytes;
use serde::Deserialize;

use super::book::QWEN;
use super::model;
use super::profile::Profile;
use crate::estimate::activation::logits;
use crate::knob::{Knob, Value};

/// A tier of card memory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    above: Option<f64>,
    from: Option<f64>,
    preset: String,
}

/// The preset for a card, by the guide's name of it. 12 and 6 belong to the tier that names them first.
pub fn select(card_gb: f64) -> &'static str {
    let covers =
        |tier: &&Select| tier.above.is_none_or(|above| card_gb > above) && tier.from.is_none_or(|from| card_gb >= from);
    &QWEN.select.iter().find(covers).expect("the last tier has no border").preset
}

/// The profile of a preset of guide 002 (`deepspeed`, `stage2_offload`, `stage3`, `minimal`).
pub fn of(preset: &str) -> Option<&'static Profile> {
    let name = format!("qwen-{}", preset.replace('_', "-"));
    QWEN.profile.iter().find(|profile| profile.name == name)
}

/// What a preset's settings come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Samples per update on one card.
    pub effective_batch: u64,
    /// Tokens per forward pass.
    pub tokens_per_pass: u64,
    /// Tokens per update.
    pub tokens_per_update: u64,
    /// LoRA's trained weights.
    pub lora_parameters: u64,
    /// What LoRA's update is multiplied with: alpha over rank.
    pub lora_scale: f64,
    /// Logits of a pass in fp32.
    pub logits: Bytes,
}

/// The sizes of a profile of guide 002; none where it sets no batch, length or rank.
pub fn sizes(profile: &Profile) -> Option<Sizes> {
    let count = |knob| profile.settings.get(&knob).and_then(Value::count);
    let (batch, length, rank) = (count(Knob::Batch)?, count(Knob::Length)?, count(Knob::LoraRank)?);
    let passes = count(Knob::Accumulation).unwrap_or(1);
    let alpha: f64 = profile.own.get("lora_alpha")?.parse().ok()?;
    let shape = model::qwen().shape();
    Some(Sizes {
        effective_batch: super::effective_batch(batch, 1, passes),
        tokens_per_pass: batch * length,
        tokens_per_update: batch * length * passes,
        lora_parameters: shape.lora(rank, count(Knob::LoraModules)?),
        lora_scale: alpha / rank as f64,
        logits: logits(batch, length, shape.dims.vocab, 4),
    })
}

/// Guide 004's batch for validation: half of the training batch, and never none.
pub fn validation_batch(batch: u64) -> u64 {
    (batch / 2).max(1)
}
