//! What a view says of the journals that it is given.

use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::{Event, Moment, SaveReason, Seen};

/// Records, a second apart.
struct Log {
    records: Vec<Record>,
    unix_ms: u64,
}

impl Log {
    fn of(events: impl IntoIterator<Item = Event>) -> Log {
        let mut log = Log { records: Vec::new(), unix_ms: 1_000_000 };
        events.into_iter().for_each(|event| log.add(1.0, event));
        log
    }

    fn add(&mut self, after_seconds: f64, event: Event) {
        self.unix_ms += (after_seconds * 1e3) as u64;
        self.records.push(Record { unix_ms: self.unix_ms, event });
    }

    fn view(&self, alive: bool) -> View {
        View::of(&self.records, &[], self.unix_ms, alive)
    }
}

fn worker(attempt: u64) -> Event {
    Event::WorkerStarted {
        pid: 7,
        nspid: vec![],
        attempt,
        cap: None,
        cgroup: None,
        boot_id: String::new(),
        vmstat_oom_kill: None,
    }
}

fn began(total_steps: u64) -> Event {
    Event::RunStarted {
        version: "0.1.0".into(),
        plan: "plan.json".into(),
        total_steps,
        effective_batch: 16,
        threads: 2,
        simd: "avx2".into(),
        planned_ram_bytes: Bytes::mib(240),
        planned_vram_bytes: Bytes::ZERO,
        facts: Value::Null,
    }
}

fn step(step: u64, loss: f64) -> Event {
    Event::Step {
        step,
        loss,
        lr: 1e-3,
        grad_norm: None,
        tokens: 100,
        seconds: 0.5,
        data_seconds: 0.1,
        tokens_per_second: 200.0,
        ram_bytes: Bytes::mib(200 + step),
    }
}

fn resumed(step: u64) -> Event {
    Event::Resumed { step, from: PathBuf::from(format!("run/checkpoints/step-{step}")) }
}

fn planned(micro_batch: u64, ram: u64, parts: &[(&str, u64)]) -> Event {
    Event::Planned {
        ram_bytes: Bytes::mib(ram),
        budget_bytes: Bytes::mib(256),
        smallest_bytes: Bytes::mib(100),
        micro_batch,
        accumulation: 16 / micro_batch,
        recompute: 0,
        snapshot: false,
        parts: parts.iter().map(|&(name, mib)| (name.to_string(), Bytes::mib(mib))).collect(),
    }
}

fn eval(step: u64, loss: f64) -> Event {
    Event::Eval { step, loss, bleu: Some(30.0), exact: None, scores: None, seconds: 0.25 }
}

fn skipped(step: u64) -> Event {
    Event::Skipped { step, what: "gradient".into(), in_a_row: 1 }
}

fn incident(step: u64) -> Event {
    Event::Incident {
        step,
        saved_step: 2,
        kind: "kernel_oom_in_our_cgroup".into(),
        told: "out of memory in its cgroup".into(),
        confidence: "proven".into(),
        because: vec![],
        evidence: Value::Null,
    }
}

fn decided(decision: &str) -> Event {
    Event::Decided { decision: decision.into(), why: "three deaths".into(), cap: None, inputs: Value::Null }
}

#[test]
fn a_resume_voids_the_later_steps_evaluations_and_skips_but_not_the_memory_and_time_they_took() {
    let mut log =
        Log::of([began(10), step(1, 3.0), step(2, 2.0), eval(2, 2.5), step(3, 9.0), skipped(4), eval(4, 8.0)]);
    let before = log.view(true);
    assert_eq!((before.step, before.counts.skipped, before.evaluated.unwrap().step), (4, 1, 4));
    log.add(50.0, resumed(2));
    let after = log.view(true);
    assert_eq!((after.step, after.counts.skipped, after.evaluated.unwrap().step), (2, 0, 2));
    assert_eq!((after.losses, after.evals), (vec![(1.0, 3.0), (2.0, 2.0)], vec![(2.0, 2.5)]));
    assert_eq!(after.latest, None);
    assert_eq!(after.memory.used, before.memory.used);
    assert_eq!((after.time, after.running_seconds), (before.time, 6.0));
    log.add(1.0, step(3, 1.5));
    assert_eq!(log.view(true).losses.last(), Some(&(3.0, 1.5)));
}

#[test]
fn a_new_start_voids_every_loss() {
    let log = Log::of([began(10), step(1, 3.0), step(2, 2.0), worker(2), began(10), step(1, 3.0)]);
    let view = log.view(true);
    assert_eq!((view.step, view.losses, view.counts.restarts), (1, vec![(1.0, 3.0)], 1));
}

#[test]
fn a_run_is_dead_only_when_it_neither_ended_nor_is_held() {
    let mut log = Log::of([worker(1), began(10), step(1, 3.0)]);
    let (alive, dead) = (log.view(true), log.view(false));
    assert_eq!((alive.status, alive.since_unix_ms), (Status::Running, Some(1_001_000)));
    assert_eq!((dead.status, dead.since_unix_ms, dead.eta_seconds), (Status::Dead, Some(1_003_000), None));
    log.add(1.0, Event::Stopped { step: 1, reason: "asked to stop".into() });
    let stopped = log.view(false);
    assert_eq!((stopped.status, stopped.since_unix_ms), (Status::Stopped, Some(1_004_000)));
    assert_eq!(stopped.why.as_deref(), Some("asked to stop"));
    log.add(100.0, worker(1));
    let again = log.view(true);
    assert_eq!((again.status, again.since_unix_ms, again.why), (Status::Running, Some(1_104_000), None));
    let peak_ram_bytes = Bytes::mib(300);
    let early = Some("no better for long".to_string());
    log.add(1.0, Event::Finished { steps: 10, final_loss: 1.0, seconds: 9.0, peak_ram_bytes, early });
    let finished = log.view(false);
    assert_eq!((finished.status, finished.memory.seen_peak_bytes), (Status::Finished, Some(peak_ram_bytes)));
    assert_eq!(finished.why.as_deref(), Some("no better for long"));
}

#[test]
fn a_dead_run_says_why_as_far_as_the_journal_knows() {
    let mut log = Log::of([worker(1), began(10), step(1, 3.0), incident(1)]);
    assert_eq!(log.view(false).why.as_deref(), Some("out of memory in its cgroup (proven)"));
    log.add(1.0, decided("give_up"));
    let view = log.view(false);
    assert_eq!(view.why.as_deref(), Some("out of memory in its cgroup (proven); given up: three deaths"));
    assert_eq!((view.status, view.counts.incidents), (Status::Dead, 1));
    assert_eq!(view.incident_kinds, BTreeMap::from([("kernel_oom_in_our_cgroup".to_string(), 1)]));
    let told: Vec<_> = view.events.iter().filter(|line| line.tone == Tone::Trouble).map(|line| &*line.text).collect();
    assert_eq!(told, ["worker died: out of memory in its cgroup (proven); step 2 is saved", "gives up: three deaths"]);
}

#[test]
fn time_is_split_and_interruptions_are_no_part_of_it() {
    let mut log = Log::of([worker(1), began(10), step(1, 3.0), step(2, 2.0), eval(2, 2.0)]);
    let (path, bytes, reason) = (PathBuf::from("step-2"), Bytes::mib(1), SaveReason::Exit);
    log.add(1.0, Event::Saved { step: 2, path, bytes, seconds: 3.0, waited_seconds: 0.75, reason });
    log.add(1.0, Event::Stopped { step: 2, reason: "asked to stop".into() });
    log.add(60.0, Event::MirrorTrouble { message: "no answer".into() });
    log.add(3600.0, worker(1));
    log.add(2.0, resumed(2));
    let view = log.view(true);
    let Split { data, compute, save, eval, other } = view.time;
    assert!((data - 0.2).abs() < 1e-9 && (compute - 0.8).abs() < 1e-9, "{:?}", view.time);
    assert_eq!((save, eval), (0.75, 0.25));
    assert!((other - (8.0 - 2.0)).abs() < 1e-9, "{other}");
    assert!((view.time.wall() - 8.0).abs() < 1e-9 && view.running_seconds == 8.0);
}

#[test]
fn the_time_left_follows_from_this_workers_pace_and_runs_down_while_nothing_is_written() {
    let mut log = Log::of([worker(1), began(10), step(1, 3.0), step(2, 2.0)]);
    log.add(4.0, step(3, 2.0));
    // Five seconds for two steps.
    assert_eq!(log.view(true).eta_seconds, Some(17.5));
    let later = View::of(&log.records, &[], log.unix_ms + 1500, true);
    assert_eq!((later.eta_seconds, later.silent_seconds(), later.running_seconds), (Some(16.0), 1.5, 8.5));
    let stuck = View::of(&log.records, &[], log.unix_ms + 60_000, true);
    assert_eq!(stuck.eta_seconds, Some(15.0), "six more steps at least");
    log.add(1.0, worker(2));
    log.add(1.0, resumed(3));
    log.add(1.0, step(4, 2.0));
    assert_eq!(log.view(true).eta_seconds, None, "one step has no pace");
}

#[test]
fn parts_stand_in_the_plans_order_with_the_plan_that_holds_and_what_was_measured_last() {
    let order = [("weights", 90), ("activations", 60), ("reserve", 2)];
    let order: Vec<(String, Bytes)> = order.iter().map(|&(name, mib)| (name.to_string(), Bytes::mib(mib))).collect();
    let mut log = Log::of([worker(1), began(10)]);
    let names = |view: &View| view.memory.parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>();
    let old = View::of(&log.records, &order, 0, true);
    assert_eq!(names(&old), ["weights", "activations", "reserve"]);
    assert_eq!(old.memory.parts[1].planned_bytes, Some(Bytes::mib(60)));
    log.add(1.0, planned(4, 200, &[("activations", 40), ("weights", 90), ("snapshot", 30)]));
    let parts = BTreeMap::from([("weights".to_string(), Bytes::mib(89)), ("leak".to_string(), Bytes::mib(5))]);
    let seen = Seen { headroom_bytes: Some(Bytes::gib(1)), parts, ..Seen::default() };
    log.add(1.0, Event::Sample { at: Moment::FirstStep, step: 1, ram_bytes: Bytes::mib(210), seen });
    let seen = Seen { swap_bytes: Some(Bytes::mib(3)), ..Seen::default() };
    log.add(1.0, Event::Sample { at: Moment::Tick, step: 1, ram_bytes: Bytes::mib(205), seen });
    let view = View::of(&log.records, &order, 0, true);
    assert_eq!(names(&view), ["weights", "activations", "snapshot", "leak"]);
    let part = |at: usize| (view.memory.parts[at].planned_bytes, view.memory.parts[at].used_bytes);
    assert_eq!(part(0), (Some(Bytes::mib(90)), Some(Bytes::mib(89))));
    assert_eq!(part(1), (Some(Bytes::mib(40)), None));
    assert_eq!(part(3), (None, Some(Bytes::mib(5))));
    let memory = &view.memory;
    assert_eq!((memory.headroom_bytes, memory.swap_bytes), (Some(Bytes::gib(1)), Some(Bytes::mib(3))));
    assert_eq!((memory.used_bytes, memory.seen_peak_bytes), (Some(Bytes::mib(205)), Some(Bytes::mib(210))));
}

#[test]
fn a_changed_plan_is_news_and_the_same_plan_again_is_not() {
    let mut log = Log::of([worker(1), planned(4, 200, &[]), began(10), step(1, 3.0)]);
    log.add(1.0, worker(2));
    log.add(1.0, planned(4, 201, &[]));
    log.add(1.0, resumed(1));
    log.add(1.0, planned(2, 150, &[]));
    let view = log.view(true);
    let plans: Vec<_> = view.events.iter().filter(|line| line.text.starts_with("plan")).collect();
    assert_eq!(plans.iter().map(|line| line.tone).collect::<Vec<_>>(), [Tone::Routine, Tone::Routine, Tone::Note]);
    assert_eq!(plans[2].text, "plan changed: 150 MiB of 256 MiB, micro-batch 2 x 8, 0 blocks computed twice");
    assert_eq!(view.choices.unwrap().micro_batch, 2);
    assert_eq!(view.memory.plans.len(), 3);
}

#[test]
fn a_loss_that_is_no_number_is_in_the_figures_and_not_in_the_curve_and_the_view_is_json_all_the_same() {
    let view = Log::of([began(10), step(1, 3.0), step(2, f64::NAN)]).view(true);
    assert_eq!((view.step, view.losses.len()), (2, 1));
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!((&json["latest"]["loss"], &json["status"]), (&Value::from("NaN"), &Value::from("running")));
    assert_eq!(json["losses"], serde_json::json!([[1.0, 3.0]]));
}

#[test]
fn an_empty_journal_gives_a_view_too() {
    let view = View::of(&[], &[], 5, true);
    assert_eq!((view.status, view.since_unix_ms, view.step, view.eta_seconds), (Status::Running, None, 0, None));
}
