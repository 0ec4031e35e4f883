//! Each point passes, fails and stays unknown where it should.

use plimsoll_machine::Bytes;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

fn mark(list: &Checklist, name: &str) -> Option<Mark> {
    list.items.iter().find(|item| item.name == name).map(|item| item.mark)
}

#[test]
fn nothing_known_is_nothing_passed_that_needs_knowing() {
    let list = check(&CheckFacts::default());
    for name in ["host memory", "memory limit", "swap", "disk"] {
        assert_eq!(mark(&list, name), Some(Mark::Unknown), "{name}");
    }
    assert_eq!(list.failed().count(), 0);
}

#[test]
fn the_limit_counts_and_not_the_machine() {
    let host = HostFacts {
        ram: Some(Bytes::gib(64)),
        cgroup_limit: Some(Bytes::gib(8)),
        cgroup_seen: true,
        demand: Some(Bytes::gib(12)),
        ..HostFacts::default()
    };
    let facts = CheckFacts { host, ..CheckFacts::default() };
    assert_eq!(mark(&check(&facts), "memory limit"), Some(Mark::Fail));
    let enough = HostFacts { demand: Some(Bytes::gib(6)), ..facts.host.clone() };
    assert_eq!(mark(&check(&CheckFacts { host: enough, ..facts }), "memory limit"), Some(Mark::Pass));
}

#[test]
fn shared_memory_is_measured_by_the_batches_in_flight() {
    let of = |workers, shm| {
        let loader =
            LoaderFacts { ranks: 2, workers, prefetch: 2, batch: Some(Bytes::mib(8)), ..LoaderFacts::default() };
        let host = HostFacts { shared_memory: Some(Bytes::mib(shm)), ..HostFacts::default() };
        mark(&check(&CheckFacts { host, loader, ..CheckFacts::default() }), "shared memory")
    };
    assert_eq!((of(4, 64), of(2, 64), of(0, 1)), (Some(Mark::Fail), Some(Mark::Pass), None));
}

#[test]
fn locked_memory_fails_where_it_is_known_to_count() {
    let of = |registers_memory, memlock| {
        let loader = LoaderFacts { pinned: Bytes::gib(1), ..LoaderFacts::default() };
        let host = HostFacts { registers_memory, memlock, ..HostFacts::default() };
        mark(&check(&CheckFacts { host, loader, ..CheckFacts::default() }), "locked memory")
    };
    assert_eq!(of(true, Some(Bytes::mib(8))), Some(Mark::Fail));
    assert_eq!(of(false, Some(Bytes::mib(8))), Some(Mark::Unknown));
    assert_eq!(of(true, None), Some(Mark::Pass));
}

#[test]
fn flags_given_twice_are_found_in_every_spelling_and_appended_lists_are_not() {
    let argv = words(
        "python -m piper.train fit --trainer.devices=4 --data.batch_size 8 --trainer.devices 1 \
                      --trainer.callbacks+=A --trainer.callbacks+=B --num_workers 2 --num-workers=4",
    );
    let twice = crate::command::doubled(&argv);
    assert_eq!(twice.len(), 2, "{twice:?}");
    assert_eq!(twice["--trainer.devices"], ["4", "1"]);
    assert_eq!(twice["--num-workers"], ["2", "4"]);
}

#[test]
fn accelerate_on_processors_with_two_processes_is_known_to_start_one() {
    let of = |text: &str| {
        let trainer = TrainerCheck { argv: words(text), ..TrainerCheck::default() };
        mark(&check(&CheckFacts { trainer, ..CheckFacts::default() }), "processes")
    };
    assert_eq!(of("accelerate launch --cpu --num_processes 2 train.py"), Some(Mark::Fail));
    assert_eq!(of("accelerate launch --multi_gpu --num_processes=2 train.py"), Some(Mark::Pass));
    assert_eq!(of("python train.py --num_processes 2"), None);
}

#[test]
fn pipers_two_traps_and_its_refusals_fail() {
    let modules =
        vec![Module { name: "piper.train.vits.monotonic_align.monotonic_align".into(), importable: Some(false) }];
    let trainer = TrainerCheck {
        modules,
        watches_mos: true,
        mos_reachable: Some(false),
        manual_optimization: true,
        accumulation: Some(2),
        ..TrainerCheck::default()
    };
    let list = check(&CheckFacts { trainer, ..CheckFacts::default() });
    let failed: Vec<&str> = list.failed().map(|item| item.name).collect();
    assert_eq!(failed, ["module", "score for saving", "accumulation"]);
    assert!(list.failed().all(|item| item.cure.is_some()));
}

#[test]
fn deepspeeds_first_use_and_its_programs_are_looked_at() {
    let trainer = TrainerCheck {
        argv: words("deepspeed --bind_cores_to_rank train.py"),
        deepspeed: true,
        deepspeed_with_use_cpu: true,
        unbuilt_ops: Some(vec!["cpu_adam".into()]),
        programs: Programs { numactl: Some(false), ninja: Some(true), compiler: None },
        ..TrainerCheck::default()
    };
    let list = check(&CheckFacts { trainer, ..CheckFacts::default() });
    let marks = ["numactl", "DeepSpeed", "first use", "ninja", "C++ compiler"].map(|name| mark(&list, name));
    let expected = [Mark::Fail, Mark::Fail, Mark::Fail, Mark::Pass, Mark::Unknown].map(Some);
    assert_eq!(marks, expected);
}

#[test]
fn segments_are_asked_for_where_they_work_and_reported_where_they_are_ignored() {
    let of = |segments_work, conf: Option<&str>| {
        let card = CardFacts { segments_work, alloc_conf: conf.map(str::to_string), cards: 2, ..CardFacts::default() };
        let list = check(&CheckFacts { card: Some(card), ..CheckFacts::default() });
        assert_eq!(mark(&list, "order of cards"), Some(Mark::Fail));
        mark(&list, "fragments")
    };
    let set = Some("expandable_segments:True");
    assert_eq!((of(true, set), of(true, None)), (Some(Mark::Pass), Some(Mark::Fail)));
    assert_eq!((of(false, set), of(false, None)), (Some(Mark::Fail), Some(Mark::Pass)));
}

#[test]
fn a_resume_without_its_optimizer_and_a_save_behind_the_evaluation_fail() {
    let run = RunFacts {
        resumes: true,
        resume_complete: Some(true),
        resume_optimizer: Some(false),
        ranks_then_and_now: Some((2, 1)),
        evaluates: true,
        saves_before_eval: Some(false),
        saves_on_stop: Some(false),
        stop_grace_seconds: Some(10.0),
        stop_needs_seconds: Some(24.0),
        disk_free: Some(Bytes::gib(1)),
        checkpoint: Some(Bytes::mib(846)),
        kept: Some(1),
    };
    let list = check(&CheckFacts { run, ..CheckFacts::default() });
    let failed: Vec<&str> = list.failed().map(|item| item.name).collect();
    assert_eq!(failed, ["disk", "optimizer state", "ranks", "save before evaluation", "save on stop", "time to stop"]);
}

#[test]
fn the_list_reads_as_marks_names_findings_and_cures() {
    let host = HostFacts { swap: Some(Bytes::ZERO), overcommit: Some(0), ..HostFacts::default() };
    let text = check(&CheckFacts { host, ..CheckFacts::default() }).to_string();
    assert!(text.contains("ok    promised memory  `vm.overcommit_memory` is 0\n"), "{text}");
    assert!(text.contains("??    swap"), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("-> ")), "{text}");
}
