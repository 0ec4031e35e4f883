use proptest::prelude::*;

use super::*;

const ALL_BUT_LENGTH: [Knob; 11] = [
    Knob::Batch,
    Knob::EvalBatch,
    Knob::Accumulation,
    Knob::Workers,
    Knob::PinMemory,
    Knob::Checkpointing,
    Knob::ZeroStage,
    Knob::OffloadOptimizer,
    Knob::OffloadParams,
    Knob::Processes,
    Knob::Segments,
];

fn set(pairs: &[(Knob, Value)]) -> Settings {
    pairs.iter().cloned().collect()
}

fn stand<'a>(settings: &'a Settings, can: &'a [Knob], allow: &'a Allow) -> Stand<'a> {
    Stand {
        settings,
        can,
        exact_accumulation: true,
        world_fixed: false,
        on_card: true,
        evaluating: false,
        longest: None,
        allow,
    }
}

/// All rungs down, each taken.
fn descend(shortage: Shortage, mut settings: Settings, can: &[Knob], allow: &Allow, exact: bool) -> Vec<Rung> {
    let mut taken = Vec::new();
    while let Ok(rung) =
        next(shortage, &Stand { exact_accumulation: exact, longest: Some(12), ..stand(&settings, can, allow) })
    {
        assert!(taken.len() < 100, "the ladder does not end: {taken:?}");
        settings.extend(rung.set.clone());
        taken.push(rung);
    }
    taken
}

#[test]
fn host_memory_goes_by_loaders_first_and_keeps_the_effective_batch() {
    let settings = set(&[(Knob::Workers, 4.into()), (Knob::Batch, 6.into()), (Knob::Processes, 2.into())]);
    let taken = descend(Shortage::Ram, settings, &ALL_BUT_LENGTH, &Allow::default(), true);
    let sets: Vec<Settings> = taken.iter().map(|rung| rung.set.clone()).collect();
    assert_eq!(
        sets,
        [
            set(&[(Knob::Workers, 1.into())]),
            set(&[(Knob::Workers, 0.into())]),
            set(&[(Knob::Batch, 3.into()), (Knob::Accumulation, 2.into())]),
            set(&[(Knob::Batch, 1.into()), (Knob::Accumulation, 6.into())]),
            set(&[(Knob::Processes, 1.into()), (Knob::Accumulation, 12.into())]),
        ]
    );
    assert!(taken.iter().all(|rung| rung.same_result));
}

#[test]
fn piper_never_accumulates_and_gives_up_batch_and_length_only_when_allowed() {
    let can = [Knob::Batch, Knob::Workers, Knob::Length];
    let settings = set(&[(Knob::Batch, 4.into()), (Knob::Workers, 2.into())]);
    let none = descend(Shortage::Ram, settings.clone(), &can, &Allow::default(), false);
    assert_eq!(none.len(), 1, "{none:?}");
    let bare = set(&[(Knob::Batch, 4.into()), (Knob::Workers, 0.into())]);
    let allow = Allow::default();
    let stand = Stand { exact_accumulation: false, longest: Some(12), ..stand(&bare, &can, &allow) };
    let bottom = next(Shortage::Ram, &stand).unwrap_err();
    assert_eq!(bottom.would.len(), 2, "{bottom}");
    assert!(bottom.to_string().contains("`batch` (an effective batch with 2 instead of 4"), "{bottom}");
    let allow = Allow { batch: true, length: Some(5), ..Allow::default() };
    let taken = descend(Shortage::Ram, settings, &can, &allow, false);
    assert!(taken.iter().all(|rung| !rung.set.contains_key(&Knob::Accumulation)));
    let other: Vec<&Rung> = taken.iter().filter(|rung| !rung.same_result).collect();
    let last = [(Knob::Length, 6.into())];
    assert_eq!(other.iter().map(|rung| rung.set.clone()).nth(2), Some(set(&last)), "{other:?}");
    assert_eq!(taken.last().unwrap().set, set(&[(Knob::Length, 5.into())]));
}

#[test]
fn fragments_are_cured_before_anything_shrinks_and_only_on_a_card() {
    let settings = set(&[(Knob::Batch, 8.into()), (Knob::Segments, "default".into())]);
    let allow = Allow::default();
    let on_card = stand(&settings, &ALL_BUT_LENGTH, &allow);
    assert!(next(Shortage::Fragments, &on_card).unwrap().set.contains_key(&Knob::Segments));
    let off = Stand { on_card: false, ..on_card };
    assert!(next(Shortage::Fragments, &off).unwrap().set.contains_key(&Knob::Batch));
}

#[test]
fn zero_shards_only_over_several_ranks_and_parameters_leave_only_in_stage_3() {
    let base = [(Knob::Batch, 1.into()), (Knob::Checkpointing, true.into()), (Knob::ZeroStage, 1.into())];
    let alone = set(&base);
    let taken = descend(Shortage::Vram, alone.clone(), &ALL_BUT_LENGTH, &Allow::default(), true);
    assert_eq!(taken.len(), 1, "{taken:?}");
    let mut two = alone;
    two.insert(Knob::Processes, 2.into());
    let taken = descend(Shortage::Vram, two, &ALL_BUT_LENGTH, &Allow::default(), true);
    let knobs: Vec<Knob> = taken.iter().flat_map(|rung| rung.set.keys().copied()).collect();
    assert_eq!(knobs, [Knob::ZeroStage, Knob::ZeroStage, Knob::OffloadOptimizer, Knob::OffloadParams]);
}

#[test]
fn an_evaluation_that_dies_gets_a_smaller_batch_of_its_own() {
    let settings = set(&[(Knob::Batch, 8.into()), (Knob::EvalBatch, 16.into())]);
    let allow = Allow::default();
    let stand = Stand { evaluating: true, ..stand(&settings, &ALL_BUT_LENGTH, &allow) };
    assert_eq!(next(Shortage::Vram, &stand).unwrap().set, set(&[(Knob::EvalBatch, 8.into())]));
}

#[test]
fn full_shared_memory_asks_for_loaders_and_nothing_else() {
    let settings = set(&[(Knob::Batch, 8.into()), (Knob::Workers, 4.into())]);
    let taken = descend(Shortage::SharedMemory, settings, &ALL_BUT_LENGTH, &Allow::default(), true);
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].set, set(&[(Knob::Workers, 0.into())]));
}

#[test]
fn numbers_beyond_any_training_give_no_rung_and_no_endless_search() {
    let allow = Allow::default();
    for (batch, accumulation) in [(u64::MAX, 2), (1 << 61, 8), (1_000_000_000_000_000_003, 1)] {
        let settings = set(&[(Knob::Batch, batch.into()), (Knob::Accumulation, accumulation.into())]);
        let stand = stand(&settings, &[Knob::Batch, Knob::Accumulation], &allow);
        assert!(next(Shortage::Vram, &stand).is_err());
    }
    let settings = set(&[(Knob::Processes, 2.into()), (Knob::Accumulation, u64::MAX.into())]);
    assert!(next(Shortage::Ram, &stand(&settings, &[Knob::Processes, Knob::Accumulation], &allow)).is_err());
}

#[test]
fn a_precision_that_is_there_already_is_no_rung() {
    let settings = set(&[(Knob::Precision, "fp32".into())]);
    let allow = Allow { precision: vec!["fp32".to_string()], ..Allow::default() };
    let taken = descend(Shortage::Vram, settings, &[Knob::Precision], &allow, true);
    assert_eq!(taken, []);
}

proptest! {
    #[test]
    fn every_descent_ends_and_same_result_rungs_keep_the_effective_batch(
        batch in 1u64..300, accumulation in 1u64..9, ranks in 1u64..9, workers in 0u64..17, exact: bool, allowed: bool,
        shortage in prop::sample::select(vec![Shortage::Ram, Shortage::Vram, Shortage::Fragments, Shortage::SharedMemory]),
    ) {
        let mut settings = set(&[
            (Knob::Batch, batch.into()), (Knob::Accumulation, accumulation.into()), (Knob::Processes, ranks.into()),
            (Knob::Workers, workers.into()), (Knob::PinMemory, true.into()), (Knob::Checkpointing, false.into()),
            (Knob::ZeroStage, 0.into()), (Knob::EvalBatch, 8.into()),
        ]);
        let allow = Allow { batch: allowed, length: allowed.then_some(2), ..Allow::default() };
        let effective = |of: &Settings| {
            [Knob::Batch, Knob::Accumulation, Knob::Processes].iter().map(|knob| of[knob].count().unwrap()).product::<u64>()
        };
        for rung in descend(shortage, settings.clone(), &Knob::ALL, &allow, exact) {
            let before = effective(&settings);
            settings.extend(rung.set.clone());
            if rung.same_result {
                prop_assert_eq!(effective(&settings), before);
            } else {
                prop_assert!(allowed);
            }
        }
    }
}
