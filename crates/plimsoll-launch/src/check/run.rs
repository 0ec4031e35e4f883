//! Points about the run: room for checkpoints, what a resume finds, saving before evaluation, time to stop.

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use super::Item;

/// Checkpoints, evaluation, stopping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunFacts {
    /// What is free where checkpoints are written.
    pub disk_free: Option<Bytes>,
    /// Bytes of a checkpoint, optimizer included.
    pub checkpoint: Option<Bytes>,
    /// How many are kept; `None` for all.
    pub kept: Option<u64>,
    /// Whether it is to go on from a checkpoint.
    pub resumes: bool,
    /// Whether that checkpoint is complete, as far as its trainer can tell.
    pub resume_complete: Option<bool>,
    /// Whether it holds the optimizer's state.
    pub resume_optimizer: Option<bool>,
    /// Ranks that it was saved with and ranks now, where the trainer needs them equal.
    pub ranks_then_and_now: Option<(u64, u64)>,
    /// Whether it evaluates.
    pub evaluates: bool,
    /// Whether a checkpoint is written before each evaluation.
    pub saves_before_eval: Option<bool>,
    /// Whether it saves when it is asked to stop.
    pub saves_on_stop: Option<bool>,
    /// Seconds that a stop is given before it is enforced.
    pub stop_grace_seconds: Option<f64>,
    /// Seconds of a step and a save together, which a stop takes.
    pub stop_needs_seconds: Option<f64>,
}

pub(super) fn items(run: &RunFacts) -> Vec<Item> {
    let mut out = vec![disk(run)];
    out.extend(resume(run));
    out.extend(evaluation(run));
    out.extend(stop(run));
    out
}

fn disk(run: &RunFacts) -> Item {
    let name = "disk";
    let cure = "free some, write elsewhere, or keep fewer checkpoints; that saves disk, not memory";
    match (run.disk_free, run.checkpoint) {
        (Some(free), Some(checkpoint)) => {
            // One more than is kept: the new one is written before the oldest goes.
            let many = run.kept.map_or(2, |kept| kept.saturating_add(1));
            let need = Bytes(checkpoint.0.saturating_mul(many));
            let found = format!("{free} are free; {many} checkpoints of {checkpoint} take {need}");
            match (need <= free, run.kept) {
                (true, Some(_)) => Item::pass(name, found),
                (true, None) => Item::unknown(name, format!("{found}, and all are kept"), "keep only some"),
                (false, _) => Item::fail(name, found, cure),
            }
        }
        (Some(free), None) => {
            Item::unknown(name, format!("{free} are free; the bytes of a checkpoint are not known"), cure)
        }
        (None, _) => Item::unknown(name, "what is free could not be read", cure),
    }
}

fn resume(run: &RunFacts) -> Vec<Item> {
    if !run.resumes {
        return Vec::new();
    }
    let mut out = vec![match run.resume_complete {
        Some(true) => Item::pass("checkpoint", "it is complete"),
        Some(false) => Item::fail(
            "checkpoint",
            "it is not complete: files are missing or cut",
            "name an older one that is; Hugging Face's trainer takes the newest folder, and does not look further",
        ),
        None => Item::unknown("checkpoint", "it was not looked at", "load it once before the run"),
    }];
    out.push(match run.resume_optimizer {
        Some(true) => Item::pass("optimizer state", "the checkpoint holds it"),
        Some(false) => Item::fail(
            "optimizer state",
            "the checkpoint has none (`optimizer.pt`): the trainer goes on with a fresh one, and does not say so",
            "go on from a checkpoint that has it, or accept another course of training",
        ),
        None => Item::unknown("optimizer state", "it was not looked for", "look for `optimizer.pt` in the checkpoint"),
    });
    if let Some((then, now)) = run.ranks_then_and_now {
        out.push(if then == now {
            Item::pass("ranks", format!("{now}, as when it was saved"))
        } else {
            let found = format!("it was saved with {then} ranks, {now} are to load it");
            Item::fail("ranks", found, format!("start {then} ranks, or convert it (`ds_to_universal`)"))
        });
    }
    out
}

fn evaluation(run: &RunFacts) -> Option<Item> {
    let name = "save before evaluation";
    if !run.evaluates {
        return None;
    }
    let cure = "save at least as often as it evaluates, and before: the peak of an evaluation is another one, and runs die \
                there";
    Some(match run.saves_before_eval {
        Some(true) => Item::pass(name, "a checkpoint is written before each evaluation"),
        Some(false) => Item::fail(name, "an evaluation comes before the save", cure),
        None => Item::unknown(name, "not known", cure),
    })
}

fn stop(run: &RunFacts) -> Vec<Item> {
    let mut out = Vec::new();
    if let Some(saves) = run.saves_on_stop {
        out.push(if saves {
            Item::pass("save on stop", "it saves when it is asked to stop")
        } else {
            Item::fail(
                "save on stop",
                "what was done since the last checkpoint is lost when it is stopped",
                "save often; Lightning: a `ModelCheckpoint` with `save_on_exception=true`",
            )
        });
    }
    let name = "time to stop";
    match (run.stop_grace_seconds, run.stop_needs_seconds) {
        (Some(grace), Some(needs)) => {
            let found = format!("a stop is given {grace:.0} s; a step and a save take about {needs:.0} s");
            out.push(if needs <= grace {
                Item::pass(name, found)
            } else {
                let cure = format!("give it at least {:.0} s", (needs * 1.5).ceil());
                Item::fail(name, found, cure)
            });
        }
        (Some(grace), None) => out.push(Item::unknown(
            name,
            format!("a stop is given {grace:.0} s; what a step and a save take is not known"),
            "a step is finished before the signal is looked at: 10 to 25 s were seen",
        )),
        (None, _) => {}
    }
    out
}
