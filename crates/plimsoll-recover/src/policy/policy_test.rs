use proptest::prelude::*;

use super::*;

const ROOM: Room = Room { cap: Bytes::gib(8), peak: Bytes::gib(7), available: Bytes::gib(16), smallest: Bytes::gib(2) };

fn death(kind: Kind, step: u64, saved_step: u64) -> Incident {
    Incident { kind, confidence: Confidence::Proven, step, saved_step, ram: ROOM, vram: None }
}

fn killed() -> Kind {
    Kind::KilledUnproven { signal: 9 }
}

#[test]
fn a_kill_without_proof_restarts_under_the_same_plan() {
    assert_eq!(policy(&[death(killed(), 10, 5)]), Decision::Restart);
}

#[test]
fn the_same_failure_at_the_same_step_is_not_tried_a_third_time() {
    let bug = || Kind::Bug { place: "a.rs:1:2".to_string() };
    assert_eq!(policy(&[death(bug(), 10, 5)]), Decision::Restart);
    let why = Why::SameAgain { kind: bug(), step: 10 };
    assert_eq!(policy(&[death(bug(), 10, 5), death(bug(), 10, 5)]), Decision::GiveUp { why: why.clone() });
    let between = [death(bug(), 10, 5), death(killed(), 8, 5), death(bug(), 10, 5)];
    assert_eq!(policy(&between), Decision::GiveUp { why }, "another death between changes nothing");
    assert_eq!(policy(&[death(bug(), 10, 5), death(bug(), 11, 5)]), Decision::Restart);
}

#[test]
fn an_oom_at_a_lower_limit_is_planned_under_that_limit() {
    let mut incident = death(Kind::KernelOomInOurCgroup, 10, 5);
    incident.ram.available = Bytes::gib(4);
    let cap = Bytes(Bytes::gib(4).0 / 20 * 19 + Bytes::gib(4).0 % 20);
    let Decision::Replan { of: Memory::Ram, cap: got } = policy(&[incident]) else { panic!("no re-plan") };
    assert!(got.0.abs_diff(cap.0) < 20, "{got} is not {cap}");
}

#[test]
fn the_same_oom_at_the_same_step_goes_on_while_the_cap_changes_and_ends_when_it_does_not() {
    let first = death(Kind::KernelOomOfTheHost, 10, 5);
    let Decision::Replan { cap, .. } = policy(std::slice::from_ref(&first)) else { panic!("no re-plan") };
    let mut second = first.clone();
    second.ram.cap = cap;
    assert!(matches!(policy(&[first.clone(), second]), Decision::Replan { .. }));
    assert!(matches!(policy(&[first.clone(), first]), Decision::GiveUp { why: Why::SameAgain { .. } }));
}

#[test]
fn the_smallest_plan_gets_its_try_and_then_there_is_none() {
    let mut incident = death(Kind::KernelOomInOurCgroup, 10, 5);
    incident.ram.smallest = Bytes::mib(7900);
    assert_eq!(policy(std::slice::from_ref(&incident)), Decision::Replan { of: Memory::Ram, cap: Bytes::mib(7900) });
    incident.ram.available = Bytes::gib(1);
    assert!(matches!(policy(&[incident]), Decision::GiveUp { why: Why::NoSmallerPlan { .. } }));
}

#[test]
fn a_full_card_caps_the_card_and_not_the_machine() {
    let mut incident = death(Kind::CudaOutOfMemory, 10, 5);
    incident.vram = Some(ROOM);
    assert!(matches!(policy(&[incident]), Decision::Replan { of: Memory::Vram, .. }));
}

#[test]
fn what_a_new_try_cannot_mend_is_given_up_at_once() {
    for kind in [Kind::BadData, Kind::NonFinite, Kind::DiskFull, Kind::DoesNotFit] {
        let why = Why::NeedsAPerson { kind: kind.clone() };
        assert_eq!(policy(&[death(kind, 10, 5)]), Decision::GiveUp { why });
    }
    assert_eq!(policy(&[death(Kind::StoppedByUser, 10, 5)]), Decision::GiveUp { why: Why::Asked });
}

#[test]
fn deaths_with_newer_checkpoints_between_them_never_end_a_run() {
    let deaths: Vec<Incident> = (1..200).map(|n| death(Kind::PowerOrReboot, n * 10 + 1, n * 10)).collect();
    assert_eq!(policy(&deaths), Decision::Restart);
}

#[test]
fn deaths_without_a_newer_checkpoint_end_a_run() {
    let deaths: Vec<Incident> = (0..5).map(|n| death(Kind::PowerOrReboot, 100 + n, 50)).collect();
    assert_eq!(policy(&deaths[..4]), Decision::Restart);
    let why = Why::NoProgress { deaths: 5, saved_step: 50 };
    assert_eq!(policy(&deaths), Decision::GiveUp { why });
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::KernelOomInOurCgroup,
        Kind::KernelOomOfTheHost,
        Kind::OomDaemon { name: "earlyoom".to_string() },
        killed(),
        Kind::IoError,
        Kind::Bug { place: "a.rs:1:2".to_string() },
        Kind::PowerOrReboot,
        Kind::CudaOutOfMemory,
        Kind::AllocationRefused,
        Kind::Unknown,
    ])
}

proptest! {
    /// A world that kills as it likes and obeys the decisions, but never lets a newer checkpoint be written.
    #[test]
    fn without_a_newer_checkpoint_every_run_ends(deaths in proptest::collection::vec((any_kind(), 0u64..1000), TRIES)) {
        let (mut ram, mut incidents) = (ROOM, Vec::new());
        for (kind, step) in deaths {
            incidents.push(Incident { ram, vram: Some(ROOM), ..death(kind, step, 0) });
            match policy(&incidents) {
                Decision::GiveUp { .. } => return Ok(()),
                Decision::Replan { of: Memory::Ram, cap } => ram.cap = cap,
                _ => {}
            }
        }
        prop_assert!(false, "still trying after {} deaths", incidents.len());
    }

    #[test]
    fn a_replan_is_below_the_old_cap_and_never_below_the_smallest_plan(
        cap in 0u64..1 << 40, peak in 0u64..1 << 40, available in 0u64..1 << 40, smallest in 0u64..1 << 40,
    ) {
        let room = Room { cap: Bytes(cap), peak: Bytes(peak), available: Bytes(available), smallest: Bytes(smallest) };
        let incident = Incident { ram: room, ..death(Kind::KernelOomOfTheHost, 1, 0) };
        if let Decision::Replan { cap: new, .. } = policy(&[incident]) {
            prop_assert!(new < room.cap && new >= room.smallest && new <= room.available);
        }
    }
}
