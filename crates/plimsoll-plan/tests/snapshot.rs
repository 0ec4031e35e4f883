//! A snapshot is taken where there is room and never at the price of a step; the smallest plan is what a re-plan reaches.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Decision, Pins, Plan, Terms, Verdict, choose};
use plimsoll_plan::footprint::Footprint;
use plimsoll_plan::program::Job;
use plimsoll_plan::snapshot::snapshot_bytes;
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use terms::STACK;

const ON: Pins = Pins { snapshot: Some(true), ..NONE };
const OFF: Pins = Pins { snapshot: Some(false), ..NONE };
const NONE: Pins = Pins {
    micro_batch: None,
    recompute: None,
    recompute_attention: None,
    recompute_feed_forward: None,
    loss_chunk: None,
    optimizer_in_backward: None,
    loader_threads: None,
    snapshot: None,
    threads: None,
    lean: None,
    keep_norms: None,
    lstm_every: None,
};

fn job() -> Job {
    Job::new(T5Spec::small(), (128, 64), 8, OptimizerSpec::adamw(1e-4), (2, Simd::Avx512))
}

/// Terms of a run that saves on its way.
fn terms(ram: Bytes, pins: Pins) -> Terms<'static> {
    Terms { saves: true, ..terms::terms(ram, pins) }
}

fn plan(ram: Bytes, pins: Pins) -> Plan {
    choose(&job(), &terms(ram, pins)).plan
}

fn line(footprint: &Footprint, name: &str) -> Option<Bytes> {
    footprint.parts.iter().find(|part| part.name == name).map(|part| part.bytes)
}

/// RAM that the choices without a snapshot need, under a roomy budget; and with one.
fn peaks() -> (Bytes, Bytes) {
    (plan(Bytes::gib(16), OFF).ram.peak, plan(Bytes::gib(16), NONE).ram.peak)
}

#[test]
fn a_snapshot_has_a_line_of_weights_state_and_a_stack() {
    let Decision { plan, program, .. } = choose(&job(), &terms(Bytes::gib(16), NONE));
    assert!(plan.snapshot);
    assert_eq!(line(&plan.ram, "snapshot"), Some(snapshot_bytes(&program.store) + STACK));
    assert_eq!(plan.ram.parts.iter().map(|p| p.bytes).sum::<Bytes>(), plan.ram.peak);
    assert!(plan.to_string().contains("checkpoints are written in the background"), "{plan}");
}

#[test]
fn a_snapshot_is_taken_where_it_fits_to_the_byte_and_changes_no_choice() {
    let (without, with) = peaks();
    assert!(without < with);
    for (ram, snapshot) in [(with, true), (with - Bytes(1), false), (without, false)] {
        let (choices, plan) = (plan(ram, OFF).choices, plan(ram, NONE));
        assert_eq!((plan.verdict, plan.snapshot, plan.choices), (Verdict::Fits, snapshot, choices), "{ram}");
        assert_eq!(line(&plan.ram, "snapshot").is_some(), snapshot);
        assert!(snapshot || plan.to_string().contains("each checkpoint stops the steps"), "{plan}");
    }
}

#[test]
fn a_run_that_never_saves_on_its_way_has_no_snapshot() {
    for pins in [NONE, ON] {
        let never = Terms { saves: false, ..terms(Bytes::gib(16), pins) };
        let plan = choose(&job(), &never).plan;
        assert!(!plan.snapshot && line(&plan.ram, "snapshot").is_none());
    }
}

#[test]
fn a_held_snapshot_makes_room_for_itself_or_is_too_big() {
    let (_, roomy) = peaks();
    // Smaller than the quickest choices with a snapshot need: other choices are made.
    let tight = plan(roomy - Bytes::mib(20), ON);
    assert_eq!((tight.verdict, tight.snapshot), (Verdict::Fits, true));
    assert!(tight.ram.peak <= roomy - Bytes::mib(20) && tight.choices != plan(Bytes::gib(16), ON).choices);
    let least = tight.smallest;
    assert_eq!(plan(least, ON).verdict, Verdict::Fits);
    let refused = plan(least - Bytes(1), ON);
    assert_eq!((refused.verdict, refused.snapshot), (Verdict::TooBig, true));
    assert_eq!(refused.shortfall, Some(Bytes(1)));
    let remedy = refused.would_fit.iter().find(|r| r.change.starts_with("no snapshot")).expect("it can be let go");
    assert_eq!(plan(remedy.ram_peak, OFF).verdict, Verdict::Fits);
}

#[test]
fn a_held_off_snapshot_is_never_taken() {
    assert!(!plan(Bytes::gib(64), OFF).snapshot);
}

#[test]
fn the_smallest_plan_fits_into_what_it_says_and_into_nothing_less() {
    let smallest = plan(Bytes::gib(16), NONE).smallest;
    for ram in [Bytes::gib(16), Bytes::gib(1), smallest, Bytes(1)] {
        assert_eq!(plan(ram, NONE).smallest, smallest, "the budget does not matter: {ram}");
    }
    let exact = plan(smallest, NONE);
    assert_eq!((exact.verdict, exact.ram.peak), (Verdict::Fits, smallest));
    assert_eq!(plan(smallest - Bytes(1), NONE).verdict, Verdict::TooBig);
}

#[test]
fn the_smallest_plan_keeps_the_users_pins_and_gives_up_what_an_earlier_plan_chose() {
    let free = plan(Bytes::gib(16), NONE);
    let c = free.choices;
    let held = Pins {
        micro_batch: Some(c.micro_batch),
        recompute: Some(c.recompute),
        recompute_attention: Some(c.recompute_attention),
        recompute_feed_forward: Some(c.recompute_feed_forward),
        loss_chunk: Some(c.loss_chunk),
        optimizer_in_backward: Some(c.optimizer_in_backward),
        loader_threads: Some(c.loader_threads),
        snapshot: Some(true),
        threads: Some(2),
        lean: None,
        keep_norms: None,
        lstm_every: None,
    };
    let on = choose(&job(), &Terms { held: Some(held), ..terms(Bytes::gib(16), NONE) }).plan;
    assert_eq!((on.choices, on.snapshot, on.smallest), (c, true, free.smallest));
    // What the user holds stays.
    let pins = Pins { recompute: Some(0), optimizer_in_backward: Some(false), ..NONE };
    let pinned = plan(Bytes::gib(16), pins).smallest;
    assert!(pinned > free.smallest);
    let on = choose(&job(), &Terms { held: Some(held), ..terms(Bytes::gib(16), pins) }).plan;
    assert_eq!((on.choices, on.smallest), (c, pinned));
}

#[test]
fn held_choices_that_no_longer_fit_are_too_big_though_others_would_fit() {
    let free = plan(Bytes::gib(16), NONE);
    let held = Pins { micro_batch: Some(8), recompute: Some(0), optimizer_in_backward: Some(false), ..NONE };
    let ram = free.smallest + Bytes::mib(1);
    let on = choose(&job(), &Terms { held: Some(held), ..terms(ram, NONE) }).plan;
    assert_eq!((on.verdict, on.smallest), (Verdict::TooBig, free.smallest));
    assert_eq!(plan(ram, NONE).verdict, Verdict::Fits);
}

#[test]
fn a_mirror_has_its_line_and_its_room() {
    let mut with = terms(Bytes::gib(16), NONE);
    with.overheads.mirror = Bytes::mib(24);
    let (mirrored, plain) = (choose(&job(), &with).plan, plan(Bytes::gib(16), NONE));
    assert_eq!(line(&mirrored.ram, "mirror"), Some(Bytes::mib(24)));
    assert_eq!((line(&plain.ram, "mirror"), mirrored.ram.peak), (None, plain.ram.peak + Bytes::mib(24)));
    assert_eq!(mirrored.smallest, plain.smallest + Bytes::mib(24));
}
