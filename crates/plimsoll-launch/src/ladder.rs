//! The next smaller setting, by what ran short. Pure.
//!
//! Invariants: the effective batch stays exactly what it was on every same-result rung; an other-result rung is taken
//! only where it was allowed; every rung is smaller than the one before, so the ladder ends; what saves no memory
//! (LoRA's alpha, the number of kept checkpoints, emptying a cache) is on no ladder.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Knob, Settings, Value};

/// A batch beyond this is no number of samples; its divisors are not looked for.
const LARGEST: u64 = 1 << 24;

/// What ran short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// The machine's memory.
    Ram,
    /// The card's.
    Vram,
    /// The card's, in pieces that are too small.
    Fragments,
    /// `/dev/shm`.
    SharedMemory,
}

/// Other-result rungs that the user allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allow {
    /// A smaller effective batch.
    pub batch: bool,
    /// Shorter samples, down to this; 0 for as short as it takes.
    pub length: Option<u64>,
    /// Precisions.
    pub precision: Vec<String>,
    /// Optimizers.
    pub optimizer: Vec<String>,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub struct Stand<'a> {
    /// What it is set to.
    pub settings: &'a Settings,
    /// Knobs that its command can set.
    pub can: &'a [Knob],
    /// Whether batch and accumulation can be exchanged.
    pub exact_accumulation: bool,
    /// Whether its checkpoints bind the number of ranks.
    pub world_fixed: bool,
    /// Whether it computes on a card.
    pub on_card: bool,
    /// Whether it died in an evaluation.
    pub evaluating: bool,
    /// The longest sample, where the trainer names no limit of its own.
    pub longest: Option<u64>,
    /// What the user allows.
    pub allow: &'a Allow,
}

/// A step down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// What is set.
    pub set: Settings,
    /// Whether the result stays the same, up to rounding.
    pub same_result: bool,
    /// What it is, and why it helps.
    pub says: String,
}

/// There is no rung left; what further ones would need to be allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottom {
    /// As `--allow` takes it, with what it would do.
    pub would: Vec<String>,
}

impl fmt::Display for Bottom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no setting with the same result is left to make it smaller")?;
        if !self.would.is_empty() {
            write!(f, "; `--allow` would open: {}", self.would.join("; "))?;
        }
        Ok(())
    }
}

/// The next rung down after `shortage`.
pub fn next(shortage: Shortage, stand: &Stand<'_>) -> Result<Rung, Bottom> {
    let rungs: &[fn(&Stand<'_>) -> Option<Rung>] = match shortage {
        Shortage::Ram => &[evaluation, fewer_loaders, unpinned, exchange, recompute, fewer_ranks],
        Shortage::Vram => &[evaluation, exchange, recompute, fused_attention, shard, offload],
        Shortage::Fragments => &[segments, evaluation, exchange, recompute, fused_attention, shard, offload],
        Shortage::SharedMemory => &[no_loaders],
    };
    let memory = shortage != Shortage::SharedMemory;
    let same = rungs.iter().find_map(|rung| rung(stand));
    let other = || {
        if memory { others(stand).into_iter().find_map(|(_, allowed, rung)| rung.filter(|_| allowed)) } else { None }
    };
    same.or_else(other).ok_or_else(|| Bottom {
        would: match memory {
            true => others(stand)
                .into_iter()
                .filter_map(|(word, allowed, rung)| {
                    rung.filter(|_| !allowed).map(|rung| format!("`{word}` ({})", rung.says))
                })
                .collect(),
            false => Vec::new(),
        },
    })
}

fn count(stand: &Stand<'_>, knob: Knob) -> Option<u64> {
    stand.settings.get(&knob)?.count()
}

fn word<'a>(stand: &'a Stand<'_>, knob: Knob) -> Option<&'a str> {
    stand.settings.get(&knob)?.word()
}

fn can(stand: &Stand<'_>, knob: Knob) -> bool {
    stand.can.contains(&knob)
}

fn same(set: impl IntoIterator<Item = (Knob, Value)>, says: String) -> Option<Rung> {
    Some(Rung { set: set.into_iter().collect(), same_result: true, says })
}

fn samples(number: u64) -> String {
    format!("{number} sample{}", if number == 1 { "" } else { "s" })
}

fn evaluation(stand: &Stand<'_>) -> Option<Rung> {
    let batch = count(stand, Knob::EvalBatch).filter(|batch| *batch > 1 && can(stand, Knob::EvalBatch))?;
    let half = batch / 2;
    stand.evaluating.then(|| same([(Knob::EvalBatch, half.into())], format!("evaluate {} at a time", samples(half))))?
}

fn fewer_loaders(stand: &Stand<'_>) -> Option<Rung> {
    let workers = count(stand, Knob::Workers).filter(|workers| *workers > 0 && can(stand, Knob::Workers))?;
    let fewer = workers / 4;
    let says = match fewer {
        0 => "load data in the rank itself: each loader process holds memory of its own".to_string(),
        _ => format!("{fewer} loader processes a rank instead of {workers}"),
    };
    same([(Knob::Workers, fewer.into())], says)
}

fn no_loaders(stand: &Stand<'_>) -> Option<Rung> {
    count(stand, Knob::Workers).filter(|workers| *workers > 0 && can(stand, Knob::Workers))?;
    same([(Knob::Workers, 0.into())], "load data in the rank itself, without `/dev/shm`".to_string())
}

fn unpinned(stand: &Stand<'_>) -> Option<Rung> {
    let pinned = stand.settings.get(&Knob::PinMemory).and_then(Value::on).unwrap_or(false);
    (pinned && stand.on_card && can(stand, Knob::PinMemory))
        .then(|| same([(Knob::PinMemory, false.into())], "no pinned copies of batches".to_string()))?
}

/// A smaller batch and more accumulation, with exactly the same product.
fn exchange(stand: &Stand<'_>) -> Option<Rung> {
    let batch = count(stand, Knob::Batch).filter(|batch| *batch > 1)?;
    let accumulation = count(stand, Knob::Accumulation).unwrap_or(1).max(1);
    if !(stand.exact_accumulation && can(stand, Knob::Batch) && can(stand, Knob::Accumulation)) {
        return None;
    }
    let product = batch.checked_mul(accumulation).filter(|_| batch <= LARGEST)?;
    let smaller = (1..=batch / 2).rev().find(|smaller| product.is_multiple_of(*smaller))?;
    let more = product / smaller;
    let says =
        format!("{} at a time, {more} times an update: the effective batch stays {product} a rank", samples(smaller));
    same([(Knob::Batch, smaller.into()), (Knob::Accumulation, more.into())], says)
}

fn recompute(stand: &Stand<'_>) -> Option<Rung> {
    let off = stand.settings.get(&Knob::Checkpointing).and_then(Value::on) == Some(false);
    (off && can(stand, Knob::Checkpointing)).then(|| {
        same([(Knob::Checkpointing, true.into())], "compute activations twice instead of keeping them".into())
    })?
}

/// Half the ranks with twice the accumulation: each rank costs a whole runtime.
fn fewer_ranks(stand: &Stand<'_>) -> Option<Rung> {
    let ranks = count(stand, Knob::Processes).filter(|ranks| ranks.is_multiple_of(2) && *ranks > 1)?;
    let accumulation = count(stand, Knob::Accumulation).unwrap_or(1).max(1);
    let able = stand.exact_accumulation && can(stand, Knob::Processes) && can(stand, Knob::Accumulation);
    if stand.world_fixed || !able {
        return None;
    }
    let (half, more) = (ranks / 2, accumulation.checked_mul(2)?);
    let says = format!("{half} ranks instead of {ranks}, {more} micro-batches an update: the effective batch stays");
    same([(Knob::Processes, half.into()), (Knob::Accumulation, more.into())], says)
}

fn segments(stand: &Stand<'_>) -> Option<Rung> {
    let before = word(stand, Knob::Segments) != Some("expandable");
    (before && stand.on_card && can(stand, Knob::Segments))
        .then(|| same([(Knob::Segments, "expandable".into())], "segments of the card's memory that can grow".into()))?
}

fn fused_attention(stand: &Stand<'_>) -> Option<Rung> {
    (word(stand, Knob::Attention) == Some("eager") && can(stand, Knob::Attention))
        .then(|| same([(Knob::Attention, "sdpa".into())], "attention without its whole matrix".to_string()))?
}

/// ZeRO shards over ranks: with one there is nothing to shard.
fn shard(stand: &Stand<'_>) -> Option<Rung> {
    let stage = count(stand, Knob::ZeroStage).filter(|stage| *stage < 3 && can(stand, Knob::ZeroStage))?;
    count(stand, Knob::Processes).filter(|ranks| *ranks > 1)?;
    let (next, what) = match stage {
        0 => (1, "optimizer state"),
        1 => (2, "optimizer state and gradients"),
        _ => (3, "optimizer state, gradients and parameters"),
    };
    same([(Knob::ZeroStage, next.into())], format!("ZeRO stage {next}: {what} shared out over the ranks"))
}

fn offload(stand: &Stand<'_>) -> Option<Rung> {
    let stage = count(stand, Knob::ZeroStage).filter(|stage| *stage > 0)?;
    let here = |knob| word(stand, knob).is_none_or(|place| place == "none") && can(stand, knob);
    if here(Knob::OffloadOptimizer) {
        return same([(Knob::OffloadOptimizer, "cpu".into())], "optimizer state in the machine's memory".to_string());
    }
    // Parameters can leave the card only where they are shared out.
    (stage == 3 && here(Knob::OffloadParams))
        .then(|| same([(Knob::OffloadParams, "cpu".into())], "parameters in the machine's memory".to_string()))?
}

/// The rungs that change the result: the word that allows each, whether it is allowed, and the rung where there is one.
fn others(stand: &Stand<'_>) -> Vec<(&'static str, bool, Option<Rung>)> {
    let allow = stand.allow;
    let rung =
        |set: Vec<(Knob, Value)>, says: String| Rung { set: set.into_iter().collect(), same_result: false, says };
    let wanted = |allowed: &[String], usual: &str| allowed.first().cloned().unwrap_or_else(|| usual.to_string());
    let precision = wanted(&allow.precision, "bf16-mixed");
    let optimizer = wanted(&allow.optimizer, "adamw8bit");
    let half_batch = count(stand, Knob::Batch).filter(|batch| *batch > 1 && can(stand, Knob::Batch));
    let floor = allow.length.unwrap_or(0).max(1);
    let length = count(stand, Knob::Length).or(stand.longest).filter(|_| can(stand, Knob::Length));
    let shorter = length.map(|length| (length / 2).max(floor)).filter(|shorter| Some(*shorter) < length);
    vec![
        (
            "precision",
            !allow.precision.is_empty(),
            (word(stand, Knob::Precision) == Some("fp32") && precision != "fp32" && can(stand, Knob::Precision))
                .then(|| rung(vec![(Knob::Precision, precision.as_str().into())], format!("compute in {precision}"))),
        ),
        (
            "optimizer",
            !allow.optimizer.is_empty(),
            word(stand, Knob::Optimizer)
                .filter(|now| *now != optimizer && can(stand, Knob::Optimizer))
                .map(|_| rung(vec![(Knob::Optimizer, optimizer.as_str().into())], format!("optimizer {optimizer}"))),
        ),
        (
            "batch",
            allow.batch,
            half_batch.map(|batch| {
                let half = batch / 2;
                rung(
                    vec![(Knob::Batch, half.into())],
                    format!("an effective batch with {half} instead of {batch} samples a rank"),
                )
            }),
        ),
        (
            "length",
            allow.length.is_some(),
            shorter.map(|shorter| rung(vec![(Knob::Length, shorter.into())], format!("samples of at most {shorter}"))),
        ),
    ]
}

#[cfg(test)]
#[path = "ladder/ladder_test.rs"]
mod tests;
