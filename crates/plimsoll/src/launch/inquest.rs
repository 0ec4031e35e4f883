//! After a trainer's end: the scene, what it was, and what the journal and the user are told.

use std::path::Path;

use plimsoll_launch::failure::{self, Failure, Resume, Scene, TrainerFacts, Watched};
use plimsoll_launch::{Knob, Launcher};
use plimsoll_machine::space_of;
use plimsoll_recover::cause::{DiskAtDeath, Worker};
use plimsoll_recover::witness::Death;
use plimsoll_recover::{StopSignal, TreeOutcome};
use plimsoll_watch::Event;

use super::keeper::{Watch, Wished};
use super::logs;
use super::ready::Ready;
use crate::render;

/// What the end was.
pub fn inquire(run: &Path, attempt: u64, ready: &Ready, outcome: &TreeOutcome, watch: &mut Watch) -> Failure {
    let scene = scene(run, attempt, ready, outcome, watch);
    let mut failure = failure::failure(&scene);
    // The exit status of what we ended ourselves is no ground.
    if watch.wished.is_some() && failure.because.len() > 1 {
        failure.because.retain(|ground| ground.source != plimsoll_recover::cause::Source::ExitStatus);
    }
    failure
}

fn scene(run: &Path, attempt: u64, ready: &Ready, outcome: &TreeOutcome, watch: &mut Watch) -> Scene {
    let told = watch.listener.told().clone();
    let disk = space_of(run).ok().map(|space| DiskAtDeath { free: space.available, needed: None, error: None });
    let last_words = watch.listener.last_lines();
    let evidence = watch.witness.testify(Death {
        worker: Worker::Foreign,
        // An end that we made says nothing of its cause.
        exit: Some(outcome.exit).filter(|_| watch.wished.is_none()),
        stop_signal: outcome.stopped_by.map(StopSignal::number),
        told: None,
        last_words,
        last_sample: watch.last.map(|look| look.last()),
        last_event: None,
        disk,
    });
    let has_marker = ready.command.layers().any(|layer| !layer.log.done.is_empty());
    Scene {
        evidence,
        logs: logs::gists(run, attempt),
        trainer: TrainerFacts {
            launcher: Launcher::of(&ready.command, watch.world_seen),
            completed: has_marker.then_some(told.done),
        },
        watched: Watched {
            world_asked: ready.count(Knob::Processes).map(|ranks| ranks as u32),
            world_seen: Some(watch.world_seen as u32),
            gone: if watch.wished == Some(Wished::RankGone) { watch.gone.clone() } else { Vec::new() },
            stopped: watch.stopped.clone(),
            idle: watch.idle.clone(),
            stalled_seconds: watch.still_for.map(|still| still.as_secs()),
        },
        resume: Resume {
            asked: ready.from.is_some(),
            expected_step: ready.from.as_ref().and_then(|from| from.step),
            first_step: told.first_step.filter(|_| watch.wished == Some(Wished::NotRestored)),
            optimizer: None,
        },
        stop_asked: outcome.stopped_by.is_some(),
    }
}

/// Says and notes what it was.
pub fn announce(watch: &mut Watch, failure: &Failure, saved: Option<u64>) {
    let step = watch.listener.told().step.unwrap_or(0);
    render::talk(format!("plimsoll: it ended after step {step}: {}", failure.headline()));
    failure.because.iter().for_each(|ground| render::talk(format!("plimsoll:   {ground}")));
    let event = Event::Incident {
        step,
        saved_step: saved.unwrap_or(0),
        kind: failure.kind.name().to_string(),
        told: match &failure.culprit {
            Some(culprit) => format!("{}: {culprit}", failure.kind),
            None => failure.kind.to_string(),
        },
        confidence: failure.confidence.name().to_string(),
        because: failure.because.iter().map(ToString::to_string).collect(),
        evidence: serde_json::to_value(failure).unwrap_or_default(),
    };
    watch.note(&event);
}
