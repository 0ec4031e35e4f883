//! Recorded and built ends of foreign trainers: for each, the scene and what it must be held for.
//!
//! One file of `failures/` is one end. `from` says where it comes from: `recorded` with real trainers, or `built` from
//! their literal lines or documented forms.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use plimsoll_launch::failure::{Culprit, Failure, FailureKind, Gist, LogSource, Scene, failure};
use plimsoll_recover::Exit;
use plimsoll_recover::cause::Confidence;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    says: String,
    from: String,
    kind: FailureKind,
    confidence: Confidence,
    culprit: Option<Culprit>,
    /// Figures of the card's report, by name.
    #[serde(default)]
    card: BTreeMap<String, u64>,
    scene: Scene,
}

fn ends() -> &'static [(String, End)] {
    static ALL: OnceLock<Vec<(String, End)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/failures");
        let mut ends = Vec::new();
        for entry in fs_err::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                let text = fs_err::read_to_string(&path).unwrap();
                let end = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                ends.push((path.file_stem().unwrap().to_string_lossy().into_owned(), end));
            }
        }
        ends.sort_by(|a: &(String, End), b| a.0.cmp(&b.0));
        ends
    })
}

#[test]
fn every_end_is_held_for_what_it_was_of_whom_and_no_more_surely_than_its_evidence_allows() {
    let mut wrong = Vec::new();
    for (name, end) in ends() {
        let found = failure(&end.scene);
        if (&found.kind, found.confidence, &found.culprit) != (&end.kind, end.confidence, &end.culprit) {
            wrong.push(format!(
                "{name} ({}):\n  expected {:?} {:?} {:?}\n  found    {:?} {:?} {:?}\n  because {:#?}",
                end.says,
                end.kind,
                end.confidence,
                end.culprit,
                found.kind,
                found.confidence,
                found.culprit,
                found.because
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:\n{}", wrong.len(), ends().len(), wrong.join("\n"));
}

#[test]
fn the_figures_of_a_cards_report_are_read() {
    for (name, end) in ends().iter().filter(|(_, end)| !end.card.is_empty()) {
        let report = failure(&end.scene).card.unwrap_or_else(|| panic!("{name}: no report"));
        let figures = serde_json::to_value(&report).unwrap();
        for (key, value) in &end.card {
            assert_eq!(figures[key].as_u64(), Some(*value), "{name}: {key} of {figures:#}");
        }
    }
}

#[test]
fn the_corpus_holds_every_kind_and_says_where_each_end_is_from() {
    let ends = ends();
    assert!(ends.len() >= 70, "only {}", ends.len());
    let recorded = ends.iter().filter(|(_, end)| end.from.starts_with("recorded: ")).count();
    assert!(recorded >= 12, "only {recorded} are recorded");
    assert!(ends.iter().all(|(_, end)| end.from.starts_with("recorded: ") || end.from.starts_with("built: ")));
    let kinds: BTreeSet<&str> = ends.iter().map(|(_, end)| end.kind.name()).collect();
    let all = [
        "allocation_refused",
        "bad_checkpoint",
        "bad_data",
        "bad_setting",
        "bug",
        "card_fragmented",
        "card_lost",
        "card_masked",
        "card_neighbour",
        "card_oom",
        "compiler_killed",
        "completed",
        "disk_full",
        "host_oom",
        "io_error",
        "killed_unproven",
        "loader_worker_died",
        "machine_lost",
        "missing_module",
        "not_finite",
        "not_restored",
        "peer_lost",
        "port_in_use",
        "rank_died",
        "shared_memory_full",
        "stalled",
        "stopped",
        "too_many_files",
        "unknown",
    ];
    assert_eq!(kinds, all.into_iter().collect());
}

#[test]
fn grounds_are_never_missing_and_name_the_line_they_were_read_from() {
    for (name, end) in ends() {
        let found = failure(&end.scene);
        assert!(!found.because.is_empty(), "{name}");
        for ground in &found.because {
            let (Some(log), Some(line)) = (ground.log, ground.line) else { continue };
            let piece = end.scene.logs.iter().rfind(|piece| piece.source == log && piece.first_line <= line);
            let text = piece.and_then(|piece| piece.text.split('\n').nth((line - piece.first_line) as usize));
            // Colours stand between the words and an echo is introduced, so the last word is looked for.
            let word = ground.text.split_whitespace().next_back().unwrap_or_default();
            assert!(text.is_some_and(|text| text.contains(word)), "{name}: line {line} of {log} has no `{word}`");
        }
        assert!(!found.headline().is_empty());
    }
}

#[test]
fn without_a_witness_no_sigkill_is_called_oom() {
    for (name, end) in ends() {
        let mut scene = end.scene.clone();
        scene.evidence.exit = Some(Exit::Killed(9));
        scene.evidence.cgroup = None;
        scene.evidence.vmstat_oom_kill = None;
        scene.evidence.kernel_log = None;
        scene.evidence.daemon_log = None;
        scene.logs.retain(|log| !log.text.contains("slurmstepd"));
        let kind = failure(&scene).kind;
        assert!(!matches!(kind, FailureKind::HostOom { .. }), "{name}: {kind:?}");
    }
}

#[test]
fn an_exit_code_alone_classifies_nothing() {
    for status in -1..=255 {
        let mut scene = Scene::default();
        scene.evidence.exit = Some(Exit::Exited(status));
        let found = failure(&scene);
        let expected = match status {
            0 => matches!(found.kind, FailureKind::Completed) && found.confidence == Confidence::Likely,
            _ => found.confidence != Confidence::Proven,
        };
        assert!(expected, "{status}: {:?} {:?}", found.kind, found.confidence);
        let of_memory = found.kind.is_of_the_host() || found.kind.is_of_the_card();
        assert!(!of_memory, "{status}: {:?}", found.kind);
    }
}

#[test]
fn a_first_cause_is_found_in_a_hundred_thousand_lines_whatever_stands_behind_it() {
    let (_, end) = ends().iter().find(|(name, _)| name == "card_oom_behind_nccl").unwrap();
    let mut gist = Gist::new(LogSource::Main);
    for step in 0..60_000 {
        gist.take(&format!("step {step} loss 0.4"));
    }
    end.scene.logs[0].text.lines().for_each(|line| gist.take(line));
    for at in 0..40_000 {
        gist.take(&format!("[rank0]: frame #{at}: c10d::ProcessGroupNCCL::run() + 0x{at:x}"));
    }
    assert!(gist.lines() > 100_000);
    let logs = gist.close();
    let kept: usize = logs.iter().map(|log| log.text.len()).sum();
    assert!(kept < 64 << 10, "{kept} bytes were kept");
    let found = failure(&Scene { logs, ..end.scene.clone() });
    assert_eq!((found.kind, found.confidence), (FailureKind::CardOom, Confidence::Proven));
    assert_eq!(found.culprit, end.culprit);
    assert_eq!(found.because[0].line, Some(60_019));
}

#[test]
fn scenes_and_failures_come_back_from_json_as_they_were() {
    for (name, end) in ends() {
        let text = serde_json::to_string(&end.scene).unwrap();
        assert_eq!(serde_json::from_str::<Scene>(&text).unwrap(), end.scene, "{name}");
        let found = failure(&end.scene);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), found, "{name}");
    }
}

proptest! {
    #[test]
    fn any_scene_has_an_answer_with_a_ground(
        at in 0usize..1000, other in 0usize..1000, noise in "\\PC{0,200}", status in any::<i32>(), killed in any::<bool>(),
        cut in 0usize..4000,
    ) {
        let all = ends();
        let mut scene = all[at % all.len()].1.scene.clone();
        scene.evidence.exit = Some(if killed { Exit::Killed(status) } else { Exit::Exited(status) });
        scene.logs.extend(all[other % all.len()].1.scene.logs.clone());
        for log in &mut scene.logs {
            let mut end = cut.min(log.text.len());
            while !log.text.is_char_boundary(end) {
                end -= 1;
            }
            log.text.truncate(end);
            log.text.push_str(&noise);
        }
        prop_assert!(!failure(&scene).because.is_empty());
    }

    #[test]
    fn echoes_behind_a_first_cause_change_nothing(at in 0usize..1000, many in 1usize..40) {
        let roots: Vec<_> = ends().iter().filter(|(_, end)| end.kind.is_of_the_card() && end.scene.logs.len() == 1).collect();
        let (_, end) = roots[at % roots.len()];
        let mut scene = end.scene.clone();
        for rank in 0..many {
            scene.logs[0].text.push_str(&format!(
                "[rank{rank}]: RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:{rank}\n\
                 [rank{rank}]:[E1 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation timeout\n"
            ));
        }
        let (before, after) = (failure(&end.scene), failure(&scene));
        prop_assert_eq!((before.kind, before.confidence, before.culprit), (after.kind, after.confidence, after.culprit));
    }
}

/// The deaths that `plimsoll_recover` is tested with; those of foreign trainers must be the same here.
#[test]
fn what_the_system_alone_proves_is_not_held_for_something_else_here() {
    #[derive(Deserialize)]
    struct Death {
        kind: plimsoll_recover::cause::Kind,
        evidence: plimsoll_recover::cause::Evidence,
    }
    use plimsoll_recover::cause::Kind;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-recover/tests/deaths");
    let mut seen = 0;
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs_err::read_to_string(&path).unwrap();
        if !text.contains("worker = \"foreign\"") {
            continue;
        }
        let death: Death = toml::from_str(&text).unwrap();
        let found = failure(&Scene { evidence: death.evidence, ..Scene::default() });
        let same = match &death.kind {
            Kind::KernelOomInOurCgroup | Kind::KernelOomOfTheHost | Kind::OomDaemon { .. } => {
                matches!(found.kind, FailureKind::HostOom { .. })
            }
            Kind::KilledUnproven { .. } => {
                matches!(found.kind, FailureKind::KilledUnproven { .. } | FailureKind::LoaderWorkerDied { .. })
            }
            Kind::CudaOutOfMemory => found.kind.is_of_the_card(),
            Kind::DiskFull => matches!(found.kind, FailureKind::DiskFull | FailureKind::SharedMemoryFull),
            Kind::StoppedByUser => found.kind == FailureKind::Stopped,
            Kind::PowerOrReboot => found.kind == FailureKind::MachineLost,
            Kind::AllocationRefused => found.kind == FailureKind::AllocationRefused,
            // A log may say more than the system knows.
            Kind::Bug { .. } | Kind::Unknown => {
                !found.kind.is_of_the_host() && !matches!(found.kind, FailureKind::Completed | FailureKind::CardOom)
            }
            other => found.kind.name() == other.name(),
        };
        assert!(same, "{}: {:?} there, {:?} here: {:#?}", path.display(), death.kind, found.kind, found.because);
        seen += 1;
    }
    assert!(seen >= 30, "only {seen}");
}
