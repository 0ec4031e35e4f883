//! Plans of series on a card of 12 GiB: the guide's three presets, and the batch that it died of, as the documents have them.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::card::{CardRates, CardTerms};
use plimsoll_plan::choose::{Pins, Plan, Terms, Verdict, choose};
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::footprint::CardOverheads;
use plimsoll_plan::program::Job;
use plimsoll_plan::series_matrix::AttentionMatrix;
use plimsoll_plan::spec::{ConvNorm, SeriesSpec};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;

const GIB: f64 = (1u64 << 30) as f64;

/// A batch, in so many micro-batches where that is held; on a card with so much memory.
fn plan(spec: SeriesSpec, batch: usize, parts: Option<usize>, form: Dtype, vram: Bytes) -> Plan {
    let pins = Pins { micro_batch: parts.map(|n| batch / n), ..Pins::default() };
    pinned(spec, batch, pins, form, vram)
}

fn pinned(spec: SeriesSpec, batch: usize, pins: Pins, form: Dtype, vram: Bytes) -> Plan {
    let job = Job::of_series(spec, batch, OptimizerSpec::adamw(1e-4), (2, Simd::Avx2));
    let job = Job { device: Device::Cuda(CudaForm::of(form)), clip: true, ..job };
    let overheads = CardOverheads { context: Bytes::mib(300), modules: Bytes::mib(6) };
    // Round figures: what fits with nothing computed again does not depend on them.
    let rates = CardRates { flops: 50e12, bandwidth: 3.6e11, launches: 2e5, to_card: 1e10, from_card: 1e10 };
    let terms = Terms {
        card: Some(CardTerms { vram, vram_there: vram, overheads, rates, processors: 28 }),
        ..terms::terms(Bytes::gib(16), pins)
    };
    choose(&job, &terms).plan
}

/// The rows of the documents' table: name, then its other cells.
fn documented() -> Vec<Vec<String>> {
    let table =
        include_str!("../../../docs/series.md").lines().skip_while(|line| !line.starts_with("| preset ")).skip(2);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    table.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn gib(cell: &str) -> f64 {
    cell.strip_suffix(" GiB").and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("`{cell}` is no GiB"))
}

#[test]
fn the_guides_presets_fit_a_card_of_12_gib_as_the_documents_say() {
    let presets = [
        ("before", 256, 1, Dtype::F16),
        ("production", 256, 2, Dtype::F16),
        ("conservative", 256, 4, Dtype::F32),
        ("aggressive", 192, 1, Dtype::F16),
    ];
    let rows = documented();
    assert_eq!(rows.len(), presets.len());
    for ((name, batch, parts, form), row) in presets.into_iter().zip(rows) {
        let spec = SeriesSpec::hybrid_v2(112);
        let plan = plan(spec.clone(), batch, Some(parts), form, Bytes::gib(12));
        assert_eq!((plan.verdict, plan.choices.recompute), (Verdict::Fits, 0), "{name}");
        assert_eq!(plan.vram.parts.iter().map(|part| part.bytes).sum::<Bytes>(), plan.vram.peak);
        let activations = plan.vram.parts.iter().find(|part| part.name == "activations").unwrap().bytes;
        let width = if form == Dtype::F16 { 2 } else { 4 };
        let matrix = AttentionMatrix::of(&spec, batch / parts).unwrap().bytes(width);
        let form = if width == 2 { "f16" } else { "f32" };
        assert_eq!(row[..3], [name.to_string(), format!("{} x {parts}", batch / parts), form.to_string()]);
        for (cell, bytes) in row[4..].iter().zip([plan.vram.peak, activations, matrix]) {
            let found = bytes.0 as f64 / GIB;
            assert!((gib(cell) / found - 1.0).abs() < 0.02, "{name}: the documents say {cell}, it is {found:.2}");
        }
    }
}

#[test]
fn a_batch_norm_keeps_its_micro_batch_whole_on_a_card_too() {
    let small = SeriesSpec { window: 20, ..SeriesSpec::hybrid_v2(10) };
    let roomy = plan(small.clone(), 64, None, Dtype::F32, Bytes::gib(12));
    assert_eq!((roomy.verdict, roomy.micro_batch), (Verdict::Fits, 64));
    // Too tight for the batch: it is refused, not split.
    let least = Bytes::mib(700);
    let tight = plan(small.clone(), 1024, None, Dtype::F32, least);
    assert_eq!((tight.verdict, tight.micro_batch), (Verdict::TooBig, 1024));
    // What is offered is for such a model: no factors of texts' models, no shorter samples.
    let offered: Vec<&str> = tight.would_fit.iter().map(|remedy| remedy.change.as_str()).collect();
    assert!(offered.contains(&"effective batch 512 (another result)"), "{offered:?}");
    assert!(offered.iter().all(|change| !change.contains("LoRA") && !change.contains("max_len")), "{offered:?}");
    let free = SeriesSpec { norm: ConvNorm::None, ..small };
    let split = plan(free, 1024, None, Dtype::F32, least);
    assert!(split.verdict == Verdict::Fits && split.micro_batch < 1024, "{split}");
}

#[test]
fn the_host_holds_the_loaders_windows_and_two_copies_on_their_way() {
    let spec = SeriesSpec::hybrid_v2(112);
    for batch in [32usize, 256] {
        let plan = plan(spec.clone(), batch, None, Dtype::F32, Bytes::gib(12));
        let found = plan.ram.parts.iter().find(|part| part.name == "batch").expect("a line for it").bytes;
        let windows = (4 * batch * spec.window * spec.features) as u64;
        assert!(
            found.0 >= 3 * windows && found.0 < 3 * windows + (1 << 20),
            "{found} for {batch} windows of {windows}"
        );
    }
}

#[test]
fn what_was_asked_for_is_not_told_as_given_up() {
    let pins = Pins { lstm_every: Some(64), ..Pins::default() };
    let asked = pinned(SeriesSpec::hybrid_v2(112), 32, pins, Dtype::F32, Bytes::gib(12));
    assert_eq!((asked.verdict, asked.choices.lstm_every, asked.cuts.len()), (Verdict::Fits, 64, 0), "{:?}", asked.cuts);
}

#[test]
fn steps_that_are_walked_alone_take_longer_than_both_directions_together() {
    let seconds = |pins: Pins, hidden: usize| {
        let mut spec = SeriesSpec::hybrid_v2(112);
        spec.lstm.hidden = hidden;
        pinned(spec, 8, pins, Dtype::F32, Bytes::gib(12)).seconds_per_update
    };
    let (together, alone) =
        (Pins { lstm_every: Some(0), ..Pins::default() }, Pins { lstm_every: Some(64), ..Pins::default() });
    assert!(seconds(alone, 128) > 1.5 * seconds(together, 128));
    // Two launches and a product a step.
    assert!(
        seconds(together, 544) > 1.5 * seconds(together, 512),
        "{} {}",
        seconds(together, 544),
        seconds(together, 512)
    );
}
