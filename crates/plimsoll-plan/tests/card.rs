//! Plans on a card: they keep the budget, a tighter one gives a smaller plan, and what they promise is what is compiled.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::card::{CardRates, CardTerms};
use plimsoll_plan::choose::{Pins, Terms, Verdict, choose};
use plimsoll_plan::device::{CudaForm, Device, read_form};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::{CardOverheads, DiskFacts, disk, vram};
use plimsoll_plan::op::{AttentionShape, Side};
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::spec::{DecoderSpec, SeriesSpec, T5Spec};
use plimsoll_plan::tape::{Id, Role};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec};

fn job(form: Dtype) -> Job {
    let job = Job::new(T5Spec::small(), (256, 256), 32, OptimizerSpec::adamw(1e-4), (2, Simd::Avx2));
    Job { device: Device::Cuda(CudaForm::of(form)), clip: true, ..job }
}

fn on_card(budget: Bytes) -> Terms<'static> {
    let overheads = CardOverheads { context: Bytes::mib(500), modules: Bytes::mib(16) };
    let rates = CardRates { flops: 600e12, bandwidth: 3e12, launches: 4e5, to_card: 5e10, from_card: 5e10 };
    Terms {
        card: Some(CardTerms { vram: budget, vram_there: Bytes::gib(139), overheads, rates, processors: 132 }),
        ..terms::terms(Bytes::gib(16), Pins::default())
    }
}

#[test]
fn a_plan_keeps_the_cards_budget_and_a_tighter_one_gives_a_smaller_plan() {
    let mut last = (Bytes(u64::MAX), 0.0);
    for mib in [16_000, 3000, 2200, 1800] {
        let decision = choose(&job(Dtype::Bf16), &on_card(Bytes::mib(mib)));
        let plan = decision.plan;
        assert_eq!(plan.verdict, Verdict::Fits, "{mib} MiB: {plan}");
        assert!(plan.vram.peak <= Bytes::mib(mib) && plan.vram.peak <= last.0, "{mib} MiB");
        assert_eq!(plan.vram.parts.iter().map(|p| p.bytes).sum::<Bytes>(), plan.vram.peak);
        assert!(plan.seconds_per_update >= last.1, "less memory is not faster");
        assert_eq!(plan.micro_batch * plan.accumulation, 32);
        assert_eq!(decision.program, compile(&decision.job, &plan.choices));
        last = (plan.vram.peak, plan.seconds_per_update);
    }
    let plan = choose(&job(Dtype::Bf16), &on_card(Bytes::mib(800))).plan;
    assert_eq!(plan.verdict, Verdict::TooBig);
    assert!(plan.shortfall.is_some() && plan.to_string().contains("of VRAM"), "{plan}");
}

#[test]
fn sixteen_bits_halve_activations_and_give_every_trained_matrix_a_copy() {
    let how = choose(&job(Dtype::F32), &on_card(Bytes::gib(40))).plan.choices;
    let (wide, narrow) = (compile(&job(Dtype::F32), &how), compile(&job(Dtype::Bf16), &how));
    let share = narrow.parts.transient as f64 / wide.parts.transient as f64;
    assert!((0.49..0.56).contains(&share), "{share}");
    assert_eq!(wide.store_words(Role::Copy), 0);
    let store = &narrow.store;
    for place in &store.params {
        let copied = read_form(store, place.weight) != place.weight;
        let table = place.param.shape.len() == 2 && !place.param.name.contains("relative_attention_bias");
        assert_eq!(copied, table, "{}", place.param.name);
    }
    let copies = (0..store.elements.len()).filter_map(|at| store.copies[at].map(|copy: Id| (at, copy)));
    assert!(copies.into_iter().all(|(at, copy)| {
        let tensor = &store.tensors[copy.0 as usize];
        let half = store.elements[at].div_ceil(2);
        // The copy is the upper half of its weight, which keeps the lower: together they are f32.
        tensor.dtype == Dtype::Bf16 && tensor.words == half && store.tensors[at].words == half
    }));
    let part = |dtype, name: &str| {
        let table = vram(&compile(&job(dtype), &how), &CardOverheads::default(), Bytes::gib(40));
        table.parts.iter().find(|part| part.name == name).map(|part| part.bytes)
    };
    assert_eq!(part(Dtype::Bf16, "weight copies"), None);
    assert!(part(Dtype::F16, "weight copies").is_some());
    // To the alignment of a tensor's end.
    let (wide, halves) = (part(Dtype::F32, "weights").unwrap(), part(Dtype::Bf16, "weights").unwrap());
    assert!(halves >= wide && halves.0 - wide.0 < 1 << 16, "{halves} of {wide}");
    let facts = DiskFacts {
        keep: 1,
        best: false,
        side_files: Bytes::ZERO,
        unpacked: Bytes::ZERO,
        fetched: Bytes::ZERO,
        steps: 1,
        evaluations: Bytes::ZERO,
        evaluation_lines: Bytes::ZERO,
    };
    let disk = |dtype| disk(&compile(&job(dtype), &how), &facts, Bytes::gib(40));
    assert!(disk(Dtype::Bf16).peak >= disk(Dtype::F32).peak, "a checkpoint holds weights whole");
}

#[test]
fn gradients_of_keys_come_in_parts_only_where_tiles_are_few() {
    let (queries, keys) = (Side::Source, Side::Source);
    let (scale, causal, window) = (0.125, true, None);
    let (max_queries, max_keys) = (1024, 1024);
    let shape = AttentionShape {
        queries,
        keys,
        heads: 14,
        kv_heads: 2,
        d_kv: 64,
        scale,
        causal,
        window,
        max_queries,
        max_keys,
    };
    let parts = |rows, form| shape.kv_splits(rows, &CudaForm::of(form));
    assert_eq!([1024, 8 * 1024, 64 * 1024].map(|rows| parts(rows, Dtype::Bf16)), [7, 4, 1]);
    assert_eq!(parts(1024, Dtype::F32), 1, "only the kernels of tensor cores take parts");
}

#[test]
fn a_model_of_half_a_billion_fits_small_cards() {
    let device = Device::Cuda(CudaForm::of(Dtype::Bf16));
    let full = |batch, optimizer| {
        let job = Job::new(DecoderSpec::qwen25_half_billion(), (1024, 1024), batch, optimizer, (2, Simd::Avx2));
        Job { device, ..job }
    };
    let targets = ["q", "k", "v", "o", "gate", "up", "down"].map(|part| format!("{part}_proj")).to_vec();
    let train = TrainSpec::Lora(LoraSpec { r: 16, alpha: 32.0, dropout: 0.0, rslora: false, targets });
    let lora = |batch, quantised| {
        let storage = Storage { frozen: Dtype::Bf16, quantised, ..Storage::default() };
        Job { train: train.clone(), storage, ..full(batch, OptimizerSpec::adamw(1e-4)) }
    };
    let pure = Storage { trained: Dtype::Bf16, ..Storage::default() };
    let masters = full(1, OptimizerSpec::adamw8bit(1e-4));
    let halves = Job { storage: pure, ..full(8, OptimizerSpec::adamw16bit(1e-4)) };
    for (name, job, mib) in [
        ("masters, 8-bit moments, batch 1", masters, 4710),
        ("bf16 alone", halves, 6144),
        ("masters", full(8, OptimizerSpec::adamw(1e-4)), 9216),
        ("LoRA", lora(8, None), 6144),
        ("LoRA over NF4, batch 1", lora(1, Some(Dtype::Nf4)), 1638),
    ] {
        let plan = choose(&job, &on_card(Bytes::mib(mib))).plan;
        assert_eq!(plan.verdict, Verdict::Fits, "{name}: {plan}");
        assert!(plan.choices.loss_chunk >= 128, "{name}: a gradient of the head is not added to row by row");
    }
}

#[test]
fn what_is_too_big_is_told_what_would_fit_and_what_fits_what_was_given_up_for_it() {
    let job = Job {
        device: Device::Cuda(CudaForm::of(Dtype::Bf16)),
        ..Job::new(DecoderSpec::qwen25_half_billion(), (1024, 1024), 8, OptimizerSpec::adamw(1e-4), (2, Simd::Avx2))
    };
    let plan = choose(&job, &on_card(Bytes::gib(4))).plan;
    let told = plan.to_string();
    println!("{told}");
    assert_eq!(plan.verdict, Verdict::TooBig);
    let offered: Vec<&str> = plan.would_fit.iter().map(|remedy| remedy.change.as_str()).collect();
    for wanted in [
        "a VRAM budget of ",
        "LoRA of rank 16 (another result)",
        "optimizer adamw8bit, precision bf16 (another result)",
    ] {
        assert!(offered.iter().any(|change| change.starts_with(wanted)), "{wanted}: {offered:?}");
    }
    // Each was tried: the first, taken at its word, fits.
    let mib: u64 = offered[0].split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert_eq!(choose(&job, &on_card(Bytes::mib(mib))).plan.verdict, Verdict::Fits);
    let plan = choose(&job, &on_card(Bytes::gib(9))).plan;
    let told = plan.to_string();
    println!("{told}");
    assert!(plan.cuts.len() == 1 && plan.cuts[0].saved > 0 && plan.cuts[0].slower_percent > 0.0, "{:?}", plan.cuts);
    let next = plan.next_faster.unwrap();
    assert!(next.lacks > Bytes::gib(1) && told.contains("more VRAM"), "{told}");
}

#[test]
fn a_model_of_series_keeps_its_batch_whole_and_gives_up_convolutions_before_steps() {
    let spec = SeriesSpec::hybrid_v2(112);
    let job = Job::of_series(spec, 256, OptimizerSpec::adamw(5e-5), (2, Simd::Avx2));
    let job = Job { device: Device::Cuda(CudaForm::of(Dtype::F32)), clip: true, ..job };
    let free = choose(&job, &on_card(Bytes::gib(100))).plan;
    assert_eq!((free.verdict, free.micro_batch, free.choices.lstm_every), (Verdict::Fits, 256, 0));
    let mut last = free.vram.peak;
    let mut steps = Vec::new();
    for share in [0.9, 0.8, 0.7, 0.6, 0.5] {
        let decision = choose(&job, &on_card(Bytes((free.vram.peak.0 as f64 * share) as u64)));
        let plan = decision.plan;
        if plan.verdict == Verdict::TooBig {
            break;
        }
        assert!(plan.vram.peak <= last && plan.micro_batch == 256, "{plan}");
        assert_eq!(decision.program, compile(&decision.job, &plan.choices));
        assert!(plan.seconds_per_update >= free.seconds_per_update);
        assert!(plan.choices.lstm_every == 0 || plan.choices.recompute == 3, "{plan}");
        (last, steps) = (plan.vram.peak, [steps, vec![plan.choices.lstm_every]].concat());
    }
    assert!(steps.len() >= 2, "something can be given up: {steps:?}");
    let narrow = Job { device: Device::Cuda(CudaForm::of(Dtype::Bf16)), ..job };
    let share = choose(&narrow, &on_card(Bytes::gib(100))).plan.vram.peak.0 as f64 / free.vram.peak.0 as f64;
    assert!((0.45..0.75).contains(&share), "{share}");
}
