//! Reads a run folder and its surroundings into a [`Case`]. Nothing is written, and what cannot be read is absent.

mod launched;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_machine::{Bytes, Root};
use plimsoll_plan::choose::Plan;
use plimsoll_recover::checkpoint::{self, Manifest, State};
use plimsoll_watch::Event;

use super::alive::life;
use super::attempts::{Attempt, End, attempts};
use super::case::{Case, CheckpointFacts, JobFacts, Life, Now, PlanFacts};
use super::{after, journal, throttle};
use crate::job::run_folder;
use crate::render::{Fail, OrFail};
use crate::settings::Settings;
use crate::swap_facts::swap_facts;

/// Reads the run in `folder`. Exit 2 where there is none.
pub fn run_folder(folder: &Path) -> Result<Case, Fail> {
    let launched = folder.join(crate::launch::CHARGE).exists();
    if !run_folder::holds_run(folder) && !folder.join(".lock").exists() && !launched {
        let fact = format!("`{}` is not a run: it has no plan.json, journal.jsonl or checkpoints", folder.display());
        return Err(Fail::usage(fact).hint("name a run folder, or a log file"));
    }
    let (records, damaged) = journal::read(&folder.join("journal.jsonl")).or_usage()?;
    let mut case = Case {
        folder: folder.to_path_buf(),
        records,
        damaged,
        job: Settings::from_run(folder).ok().map(|settings| job_facts(&settings)),
        plan: plan_facts(folder),
        launch: None,
        checkpoints: checkpoints(folder),
        now: Now::default(),
    };
    case.launch = launched::launch_facts(folder, &case.records);
    if case.launch.is_some() {
        case.checkpoints = launched::checkpoints(folder);
    }
    case.now = now(folder, &case);
    // A line that is being written is no damage.
    if case.now.life != Life::Dead && case.damaged.last() == Some(&(case.records.len() + case.damaged.len())) {
        case.damaged.pop();
    }
    Ok(case)
}

fn job_facts(settings: &Settings) -> JobFacts {
    JobFacts {
        lr: settings.optimizer.lr(),
        clip_norm: settings.clip_norm,
        save_every: settings.save_every,
        save_minutes: settings.save_minutes,
        eval_every: settings.eval_every.filter(|_| settings.eval_data.is_some()),
        keep: settings.keep,
    }
}

fn plan_facts(folder: &Path) -> Option<PlanFacts> {
    let plan: Plan = serde_json::from_slice(&fs_err::read(folder.join("plan.json")).ok()?).ok()?;
    Some(PlanFacts {
        ram_peak: plan.ram.peak,
        loader_threads: plan.choices.loader_threads as u64,
        threads: plan.threads as u64,
    })
}

fn checkpoints(folder: &Path) -> Vec<CheckpointFacts> {
    let found = checkpoint::list(&folder.join("checkpoints")).unwrap_or_default();
    let facts = |found: checkpoint::Found| match found.state {
        State::Complete => {
            let bytes = Manifest::read(&found.path).ok().map(|manifest| manifest.bytes());
            CheckpointFacts { step: found.step, bytes, trouble: None }
        }
        State::Incomplete(reason) => CheckpointFacts { step: found.step, bytes: None, trouble: Some(reason) },
    };
    found.into_iter().map(facts).collect()
}

fn now(folder: &Path, case: &Case) -> Now {
    let root = Root::system();
    let life = life(folder);
    let all = attempts(&case.records);
    let last = all.last();
    let unseen = last.filter(|attempt| life == Life::Dead && attempt.end == End::Open && attempt.failed().is_none());
    let dead_of_something = life == Life::Dead && last.is_some_and(|attempt| attempt.end != End::Finished);
    let disk_free = rustix::fs::statvfs(folder).ok().map(|found| Bytes(found.f_bavail.saturating_mul(found.f_frsize)));
    Now {
        unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
        life,
        evidence: unseen.filter(|_| case.launch.is_none()).map(|attempt| after::evidence(&root, attempt)),
        failure: unseen.and_then(|attempt| launched::unseen_failure(&root, folder, attempt)),
        swap: dead_of_something.then(|| swap_facts(&root)).flatten(),
        disk_free,
        throttle: last.filter(|_| life != Life::Dead).and_then(worker).and_then(|pid| throttle::throttle(&root, pid)),
        model_is_there: folder.join("model/config.json").exists(),
    }
}

/// The worker's number.
fn worker(attempt: &Attempt<'_>) -> Option<u32> {
    match attempt.worker()? {
        Event::WorkerStarted { pid, .. } => Some(*pid),
        _ => None,
    }
}
