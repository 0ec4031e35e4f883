//! Runs of somebody else's trainer, made up event by event: how each end is told, and that any journal has a story.

use plimsoll_launch::failure::{FailureKind, Killer, Scene, Victim, failure};
use plimsoll_recover::Exit;
use plimsoll_recover::cause::Evidence;
use serde_json::json;

use super::*;
use crate::doctor::case::{LaunchFacts, Now};
use crate::doctor::text::{Colour, text};

/// A run of Piper that is built event by event, a second apart.
fn run(events: &[Event]) -> Case {
    let records = events
        .iter()
        .zip(0..)
        .map(|(event, at)| Record { unix_ms: 1_794_712_364_000 + 1000 * at, event: event.clone() });
    let launch = LaunchFacts {
        words: ["python3", "-m", "piper.train", "fit", "--x", "a b"].map(String::from).to_vec(),
        folder: "/srv/voice".into(),
        can: Some(Abilities { clip_length: true, resume: true, ..Abilities::default() }),
        ..LaunchFacts::default()
    };
    let now = Now { unix_ms: 1_794_712_464_000, ..Now::default() };
    Case { folder: "runs/piper-1".into(), records: records.collect(), launch: Some(launch), now, ..Case::default() }
}

fn launched(attempt: u64) -> Vec<Event> {
    vec![
        Event::WorkerStarted {
            pid: 70 + attempt as u32,
            nspid: Vec::new(),
            attempt,
            cap: Some(Bytes::gib(4)),
            cgroup: None,
            boot_id: String::new(),
            vmstat_oom_kill: None,
        },
        Event::Launched {
            attempt,
            trainer: "piper".into(),
            words: vec!["python3".into()],
            env: Default::default(),
            settings: [("batch".to_string(), json!(32)), ("workers".to_string(), json!(2))].into(),
            changes: Vec::new(),
            from: None,
        },
    ]
}

fn incident(kind: FailureKind, step: u64) -> Event {
    let evidence = Evidence { exit: Some(Exit::Killed(9)), ..Evidence::default() };
    let mut found = failure(&Scene { evidence, ..Scene::default() });
    found.kind = kind.clone();
    found.confidence = Confidence::Proven;
    Event::Incident {
        step,
        saved_step: 0,
        kind: kind.name().into(),
        told: kind.to_string(),
        confidence: "proven".into(),
        because: Vec::new(),
        evidence: serde_json::to_value(&found).unwrap(),
    }
}

fn decided(decision: &str, why: &str) -> Event {
    Event::Decided { decision: decision.into(), why: why.into(), cap: None, inputs: serde_json::Value::Null }
}

fn page(case: &Case) -> String {
    text(&story(case), Colour::Off)
}

#[test]
fn pipers_settings_are_advised_and_accumulation_never() {
    let mut events = launched(1);
    events.push(Event::Progress { step: 3, total: Some(16), loss: None });
    events.push(incident(FailureKind::HostOom { by: Killer::Cgroup, victim: Victim::Loader }, 3));
    events.push(decided("give_up", "the ladder has ended"));
    let case = run(&events);
    let page = page(&case);
    assert!(page.starts_with("given up after step 3 of 16: the kernel killed a loader process"), "{page}");
    for words in [
        "piper, in /srv/voice\n  python3 -m piper.train fit --x 'a b'\n",
        "use fewer loader processes (2 now): it was a loader process that was killed: `--set workers=1`",
        "a resume keeps the run's settings",
        "lost\n  3 steps, 1.00 s of work: nothing was saved",
        "go on: plimsoll resume runs/piper-1",
    ] {
        assert!(page.contains(words), "`{words}` is missing:\n{page}");
    }
    assert!(!page.contains("accumulate 2"), "{page}");
}

#[test]
fn a_stop_is_no_death_and_a_run_that_goes_on_is_looked_at() {
    let mut events = launched(1);
    events.push(incident(FailureKind::Stopped, 5));
    events.push(Event::Stopped { step: 5, reason: "it was asked to stop".into() });
    let stopped = story(&run(&events));
    assert_eq!((stopped.status, stopped.cause), (Status::Stopped, None));
    assert_eq!(stopped.headline, "stopped after step 5 as it was asked to; it can go on");
    let mut events = launched(1);
    events.push(Event::Progress { step: 9, total: Some(20), loss: Some(1.5) });
    let mut case = run(&events);
    case.now.life = Life::Alive { supervisor: 7 };
    let running = story(&case);
    assert_eq!(running.headline, "running (process 7): step 9 of 20, loss 1.5000");
    assert_eq!((running.next.as_deref(), running.advice.len()), (Some("plimsoll watch runs/piper-1"), 0));
}

#[test]
fn a_step_up_is_no_death_and_leaves_no_gap() {
    let mut events = launched(1);
    events.push(decided("step_up", "there is room again"));
    events.extend(launched(2));
    events.push(Event::Finished {
        steps: 8,
        final_loss: f64::NAN,
        seconds: 9.0,
        peak_ram_bytes: Bytes::gib(1),
        early: None,
    });
    let told = story(&run(&events));
    assert_eq!(told.headline, "finished: 8 steps in 9.00 s, peak RAM 1.00 GiB");
    assert!(told.timeline.iter().all(|at| at.what != "gap"), "{:?}", told.timeline);
    assert_eq!(told.trainer.unwrap().starts[0].end, "gave_way");
}

#[test]
fn a_journal_cut_after_any_line_or_with_another_versions_evidence_has_a_story() {
    let mut events = launched(1);
    events.push(incident(FailureKind::CardOom, 2));
    events.push(decided("step_down", "smaller (same result)"));
    events.extend(launched(2));
    events.push(Event::Tree { ram_bytes: Bytes::gib(1), processes: Vec::new() });
    events.push(Event::Incident {
        step: 3,
        saved_step: 2,
        kind: "of_the_future".into(),
        told: "something new".into(),
        confidence: "likely".into(),
        because: vec!["a ground".into()],
        evidence: json!({ "later": true }),
    });
    for end in 0..=events.len() {
        let page = page(&run(&events[..end]));
        assert!(!page.is_empty() && page.chars().all(|c| c == '\n' || !c.is_control()), "{page}");
    }
    assert!(page(&run(&events)).contains("something new (likely)"), "{}", page(&run(&events)));
}
