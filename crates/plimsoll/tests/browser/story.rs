//! A run folder whose journal tells a run as it might have been, and goes on when the test says so.
//!
//! Records are dated by a clock of the story, a second a step, so that curves over time look like those of real runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Moment, Record, SaveReason, Seen};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

/// Steps that the run is to do.
pub const TOTAL: u64 = 400;
/// The plan's lines, in MiB.
const PARTS: [(&str, u64); 6] =
    [("weights", 88), ("gradients", 44), ("optimizer state", 12), ("activations", 52), ("loader", 9), ("program", 24)];

/// A run in a temporary folder.
pub struct Story {
    dir: tempfile::TempDir,
    clock_ms: u64,
    /// What the present worker has planned.
    mib: u64,
    /// The last step that was told.
    pub step: u64,
}

impl Story {
    /// A run that has begun and done no step.
    pub fn begun() -> Story {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("chat-1")).unwrap();
        let mut story = Story { dir, clock_ms: now - 1000 * TOTAL, mib: 231, step: 0 };
        story.worker(1, 231, None);
        story.tell(Event::RunStarted {
            version: "0.1.0".into(),
            plan: "p1".into(),
            total_steps: TOTAL,
            effective_batch: 32,
            threads: 8,
            simd: "avx512".into(),
            planned_ram_bytes: Bytes::mib(231),
            planned_vram_bytes: Bytes::ZERO,
            facts: Value::Null,
        });
        story.sample(Moment::ModelLoaded, 150);
        story
    }

    /// The run folder.
    pub fn run(&self) -> PathBuf {
        self.dir.path().join("chat-1")
    }

    /// Somebody holds the run's lock, until what is given back is dropped. Unlike a supervisor's, this lock is not handed
    /// down to the processes that a test starts.
    pub fn held(&self) -> fs_err::File {
        let file = fs_err::File::create(self.run().join(".lock")).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    }

    /// Its journal.
    pub fn journal(&self) -> PathBuf {
        self.run().join("journal.jsonl")
    }

    /// Appends to the journal.
    pub fn tell(&mut self, event: Event) {
        let line = serde_json::to_string(&Record { unix_ms: self.clock_ms, event }).unwrap();
        let mut file = fs_err::OpenOptions::new().append(true).create(true).open(self.journal()).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// So many more steps, with evaluations and saves among them.
    pub fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step += 1;
            self.clock_ms += 1000;
            let step = self.step;
            let noise = ((step * 7919) % 97) as f64 / 97.0 - 0.5;
            let loss = 0.6 + 5.0 * (-(step as f64) / 90.0).exp() + 0.3 * noise;
            self.tell(Event::Step {
                step,
                loss,
                lr: 1e-3 / (1.0 + step as f64 / 100.0),
                grad_norm: Some(1.0 + noise),
                tokens: 4096,
                seconds: 0.9,
                data_seconds: 0.1,
                tokens_per_second: 4551.0,
                ram_bytes: Bytes::mib(self.mib - 14 - (step * 31) % 7),
            });
            if step.is_multiple_of(20) {
                self.sample(Moment::Steps, self.mib - 16);
            }
            if step.is_multiple_of(50) {
                self.clock_ms += 2500;
                let (loss, bleu, exact) = (loss + 0.15, Some(12.0 + step as f64 / 20.0), Some(step as f64 / 1000.0));
                self.tell(Event::Eval { step, loss, bleu, exact, scores: None, seconds: 2.5 });
                self.clock_ms += 1500;
                self.saved();
            }
        }
    }

    fn saved(&mut self) {
        let path = self.run().join(format!("checkpoints/step-{}", self.step));
        let (step, bytes, reason) = (self.step, Bytes::mib(144), SaveReason::Steps);
        self.tell(Event::Saved { step, path, bytes, seconds: 1.5, waited_seconds: 1.5, reason });
    }

    fn sample(&mut self, at: Moment, used_mib: u64) {
        let part = |&(name, planned): &(&str, u64)| (name.to_string(), Bytes::kib(960 * planned * self.mib / 231));
        let parts = PARTS[..4].iter().map(part);
        let seen = Seen {
            headroom_bytes: Some(Bytes::mib(1890)),
            swap_bytes: Some(Bytes::ZERO),
            stall_some: Some(0.4),
            stall_full: Some(0.0),
            disk_free_bytes: Some(Bytes::gib(57)),
            parts: parts.collect(),
            ..Seen::default()
        };
        self.tell(Event::Sample { at, step: self.step, ram_bytes: Bytes::mib(used_mib), seen });
    }

    /// The `attempt`-th worker starts and plans `mib`.
    fn worker(&mut self, attempt: u64, mib: u64, cap: Option<Bytes>) {
        self.tell(Event::WorkerStarted {
            pid: 4100 + attempt as u32,
            nspid: Vec::new(),
            attempt,
            cap,
            cgroup: None,
            boot_id: String::new(),
            vmstat_oom_kill: None,
        });
        self.clock_ms += 1200;
        self.mib = mib;
        let parts: BTreeMap<_, _> =
            PARTS.iter().map(|&(name, planned)| (name.to_string(), Bytes::kib(1024 * planned * mib / 231))).collect();
        self.tell(Event::Planned {
            ram_bytes: Bytes::mib(mib),
            budget_bytes: cap.unwrap_or(Bytes::mib(256)),
            smallest_bytes: Bytes::mib(160),
            micro_batch: 8,
            accumulation: 4,
            recompute: 0,
            snapshot: false,
            parts,
        });
    }

    /// The worker dies for want of memory; nothing is done about it.
    pub fn dies(&mut self) {
        self.clock_ms += 400;
        self.tell(Event::Incident {
            step: self.step,
            saved_step: self.step / 50 * 50,
            kind: "kernel_oom_in_our_cgroup".into(),
            told: "killed by the kernel: its cgroup was out of memory".into(),
            confidence: "proven".into(),
            because: vec!["memory.events: oom_kill 0 -> 1".into()],
            evidence: Value::Null,
        });
    }

    /// After its death it plans again, smaller, and goes on from its last checkpoint.
    pub fn goes_on_smaller(&mut self) {
        let cap = Bytes::mib(200);
        let (decision, why) = ("replan".into(), "the limit is smaller than the plan".into());
        self.tell(Event::Decided { decision, why, cap: Some(cap), inputs: Value::Null });
        self.worker(2, 190, Some(cap));
        self.step = self.step / 50 * 50;
        let from = Path::new("checkpoints").join(format!("step-{}", self.step));
        self.tell(Event::Resumed { step: self.step, from });
    }
}
