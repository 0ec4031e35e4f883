//! Guides 001 and 003: what ChatLM's low-memory trainer decides from the memory that is available, version by version.
//!
//! Invariant: the lines of a decision never contradict its number (a property test holds that, see C-001-3). It is a
//! rule read once; whether memory changes later is not its affair (C-001-2).

use serde::Deserialize;

use super::book::CHATLM;
use super::cleanup::{Cleanup, Counting};
use super::figure::Gb;

/// How accumulation follows from the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulation {
    /// This many, whatever is configured.
    Is(u64),
    /// The configured one, but so many at least.
    AtLeast(u64),
}

/// How loader processes follow from the cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workers {
    per_gpu: u64,
    at_most: u64,
}

/// What holds below a border of available GiB, or above all borders.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    below: Option<f64>,
    batch_at_most: Option<u64>,
    eval_times: u64,
    eval_at_most: Option<u64>,
    accumulation: Option<Accumulation>,
    workers: Workers,
    pin_memory: bool,
    ultra_low_mem: Option<bool>,
}

/// The rules of one version of the trainer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Its commit, or the threshold that guide 001 says it had.
    pub name: String,
    #[serde(default)]
    always_low: bool,
    clean_every: u64,
    log_every: Option<u64>,
    #[serde(default)]
    clean_also: Vec<String>,
    tiers: Vec<Tier>,
}

/// The state in which guide 001 found its machine.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Available GiB.
    pub available: f64,
    /// Cards.
    pub gpus: u64,
    /// Configured passes per update.
    pub accumulation: u64,
    /// Configured samples per card.
    pub batch: u64,
}

/// What was decided, and from what.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// GiB that were available.
    pub available: f64,
    /// The border that it lies below, or the highest one if it lies below none.
    pub border: Option<f64>,
    /// Whether memory is taken to be short.
    pub low_mem: bool,
    /// Whether data are read anew for each sample; none where the version's rule is not on record.
    pub ultra_low_mem: Option<bool>,
    /// Loader processes per rank.
    pub workers: u64,
    /// Whether batches are pinned.
    pub pin_memory: bool,
    /// Passes per update; none where the version's rule is not on record.
    pub accumulation: Option<u64>,
    /// Samples per card.
    pub batch: u64,
    /// Samples per card in evaluation.
    pub eval_batch: u64,
}

/// All versions on record.
pub fn versions() -> &'static [Version] {
    &CHATLM.version
}

/// The version of this name.
pub fn version(name: &str) -> Option<&'static Version> {
    versions().iter().find(|version| version.name == name)
}

/// The version with this one threshold (guide 001 has 12 before and 10 after).
pub fn by_threshold(gib: f64) -> Option<&'static Version> {
    versions().iter().find(|version| version.borders().eq([gib]))
}

/// The state in which guide 001 found its machine.
pub fn snapshot() -> Snapshot {
    CHATLM.snapshot
}

/// Guide 001's way back: all four rules by one threshold again, on the machine that it speaks of.
pub fn rollback(threshold: f64) -> Option<Decision> {
    by_threshold(threshold).map(|version| version.decide(snapshot()))
}

impl Version {
    /// The borders between its tiers, in available GiB.
    pub fn borders(&self) -> impl Iterator<Item = f64> {
        self.tiers.iter().filter_map(|tier| tier.below)
    }

    /// What it decides.
    pub fn decide(&self, seen: Snapshot) -> Decision {
        let covers = |tier: &&Tier| tier.below.is_none_or(|below| seen.available < below);
        let tier = self.tiers.iter().find(covers).expect("the last tier has no border");
        let batch = seen.batch.min(tier.batch_at_most.unwrap_or(u64::MAX));
        Decision {
            available: seen.available,
            border: tier.below.or_else(|| self.borders().last()),
            low_mem: self.always_low || tier.below.is_some(),
            ultra_low_mem: tier.ultra_low_mem,
            workers: tier.workers.per_gpu.saturating_mul(seen.gpus).min(tier.workers.at_most),
            pin_memory: tier.pin_memory,
            accumulation: tier.accumulation.map(|rule| match rule {
                Accumulation::Is(steps) => steps,
                Accumulation::AtLeast(least) => seen.accumulation.max(least),
            }),
            batch,
            eval_batch: batch.saturating_mul(tier.eval_times).min(tier.eval_at_most.unwrap_or(u64::MAX)),
        }
    }

    /// When it clears caches: before the steps whose index it divides.
    pub fn cleanup(&self) -> Cleanup {
        Cleanup { every: self.clean_every, counts: Counting::Index }
    }

    /// The moments besides steps at which it clears caches.
    pub fn cleans_also(&self) -> &[String] {
        &self.clean_also
    }

    /// When it logs memory, where it does so by steps.
    pub fn logging(&self) -> Option<Cleanup> {
        self.log_every.map(|every| Cleanup { every, counts: Counting::Index })
    }
}

impl Decision {
    /// One line for each thing decided, with the number it was decided from.
    pub fn lines(&self) -> Vec<String> {
        // Cut, not rounded: 9.999 below a border of 10 must not read `10.00`.
        let available = format!("available {:.2} GiB", (self.available * 100.0).floor() / 100.0);
        let memory = match (self.low_mem, self.border) {
            (true, Some(border)) => format!("memory short (<{border} GiB): {available}"),
            (false, Some(border)) => format!("memory sufficient (>={border} GiB): {available}"),
            (_, None) => format!("low-memory mode at any memory: {available}"),
        };
        let mut lines = vec![memory, format!("batch: {}, in evaluation {}", self.batch, self.eval_batch)];
        if let Some(steps) = self.accumulation {
            lines.push(format!("accumulation: {steps}"));
        }
        if let Some(on) = self.ultra_low_mem {
            lines.push(format!("ultra_low_mem: {on} ({available})"));
        }
        lines.push(format!("workers: {} ({available})", self.workers));
        lines.push(format!("pin_memory: {} ({available})", self.pin_memory));
        lines
    }
}

/// The least RAM of a mode of guide 003's table (`low_mem`, `original`).
pub fn min_ram(mode: &str) -> Option<Gb> {
    CHATLM.min_ram.get(mode).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guide::consistency;

    proptest! {
        #[test]
        fn no_line_of_a_decision_contradicts_its_number(
            available in 0.0f64..64.0, near in -2i32..3, gpus in 1u64..9, batch in 1u64..64, accumulation in 1u64..33,
        ) {
            for version in versions() {
                let border = version.borders().last().unwrap_or(10.0);
                for available in [available, border + f64::from(near) * 0.004] {
                    let decision = version.decide(Snapshot { available, gpus, accumulation, batch });
                    let lines = decision.lines();
                    prop_assert_eq!(consistency::contradiction(&lines), None, "{:?}", lines);
                }
            }
        }
    }

    #[test]
    fn a_higher_threshold_is_the_more_careful_one() {
        let seen = Snapshot { available: 11.0, ..snapshot() };
        let [ten, twelve] = [10.0, 12.0].map(|gib| by_threshold(gib).unwrap().decide(seen));
        assert!(twelve.low_mem && !ten.low_mem);
    }

    #[test]
    fn rolled_back_all_four_rules_turn_at_twelve() {
        let version = by_threshold(12.0).unwrap();
        let [short, enough] = [11.99, 12.0].map(|available| version.decide(Snapshot { available, ..snapshot() }));
        assert_eq!((short.ultra_low_mem, enough.ultra_low_mem), (Some(true), Some(false)));
        assert_eq!((short.workers, enough.workers), (0, 6));
        assert_eq!((short.pin_memory, enough.pin_memory), (false, true));
        assert_eq!((short.accumulation, enough.accumulation), (Some(4), Some(2)));
        assert_eq!(short.batch, enough.batch);
    }

    #[test]
    fn earlier_versions_cut_the_batch_by_tier() {
        let decide = |name: &str, available| version(name).unwrap().decide(Snapshot { available, ..snapshot() });
        let batches = [7.9, 8.0, 13.0].map(|available| decide("62964a6", available));
        assert_eq!(batches.each_ref().map(|decided| decided.batch), [1, 4, 32]);
        assert_eq!(batches.each_ref().map(|decided| decided.eval_batch), [2, 8, 96]);
        assert_eq!(batches.each_ref().map(|decided| decided.accumulation), [Some(8), Some(8), Some(16)]);
        assert_eq!([14.9, 15.0].map(|available| decide("16ead51", available).workers), [0, 4]);
        assert_eq!(decide("16ead51", 12.0).accumulation, None);
    }
}
