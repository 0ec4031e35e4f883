//! Journals for the tests: events with a clock that moves as they say.

use plimsoll_machine::Bytes;
use plimsoll_recover::Exit;
use plimsoll_recover::cause::{Evidence, RunProcess};
use plimsoll_watch::{Event, Moment, Record, SaveReason, Seen};

use super::case::{Case, CheckpointFacts, JobFacts, Now, PlanFacts};

/// 2026-11-15 03:12:44 UTC.
pub const START: u64 = 1_794_712_364_000;

/// A run of 1000 steps, built event by event.
#[derive(Default)]
pub struct Story {
    pub records: Vec<Record>,
    at: u64,
}

impl Story {
    /// A worker started, planned, and began at step 1.
    pub fn begun() -> Story {
        let mut story = Story { records: Vec::new(), at: START };
        story.worker(1).planned(Bytes::mib(900)).event(Event::RunStarted {
            version: "0.1.0".into(),
            plan: "plan.json".into(),
            total_steps: 1000,
            effective_batch: 32,
            threads: 4,
            simd: "avx512".into(),
            planned_ram_bytes: Bytes::mib(900),
            planned_vram_bytes: Bytes::ZERO,
            facts: serde_json::Value::Null,
        });
        story
    }

    pub fn event(&mut self, event: Event) -> &mut Story {
        self.records.push(Record { unix_ms: self.at, event });
        self
    }

    pub fn wait(&mut self, seconds: f64) -> &mut Story {
        self.at += (seconds * 1000.0) as u64;
        self
    }

    pub fn worker(&mut self, attempt: u64) -> &mut Story {
        self.event(Event::WorkerStarted {
            pid: 4242,
            nspid: vec![4242],
            attempt,
            cap: None,
            cgroup: Some("/runs/plimsoll-1-1".into()),
            boot_id: "boot-a".into(),
            vmstat_oom_kill: Some(3),
        })
    }

    pub fn planned(&mut self, ram: Bytes) -> &mut Story {
        self.event(Event::Planned {
            ram_bytes: ram,
            budget_bytes: Bytes::gib(2),
            smallest_bytes: Bytes::mib(300),
            micro_batch: ram.0 >> 26,
            accumulation: 4,
            recompute: 0,
            snapshot: false,
            parts: [("weights".to_string(), ram)].into(),
        })
    }

    /// Steps `from..=to`, each of `seconds`, of which `data` waiting.
    pub fn steps(&mut self, from: u64, to: u64, seconds: f64, data: f64) -> &mut Story {
        for step in from..=to {
            self.wait(seconds).event(Event::Step {
                step,
                loss: 4.0 / step as f64,
                lr: 1e-3,
                grad_norm: Some(2.5),
                tokens: 1000,
                seconds,
                data_seconds: data,
                tokens_per_second: 1000.0 / seconds,
                ram_bytes: Bytes::mib(850),
            });
        }
        self
    }

    pub fn saved(&mut self, step: u64, seconds: f64) -> &mut Story {
        self.wait(seconds).event(Event::Saved {
            step,
            path: format!("checkpoints/step-{step}").into(),
            bytes: Bytes::mib(484),
            seconds,
            waited_seconds: seconds,
            reason: SaveReason::Steps,
        })
    }

    pub fn sample(&mut self, seen: Seen) -> &mut Story {
        self.event(Event::Sample { at: Moment::Tick, step: 0, ram_bytes: Bytes::mib(850), seen })
    }

    /// The supervisor's account of a death that it saw, as it writes it.
    pub fn incident(&mut self, step: u64, saved_step: u64, evidence: &Evidence) -> &mut Story {
        let cause = plimsoll_recover::cause::cause(evidence);
        self.event(Event::Incident {
            step,
            saved_step,
            kind: cause.kind.name().into(),
            told: cause.kind.to_string(),
            confidence: cause.confidence.name().into(),
            because: cause.because.iter().map(ToString::to_string).collect(),
            evidence: serde_json::to_value(evidence).unwrap(),
        })
    }

    pub fn decided(&mut self, decision: &str, why: &str, cap: Option<Bytes>) -> &mut Story {
        let (decision, why) = (decision.to_string(), why.to_string());
        self.event(Event::Decided { decision, why, cap, inputs: serde_json::Value::Null })
    }

    pub fn resumed(&mut self, step: u64) -> &mut Story {
        self.event(Event::Resumed { step, from: format!("checkpoints/step-{step}").into() })
    }

    /// The run as it is found a minute later, dead, with checkpoints of these steps.
    pub fn case(&self, checkpoints: &[u64]) -> Case {
        let whole = |step: &u64| CheckpointFacts { step: *step, bytes: Some(Bytes::mib(484)), trouble: None };
        Case {
            folder: "runs/chat-1".into(),
            records: self.records.clone(),
            damaged: Vec::new(),
            job: Some(JobFacts {
                lr: Some(1e-3),
                clip_norm: None,
                save_every: Some(500),
                save_minutes: Some(15),
                eval_every: Some(200),
                keep: 3,
            }),
            launch: None,
            plan: Some(PlanFacts { ram_peak: Bytes::mib(900), loader_threads: 1, threads: 4 }),
            checkpoints: checkpoints.iter().map(whole).collect(),
            now: Now { unix_ms: self.at + 60_000, evidence: None, disk_free: Some(Bytes::gib(40)), ..Now::default() },
        }
    }
}

/// The evidence of a worker that was killed by signal 9.
pub fn killed() -> Evidence {
    Evidence {
        exit: Some(Exit::Killed(9)),
        processes: vec![RunProcess { role: "worker".into(), comm: "plimsoll".into(), nspid: vec![4242] }],
        first_pid_namespace: true,
        ..Evidence::default()
    }
}
