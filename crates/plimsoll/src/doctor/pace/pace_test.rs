//! A journal for each verdict on a run's pace.

use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Seen};

use crate::doctor::case::{Case, Life, Throttle};
use crate::doctor::diagnosis::Slow;
use crate::doctor::fixture::Story;
use crate::doctor::story::story;

fn slow(case: &Case) -> Vec<(Slow, String)> {
    let pace = story(case).pace.expect("a pace");
    pace.verdicts.into_iter().map(|verdict| (verdict.name, verdict.text)).collect()
}

#[test]
fn shares_add_up_and_a_calm_run_is_fine() {
    let mut journal = Story::begun();
    journal.wait(4.0).steps(1, 100, 0.5, 0.01).saved(100, 1.0);
    journal.wait(2.0).event(Event::Eval { step: 100, loss: 1.0, bleu: None, exact: None, scores: None, seconds: 2.0 });
    let pace = story(&journal.case(&[100])).pace.unwrap();
    let split = pace.seconds;
    assert_eq!((split.start, split.save, split.eval, split.between), (4.0, 1.0, 2.0, 0.0));
    assert!((split.data - 1.0).abs() < 1e-9 && (split.compute - 49.0).abs() < 1e-9, "{split:?}");
    assert!((pace.wall_seconds - 57.0).abs() < 1e-9);
    assert_eq!(pace.verdicts[0].name, Slow::Fine);
    let few = Story::begun().steps(1, 3, 0.5, 0.4).case(&[]);
    assert_eq!(slow(&few)[0].0, Slow::TooShort);
}

#[test]
fn a_loader_that_lags_is_told_with_the_threads_it_needs() {
    let case = Story::begun().steps(1, 100, 0.5, 0.3).case(&[]);
    assert_eq!(slow(&case), [(Slow::LoaderBound, "steps wait 60 % of their time for data, 0.30 s a step".to_string())]);
    let set = story(&case).advice.into_iter().find(|advice| advice.key == Some("pin.loader_threads")).unwrap();
    assert_eq!(set.value.as_deref(), Some("3"));
    // Only the first step of a process waits: that is the loader's start.
    let mut journal = Story::begun();
    journal.steps(1, 1, 9.0, 8.9).steps(2, 100, 0.5, 0.0);
    assert_eq!(slow(&journal.case(&[]))[0].0, Slow::Fine);
}

#[test]
fn saves_and_evaluations_that_take_too_long_are_told_with_better_numbers() {
    let mut journal = Story::begun();
    for block in 0..4 {
        journal.steps(block * 20 + 1, block * 20 + 20, 0.5, 0.0).saved(block * 20 + 20, 2.0);
    }
    let diagnosis = story(&journal.case(&[80]));
    assert_eq!(diagnosis.pace.as_ref().unwrap().verdicts[0].name, Slow::SaveBound);
    let key = |key: &str| diagnosis.advice.iter().find(|advice| advice.key == Some(key)).and_then(|a| a.value.clone());
    // 8 of 48 s: to come from a sixth to a fiftieth, 500 becomes 4167.
    assert_eq!((key("pin.snapshot").as_deref(), key("train.save_every").as_deref()), (Some("true"), Some("4167")));

    let mut journal = Story::begun();
    for step in 1..=20 {
        journal.steps(step, step, 0.5, 0.0).wait(0.5);
        journal.event(Event::Eval { step, loss: 1.0, bleu: None, exact: None, scores: None, seconds: 0.5 });
    }
    assert_eq!(slow(&journal.case(&[]))[0].0, Slow::EvalBound);
}

#[test]
fn swap_is_told_with_the_cost_that_this_run_measured() {
    let calm = Seen { swapping_bytes_per_second: Some(Bytes::ZERO), stall_some: Some(0.0), ..Seen::default() };
    let swap = Seen {
        swap_bytes: Some(Bytes::mib(120)),
        swapping_bytes_per_second: Some(Bytes::mib(30)),
        stall_some: Some(35.0),
        ..Seen::default()
    };
    let mut journal = Story::begun();
    journal.steps(1, 51, 0.5, 0.0).sample(calm).steps(52, 71, 1.5, 0.0).sample(swap);
    let found = slow(&journal.case(&[]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Slow::Swapping);
    for says in ["20 steps", "120 MiB", "35 %", "200 % longer than the 50 calm ones, 20 s in all"] {
        assert!(found[0].1.contains(says), "`{says}`: {}", found[0].1);
    }
    let set = story(&journal.case(&[])).advice.into_iter().find(|advice| advice.key == Some("budget.ram")).unwrap();
    assert_eq!(set.value.as_deref(), Some("\"780MiB\""));
}

#[test]
fn steps_that_slow_down_at_equal_work_and_a_used_up_quota_are_throttling() {
    let mut journal = Story::begun();
    journal.steps(1, 60, 0.5, 0.0).steps(61, 120, 0.8, 0.0);
    let found = slow(&journal.case(&[]));
    assert!(found.len() == 1 && found[0].0 == Slow::Throttled && found[0].1.contains("60 % slower"), "{found:?}");
    let mut case = Story::begun().steps(1, 100, 0.5, 0.0).case(&[]);
    assert_eq!(slow(&case)[0].0, Slow::Fine);
    case.now.throttle = Some(Throttle { periods: 1000, throttled: 400 });
    assert_eq!(
        slow(&case),
        [(Slow::Throttled, "the CPU quota of its cgroup ran out in 400 of 1000 periods (40 %)".into())]
    );
}

#[test]
fn memory_far_from_the_plan_is_told_in_both_directions() {
    for (planned, name) in [(Bytes::gib(2), Slow::FarBelowPlan), (Bytes::mib(700), Slow::AbovePlan)] {
        let mut journal = Story::begun();
        journal.worker(2).planned(planned).resumed(0).steps(1, 50, 0.5, 0.0);
        assert!(slow(&journal.case(&[])).iter().any(|(found, _)| *found == name), "{name:?}");
    }
}

#[test]
fn a_live_run_that_records_nothing_for_an_hour_is_silent_and_a_dead_one_is_not() {
    let mut case = Story::begun().steps(1, 100, 0.5, 0.0).case(&[]);
    case.now.unix_ms += 3_600_000;
    assert_eq!(slow(&case)[0].0, Slow::Fine);
    case.now.life = Life::Alive { supervisor: 77 };
    let found = slow(&case);
    assert!(found[0].0 == Slow::Silent && found[0].1.contains("a step takes 0.50 s"), "{found:?}");
}
