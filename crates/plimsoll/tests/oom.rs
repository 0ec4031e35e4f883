//! The kernel's OOM killer, for real: a neighbour in the run's memory cgroup takes so much that the kernel kills the
//! worker. The death is attributed by the kernel's own words, the run goes on under a smaller plan with the same
//! effective batch, and its losses are those of the run that was never disturbed.
//!
//! Needs root and a memory cgroup of version 1 or 2 that may be written to; skipped with the reason where there is none.

#[path = "support_run/neighbour.rs"]
mod neighbour;
#[allow(dead_code, reason = "only its cgroups are used here")]
mod support;
mod support_run;

use neighbour::{LONG, Neighbour, WIDE, take_and_hold};
use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Record};
use support::cgroup::Cgroup;
use support_run::Workshop;
use support_run::trainer::{Trainer, any_of, records};

/// Room that the cgroup leaves above the plan before the neighbour comes.
const SPARE: Bytes = Bytes::mib(8);
const RUNS: usize = 10;

#[test]
#[ignore = "the neighbour's process"]
fn neighbour_process() {
    take_and_hold();
}

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    fs_err::write(workshop.path("model/config.json"), WIDE).unwrap();
    workshop.job(
        "effective_batch = 8\nsteps = 24\neval_every = 0\nsave_every = 3\nkeep = 2\n\
         optimizer = { name = \"adamw\", lr = 1e-3 }\n[pin]\nsnapshot = false",
    );
    workshop
}

fn planned(records: &[Record]) -> Vec<(Bytes, u64)> {
    let of = |record: &Record| match record.event {
        Event::Planned { ram_bytes, micro_batch, accumulation, .. } => Some((ram_bytes, micro_batch * accumulation)),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

#[test]
fn a_worker_that_the_kernel_kills_for_memory_goes_on_smaller_with_the_same_losses() {
    let workshop = workshop();
    Trainer::train_with(&workshop, "whole", |command| _ = command.args(LONG)).end().must(0, &["done: 24 steps"]);
    let whole = plimsoll_watch::losses(&workshop.path("whole/journal.jsonl")).unwrap();
    let (plan, batch) = planned(&records(&workshop.path("whole")))[0];
    assert_eq!(batch, 8);
    let limit = plan + SPARE;
    if let Err(reason) = Cgroup::limited_to(limit.0) {
        println!("skipped: {reason}");
        return;
    }
    let mut slowest = 0;
    for run in 0..RUNS {
        let name = format!("run-{run}");
        let cgroup = Cgroup::limited_to(limit.0).unwrap();
        let mut trainer = Trainer::train_with(&workshop, &name, |command| {
            cgroup.enter(command);
            command.args(LONG);
        });
        trainer.wait_for_step(any_of(2..=15));
        let smallest = smallest(&records(&workshop.path(&name)));
        // More than is free, and little enough that the smallest plan still has its place.
        let hog = limit.saturating_sub(cgroup.held()) + Bytes::mib(4);
        assert!(limit.saturating_sub(hog) > smallest, "{smallest} of {limit} leave nothing to give up");
        let killed = || records(&workshop.path(&name)).iter().any(|r| matches!(r.event, Event::Incident { .. }));
        let mut neighbour = Neighbour::come(&cgroup, hog);
        while !neighbour.holds() && !killed() {
            neighbour = Neighbour::come(&cgroup, hog);
        }
        let said = trainer.end();
        drop(neighbour);
        said.must(0, &["killed by the kernel at the memory limit of its cgroup (proven)", "done: 24 steps"]);
        slowest = slowest.max(judge(&records(&workshop.path(&name)), plan));
        let losses = plimsoll_watch::losses(&workshop.path(&name).join("journal.jsonl")).unwrap();
        assert_eq!(losses.len(), whole.len());
        for ((step, a), (_, b)) in losses.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-5, "run {run}, step {step}: {a} and {b}");
        }
    }
    println!("{RUNS} kernel OOM kills; the slowest took {slowest} ms from the kill to the first new step");
}

fn smallest(records: &[Record]) -> Bytes {
    let of = |record: &Record| match record.event {
        Event::Planned { smallest_bytes, .. } => Some(smallest_bytes),
        _ => None,
    };
    records.iter().find_map(of).expect("it has a plan")
}

/// The incident is the kernel's, the new plan smaller; the milliseconds from the kill to the first new step.
fn judge(records: &[Record], plan: Bytes) -> u64 {
    let deaths: Vec<usize> =
        (0..records.len()).filter(|at| matches!(records[*at].event, Event::Incident { .. })).collect();
    assert!(!deaths.is_empty());
    for at in &deaths {
        let Event::Incident { kind, confidence, because, .. } = &records[*at].event else { unreachable!() };
        assert_eq!((kind.as_str(), confidence.as_str()), ("kernel_oom_in_our_cgroup", "proven"));
        let kernel = because.iter().find(|fact| fact.starts_with("kernel log: "));
        assert!(kernel.is_some(), "{because:?}");
    }
    let decided = records.iter().find_map(|record| match &record.event {
        Event::Decided { decision, cap, .. } => Some((decision.clone(), cap.expect("a cap"))),
        _ => None,
    });
    let (decision, cap) = decided.expect("something was decided");
    assert_eq!(decision, "replan");
    let plans = planned(records);
    let (last, batch) = *plans.last().unwrap();
    assert!(last <= cap && last < plan && batch == 8, "{plans:?} under {cap}");
    let step = records[*deaths.last().unwrap()..].iter().find(|r| matches!(r.event, Event::Step { .. })).unwrap();
    // The incident is noted after the kill by what the inquiry took, so the last word of the dead worker counts.
    step.unix_ms - records[deaths[deaths.len() - 1] - 1].unix_ms
}
