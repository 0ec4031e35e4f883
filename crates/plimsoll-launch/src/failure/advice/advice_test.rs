//! Advice is true for every failure, setting and trainer.

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::{Cause, Confidence, Kind};
use proptest::prelude::*;

use super::*;
use crate::failure::kind::{Killer, Victim};
use crate::failure::{CardForm, CudaReport, Neighbour};

fn failed(kind: FailureKind) -> Failure {
    let cause = Cause { kind: Kind::Unknown, confidence: Confidence::Unproven, because: Vec::new() };
    Failure { kind, confidence: Confidence::Proven, culprit: None, card: None, because: Vec::new(), cause }
}

fn settings(of: &[(Knob, Value)]) -> Settings {
    of.iter().cloned().collect()
}

fn knobs(advice: &[Advice]) -> Vec<(Knob, Value)> {
    advice.iter().filter_map(|one| one.knob.clone()).collect()
}

fn kinds() -> Vec<FailureKind> {
    let mut all = vec![
        FailureKind::Completed,
        FailureKind::Stopped,
        FailureKind::AllocationRefused,
        FailureKind::SharedMemoryFull,
        FailureKind::TooManyFiles,
        FailureKind::LoaderWorkerDied { signal: Some(9) },
        FailureKind::LoaderWorkerDied { signal: None },
        FailureKind::CardOom,
        FailureKind::CardFragmented,
        FailureKind::CardNeighbour,
        FailureKind::CardMasked,
        FailureKind::CardLost,
        FailureKind::RankDied { rank: 1 },
        FailureKind::PeerLost,
        FailureKind::Stalled { rank: Some(1) },
        FailureKind::PortInUse,
        FailureKind::BadCheckpoint,
        FailureKind::NotRestored,
        FailureKind::BadSetting,
        FailureKind::MissingModule { name: "numactl".into() },
        FailureKind::CompilerKilled,
        FailureKind::DiskFull,
        FailureKind::IoError,
        FailureKind::BadData,
        FailureKind::NotFinite,
        FailureKind::KilledUnproven { signal: 9 },
        FailureKind::MachineLost,
        FailureKind::Bug { place: "a.py:1".into() },
        FailureKind::Unknown,
    ];
    for by in [Killer::Cgroup, Killer::Host, Killer::Daemon { name: "earlyoom".into() }] {
        for victim in [Victim::Rank, Victim::Loader, Victim::Compiler, Victim::Launcher, Victim::Unknown] {
            all.push(FailureKind::HostOom { by: by.clone(), victim });
        }
    }
    all
}

#[test]
fn the_effective_batch_is_kept_where_the_trainer_accumulates() {
    let can = Abilities { accumulate: true, ..Abilities::default() };
    let now = settings(&[(Knob::Batch, 6.into()), (Knob::Accumulation, 4.into())]);
    let told = knobs(&advice(&failed(FailureKind::CardOom), Some(&now), &can));
    assert_eq!(told[..2], [(Knob::Batch, Value::Count(3)), (Knob::Accumulation, Value::Count(8))]);
    let odd = settings(&[(Knob::Batch, 7.into())]);
    let told = knobs(&advice(&failed(FailureKind::CardOom), Some(&odd), &can));
    assert_eq!(told[..2], [(Knob::Batch, Value::Count(1)), (Knob::Accumulation, Value::Count(7))]);
}

#[test]
fn piper_is_told_of_its_clips_and_never_of_accumulation() {
    let piper = Abilities { clip_length: true, precision: true, resume: true, ..Abilities::default() };
    let now = settings(&[(Knob::Batch, 8.into())]);
    let told = advice(&failed(FailureKind::CardOom), Some(&now), &piper);
    assert!(told.iter().any(|one| one.text.contains("longest clips")), "{told:#?}");
    assert_eq!(knobs(&told)[0], (Knob::Batch, Value::Count(4)));
    assert!(told.iter().all(|one| !one.text.contains("accumulate ")), "{told:#?}");
}

#[test]
fn a_killed_loader_is_answered_with_fewer_loaders_first() {
    let now = settings(&[(Knob::Workers, 4.into()), (Knob::Batch, 8.into())]);
    let oom = failed(FailureKind::HostOom { by: Killer::Cgroup, victim: Victim::Loader });
    assert_eq!(knobs(&advice(&oom, Some(&now), &Abilities::default()))[0], (Knob::Workers, Value::Count(2)));
}

#[test]
fn a_neighbour_is_named_with_its_number_and_its_share() {
    let mut failure = failed(FailureKind::CardNeighbour);
    let mut report = CudaReport::parse("CUDA out of memory. Tried to allocate 2.00 GiB").unwrap();
    report.others.push(Neighbour { pid: 4711, held: Bytes::gib(3) });
    assert_eq!(report.form, CardForm::Allocator);
    failure.card = Some(report);
    assert!(advice(&failure, None, &Abilities::default())[0].text.contains("process 4711 holds 3.00 GiB"));
}

proptest! {
    #[test]
    fn no_advice_is_untrue(
        at in 0usize..1000, bits in any::<[bool; 10]>(), batch in 0u64..70, workers in 0u64..9, with in any::<bool>(),
    ) {
        let all = kinds();
        let kind = &all[at % all.len()];
        let [accumulate, clip, checkpointing, precision, length, clip_length, attention, zero, resume, segments] = bits;
        let can = Abilities { accumulate, clip, checkpointing, precision, length, clip_length, attention, zero, resume, segments };
        let now = settings(&[(Knob::Batch, batch.into()), (Knob::Workers, workers.into()), (Knob::Processes, 2.into())]);
        let told = advice(&failed(kind.clone()), with.then_some(&now), &can);
        prop_assert!(*kind == FailureKind::Completed || !told.is_empty(), "{kind:?} has no advice");
        for one in &told {
            for untrue in ["lora_alpha", "save_total_limit", "empty_cache", "kill -9", "sudo"] {
                prop_assert!(!one.text.contains(untrue), "{}", one.text);
            }
            prop_assert!(!one.text.contains("swap") || kind.is_of_the_host(), "{kind:?}: {}", one.text);
            prop_assert!(can.segments || !one.text.contains("expandable"), "{}", one.text);
            prop_assert!(!one.text.ends_with('.') && !one.text.contains("  "), "{}", one.text);
            let Some((knob, value)) = &one.knob else { continue };
            prop_assert!(can.accumulate || *knob != Knob::Accumulation);
            prop_assert!(can.segments || *knob != Knob::Segments);
            prop_assert!(![Knob::LoraRank, Knob::LoraModules, Knob::SaveEvery].contains(knob));
            if *knob == Knob::Batch {
                prop_assert!(value.count().is_some_and(|new| new >= 1 && new < batch), "{value}");
            }
        }
        let changed = |of: Knob| told.iter().filter_map(|one| one.knob.as_ref()).find(|(k, _)| *k == of).and_then(|(_, v)| v.count());
        if let (Some(new), Some(steps)) = (changed(Knob::Batch), changed(Knob::Accumulation)) {
            prop_assert_eq!(new * steps, batch);
        }
    }
}
