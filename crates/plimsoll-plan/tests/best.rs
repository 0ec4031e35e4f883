//! The choice against all candidates, one by one; and that what a plan says of itself is true.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, Plan, Terms, Verdict, decide, variants};
use plimsoll_plan::program::{Allow, Job};
use plimsoll_plan::spec::{
    DecoderFamily, DecoderSpec, Dropouts, FeedForward, ModelSpec, Positions, RopeScaling, RopeSpec, T5Spec,
};
use plimsoll_plan::sweep::sweep;
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, default_targets};
use proptest::prelude::*;
use terms::terms;

fn decoder(layers: usize, width: usize) -> DecoderSpec {
    DecoderSpec {
        family: DecoderFamily::Qwen2,
        vocab: 300,
        d_model: width,
        layers,
        heads: 4,
        kv_heads: 2,
        d_head: width / 4,
        d_ff: 3 * width,
        norm_eps: 1e-6,
        positions: Positions::Rope(RopeSpec { theta: 1e4, scaling: RopeScaling::Default }),
        max_positions: 64,
        windows: vec![],
        qkv_bias: true,
        out_bias: false,
        mlp_bias: false,
        tied: true,
        dropout: Dropouts::default(),
        init_std: 0.02,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: None,
    }
}

fn t5(layers: usize, width: usize) -> T5Spec {
    T5Spec {
        vocab: 200,
        d_model: width,
        d_kv: width / 4,
        d_ff: 2 * width,
        encoder_layers: layers,
        decoder_layers: 1,
        heads: 4,
        feed_forward: FeedForward::GatedGelu,
        ..T5Spec::small()
    }
}

/// Terms in which the model is all that counts, so that small ones make a difference.
/// Fewer threads are a matter of their own.
fn bare(ram: Bytes, pins: Pins) -> Terms<'static> {
    free_threads(ram, Pins { threads: Some(2), ..pins })
}

/// The same, where the threads are not held.
fn free_threads(ram: Bytes, pins: Pins) -> Terms<'static> {
    let mut terms = terms(ram, pins);
    terms.overheads.startup_peak = Bytes::ZERO;
    terms.loader_rate = 1e12;
    terms
}

fn spec() -> impl Strategy<Value = ModelSpec> {
    prop_oneof![
        (1usize..4, prop::sample::select(vec![16usize, 64])).prop_map(|(n, width)| decoder(n, width).into()),
        (1usize..3, prop::sample::select(vec![16usize, 64])).prop_map(|(n, width)| t5(n, width).into()),
    ]
}

fn job() -> impl Strategy<Value = Job> {
    (spec(), prop::sample::select(vec![1usize, 4, 6]), 4usize..40, any::<bool>()).prop_map(
        |(spec, batch, len, clip)| Job {
            clip,
            ..Job::new(spec, (len, len), batch, OptimizerSpec::adamw(1e-3), (2, Simd::Avx2))
        },
    )
}

/// Every candidate, each planned by itself.
fn all(job: &Job) -> Vec<Plan> {
    let blocks = job.spec.blocks();
    let mut list = Vec::new();
    for micro in (1..=job.effective_batch).filter(|n| job.effective_batch.is_multiple_of(*n)) {
        for in_backward in [true, false] {
            for level in 0..=2 * blocks {
                let recompute = level.saturating_sub(blocks);
                for chunk in [2048, 1024, 512, 256, 128, 64, 32] {
                    let pins = Pins {
                        micro_batch: Some(micro),
                        recompute: Some(recompute),
                        recompute_attention: Some(level.min(blocks) - recompute),
                        loss_chunk: Some(chunk),
                        optimizer_in_backward: Some(in_backward),
                        ..Pins::default()
                    };
                    // Chunks above the rows of a micro-batch are the same chunk.
                    if chunk / 2 < micro * job.target_len || chunk == 32 {
                        list.push(decide(job, &bare(Bytes::gib(8), pins)).plan);
                    }
                }
            }
        }
    }
    list
}

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn the_choice_is_the_smallest_within_three_percent_of_the_fastest_that_fits(job in job(), share in 0.0f64..1.0) {
        let plans = all(&job);
        let least = plans.iter().map(|p| p.ram.peak).min().unwrap();
        let most = plans.iter().map(|p| p.ram.peak).max().unwrap();
        let ram = Bytes(least.0 + ((most.0 - least.0) as f64 * share) as u64);
        let fitting: Vec<&Plan> = plans.iter().filter(|p| p.ram.peak <= ram).collect();
        let fastest = fitting.iter().map(|p| p.seconds_per_update).fold(f64::INFINITY, f64::min);
        let quick = fitting.iter().filter(|p| p.seconds_per_update <= fastest * 1.03);
        let smallest = quick.map(|p| p.ram.peak).min().unwrap();
        let chosen = decide(&job, &bare(ram, Pins::default())).plan;
        prop_assert_eq!((chosen.verdict, chosen.smallest), (Verdict::Fits, least));
        prop_assert!(chosen.seconds_per_update <= fastest * 1.03 * (1.0 + 1e-12));
        prop_assert_eq!(chosen.ram.peak, smallest);

        // The way from the fastest plan, step by step, ends at the chosen one.
        let quickest = plans.iter().map(|p| p.seconds_per_update).fold(f64::INFINITY, f64::min);
        let start = plans.iter().filter(|p| p.seconds_per_update == quickest).map(|p| p.ram.peak).min().unwrap();
        let saved: i64 = chosen.cuts.iter().map(|cut| cut.saved).sum();
        prop_assert_eq!(start.0 as i64 - saved, chosen.ram.peak.0 as i64);
        let slower: f64 = chosen.cuts.iter().map(|cut| 1.0 + cut.slower_percent / 100.0).product();
        prop_assert!(near(quickest * slower, chosen.seconds_per_update));

        // What the next faster plan lacks is what it lacks, and no less would do.
        let faster = plans.iter().filter(|p| p.ram.peak > ram && p.seconds_per_update * 1.03 < chosen.seconds_per_update);
        let next = faster.map(|p| p.ram.peak).min();
        prop_assert_eq!(chosen.next_faster.as_ref().map(|n| n.ram_peak), next);
        if let Some(next) = &chosen.next_faster {
            prop_assert_eq!(ram + next.lacks, next.ram_peak);
            let then = decide(&job, &bare(next.ram_peak, Pins::default())).plan;
            prop_assert!(then.seconds_per_update < chosen.seconds_per_update);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_tighter_budget_is_never_faster_and_a_sweep_only_rises(job in job()) {
        let free = decide(&job, &free_threads(Bytes::gib(8), Pins::default())).plan;
        let mut last = 0.0;
        for step in (0..=12).rev() {
            let ram = Bytes(free.smallest.0 + (free.ram.peak.0 - free.smallest.0) * step / 12);
            let plan = decide(&job, &free_threads(ram, Pins::default())).plan;
            prop_assert_eq!(plan.verdict, Verdict::Fits);
            prop_assert!(plan.ram.peak <= ram && plan.seconds_per_update >= last, "{} after {last}", plan.seconds_per_update);
            last = plan.seconds_per_update;
        }
        let points = sweep(&job, &free_threads(Bytes::ZERO, Pins::default()));
        prop_assert_eq!(points.first().map(|p| p.budget), Some(free.smallest));
        let last = points.last().map(|p| (p.peak, p.seconds_per_update));
        prop_assert_eq!(last, Some((free.ram.peak, free.seconds_per_update)));
        for pair in points.windows(2) {
            prop_assert!(pair[0].budget < pair[1].budget);
            prop_assert!(pair[0].seconds_per_update > pair[1].seconds_per_update);
            prop_assert!(pair[0].tokens_per_second < pair[1].tokens_per_second);
        }
        for point in &points {
            let plan = decide(&job, &free_threads(point.budget, Pins::default())).plan;
            prop_assert_eq!((plan.ram.peak, plan.seconds_per_update), (point.peak, point.seconds_per_update));
            let less = decide(&job, &free_threads(point.budget - Bytes(1), Pins::default())).plan;
            prop_assert!(
                less.verdict == Verdict::TooBig || less.seconds_per_update > point.seconds_per_update,
                "{less:?}\nbefore {point:?}"
            );
        }
    }
}

fn allowing(allow: Allow) -> Job {
    let job = Job::new(decoder(3, 64), (32, 32), 4, OptimizerSpec::adamw(1e-3), (2, Simd::Avx2));
    Job { allow, ..job }
}

#[test]
fn the_result_is_changed_only_where_nothing_else_fits_and_then_as_little_as_will_do() {
    let allow = Allow { adamw8bit: true, bf16_weights: true, shorter: Some(8), ..Allow::default() };
    let job = allowing(allow);
    let smallest = decide(&job, &bare(Bytes::gib(8), Pins::default())).plan.smallest;
    let same = decide(&job, &bare(smallest, Pins::default()));
    assert_eq!((same.plan.verdict, same.plan.rungs.len()), (Verdict::Fits, 0));
    assert_eq!(same.job, job);
    let list = variants(&job);
    let mut ram = smallest - Bytes(1);
    let mut taken = Vec::new();
    loop {
        let decision = decide(&job, &bare(ram, Pins::default()));
        if decision.plan.verdict == Verdict::TooBig {
            break;
        }
        let nth = list.iter().position(|v| v.rungs == decision.plan.rungs).expect("one of the list");
        assert_eq!(decision.job, list[nth].job);
        assert!(decision.plan.to_string().contains(&format!("another result, as allowed: {}", decision.plan.rungs[0])));
        // Nothing before it in the list would have fitted.
        for milder in &list[..nth] {
            let milder = Job { allow: Allow::default(), ..milder.job.clone() };
            assert_eq!(decide(&milder, &bare(ram, Pins::default())).plan.verdict, Verdict::TooBig);
        }
        taken.push(nth);
        ram = decision.plan.smallest - Bytes(1);
    }
    assert!(taken.len() >= 2 && taken.is_sorted(), "{taken:?}");
    assert_eq!(list[0].rungs, ["AdamW's moments in 8 bits"]);
    assert_eq!(list[1].rungs, ["weights in bf16 with stochastic rounding"]);
    assert_eq!(list[2].rungs.len(), 2);
    assert_eq!(list[3].rungs, ["samples of at most 16 tokens"]);
}

#[test]
fn a_base_is_quantised_only_under_an_adapter() {
    let lora =
        LoraSpec { r: 4, alpha: 8.0, dropout: 0.0, rslora: false, targets: default_targets(&decoder(1, 64).into()) };
    let quantise = Some(plimsoll_plan::dtype::Dtype::Nf4);
    assert!(variants(&allowing(Allow { quantise, ..Allow::default() })).is_empty());
    let rungs: Vec<_> = variants(&allowing(Allow { quantise, lora: Some(lora), ..Allow::default() }))
        .into_iter()
        .map(|v| v.rungs)
        .collect();
    assert_eq!(rungs.len(), 2);
    assert!(rungs[0].len() == 1 && rungs[0][0].starts_with("LoRA of rank 4"));
    assert!(rungs[1].len() == 2 && rungs[1][1].contains("NF4"), "{rungs:?}");
}
