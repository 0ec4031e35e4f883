//! Guide 000's cost model of host RAM: a sum of parts per process, in the guide's GB.
//!
//! Two itemisations are kept, because the guide has two that contradict each other (C-000-1). Figures are given for one
//! and for four workers; between them we go straight, beyond them the guide says nothing and neither do we.

use serde::Deserialize;
use thiserror::Error;

use super::book::{Component, PIPER};
use super::effective_batch;
use super::figure::Gb;

/// The settings that the model depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiperRun {
    /// Ranks, one a card.
    pub gpus: u64,
    /// Samples per rank.
    pub batch: u64,
    /// Loader processes per rank.
    pub workers: u64,
    /// Passes per update.
    pub accumulation: u64,
}

/// Parts of a process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerProcess {
    /// PyTorch and its libraries.
    runtime: Gb,
    /// Workers, and what they take in a process.
    loader: Vec<(u64, f64)>,
    /// One example of a batch.
    batch_per_example: Gb,
}

/// One way to sum it up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Itemisation {
    name: String,
    system: Gb,
    buffers: Gb,
    single: Option<PerProcess>,
    several: PerProcess,
}

/// Speed in percent, by workers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    percent: Vec<(u64, f64)>,
}

/// When what is left is too little to be calm about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headroom {
    warn_below: Gb,
}

/// The parts of the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Breakdown {
    /// Operating system, containers, shells.
    pub system: Gb,
    /// PyTorch in all processes.
    pub runtime: Gb,
    /// Loaders of all processes.
    pub loader: Gb,
    /// Batches of all processes.
    pub batch: Gb,
    /// Buffers.
    pub buffers: Gb,
}

impl Breakdown {
    /// The sum.
    pub fn total(&self) -> Gb {
        [self.system, self.runtime, self.loader, self.batch, self.buffers].into_iter().sum()
    }
}

/// What the guide says of a run on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPlan {
    /// The parts.
    pub parts: Breakdown,
    /// What is left; negative where it does not fit.
    pub headroom: Gb,
    /// Samples per update.
    pub effective_batch: u64,
    /// Speed in percent of four workers.
    pub speed_percent: f64,
    /// Said where it fits with little to spare.
    pub warning: Option<String>,
}

impl HostPlan {
    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.headroom.0 >= 0.0
    }
}

/// A setting that the guide gives no figure for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotCovered {
    /// No such sum.
    #[error("the guide has no itemisation `{name}`")]
    Itemisation {
        /// What was asked for.
        name: String,
    },
    /// Ranks without a figure.
    #[error("the itemisation `{name}` has no figure for `{gpus}` GPUs")]
    Gpus {
        /// The itemisation.
        name: String,
        /// What was asked for.
        gpus: u64,
    },
    /// Workers without a figure.
    #[error("the guide has no figure for `{workers}` workers")]
    Workers {
        /// What was asked for.
        workers: u64,
    },
}

/// The parts of a run's host RAM, by one of the guide's itemisations (`presets`, `critical-scenario`).
pub fn breakdown(itemisation: &str, run: &PiperRun) -> Result<Breakdown, NotCovered> {
    let sums = PIPER.itemisation.iter().find(|sums| sums.name == itemisation);
    let sums = sums.ok_or_else(|| NotCovered::Itemisation { name: itemisation.to_string() })?;
    let process = match run.gpus {
        0 => None,
        1 => sums.single.as_ref(),
        _ => Some(&sums.several),
    };
    let process = process.ok_or_else(|| NotCovered::Gpus { name: sums.name.clone(), gpus: run.gpus })?;
    let loader = between(&process.loader, run.workers).ok_or(NotCovered::Workers { workers: run.workers })?;
    Ok(Breakdown {
        system: sums.system,
        runtime: process.runtime * run.gpus,
        loader: Gb(loader) * run.gpus,
        batch: process.batch_per_example * run.batch.saturating_mul(run.gpus),
        buffers: sums.buffers,
    })
}

/// Whether a run fits so much RAM, by the itemisation of the guide's presets.
pub fn host_plan(run: &PiperRun, ram: Gb) -> Result<HostPlan, NotCovered> {
    let parts = breakdown("presets", run)?;
    let headroom = ram - parts.total();
    let least = PIPER.headroom.warn_below;
    let tight = headroom.0 >= 0.0 && headroom < least;
    let speed_percent =
        between(&PIPER.speed.percent, run.workers).ok_or(NotCovered::Workers { workers: run.workers })?;
    Ok(HostPlan {
        parts,
        headroom,
        effective_batch: effective_batch(run.batch, run.gpus, run.accumulation),
        speed_percent,
        warning: tight.then(|| format!("headroom<{}GB", least.0)),
    })
}

/// RAM of a process where all share alike; none where there is no process.
pub fn per_process(ram: Gb, gpus: u64) -> Option<Gb> {
    (gpus > 0).then(|| Gb(ram.0 / gpus as f64))
}

/// The ranges that the guide gives outside of its sums.
pub fn components() -> &'static [Component] {
    &PIPER.component
}

/// A figure at `x`: a given one, or on the straight line between two given ones.
fn between(points: &[(u64, f64)], x: u64) -> Option<f64> {
    let above = points.iter().find(|(at, _)| *at >= x)?;
    let below = points.iter().rev().find(|(at, _)| *at <= x)?;
    if above.0 == below.0 {
        return Some(above.1);
    }
    let share = (x - below.0) as f64 / (above.0 - below.0) as f64;
    Some(below.1 + share * (above.1 - below.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_guide_is_silent_so_are_we() {
        let run = PiperRun { gpus: 1, batch: 24, workers: 0, accumulation: 1 };
        assert_eq!(breakdown("presets", &run), Err(NotCovered::Workers { workers: 0 }));
        let run = PiperRun { workers: 5, ..run };
        assert_eq!(host_plan(&run, Gb(32.0)), Err(NotCovered::Workers { workers: 5 }));
        let run = PiperRun { workers: 4, ..run };
        assert!(matches!(breakdown("critical-scenario", &run), Err(NotCovered::Gpus { gpus: 1, .. })));
        assert_eq!(per_process(Gb(44.0), 0), None);
    }

    #[test]
    fn two_workers_lie_between_one_and_four() {
        let parts = |workers| breakdown("presets", &PiperRun { gpus: 1, batch: 24, workers, accumulation: 1 }).unwrap();
        assert!(parts(1).loader < parts(2).loader && parts(2).loader < parts(4).loader);
    }
}
