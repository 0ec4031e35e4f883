//! A journal for each story, and what the doctor must make of it.

use plimsoll_machine::Bytes;
use plimsoll_recover::Exit;
use plimsoll_recover::cause::{CgroupCounters, Change, Confidence, DiskAtDeath, Evidence, LastSample};
use plimsoll_watch::{Event, Record};

use super::attempts::attempts;
use super::case::{Case, CheckpointFacts, Life};
use super::diagnosis::{Diagnosis, FoundBy, Status};
use super::fixture::{START, Story, killed};
use super::story::story;
use super::text::{Colour, text};

fn oom_log(of: &str) -> String {
    format!(
        "memory: usage 2097152kB, limit 2097152kB, failcnt 9\n\
         oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={of},\
         task_memcg=/runs/plimsoll-1-1,task=plimsoll,pid=4242,uid=0\n\
         Memory cgroup out of memory: Killed process 4242 (plimsoll) total-vm:9000000kB, anon-rss:819200kB, \
         file-rss:8000kB, shmem-rss:0kB, UID:0 pgtables:900kB oom_score_adj:500\n"
    )
}

fn told(evidence: &Evidence) -> Diagnosis {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(100, 1.0).incident(120, 100, evidence).decided("give_up", "enough", None);
    story(&journal.case(&[100]))
}

fn advice(diagnosis: &Diagnosis) -> String {
    diagnosis.advice.iter().map(|advice| advice.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// Kind, confidence, and that the text names what it must.
fn is(diagnosis: &Diagnosis, kind: &str, confidence: Confidence, says: &[&str]) {
    let cause = diagnosis.cause.as_ref().expect("a cause");
    assert_eq!((cause.kind.as_str(), cause.confidence), (kind, confidence), "{}", diagnosis.headline);
    assert!(!cause.because.is_empty(), "no cause without a ground");
    let page = text(diagnosis, Colour::Off);
    says.iter().for_each(|word| assert!(page.contains(word), "`{word}` is missing:\n{page}"));
}

#[test]
fn a_kernel_oom_at_a_shared_limit_names_limit_plan_and_the_neighbours_share() {
    let evidence =
        Evidence { kernel_log: Some(oom_log("/runs")), cgroup_path: Some("/runs/plimsoll-1-1".into()), ..killed() };
    let diagnosis = told(&evidence);
    is(
        &diagnosis,
        "kernel_oom_in_our_cgroup",
        Confidence::Proven,
        &["died after step 120 of 1000", "of 2.00 GiB the run held 800 MiB and they held about 1.22 GiB", "budget.ram"],
    );
    assert_eq!(diagnosis.status, Status::Died);
    assert_eq!(diagnosis.next.as_deref(), Some("plimsoll resume runs/chat-1"));
    assert_eq!(diagnosis.lost.unwrap().steps, 20);
}

#[test]
fn an_overshoot_of_the_workers_own_guard_is_called_a_fault_of_the_plan() {
    let evidence = Evidence {
        kernel_log: Some(oom_log("/runs/plimsoll-1-1")),
        cgroup_path: Some("/runs/plimsoll-1-1".into()),
        ..killed()
    };
    is(&told(&evidence), "kernel_oom_in_our_cgroup", Confidence::Proven, &["fault of the plan", "of 900 MiB"]);
}

#[test]
fn a_kernel_oom_by_counters_alone_is_likely() {
    let rose = Some(Change { before: 0, after: 1 });
    let cgroup = CgroupCounters::V1 {
        oom_kill: rose,
        failcnt: rose,
        max_usage: Some(Bytes::gib(1)),
        limit: Some(Bytes::gib(1)),
    };
    let diagnosis = told(&Evidence { cgroup: Some(cgroup), ..killed() });
    is(&diagnosis, "kernel_oom_in_our_cgroup", Confidence::Likely, &["the limit is 1.00 GiB and the plan was 900 MiB"]);
}

#[test]
fn a_kernel_oom_of_the_machine_tells_what_was_left_and_what_others_used() {
    let log =
        "Out of memory: Killed process 4242 (plimsoll) total-vm:9kB, anon-rss:900000kB, file-rss:8kB, shmem-rss:0kB";
    let sample = LastSample {
        headroom: Bytes::mib(100),
        host_headroom: Some(Bytes::mib(100)),
        host_ram: Some(Bytes::gib(16)),
        swap: Bytes::ZERO,
        stall_full: None,
    };
    let diagnosis = told(&Evidence { kernel_log: Some(log.into()), last_sample: Some(sample), ..killed() });
    is(
        &diagnosis,
        "kernel_oom_of_the_host",
        Confidence::Proven,
        &["100 MiB of 16.00 GiB left", "others used about 15.07 GiB"],
    );
}

#[test]
fn a_memory_watchdog_is_named_and_how_it_is_told_to_spare_us() {
    let log = "earlyoom[5]: sending SIGKILL to process 4242 uid 0 \"plimsoll\": oom_score 1003, VmRSS 12 MiB";
    let diagnosis = told(&Evidence { daemon_log: Some(log.into()), ..killed() });
    is(&diagnosis, "oom_daemon", Confidence::Proven, &["killed by earlyoom", "earlyoom --avoid plimsoll"]);
}

#[test]
fn a_kill_without_evidence_stays_unproven_and_says_what_was_looked_for() {
    let diagnosis = told(&killed());
    is(
        &diagnosis,
        "killed_unproven",
        Confidence::Unproven,
        &["killed by signal 9, cause unproven", "dmesg_restrict", "not proven, because:"],
    );
    assert!(!text(&diagnosis, Colour::Off).contains("out of memory"));
    // With a log that was read, nobody is sent to make it readable.
    let read = told(&Evidence { kernel_log: Some(String::new()), ..killed() });
    assert!(!advice(&read).contains("dmesg_restrict"), "{}", advice(&read));
    // A status of 137 is a signal as a shell reports it, and no more.
    let shell = told(&Evidence { exit: Some(Exit::Exited(137)), ..killed() });
    is(&shell, "killed_unproven", Confidence::Unproven, &["status 137, as a shell reports signal 9"]);
}

#[test]
fn a_full_disk_tells_how_many_bytes_are_missing_and_where() {
    let disk = DiskAtDeath { free: Bytes::mib(12), needed: Some(Bytes::mib(484)), error: None };
    let words = vec!["error: No space left on device (os error 28)".to_string()];
    let evidence =
        Evidence { exit: Some(Exit::Exited(1)), stderr_tail: words, disk: Some(disk), ..Evidence::default() };
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0).incident(20, 10, &evidence);
    let mut case = journal.case(&[5, 10]);
    case.now.disk_free = Some(Bytes::mib(84));
    let diagnosis = story(&case);
    let missing = "free 400 MiB more on the disk of runs/chat-1: a save needs 484 MiB, 84.0 MiB are free";
    is(&diagnosis, "disk_full", Confidence::Proven, &[missing, "12.0 MiB were free at the death", "train.keep = 1"]);
    case.now.disk_free = Some(Bytes::gib(4));
    assert!(advice(&story(&case)).contains("there is room again"), "{}", advice(&story(&case)));
}

#[test]
fn a_failing_disk_bad_data_a_refused_allocation_and_a_bug_each_have_their_own_remedy() {
    for (words, kind, remedy) in [
        ("read failed: Input/output error (os error 5)", "io_error", "smartctl"),
        ("`a.jsonl` line 7: expected a string, found `3`", "bad_data", "put the named file"),
        ("memory allocation of 99 bytes failed", "allocation_refused", "ulimit -v"),
        ("thread 'main' panicked at crates/x.rs:9:5:", "bug", "plimsoll doctor runs/chat-1 --json"),
    ] {
        let stderr_tail = vec![words.to_string()];
        let evidence = Evidence { exit: Some(Exit::Exited(101)), stderr_tail, ..Evidence::default() };
        is(&told(&evidence), kind, Confidence::Proven, &[words, remedy]);
    }
    let bug = told(&Evidence {
        exit: Some(Exit::Exited(101)),
        stderr_tail: vec!["thread 'main' panicked at crates/x.rs:9:5:".into()],
        ..Evidence::default()
    });
    assert!(bug.headline.contains("crates/x.rs:9:5"), "{}", bug.headline);
}

#[test]
fn numbers_out_of_hand_tell_the_last_finite_step_and_the_settings_to_change() {
    let words = vec!["error: the loss of step 121 is NaN".to_string()];
    let diagnosis = told(&Evidence { exit: Some(Exit::Exited(1)), stderr_tail: words, ..Evidence::default() });
    let last = "the last sound step was 120 with loss 0.0333, learning rate 0.001, gradient norm 2.5";
    is(&diagnosis, "non_finite", Confidence::Proven, &[last, "train.optimizer.lr = 0.0005", "train.clip_norm = 1.0"]);
}

#[test]
fn a_step_that_was_skipped_for_its_gradient_is_not_the_last_sound_one() {
    let mut journal = Story::begun();
    journal.steps(1, 12, 0.5, 0.0);
    for step in 13..=15 {
        journal.steps(step, step, 0.5, 0.0).event(Event::Skipped {
            step,
            what: "gradient".into(),
            in_a_row: step - 12,
        });
    }
    let message = "the gradient is not finite for 3 steps in a row, up to step 15".to_string();
    let stderr_tail = vec![message.clone(), "the loss of step 15 is NaN".to_string()];
    journal.incident(15, 0, &Evidence { exit: Some(Exit::Exited(1)), stderr_tail, ..Evidence::default() });
    let diagnosis = story(&journal.case(&[]));
    assert!(advice(&diagnosis).contains("the last sound step was 12 with loss"), "{}", advice(&diagnosis));
}

#[test]
fn a_card_out_of_memory_a_plan_that_does_not_fit_and_a_kind_of_the_future_are_told() {
    let cuda = vec!["CUDA error: out of memory".to_string()];
    let cuda = Evidence { exit: Some(Exit::Exited(1)), stderr_tail: cuda, ..Evidence::default() };
    is(&told(&cuda), "cuda_out_of_memory", Confidence::Proven, &["nvidia-smi"]);
    is(
        &told(&Evidence { exit: Some(Exit::Exited(3)), ..Evidence::default() }),
        "does_not_fit",
        Confidence::Likely,
        &["plimsoll plan"],
    );
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0).event(Event::Incident {
        step: 20,
        saved_step: 0,
        kind: "eaten_by_a_whale".into(),
        told: "eaten by a whale".into(),
        confidence: "likely".into(),
        because: vec!["sonar: a large shadow".into()],
        evidence: serde_json::Value::Null,
    });
    let whale = story(&journal.case(&[]));
    is(&whale, "eaten_by_a_whale", Confidence::Likely, &["eaten by a whale (likely)", "sonar: a large shadow"]);
}

#[test]
fn what_was_done_is_told_and_a_run_that_went_on_is_not_dead() {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(100, 1.0);
    journal.incident(120, 100, &Evidence { kernel_log: Some(oom_log("/runs")), ..killed() });
    journal.decided("replan", "a plan of at most 700 MiB of RAM, with the same effective batch", Some(Bytes::mib(700)));
    journal.wait(2.0).worker(2).planned(Bytes::mib(700)).resumed(100).steps(101, 1000, 0.5, 0.0);
    let peak_ram_bytes = Bytes::mib(690);
    journal.event(Event::Finished { steps: 1000, final_loss: 0.25, seconds: 450.0, peak_ram_bytes, early: None });
    let diagnosis = story(&journal.case(&[1000]));
    assert_eq!((diagnosis.status, diagnosis.cause.as_ref()), (Status::Finished, None));
    assert_eq!(
        diagnosis.headline,
        "finished: 1000 steps in 7 min 30 s, loss 0.2500, peak RAM 690 MiB of 700 MiB planned"
    );
    assert!(diagnosis.lost.is_none());
    let early = Some("3 evaluations in a row without an improvement of the loss".to_string());
    let mut short = Story::begun();
    short.steps(1, 120, 0.5, 0.0);
    short.event(Event::Finished { steps: 120, final_loss: 0.25, seconds: 60.0, peak_ram_bytes, early });
    let told = story(&short.case(&[120]));
    assert!(told.headline.ends_with("; it ended early: 3 evaluations in a row without an improvement of the loss"));
    assert!(text(&told, Colour::Off).contains("it ends early, after step 120: 3 evaluations"), "{}", told.headline);
    let page = text(&diagnosis, Colour::Off);
    for says in [
        "planned smaller, same effective batch, and started again, with at most 700 MiB of RAM",
        "went on from a checkpoint once; 20 steps were done again",
        "the worker ends: killed by the kernel at the memory limit of its cgroup (proven)",
        "the plan changes to 700 MiB: micro-batch 10 (was 14)",
        "2026-11-15 03:12:44  the run starts: 1000 steps",
    ] {
        assert!(page.contains(says), "`{says}` is missing:\n{page}");
    }
}

#[test]
fn a_run_that_stopped_as_asked_is_not_called_dead_and_its_command_is_there() {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(120, 1.0);
    journal.event(Event::Stopped { step: 120, reason: "asked to stop".into() });
    let diagnosis = story(&journal.case(&[120]));
    assert_eq!(diagnosis.status, Status::Stopped);
    assert_eq!(diagnosis.headline, "stopped after step 120 of 1000: asked to stop; it can go on");
    assert_eq!((diagnosis.cause, diagnosis.lost), (None, None));
    assert_eq!(diagnosis.next.as_deref(), Some("plimsoll resume runs/chat-1"));
}

#[test]
fn a_stop_for_want_of_room_says_so_and_what_the_run_needs() {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(120, 1.0).event(Event::Pressure {
        step: 120,
        answer: "stop".into(),
        why: "17.2 MiB of memory are left".into(),
        inputs: serde_json::Value::Null,
    });
    journal.event(Event::Stopped { step: 120, reason: "to go on under another plan".into() });
    let diagnosis = story(&journal.case(&[120]));
    assert_eq!((diagnosis.status, diagnosis.cause.as_ref()), (Status::Stopped, None));
    assert!(diagnosis.headline.contains("memory or disk was short: 17.2 MiB of memory are left; it can go on"));
    assert!(advice(&diagnosis).contains("the plan was 900 MiB, the smallest needs 300 MiB"), "{}", advice(&diagnosis));
}

#[test]
fn an_error_that_an_old_journal_notes_as_a_stop_is_told_as_a_death() {
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0);
    let reason = "`run` has 12.0 MiB free, 484 MiB are needed".to_string();
    journal.event(Event::Stopped { step: 20, reason });
    let diagnosis = story(&journal.case(&[]));
    assert_eq!(diagnosis.status, Status::Died);
    is(&diagnosis, "disk_full", Confidence::Proven, &["there is no checkpoint: a resume begins at step 1"]);
}

#[test]
fn the_workers_last_words_count_where_no_supervisor_was_left() {
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0);
    let place = Some("crates/plimsoll-engine/src/arena.rs:40:9".to_string());
    journal.event(Event::Failed { step: 0, message: "index out of bounds".into(), place });
    let diagnosis = story(&journal.case(&[]));
    is(&diagnosis, "bug", Confidence::Proven, &["arena.rs:40:9", "index out of bounds"]);
    assert_eq!(diagnosis.cause.unwrap().found_by, FoundBy::Journal);
    assert!(diagnosis.timeline.iter().all(|at| at.what != "failed" || at.step == Some(20)));
}

/// A run whose supervisor died too, with what the machine shows now.
fn unseen(evidence: Evidence) -> Case {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(100, 1.0);
    let mut case = journal.case(&[100]);
    case.now.evidence = Some(Evidence { exit: None, ..evidence });
    case
}

#[test]
fn dead_with_nothing_left_to_see_is_dead_cause_unproven() {
    let boot = Change { before: "boot-a".to_string(), after: "boot-a".to_string() };
    let diagnosis = story(&unseen(Evidence { boot_id: Some(boot), ..killed() }));
    assert_eq!(diagnosis.status, Status::DeadWithoutAWitness);
    is(
        &diagnosis,
        "unknown",
        Confidence::Unproven,
        &["dead after step 120 of 1000, cause unproven", "has not booted since"],
    );
    assert_eq!(diagnosis.next.as_deref(), Some("plimsoll resume runs/chat-1"));
}

#[test]
fn a_machine_that_booted_since_and_a_kernel_that_names_the_worker_are_found_after_the_fact() {
    let boot = Change { before: "boot-a".to_string(), after: "boot-b".to_string() };
    let reboot = story(&unseen(Evidence { boot_id: Some(boot), ..killed() }));
    assert_eq!(reboot.status, Status::Died);
    is(&reboot, "power_or_reboot", Confidence::Proven, &["the machine went away (proven)", "boot `boot-a` then"]);
    let oom = story(&unseen(Evidence { kernel_log: Some(oom_log("/runs")), ..killed() }));
    is(&oom, "kernel_oom_in_our_cgroup", Confidence::Proven, &["Killed process 4242"]);
    assert_eq!(oom.cause.unwrap().found_by, FoundBy::Doctor);
}

#[test]
fn a_journal_that_ends_on_a_full_disk_is_told_as_that_and_only_while_the_disk_is_full() {
    let mut case = unseen(killed());
    let reason = "`run/checkpoints` has 0.0 MiB free, 484 MiB are needed".to_string();
    case.records.push(Record { unix_ms: START + 90_000, event: Event::NotSaved { step: 120, reason } });
    case.now.disk_free = Some(Bytes::ZERO);
    let full = story(&case);
    is(&full, "disk_full", Confidence::Likely, &["0.0 MiB are free there now", "free 484 MiB more on the disk"]);
    case.now.disk_free = Some(Bytes::gib(9));
    assert_eq!(story(&case).status, Status::DeadWithoutAWitness);
}

#[test]
fn a_cgroup_of_its_own_is_advised_only_to_who_had_none() {
    let with = story(&unseen(killed()));
    assert!(!advice(&with).contains("systemd-run"), "{}", advice(&with));
    let mut case = unseen(killed());
    if let Event::WorkerStarted { cgroup, .. } = &mut case.records[0].event {
        *cgroup = None;
    }
    assert!(advice(&story(&case)).contains("systemd-run"));
}

#[test]
fn a_live_run_is_running_whatever_its_journal_says_of_earlier_deaths() {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).incident(120, 0, &killed()).decided("restart", "why not", None);
    journal.wait(1.0).worker(2).planned(Bytes::mib(900)).resumed(0).steps(1, 100, 0.5, 0.0);
    let mut case = journal.case(&[]);
    case.now.life = Life::Alive { supervisor: 77 };
    let diagnosis = story(&case);
    assert_eq!((diagnosis.status, diagnosis.cause.as_ref(), diagnosis.lost), (Status::Running, None, None));
    assert_eq!(diagnosis.headline, "running (process 77): step 100 of 1000, loss 0.0400, about 7 min 30 s to go");
}

#[test]
fn skipped_steps_saves_that_failed_pressure_and_mirror_trouble_are_on_the_timeline_once() {
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0);
    for n in 1..=3 {
        journal.event(Event::Skipped { step: 20 + n, what: "loss".into(), in_a_row: n });
    }
    journal.event(Event::NotSaved { step: 23, reason: "12.0 MiB free, 484 MiB are needed".into() });
    let pressure = |answer: &str, why: &str| Event::Pressure {
        step: 23,
        answer: answer.into(),
        why: why.into(),
        inputs: serde_json::Value::Null,
    };
    journal.event(pressure("fine", "")).event(pressure("save_now", "20 MiB left")).event(pressure("fine", "all calm"));
    for _ in 0..50 {
        journal.event(Event::MirrorTrouble { message: "connection refused".into() });
    }
    let timeline = story(&journal.case(&[])).timeline;
    let of = |what: &str| timeline.iter().filter(|at| at.what == what).map(|at| at.times).collect::<Vec<_>>();
    assert_eq!(
        (of("skipped"), of("not_saved"), of("pressure"), of("mirror")),
        (vec![3], vec![1], vec![1, 1], vec![50])
    );
}

#[test]
fn a_silence_between_two_attempts_is_told_with_a_boot_in_between() {
    let mut journal = Story::begun();
    journal.steps(1, 20, 0.5, 0.0).wait(7200.0).event(Event::WorkerStarted {
        pid: 9,
        nspid: vec![9],
        attempt: 1,
        cap: None,
        cgroup: None,
        boot_id: "boot-b".into(),
        vmstat_oom_kill: None,
    });
    journal.planned(Bytes::mib(900)).resumed(10).steps(11, 30, 0.5, 0.0);
    let timeline = story(&journal.case(&[10])).timeline;
    let gap = timeline.iter().find(|at| at.what == "gap").unwrap();
    assert_eq!(gap.text, "the journal falls silent for 2 h 0 min; the machine booted in between");
}

#[test]
fn the_lines_of_a_start_may_come_in_any_order() {
    let mut journal = Story::default();
    journal.planned(Bytes::mib(900)).resumed(5).steps(6, 7, 0.5, 0.0).worker(1).steps(8, 9, 0.5, 0.0);
    assert_eq!(attempts(&journal.records).len(), 1);
    journal.wait(60.0).worker(1).planned(Bytes::mib(900)).resumed(5);
    journal.wait(60.0).planned(Bytes::mib(900)).worker(2).resumed(5).steps(6, 7, 0.5, 0.0);
    journal.wait(60.0).resumed(5).worker(3).planned(Bytes::mib(900)).steps(6, 7, 0.5, 0.0);
    assert_eq!(attempts(&journal.records).len(), 4);
}

#[test]
fn the_disk_knows_better_than_the_journal_what_is_saved() {
    let mut journal = Story::begun();
    journal.steps(1, 120, 0.5, 0.0).saved(50, 1.0).saved(100, 1.0);
    let mut case = journal.case(&[50]);
    case.checkpoints.push(CheckpointFacts { step: 100, bytes: None, trouble: Some("a file is cut".into()) });
    let diagnosis = story(&case);
    assert_eq!(diagnosis.progress.unwrap().saved_step, 50);
    assert_eq!(diagnosis.lost.unwrap().steps, 70);
    assert!(diagnosis.remarks.iter().any(|remark| remark.contains("step 100 cannot be used: a file is cut")));
}

#[test]
fn a_run_that_recorded_nothing_is_not_started() {
    let diagnosis = story(&Story::default().case(&[]));
    assert_eq!((diagnosis.status, diagnosis.pace, diagnosis.lost), (Status::NotStarted, None, None));
}
