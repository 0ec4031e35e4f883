//! A neighbour that eats memory slowly enough to be seen: the run saves, goes on under a smaller plan with the same
//! effective batch, and takes its first plan back when the neighbour is gone. Nobody is killed.
//!
//! Needs root and a memory cgroup; skipped with the reason where there is none.

#[path = "support_run/neighbour.rs"]
mod neighbour;
#[allow(dead_code, reason = "only its cgroups are used here")]
mod support;
mod support_run;

use neighbour::{LONG, Neighbour, WIDE, take_and_hold};
use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Record};
use rustix::process::Signal;
use support::cgroup::Cgroup;
use support_run::Workshop;
use support_run::trainer::{Trainer, records};

/// What the plan leaves over, and what the neighbour takes of it: more than three quarters.
const SPARE: Bytes = Bytes::mib(64);
const TAKEN: Bytes = Bytes::mib(60);

#[test]
#[ignore = "the neighbour's process"]
fn neighbour_process() {
    take_and_hold();
}

/// Peak and effective batch of each plan of the run.
fn plans(records: &[Record]) -> Vec<(Bytes, u64)> {
    let of = |record: &Record| match record.event {
        Event::Planned { ram_bytes, micro_batch, accumulation, .. } => Some((ram_bytes, micro_batch * accumulation)),
        _ => None,
    };
    records.iter().filter_map(of).collect()
}

fn answered(records: &[Record], wanted: &str) -> bool {
    records.iter().any(|record| matches!(&record.event, Event::Pressure { answer, .. } if answer == wanted))
}

#[test]
fn a_neighbour_makes_the_run_smaller_and_it_grows_back_when_the_neighbour_is_gone() {
    let workshop = Workshop::new();
    fs_err::write(workshop.path("model/config.json"), WIDE).unwrap();
    workshop.job(
        "effective_batch = 8\nsteps = 100000\neval_every = 0\nsave_every = 0\nkeep = 2\n\
         optimizer = { name = \"adamw\", lr = 1e-3 }\n[pin]\nsnapshot = false",
    );
    let planned = workshop.plimsoll(&[&["plan", "job.toml", "--json"][..], &LONG].concat());
    let plan: serde_json::Value = serde_json::from_str(&planned.must(0, &[]).stdout).unwrap();
    let limit = Bytes(plan["ram"]["peak"].as_u64().unwrap()) + SPARE;
    let cgroup = match Cgroup::limited_to(limit.0) {
        Ok(cgroup) => cgroup,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut trainer = Trainer::train_with(&workshop, "run", |command| {
        cgroup.enter(command);
        command.args(LONG).env("PLIMSOLL_GROW_AFTER", "3");
    });
    trainer.wait_for_step(3);
    let free = limit.saturating_sub(cgroup.held());
    // All but a few MiB of what is really free.
    let neighbour = Neighbour::come(&cgroup, TAKEN.max(free.saturating_sub(Bytes::mib(10))));
    assert!(neighbour.holds(), "the kernel killed it");
    trainer.wait_for(|run| answered(&records(run), "save_now"));
    trainer.wait_for(|run| answered(&records(run), "shrink") && plans(&records(run)).len() == 2);
    trainer.wait_for_words("the plan has other choices than before: losses agree to rounding");
    drop(neighbour);
    trainer.wait_for(|run| answered(&records(run), "grow") && plans(&records(run)).len() == 3);
    trainer.signal(Signal::INT);
    let said = trainer.end();
    said.must(4, &["pressure: ", "saving, to go on under another plan", "there is room again", "stopped after step"]);
    let records = records(&workshop.path("run"));
    let plans = plans(&records);
    assert!(plans[1].0 < plans[0].0 && plans[2].0 > plans[1].0, "{plans:?}");
    assert!(plans.iter().all(|plan| plan.1 == 8), "{plans:?}");
    assert!(!records.iter().any(|record| matches!(record.event, Event::Incident { .. })), "somebody was killed");
}
