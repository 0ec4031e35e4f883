//! Somebody else's trainer as it is seen: what it was started with, and its processes.

use super::{ProcessView, RunFacts, TrainerView};
use crate::{Event, Member};

/// Processes that are shown.
const SHOWN: usize = 256;

impl RunFacts {
    /// Whether the run is of somebody else's trainer, of whose threads and kernels nobody knows.
    pub fn is_foreign(&self) -> bool {
        self.threads == 0 && self.simd.is_empty()
    }
}

/// The trainer that was started.
pub(super) fn launched(event: &Event) -> Option<TrainerView> {
    let Event::Launched { attempt, trainer, settings, changes, .. } = event else { return None };
    let count = |name: &str| settings.get(name).and_then(serde_json::Value::as_u64);
    Some(TrainerView {
        name: super::told::one_line(trainer),
        start: *attempt,
        batch: count("batch"),
        accumulation: count("accumulation"),
        changes: changes.iter().map(|change| super::told::one_line(change)).collect(),
        processes: Vec::new(),
    })
}

/// The processes, the largest first.
pub(super) fn processes(seen: &[Member]) -> Vec<ProcessView> {
    let view = |member: &Member| ProcessView {
        role: super::told::one_line(&member.role),
        pid: member.pid,
        rss_bytes: member.rss_bytes,
        pss_bytes: member.pss_bytes,
        vram_bytes: member.vram_bytes,
    };
    let mut all: Vec<ProcessView> = seen.iter().map(view).collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.pss_bytes.unwrap_or(process.rss_bytes)));
    all.truncate(SHOWN);
    all
}

#[cfg(test)]
mod tests {
    use plimsoll_machine::Bytes;
    use serde_json::json;

    use super::*;
    use crate::view::{Status, View};
    use crate::{Record, SaveReason};

    /// A trainer that was killed at its limit, went one step down and goes on.
    fn story() -> Vec<Record> {
        let started = |attempt, pid| Event::WorkerStarted {
            pid,
            nspid: vec![pid],
            attempt,
            cap: Some(Bytes::mib(660)),
            cgroup: None,
            boot_id: String::new(),
            vmstat_oom_kill: None,
        };
        let launched = |attempt, batch: u64, accumulation: u64| Event::Launched {
            attempt,
            trainer: "hf-trainer by torchrun".into(),
            words: vec!["torchrun".into()],
            env: Default::default(),
            settings: [("batch".to_string(), json!(batch)), ("accumulation".to_string(), json!(accumulation))].into(),
            changes: if attempt > 1 { vec!["batch 16 instead of 32".into()] } else { Vec::new() },
            from: None,
        };
        let member = |role: &str, rss, pss| Member {
            pid: 7,
            role: role.into(),
            rss_bytes: Bytes::mib(rss),
            pss_bytes: Some(Bytes::mib(pss)),
            vram_bytes: None,
        };
        let events = [
            Event::RunStarted {
                version: "0.1.0".into(),
                plan: "hf-trainer".into(),
                total_steps: 0,
                effective_batch: 32,
                threads: 0,
                simd: String::new(),
                planned_ram_bytes: Bytes::ZERO,
                planned_vram_bytes: Bytes::ZERO,
                facts: serde_json::Value::Null,
            },
            started(1, 41),
            launched(1, 32, 1),
            Event::Progress { step: 2, total: Some(40), loss: Some(3.5) },
            Event::Incident {
                step: 4,
                saved_step: 4,
                kind: "host_oom".into(),
                told: "the kernel killed a rank at the memory limit of its cgroup: rank 0 (process 41)".into(),
                confidence: "proven".into(),
                because: Vec::new(),
                evidence: serde_json::Value::Null,
            },
            started(2, 52),
            launched(2, 16, 2),
            Event::Resumed { step: 4, from: "out/checkpoint-4".into() },
            Event::Progress { step: 5, total: Some(40), loss: None },
            Event::Tree {
                ram_bytes: Bytes::mib(500),
                processes: vec![member("launcher", 500, 90), member("rank 0", 600, 410)],
            },
            Event::Progress { step: 9, total: Some(40), loss: Some(3.25) },
            Event::Saved {
                step: 8,
                path: "out/checkpoint-8".into(),
                bytes: Bytes::mib(2),
                seconds: 0.0,
                waited_seconds: 0.0,
                reason: SaveReason::Steps,
            },
        ];
        events.into_iter().zip(0..).map(|(event, at)| Record { unix_ms: 1_000_000 + 2000 * at, event }).collect()
    }

    #[test]
    fn a_foreign_run_shows_its_trainer_its_limit_and_its_processes_and_no_plan() {
        let view = View::of(&story(), &[], 1_030_000, true);
        assert_eq!((view.status, view.step, view.total_steps), (Status::Running, 9, 40));
        let trainer = view.trainer.unwrap();
        assert_eq!((trainer.name.as_str(), trainer.start), ("hf-trainer by torchrun", 2));
        assert_eq!((trainer.batch, trainer.accumulation), (Some(16), Some(2)));
        let roles: Vec<&str> = trainer.processes.iter().map(|process| process.role.as_str()).collect();
        assert_eq!(roles, ["rank 0", "launcher"], "the largest fair share first");
        assert_eq!((view.memory.planned_bytes, view.memory.budget_bytes), (None, Some(Bytes::mib(660))));
        assert_eq!(view.memory.used_bytes, Some(Bytes::mib(500)));
        // Steps 5 to 9 in 4 s.
        assert_eq!(view.seconds_per_step, Some(1.0));
        let told: Vec<&str> = view.events.iter().map(|event| event.text.as_str()).collect();
        assert!(told.contains(&"run began: hf-trainer, 32 samples an update"), "{told:?}");
        assert!(told.contains(&"start 2, process 52, with at most 660 MiB of RAM"), "{told:?}");
        assert!(told.contains(&"saved checkpoint-8: 2.0 MiB"), "{told:?}");
        assert!(told.iter().all(|text| !text.contains("worker") && !text.contains("threads")), "{told:?}");
    }

    #[test]
    fn a_death_leaves_a_foreign_run_at_the_step_that_its_end_told() {
        let view = View::of(&story()[..5], &[], 1_030_000, false);
        assert_eq!((view.status, view.step), (Status::Dead, 4));
        assert!(view.why.unwrap().contains("rank 0 (process 41)"));
    }
}
