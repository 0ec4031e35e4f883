//! Recorded and built deaths: for each, the evidence and the cause that it must be given.
//!
//! One file of `deaths/` is one death. `from` says where its evidence comes from.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_recover::Exit;
use plimsoll_recover::cause::{Cause, Confidence, Evidence, Kind, cause};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Death {
    says: String,
    from: String,
    kind: Kind,
    confidence: Confidence,
    evidence: Evidence,
}

fn deaths() -> Vec<(String, Death)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deaths");
    let mut deaths = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = fs_err::read_to_string(&path).unwrap();
            let death = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            deaths.push((path.file_stem().unwrap().to_string_lossy().into_owned(), death));
        }
    }
    deaths.sort_by(|a: &(String, Death), b| a.0.cmp(&b.0));
    deaths
}

fn name(kind: &Kind) -> String {
    let shown = format!("{kind:?}");
    shown.split([' ', '{']).next().unwrap_or_default().to_string()
}

#[test]
fn every_death_is_given_its_cause_and_no_more_certainty_than_its_evidence_has() {
    let mut wrong = Vec::new();
    for (name, death) in deaths() {
        let Cause { kind, confidence, because } = cause(&death.evidence);
        if (&kind, confidence) != (&death.kind, death.confidence) {
            let expected = format!("{:?} {:?}", death.kind, death.confidence);
            wrong.push(format!(
                "{name} ({}): expected {expected}, found {kind:?} {confidence:?}: {because:#?}",
                death.says
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_corpus_holds_at_least_forty_deaths_and_every_kind_and_says_where_each_is_from() {
    let deaths = deaths();
    assert!(deaths.len() >= 40, "only {}", deaths.len());
    let kinds: BTreeSet<String> = deaths.iter().map(|(_, death)| name(&death.kind)).collect();
    let all = [
        "KernelOomInOurCgroup",
        "KernelOomOfTheHost",
        "OomDaemon",
        "KilledUnproven",
        "StoppedByUser",
        "DiskFull",
        "IoError",
        "BadData",
        "NonFinite",
        "Bug",
        "PowerOrReboot",
        "CudaOutOfMemory",
        "AllocationRefused",
        "DoesNotFit",
        "Unknown",
    ];
    assert_eq!(kinds, all.iter().map(|kind| kind.to_string()).collect());
    assert!(deaths.iter().all(|(_, death)| !death.says.is_empty() && !death.from.is_empty()));
}

#[test]
fn a_cause_always_says_why_and_a_proof_has_a_witness_besides_the_status() {
    for (name, death) in deaths() {
        let found = cause(&death.evidence);
        assert!(!found.because.is_empty(), "{name}");
        if found.confidence == Confidence::Proven {
            assert!(found.because.len() >= 2, "{name}: {:?}", found.because);
        }
    }
}

#[test]
fn without_logs_and_counters_no_sigkill_is_called_oom() {
    for (name, mut death) in deaths() {
        death.evidence.exit = Some(Exit::Killed(9));
        death.evidence.cgroup = None;
        death.evidence.vmstat_oom_kill = None;
        death.evidence.kernel_log = None;
        death.evidence.daemon_log = None;
        death.evidence.stderr_tail.clear();
        let kind = cause(&death.evidence).kind;
        assert!(matches!(kind, Kind::KilledUnproven { signal: 9 } | Kind::StoppedByUser), "{name}: {kind:?}");
    }
}

#[test]
fn evidence_and_cause_come_back_from_json_as_they_were() {
    for (name, death) in deaths() {
        let text = serde_json::to_string(&death.evidence).unwrap();
        assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), death.evidence, "{name}");
        let found = cause(&death.evidence);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Cause>(&text).unwrap(), found, "{name}");
    }
}

proptest! {
    #[test]
    fn any_evidence_is_weighed_without_a_panic(
        logs in "\\PC{0,200}", status in any::<i32>(), killed in any::<bool>(), stop in any::<Option<i32>>(),
        at in 0usize..1000,
    ) {
        let all = deaths_once();
        let mut evidence = all[at % all.len()].clone();
        evidence.exit = Some(if killed { Exit::Killed(status) } else { Exit::Exited(status) });
        evidence.stop_signal = stop;
        evidence.stderr_tail.push(logs.clone());
        evidence.kernel_log = Some(evidence.kernel_log.unwrap_or_default() + &logs);
        prop_assert!(!cause(&evidence).because.is_empty());
    }
}

fn deaths_once() -> &'static [Evidence] {
    static ALL: std::sync::OnceLock<Vec<Evidence>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| deaths().into_iter().map(|(_, death)| death.evidence).collect())
}
