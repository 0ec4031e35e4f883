//! A death that nobody saw: what the journal kept of the worker's start, given to the witness who looks now.

use plimsoll_machine::Root;
use plimsoll_recover::cause::{Evidence, LastEvent, LastSample, RunProcess};
use plimsoll_recover::witness::{Death, Started, after_the_fact};
use plimsoll_watch::Event;

use super::attempts::Attempt;

/// What the machine still shows of the end of `attempt`.
pub fn evidence(root: &Root, attempt: &Attempt<'_>) -> Evidence {
    after_the_fact(root, &started(attempt), death(attempt))
}

/// The worker's start, as the journal has it. One without a number is known by its name alone, which proves less.
fn started(attempt: &Attempt<'_>) -> Started {
    let process = |nspid: Vec<u32>| RunProcess { role: "worker".to_string(), comm: "plimsoll".to_string(), nspid };
    let unix_ms = attempt.began();
    match attempt.worker() {
        Some(Event::WorkerStarted { pid, nspid, cgroup, boot_id, vmstat_oom_kill, .. }) => Started {
            unix_ms,
            boot_id: Some(boot_id.clone()).filter(|id| !id.is_empty()),
            vmstat_oom_kill: *vmstat_oom_kill,
            cgroup: cgroup.clone(),
            processes: vec![process(if nspid.is_empty() { vec![*pid] } else { nspid.clone() })],
        },
        _ => Started { unix_ms, processes: vec![process(Vec::new())], ..Started::default() },
    }
}

fn death(attempt: &Attempt<'_>) -> Death {
    let last_sample = attempt.records.iter().rev().find_map(|record| match &record.event {
        Event::Sample { seen, .. } => Some(LastSample {
            headroom: seen.headroom_bytes?,
            host_headroom: None,
            host_ram: None,
            swap: seen.swap_bytes.unwrap_or_default(),
            stall_full: seen.stall_full,
        }),
        _ => None,
    });
    let step = attempt.records.iter().rev().find_map(|record| match record.event {
        Event::Step { step, .. } | Event::Resumed { step, .. } => Some(step),
        _ => None,
    });
    let line = attempt.records.last().and_then(|record| serde_json::to_string(record).ok());
    let last_event = line.map(|line| LastEvent { step: step.unwrap_or(0), line });
    Death { last_sample, last_event, ..Death::default() }
}
