use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    plan: Bytes::gib(4),
    smallest: Bytes::gib(2),
    reserve: Bytes::mib(400),
    save_time: Duration::from_secs(5),
    checkpoint: Bytes::gib(1),
};

fn at(second: u64, headroom: Bytes) -> Sample {
    Sample {
        at: Duration::from_secs(second),
        headroom,
        swap_used: Bytes::ZERO,
        swap_in: Bytes::ZERO,
        swap_out: Bytes::ZERO,
        stall_some: Some(0.0),
        stall_full: Some(0.0),
        disk_free: Bytes::gib(50),
    }
}

/// One sample a second, made from the second.
fn each(seconds: u64, make: impl Fn(u64) -> Sample) -> Vec<Sample> {
    (0..seconds).map(make).collect()
}

/// The answer after every sample.
fn answers(samples: &[Sample], limits: &Limits) -> Vec<Pressure> {
    (1..=samples.len()).map(|n| pressure(&samples[..n], limits)).collect()
}

#[test]
fn a_quiet_run_is_fine_and_so_is_no_sample_at_all() {
    assert_eq!(pressure(&[], &LIMITS), Pressure::Fine);
    assert_eq!(pressure(&each(120, |s| at(s, LIMITS.reserve)), &LIMITS), Pressure::Fine);
}

#[test]
fn a_plan_that_fills_its_limit_to_the_last_page_is_fine() {
    let full = Limits { reserve: Bytes::ZERO, ..LIMITS };
    assert_eq!(pressure(&each(120, |s| at(s, Bytes::kib(64 + s % 3))), &full), Pressure::Fine);
}

#[test]
fn a_tight_limit_may_tremble_by_the_pages_of_a_save() {
    let tight = Limits { reserve: Bytes::mib(12), ..LIMITS };
    let samples = each(200, |s| at(s, Bytes::mib(if s % 40 < 20 { 12 - (s % 40) / 2 } else { 12 })));
    assert!(answers(&samples, &tight).iter().all(|answer| *answer == Pressure::Fine));
    let tight = Limits { reserve: Bytes::mib(60), ..LIMITS };
    assert!(matches!(pressure(&each(5, |s| at(s, Bytes::mib(29))), &tight), Pressure::SaveNow { .. }));
}

#[test]
fn a_falling_headroom_is_saved_before_it_is_gone() {
    // 100 MiB a second from 2.5 GiB: gone after 25.6 s.
    let samples = each(25, |s| at(s, Bytes::mib(2560 - 100 * s)));
    let answers = answers(&samples, &LIMITS);
    let first = answers.iter().position(|answer| *answer != Pressure::Fine).unwrap();
    assert!(matches!(answers[first], Pressure::SaveNow { why: Why::HeadroomFalls { .. } }), "{:?}", answers[first]);
    assert!(samples[first].headroom >= Bytes::mib(1500), "saved only at {}", samples[first].headroom);
}

#[test]
fn the_time_to_limit_is_that_of_the_straight_line() {
    let samples = each(10, |s| at(s, Bytes::mib(1000 - 10 * s)));
    assert_eq!(time_to_limit(&samples), Some(Duration::from_secs(91)));
    assert_eq!(time_to_limit(&each(10, |s| at(s, Bytes::mib(1000 + s)))), None);
    assert_eq!(time_to_limit(&each(3, |s| at(s, Bytes::mib(1000 - 100 * s)))), None, "too few to tell");
    let trembling = each(10, |s| at(s, Bytes::mib(1000 - 80 * (s % 2))));
    assert_eq!(time_to_limit(&trembling), None);
}

#[test]
fn a_neighbour_that_stays_makes_the_run_smaller_by_what_is_lacking() {
    let samples = each(30, |s| at(s, if s < 5 { Bytes::mib(400) } else { Bytes::mib(50) }));
    let answers = answers(&samples, &LIMITS);
    assert!(matches!(answers[5], Pressure::SaveNow { .. }));
    // Back to three quarters of the 400 that the plan left.
    let to = LIMITS.plan - Bytes::mib(250);
    assert_eq!(*answers.last().unwrap(), Pressure::Shrink { to });
}

#[test]
fn where_the_smallest_plan_ends_the_emergency_it_is_taken_though_it_does_not_give_everything_back() {
    let tight = Limits { smallest: LIMITS.plan - Bytes::mib(210), ..LIMITS };
    let samples = each(30, |s| at(s, Bytes::mib(20)));
    assert_eq!(pressure(&samples, &tight), Pressure::Shrink { to: tight.smallest });
    let tight = Limits { smallest: LIMITS.plan - Bytes::mib(170), ..LIMITS };
    assert!(matches!(pressure(&samples, &tight), Pressure::Stop { .. }));
}

#[test]
fn a_run_that_cannot_be_smaller_stops() {
    let tight = Limits { smallest: LIMITS.plan, ..LIMITS };
    let samples = each(30, |s| at(s, Bytes::mib(50)));
    assert!(matches!(pressure(&samples, &tight), Pressure::Stop { why: Why::HeadroomLow { .. } }));
}

#[test]
fn stalls_save_at_ten_percent_and_shrink_at_forty_before_an_oom_daemon_acts() {
    let stalled = |percent| each(20, move |s| Sample { stall_full: Some(percent), ..at(s, Bytes::gib(1)) });
    assert_eq!(pressure(&stalled(9.0), &LIMITS), Pressure::Fine);
    assert!(matches!(pressure(&stalled(12.0), &LIMITS), Pressure::SaveNow { why: Why::Stalled { .. } }));
    assert!(matches!(pressure(&stalled(45.0), &LIMITS), Pressure::Shrink { .. }));
    let fedora_acts_after = 20;
    let first = answers(&stalled(55.0), &LIMITS).iter().position(|a| matches!(a, Pressure::Shrink { .. })).unwrap();
    assert!(first < fedora_acts_after);
}

#[test]
fn swap_that_lies_still_is_fine_and_swap_that_moves_is_not() {
    let swapping = |rate| move |s| Sample { swap_used: Bytes::mib(300), swap_in: rate, ..at(s, Bytes::gib(1)) };
    assert_eq!(pressure(&each(60, swapping(Bytes::ZERO)), &LIMITS), Pressure::Fine);
    let thrashing = pressure(&each(60, swapping(Bytes::mib(40))), &LIMITS);
    assert_eq!(thrashing, Pressure::SaveNow { why: Why::Thrashing { per_second: Bytes::mib(40) } });
}

#[test]
fn a_filling_disk_is_saved_to_while_a_checkpoint_fits_and_never_ends_the_run() {
    let with = |free| each(20, move |s| Sample { disk_free: free, ..at(s, Bytes::gib(1)) });
    assert!(matches!(pressure(&with(Bytes::mib(1200)), &LIMITS), Pressure::SaveNow { why: Why::DiskFills { .. } }));
    assert_eq!(pressure(&with(Bytes::mib(900)), &LIMITS), Pressure::Fine, "a save that cannot fit is not asked for");
    assert_eq!(pressure(&with(Bytes::mib(20)), &LIMITS), Pressure::Fine);
}

#[test]
fn pressure_on_the_edge_is_one_episode_not_many() {
    // Around half of the reserve, above and below every other second.
    let samples = each(300, |s| at(s, Bytes::mib(if s % 2 == 0 { 190 } else { 210 })));
    let answers = answers(&samples, &LIMITS);
    let changes = answers.windows(2).filter(|pair| (pair[0] == Pressure::Fine) != (pair[1] == Pressure::Fine)).count();
    assert_eq!(changes, 0);
    assert!(matches!(answers[0], Pressure::SaveNow { .. }));
}

#[test]
fn it_is_fine_again_only_after_a_time_of_calm() {
    let samples = each(60, |s| at(s, if s == 3 { Bytes::mib(150) } else { Bytes::mib(400) }));
    let answers = answers(&samples, &LIMITS);
    let back = (4..60).find(|n| answers[*n] == Pressure::Fine).unwrap() as u64;
    assert!(back >= 3 + CALM.as_secs() && back < 60, "fine again at {back}");
}

proptest! {
    #[test]
    fn a_smaller_plan_is_smaller_and_never_below_the_smallest(
        heads in proptest::collection::vec(0u64..1 << 31, 0..60),
        stall in 0.0f64..100.0,
        swap in 0u64..1 << 33,
        reserve in 0u64..1 << 30,
    ) {
        let limits = Limits { reserve: Bytes(reserve), ..LIMITS };
        let make = |(s, head): (usize, &u64)| Sample {
            stall_full: Some(stall), swap_used: Bytes(swap), ..at(s as u64, Bytes(*head))
        };
        let samples: Vec<Sample> = heads.iter().enumerate().map(make).collect();
        if let Pressure::Shrink { to } = pressure(&samples, &limits) {
            prop_assert!(to < limits.plan && to >= limits.smallest);
        }
    }

    #[test]
    fn samples_out_of_order_or_at_one_moment_are_answered(times in proptest::collection::vec(any::<u32>(), 0..30)) {
        let samples: Vec<Sample> = times.iter().map(|t| at(u64::from(*t), Bytes(u64::from(*t)))).collect();
        pressure(&samples, &LIMITS);
    }
}
