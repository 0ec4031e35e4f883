//! What the folder of somebody else's trainer holds, and what the machine and the logs tell of an end that no supervisor
//! saw.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use plimsoll_launch::Knob;
use plimsoll_launch::course::abilities;
use plimsoll_launch::failure::{Failure, LogSource, Scene, failure};
use plimsoll_machine::{Bytes, Root};
use plimsoll_recover::cause::{RunProcess, Worker};
use plimsoll_recover::witness::{Death, Started, after_the_fact};
use plimsoll_watch::{Event, Record};

use crate::doctor::attempts::Attempt;
use crate::doctor::case::{CheckpointFacts, LaunchFacts, Place};
use crate::launch::{CHARGE, Charge, log_files, log_gists, own_checkpoints};

/// What the run in `run` was asked to be; none where it is a run of our own.
pub fn launch_facts(run: &Path, records: &[Record]) -> Option<LaunchFacts> {
    if !run.join(CHARGE).exists() {
        return None;
    }
    let charge = Charge::of_run(run).unwrap_or_default();
    // The command may be gone since: then only its words are known.
    let command = charge.command().ok();
    let on_card = records.iter().any(|record| match &record.event {
        Event::Tree { processes, .. } => processes.iter().any(|process| process.vram_bytes > Some(Bytes::ZERO)),
        _ => false,
    });
    let can = command.as_ref().map(|command| {
        let knobs: Vec<Knob> = Knob::ALL.into_iter().filter(|knob| command.can_set(*knob, &charge.folder)).collect();
        abilities(command, &knobs, on_card)
    });
    Some(LaunchFacts { words: charge.words, folder: charge.folder, can, places: places(run, records) })
}

/// The trainer's own checkpoints.
pub fn checkpoints(run: &Path) -> Vec<CheckpointFacts> {
    let Ok(charge) = Charge::of_run(run) else { return Vec::new() };
    let Ok(command) = charge.command() else { return Vec::new() };
    let found = own_checkpoints(&command, &charge).into_iter();
    found.filter_map(|one| Some(CheckpointFacts { step: one.step?, bytes: None, trouble: one.torn })).collect()
}

/// Where the lines stand that deaths were judged by.
fn places(run: &Path, records: &[Record]) -> BTreeMap<Place, PathBuf> {
    let (mut attempt, mut wanted) = (0, Vec::new());
    for record in records {
        match &record.event {
            Event::Launched { attempt: number, .. } => attempt = *number,
            Event::Incident { evidence, .. } => {
                let Ok(failure) = serde_json::from_value::<Failure>(evidence.clone()) else { continue };
                for ground in failure.because {
                    if let (Some(log), Some(line)) = (ground.log, ground.line) {
                        wanted.push((log, Place { attempt, line, text: ground.text }));
                    }
                }
            }
            _ => {}
        }
    }
    let files = log_files(run);
    let find = |(log, place): (LogSource, Place)| {
        let of = |rank: Option<u32>| rank.map_or(LogSource::Main, LogSource::Rank) == log;
        let own = files.iter().filter(|file| file.attempt == place.attempt && of(file.rank));
        let file = own.map(|file| &file.path).find(|path| stands(path, &place))?;
        let shown = file.strip_prefix(run).unwrap_or(file).to_path_buf();
        Some((place, shown))
    };
    wanted.into_iter().filter_map(find).collect()
}

/// Whether the line of `place` is in a file.
fn stands(path: &Path, place: &Place) -> bool {
    let Some(text) = line_at(path, place.line) else { return false };
    let bare = place.text.strip_prefix("an echo of it: ").unwrap_or(&place.text);
    let bare = bare.split_once("echoes of it, the first: ").map_or(bare, |(_, bare)| bare);
    text.contains(bare.trim())
}

fn line_at(path: &Path, line: u64) -> Option<String> {
    let mut from = BufReader::new(fs_err::File::open(path).ok()?);
    let mut bytes = Vec::new();
    for _ in 0..line {
        bytes.clear();
        if from.read_until(b'\n', &mut bytes).ok()? == 0 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What an end was that no supervisor saw.
pub fn unseen_failure(root: &Root, run: &Path, attempt: &Attempt<'_>) -> Option<Failure> {
    let Some(Event::Launched { attempt: number, .. }) = attempt.find(|event| matches!(event, Event::Launched { .. }))
    else {
        return None;
    };
    let evidence = after_the_fact(root, &started(attempt), Death { worker: Worker::Foreign, ..Death::default() });
    Some(failure(&Scene { evidence, logs: log_gists(run, *number), ..Scene::default() }))
}

/// The start, as the journal has it.
fn started(attempt: &Attempt<'_>) -> Started {
    let seen = attempt.find(|event| matches!(event, Event::Tree { .. }));
    let members = match seen {
        Some(Event::Tree { processes, .. }) => processes.as_slice(),
        _ => &[],
    };
    let process = |role: &str, pid: u32| RunProcess { role: role.to_string(), comm: String::new(), nspid: vec![pid] };
    let mut processes: Vec<RunProcess> = members.iter().map(|one| process(&one.role, one.pid)).collect();
    let mut found = Started { unix_ms: attempt.began(), ..Started::default() };
    if let Some(Event::WorkerStarted { pid, nspid, cgroup, boot_id, vmstat_oom_kill, .. }) = attempt.worker() {
        let main = RunProcess {
            role: "rank 0".to_string(),
            comm: String::new(),
            nspid: if nspid.is_empty() { vec![*pid] } else { nspid.clone() },
        };
        if *pid > 0 && processes.iter().all(|known| known.nspid != [*pid]) {
            processes.push(main);
        }
        found.boot_id = Some(boot_id.clone()).filter(|id| !id.is_empty());
        found.vmstat_oom_kill = *vmstat_oom_kill;
        found.cgroup = cgroup.clone();
    }
    found.processes = processes;
    found
}
