//! The decision: what fits is taken, what does not is refused with remedies that are true, the effective batch is kept.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::choose::{Pins, Plan, Verdict, choose, loader_threads};
use plimsoll_plan::footprint::{DiskFacts, disk};
use plimsoll_plan::program::{EvalJob, Job, Program, compile};
use plimsoll_plan::spec::{FeedForward, T5Spec};
use plimsoll_plan::tape::{Id, Tape};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use proptest::prelude::*;
use terms::terms;

fn job(spec: T5Spec, effective_batch: usize, len: usize, optimizer: OptimizerSpec) -> Job {
    Job::new(spec, (len, len), effective_batch, optimizer, (2, Simd::Avx512))
}

#[test]
fn a_tighter_budget_gives_a_smaller_plan_at_the_same_effective_batch() {
    let job = job(T5Spec::small(), 16, 256, OptimizerSpec::adafactor(1e-3));
    let mut last = Bytes(u64::MAX);
    for mib in [8000, 2000, 1200, 900, 700, 600] {
        let plan = choose(&job, &terms(Bytes::mib(mib), Pins::default())).plan;
        assert_eq!(plan.verdict, Verdict::Fits, "{mib} MiB");
        assert!(plan.ram.peak <= Bytes::mib(mib));
        assert!(plan.ram.peak <= last, "{mib} MiB");
        assert_eq!(plan.micro_batch * plan.accumulation, 16);
        assert_eq!(plan.ram.parts.iter().map(|p| p.bytes).sum::<Bytes>(), plan.ram.peak);
        assert_eq!(plan.disk.parts.iter().map(|p| p.bytes).sum::<Bytes>(), plan.disk.peak);
        last = plan.ram.peak;
    }
}

#[test]
fn the_chosen_plan_is_within_three_percent_of_the_fastest_that_fits() {
    let job = job(T5Spec::small(), 8, 128, OptimizerSpec::adafactor(1e-3));
    let ram = Bytes::mib(900);
    let chosen = choose(&job, &terms(ram, Pins::default())).plan;
    let mut fastest = f64::INFINITY;
    for micro_batch in [1, 2, 4, 8] {
        for recompute in [0, 1, 2, 3, 6, 12] {
            for loss_chunk in [32, 64, 128, 256, 512, 1024] {
                let pins = Pins {
                    micro_batch: Some(micro_batch),
                    recompute: Some(recompute),
                    loss_chunk: Some(loss_chunk),
                    ..Pins::default()
                };
                let plan = choose(&job, &terms(ram, pins)).plan;
                if plan.verdict == Verdict::Fits {
                    fastest = fastest.min(plan.seconds_per_update);
                }
            }
        }
    }
    assert!(chosen.seconds_per_update <= fastest * 1.0301, "{} against {fastest}", chosen.seconds_per_update);
}

#[test]
fn what_cannot_fit_is_refused_with_remedies_that_are_true() {
    let job = Job {
        clip: true,
        eval: Some(EvalJob { beams: 1, max_new: 128 }),
        ..job(T5Spec::small(), 16, 512, OptimizerSpec::adamw(1e-4))
    };
    let ram = Bytes::mib(600);
    let plan = choose(&job, &terms(ram, Pins::default())).plan;
    assert_eq!(plan.verdict, Verdict::TooBig);
    let shortfall = plan.shortfall.expect("a plan that is too big says by how much");
    assert_eq!(plan.ram.peak, ram + shortfall);
    assert!(plan.would_fit.len() >= 2, "{:?}", plan.would_fit);
    assert!(plan.would_fit[0].change.contains("RAM budget"));
    let enough = choose(&job, &terms(plan.would_fit[0].ram_peak, Pins::default())).plan;
    assert_eq!(enough.verdict, Verdict::Fits);
    assert!(plan.would_fit[0].ram_peak >= plan.ram.peak);
    let smallest = choose(&job, &terms(plan.ram.peak, Pins::default())).plan;
    assert_eq!((smallest.verdict, smallest.ram.peak), (Verdict::Fits, plan.ram.peak));
    let less = choose(&job, &terms(plan.ram.peak - Bytes(1), Pins::default())).plan;
    assert_eq!(less.verdict, Verdict::TooBig);
    for remedy in &plan.would_fit[1..] {
        assert!(remedy.ram_peak <= ram, "{remedy:?}");
    }
}

#[test]
fn too_little_disk_is_too_big_as_well() {
    let job = job(T5Spec::small(), 4, 64, OptimizerSpec::adamw(1e-4));
    let mut terms = terms(Bytes::gib(8), Pins::default());
    terms.disk = Bytes::gib(1);
    let plan = choose(&job, &terms).plan;
    assert_eq!(plan.verdict, Verdict::TooBig);
    assert!(plan.to_string().contains("of disk"), "{plan}");
    terms.ram = Bytes::mib(300);
    let both = choose(&job, &terms).plan;
    assert_eq!(both.shortfall, Some(both.ram.peak - both.ram.budget), "RAM is named, so its own shortfall is");
}

#[test]
fn a_budget_above_what_is_there_is_not_offered() {
    let job = job(T5Spec::small(), 4, 64, OptimizerSpec::adamw(1e-4));
    let mut terms = terms(Bytes::mib(400), Pins::default());
    assert!(choose(&job, &terms).plan.would_fit[0].change.starts_with("a RAM budget of "));
    terms.ram_there = Bytes::mib(500);
    let change = &choose(&job, &terms).plan.would_fit[0].change;
    assert!(change.ends_with(" MiB of free RAM (there are 500 MiB now)"), "{change}");
}

#[test]
fn the_loader_gets_as_many_threads_as_keep_it_ahead() {
    assert_eq!(loader_threads(1_000.0, 1e6, 8), 1);
    assert_eq!(loader_threads(1e6, 1e6, 8), 2);
    assert_eq!(loader_threads(1e9, 1e6, 8), 8);
    let job = job(
        T5Spec {
            vocab: 100,
            d_model: 8,
            d_ff: 8,
            d_kv: 4,
            heads: 1,
            encoder_layers: 1,
            decoder_layers: 1,
            ..T5Spec::small()
        },
        8,
        64,
        OptimizerSpec::adafactor(1e-3),
    );
    let mut slow = terms(Bytes::gib(1), Pins::default());
    assert_eq!(choose(&job, &slow).plan.choices.loader_threads, 2);
    slow.loader_rate = 1e12;
    assert_eq!(choose(&job, &slow).plan.choices.loader_threads, 1);
}

#[test]
fn pins_are_kept() {
    let job = job(T5Spec::small(), 8, 64, OptimizerSpec::adafactor(1e-3));
    let pins = Pins {
        micro_batch: Some(2),
        recompute: Some(5),
        loss_chunk: Some(48),
        optimizer_in_backward: Some(false),
        loader_threads: Some(3),
        ..Pins::default()
    };
    let plan = choose(&job, &terms(Bytes::gib(8), pins)).plan;
    let expected = Choices {
        micro_batch: 2,
        recompute: 5,
        recompute_attention: 0,
        recompute_feed_forward: 0,
        loss_chunk: 48,
        optimizer_in_backward: false,
        loader_threads: 3,
        lean: false,
        keep_norms: false,
        lstm_every: 0,
    };
    assert_eq!(plan.choices, expected);
}

#[test]
fn a_held_update_in_the_backward_pass_is_kept_with_any_micro_batch() {
    let job = job(T5Spec::small(), 8, 64, OptimizerSpec::adamw(1e-3));
    let pins = Pins { optimizer_in_backward: Some(true), ..Pins::default() };
    for (ram, micro_batch) in [(Bytes::gib(8), None), (Bytes::mib(1), Some(1))] {
        let choices = choose(&job, &terms(ram, pins)).plan.choices;
        assert!(choices.optimizer_in_backward, "{ram}");
        assert!(micro_batch.is_none_or(|n| choices.micro_batch == n), "{ram}: {choices:?}");
    }
}

#[test]
fn more_micro_batches_than_a_tape_holds_keep_their_gradients() {
    let job = job(T5Spec::small(), 64, 8, OptimizerSpec::adamw(1e-3));
    let pins = Pins { optimizer_in_backward: Some(true), micro_batch: Some(1), ..Pins::default() };
    assert!(!choose(&job, &terms(Bytes::gib(8), pins)).plan.choices.optimizer_in_backward);
}

#[test]
fn a_held_recompute_is_not_told_as_a_cut() {
    let job = job(T5Spec::small(), 8, 128, OptimizerSpec::adafactor(1e-3));
    let pins = Pins { recompute: Some(4), ..Pins::default() };
    let roomy = choose(&job, &terms(Bytes::gib(8), pins)).plan;
    let least = choose(&job, &terms(Bytes(1), pins)).plan;
    assert!(least.ram.peak < roomy.ram.peak && !least.cuts.is_empty(), "{:?}", least.cuts);
    for plan in [roomy, least] {
        assert_eq!(plan.choices.recompute, 4);
        assert!(plan.cuts.iter().all(|cut| !cut.what.contains("recompute")), "{:?}", plan.cuts);
    }
}

/// Where the start peaks above the run, a larger arena costs nothing, so nothing may be cut to make it smaller.
#[test]
fn a_start_that_peaks_above_the_run_cuts_nothing() {
    let small = T5Spec { vocab: 500, d_model: 64, d_ff: 128, encoder_layers: 2, decoder_layers: 2, ..T5Spec::small() };
    let job = job(small, 8, 64, OptimizerSpec::adafactor(1e-3));
    let unbounded = choose(&job, &terms(Bytes::gib(8), Pins::default())).plan;
    let mut large_start = terms(Bytes::gib(8), Pins::default());
    large_start.overheads.startup_peak = unbounded.ram.peak + Bytes::mib(200);
    let start = choose(&job, &large_start).plan;
    large_start.ram = start.ram.peak;
    let exact = choose(&job, &large_start).plan;
    assert_eq!((exact.verdict, exact.choices), (Verdict::Fits, start.choices));
    assert!(exact.cuts.is_empty(), "{:?}", exact.cuts);
    assert!(exact.seconds_per_update <= unbounded.seconds_per_update);
}

#[test]
fn disk_is_counted_as_it_is_written() {
    let choices = Choices {
        micro_batch: 1,
        recompute: 0,
        recompute_attention: 0,
        recompute_feed_forward: 0,
        loss_chunk: 8,
        optimizer_in_backward: true,
        loader_threads: 1,
        lean: false,
        keep_norms: false,
        lstm_every: 0,
    };
    let part = |spec: T5Spec, facts: DiskFacts, name: &str| {
        let program = compile(&job(spec, 1, 8, OptimizerSpec::adafactor(1e-3)), &choices);
        let footprint = disk(&program, &facts, Bytes::gib(1));
        footprint.parts.iter().find(|part| part.name == name).expect("a part of this name").bytes
    };
    let none = DiskFacts {
        keep: 1,
        best: false,
        side_files: Bytes::ZERO,
        unpacked: Bytes::ZERO,
        fetched: Bytes::ZERO,
        steps: 0,
        evaluations: Bytes::ZERO,
        evaluation_lines: Bytes::ZERO,
    };
    let spec = T5Spec::small();
    let unscaled = T5Spec { scale_head: false, ..spec.clone() };
    let table = Bytes((spec.vocab * spec.d_model) as u64 * 4);
    let model = part(spec.clone(), none, "final model");
    assert_eq!(part(unscaled, none, "final model"), model + table);
    let side = DiskFacts { side_files: Bytes::mib(17), ..none };
    assert_eq!(part(spec.clone(), side, "final model"), model + Bytes::mib(17));
    let long = DiskFacts { steps: 1_000_000, ..none };
    let records = part(spec.clone(), long, "records");
    assert_eq!(records, part(spec.clone(), none, "records") + Bytes(256_000_000));
    let evaluated = DiskFacts { evaluations: Bytes::mib(3), evaluation_lines: Bytes::mib(5), ..none };
    assert_eq!(part(spec.clone(), evaluated, "records"), part(spec.clone(), none, "records") + Bytes::mib(5));
    assert_eq!(part(spec.clone(), evaluated, "checkpoints"), part(spec.clone(), none, "checkpoints") + Bytes::mib(9));
    let (one, three) = (DiskFacts { keep: 1, ..none }, DiskFacts { keep: 3, ..none });
    // Besides those kept: one that is being written, and one of an exit.
    let each = Bytes(part(spec.clone(), one, "checkpoints").0 / 3);
    assert_eq!(part(spec.clone(), three, "checkpoints"), each * 5);
    assert_eq!(part(spec, DiskFacts { best: true, ..three }, "checkpoints"), each * 6);
}

#[test]
fn a_plan_survives_json() {
    let plan =
        choose(&job(T5Spec::small(), 8, 64, OptimizerSpec::adafactor(1e-3)), &terms(Bytes::gib(1), Pins::default()))
            .plan;
    let text = serde_json::to_string(&plan).unwrap();
    assert!(text.contains("\"verdict\":\"fits\""));
    let back: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (back.choices, &back.ram, &back.disk, back.verdict),
        (plan.choices, &plan.ram, &plan.disk, plan.verdict)
    );
}

#[test]
fn a_plan_of_an_older_version_is_read() {
    let plan =
        choose(&job(T5Spec::small(), 8, 64, OptimizerSpec::adafactor(1e-3)), &terms(Bytes::gib(1), Pins::default()))
            .plan;
    let mut old = serde_json::to_value(&plan).unwrap();
    let fields = old.as_object_mut().unwrap();
    assert!(fields.remove("smallest").is_some() && fields.remove("snapshot").is_some());
    let back: Plan = serde_json::from_value(old).unwrap();
    assert_eq!(back, Plan { smallest: Bytes::ZERO, snapshot: false, ..plan });
}

/// No two tensors that live at the same time overlap, and every op's tensors lie inside the arena's part.
fn check_overlap(program: &Program) {
    let tapes = [
        program.micro.as_ref(),
        program.update.as_ref(),
        program.eval.as_ref(),
        program.generation.as_ref().map(|g| &g.placed),
    ];
    for placed in tapes.into_iter().flatten() {
        let tape: &Tape = &placed.tape;
        let spans = tape.lifetimes();
        let range = |i: usize| placed.places.offsets[i]..placed.places.offsets[i] + tape.tensors[i].words;
        for (i, a) in spans.iter().enumerate() {
            let Some(a) = a else { continue };
            assert!(range(i).end <= program.parts.transient);
            for (j, b) in spans.iter().enumerate().skip(i + 1) {
                let Some(b) = b else { continue };
                let together = a.0 <= b.1 && b.0 <= a.1;
                let apart = range(i).end <= range(j).start || range(j).end <= range(i).start;
                assert!(!together || apart, "{} and {}", tape.tensors[i].name, tape.tensors[j].name);
            }
        }
        let known = (program.store.tensors.len() + tape.tensors.len()) as u32;
        tape.ops.iter().for_each(|op| op.touches(&mut |Id(id)| assert!(id < known)));
    }
    let mut end = 0;
    for (offset, tensor) in program.store_offsets.iter().zip(&program.store.tensors) {
        assert!(*offset >= end);
        end = offset + tensor.words;
    }
    assert!(end <= program.parts.store);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_program_overlaps_itself(
        (layers, dec_layers) in (1usize..4, 1usize..4),
        (heads, d_kv, d_model, d_ff) in (1usize..5, 1usize..20, 1usize..70, 1usize..90),
        (gated, tied, dropout) in (any::<bool>(), any::<bool>(), any::<bool>()),
        (micro, recompute, chunk, in_backward) in (1usize..5, 0usize..7, 1usize..40, any::<bool>()),
        (source_len, target_len) in (1usize..40, 1usize..30),
        adam in any::<bool>(),
    ) {
        let spec = T5Spec {
            vocab: 50, d_model, d_kv, d_ff, encoder_layers: layers, decoder_layers: dec_layers, heads,
            feed_forward: if gated { FeedForward::GatedGelu } else { FeedForward::Relu },
            tied, dropout: if dropout { 0.1 } else { 0.0 }, ..T5Spec::small()
        };
        let optimizer = if adam { OptimizerSpec::adamw(1e-3) } else { OptimizerSpec::adafactor(1e-3) };
        let job = Job { source_len, target_len, eval: Some(EvalJob { beams: 2, max_new: target_len }), ..job(spec, micro, 8, optimizer) };
        let choices = Choices {
            micro_batch: micro, recompute: recompute.min(layers + dec_layers), recompute_attention: 0, recompute_feed_forward: 0, loss_chunk: chunk.min(micro * target_len),
            optimizer_in_backward: in_backward, loader_threads: 1,
            lean: false,
            keep_norms: false,
            lstm_every: 0,
        };
        check_overlap(&compile(&job, &choices));
    }
}

#[test]
fn fewer_threads_are_taken_where_nothing_else_fits_and_held_ones_are_kept() {
    let job = Job { threads: 8, ..job(T5Spec::small(), 8, 64, OptimizerSpec::adafactor(1e-3)) };
    let held = |n| Pins { threads: Some(n), ..Pins::default() };
    let plan = |ram, pins| choose(&job, &terms(ram, pins)).plan;
    let most = plan(Bytes::gib(8), Pins::default());
    assert_eq!(most.threads, 8, "there is room for all");
    let least = |n| plan(Bytes(1), held(n)).ram.peak;
    assert_eq!(most.smallest, least(1));
    assert!(least(1) < least(4) && least(4) < least(8));
    let tight = plan(least(8) - Bytes(1), Pins::default());
    assert_eq!((tight.verdict, tight.threads), (Verdict::Fits, 4));
    let said = &tight.cuts.last().unwrap().what;
    assert!(said.starts_with("4 compute threads instead of 8"), "{said}");
    let saved: i64 = tight.cuts.iter().map(|cut| cut.saved).sum();
    assert!(saved > 0 && tight.seconds_per_update > most.seconds_per_update * 1.5);
    assert_eq!(plan(least(1), Pins::default()).threads, 1);
    assert_eq!(plan(least(1) - Bytes(1), Pins::default()).verdict, Verdict::TooBig);
    assert_eq!(plan(least(4), held(8)).verdict, Verdict::TooBig);
}
