//! A description that is taken can be planned; one that is not names its key.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, choose};
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::spec::{
    Activation, ConvBlock, ConvNorm, HeadLayer, HeadSpec, InputLayout, LstmSpec, Mixup, Param, SeriesAttention,
    SeriesLoss, SeriesSpec, series_params,
};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;
use proptest::prelude::*;

/// Mostly small, sometimes anything.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![40 => 1usize..6, 2 => Just(0usize), 1 => any::<usize>(), 1 => Just(1usize << 16), 1 => Just(1usize << 20)]
}

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![30 => 0.0f32..0.9, 1 => any::<f32>(), 1 => Just(f32::NAN), 1 => Just(1.0f32), 1 => Just(-0.5f32)]
}

fn conv() -> impl Strategy<Value = Vec<ConvBlock>> {
    let kernel = prop_oneof![20 => prop::sample::select(vec![1usize, 3, 5, 7]), 1 => size()];
    let block = (size(), kernel).prop_map(|(channels, kernel)| ConvBlock { channels, kernel });
    prop::collection::vec(block, 0..4)
}

fn lstm() -> impl Strategy<Value = LstmSpec> {
    let layers = prop_oneof![20 => 1usize..4, 1 => any::<usize>()];
    (size(), layers, any::<bool>(), number(), any::<bool>(), prop::option::of(number())).prop_map(
        |(hidden, layers, bidirectional, dropout, layer_norm, output_dropout)| LstmSpec {
            hidden,
            layers,
            bidirectional,
            dropout,
            layer_norm,
            output_dropout,
        },
    )
}

fn attention() -> impl Strategy<Value = SeriesAttention> {
    prop_oneof![
        Just(SeriesAttention::None),
        size().prop_map(|units| SeriesAttention::Additive { units }),
        (prop_oneof![4 => Just(1usize), 2 => Just(2usize), 1 => size()], number(), any::<bool>(), size()).prop_map(
            |(heads, dropout, layer_norm, positions)| SeriesAttention::MultiHead {
                heads,
                dropout,
                layer_norm,
                positions
            }
        ),
    ]
}

fn head(name: &'static str, outputs: usize) -> impl Strategy<Value = Option<HeadSpec>> {
    let name = prop_oneof![20 => Just(name.to_string()), 1 => Just("lstm".to_string()), 1 => "[ -~]{0,6}"];
    let layer = (size(), number()).prop_map(|(width, dropout)| HeadLayer { width, dropout });
    let outputs = prop_oneof![20 => Just(outputs), 1 => size()];
    prop::option::weighted(
        0.7,
        (name, prop::collection::vec(layer, 0..3), outputs).prop_map(|(name, hidden, outputs)| HeadSpec {
            name,
            hidden,
            outputs,
        }),
    )
}

fn loss() -> impl Strategy<Value = SeriesLoss> {
    let mixup = (number(), number()).prop_map(|(alpha, probability)| Mixup { alpha, probability });
    let weights = prop_oneof![
        6 => Just(Vec::new()),
        1 => prop::collection::vec(0.1f32..3.0, 3),
        1 => prop::collection::vec(number(), 0..4)
    ];
    (number(), number(), weights, number(), prop::option::of(mixup)).prop_map(
        |(label_smoothing, focal_gamma, class_weights, classes, mixup)| SeriesLoss {
            label_smoothing,
            focal_gamma,
            class_weights,
            classes,
            mixup,
            ..SeriesLoss::default()
        },
    )
}

fn spec() -> impl Strategy<Value = SeriesSpec> {
    let pool = prop_oneof![20 => 1usize..4, 1 => size()];
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let window = prop_oneof![20 => 6usize..40, 2 => size()];
    let heads = (head("direction", 3), head("confidence", 1), head("values", 2));
    ((size(), window, pool, number()), switches, conv(), lstm(), attention(), heads, loss()).prop_map(
        |((features, window, pool, conv_dropout), switches, conv, lstm, attention, heads, loss)| {
            let (flat, residual, norm, gelu) = switches;
            SeriesSpec {
                features,
                window,
                layout: if flat { InputLayout::Flat } else { InputLayout::Channels },
                conv,
                residual,
                norm: if norm { ConvNorm::Batch } else { ConvNorm::None },
                activation: if gelu { Activation::Gelu } else { Activation::Relu },
                conv_dropout,
                pool,
                lstm,
                attention,
                classes: heads.0,
                confidence: heads.1,
                values: heads.2,
                loss,
            }
        },
    )
}

/// Plans it as a run would: with evaluation, on a machine where it may or may not fit.
fn plan(spec: &SeriesSpec, batch: usize, ram: Bytes) {
    let job = Job::of_series(spec.clone(), batch, OptimizerSpec::adamw(1e-3), (2, Simd::Avx2));
    let job = Job { eval: Some(EvalJob { beams: 1, max_new: 0 }), clip: true, ..job };
    let chosen = choose(&job, &terms::terms(ram, Pins::default()));
    assert!(chosen.plan.smallest > Bytes::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_is_taken_can_be_planned_and_what_is_not_names_its_key(spec in spec(), batch in 1usize..5) {
        match spec.check() {
            Ok(()) => {
                let params = series_params(&spec);
                prop_assert!(params.iter().all(|p| p.elements() > 0));
                let mut names: Vec<&str> = params.iter().map(|p| p.name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                prop_assert_eq!(names.len(), params.len());
                // One in ten comes here; what is larger has a test of its own.
                let numbers: usize = params.iter().map(Param::elements).sum();
                let outputs = spec.batch(batch).words();
                if numbers < 1 << 20 && outputs < 1 << 20 {
                    plan(&spec, batch, Bytes::mib(64));
                }
            }
            Err(error) => {
                prop_assert!(!error.key.is_empty() && !error.expected.is_empty(), "{}", error);
            }
        }
    }
}

#[test]
fn the_largest_that_is_taken_is_planned_without_overflow() {
    let spec = SeriesSpec {
        window: 1 << 10,
        layout: InputLayout::Channels,
        conv: vec![ConvBlock { channels: 1 << 16, kernel: 4095 }; 2],
        lstm: LstmSpec { hidden: 1 << 16, layers: 1, ..SeriesSpec::hybrid_v2(1).lstm },
        ..SeriesSpec::hybrid_v2(1 << 14)
    };
    spec.check().unwrap();
    plan(&spec, 1 << 12, Bytes::gib(64));
}

#[test]
fn the_known_builds_are_models() {
    SeriesSpec::hybrid_v1(110).check().unwrap();
    SeriesSpec::hybrid_v2(112).check().unwrap();
}

/// Changes one thing; gives the key, and the message.
fn changed(change: impl FnOnce(&mut SeriesSpec)) -> (String, String) {
    let mut spec = SeriesSpec::hybrid_v2(112);
    change(&mut spec);
    let error = spec.check().expect_err("one thing is wrong");
    (error.key.clone(), error.to_string())
}

fn named(spec: &mut SeriesSpec, name: &str) {
    spec.values.as_mut().unwrap().name = name.into();
}

fn mixed(spec: &mut SeriesSpec, alpha: f32, probability: f32) {
    spec.loss.mixup = Some(Mixup { alpha, probability });
}

fn multi_head(spec: &mut SeriesSpec, heads: usize, dropout: f32, positions: usize) {
    spec.attention = SeriesAttention::MultiHead { heads, dropout, layer_norm: true, positions };
}

#[test]
fn each_wrong_number_is_refused_by_its_key() {
    type Change = fn(&mut SeriesSpec);
    let cases: Vec<(&str, Change)> = vec![
        ("features", |s| s.features = 0),
        ("features", |s| s.features = usize::MAX),
        ("window", |s| s.window = 0),
        ("window", |s| s.window = (1 << 20) - 1),
        ("pool", |s| s.pool = 0),
        ("pool", |s| s.pool = 60),
        ("conv_dropout", |s| s.conv_dropout = 1.0),
        ("conv.1.channels", |s| s.conv[1].channels = 0),
        ("conv.2.kernel", |s| s.conv[2].kernel = 4),
        ("conv.0.kernel", |s| s.conv[0].kernel = 0),
        ("conv", |s| s.conv = vec![ConvBlock { channels: 1, kernel: 1 }; 65]),
        ("lstm.hidden", |s| s.lstm.hidden = 0),
        ("lstm.hidden", |s| s.lstm.hidden = usize::MAX),
        ("lstm.layers", |s| s.lstm.layers = 0),
        ("lstm.dropout", |s| s.lstm.dropout = -0.1),
        ("lstm.output_dropout", |s| s.lstm.output_dropout = Some(f32::NAN)),
        ("attention.heads", |s| multi_head(s, 0, 0.0, 8)),
        ("attention.heads", |s| multi_head(s, 3, 0.0, 8)),
        ("attention.dropout", |s| multi_head(s, 4, 1.5, 8)),
        ("attention.positions", |s| multi_head(s, 4, 0.0, 0)),
        ("attention.units", |s| s.attention = SeriesAttention::Additive { units: 0 }),
        ("classes", |s| s.classes = None),
        ("classes", |s| (s.classes, s.confidence, s.values) = (None, None, None)),
        ("classes.outputs", |s| s.classes.as_mut().unwrap().outputs = 1),
        ("classes.hidden.1.width", |s| s.classes.as_mut().unwrap().hidden[1].width = 0),
        ("classes.hidden.0.dropout", |s| s.classes.as_mut().unwrap().hidden[0].dropout = 2.0),
        ("confidence.outputs", |s| s.confidence.as_mut().unwrap().outputs = 2),
        ("values.outputs", |s| s.values.as_mut().unwrap().outputs = 0),
        ("values.name", |s| named(s, "direction_head")),
        ("values.name", |s| named(s, "lstm")),
        ("values.name", |s| named(s, "train")),
        ("values.name", |s| named(s, "a.b")),
        ("values.name", |s| named(s, "1st")),
        ("values.name", |s| named(s, "")),
        ("loss.label_smoothing", |s| s.loss.label_smoothing = 1.0),
        ("loss.focal_gamma", |s| s.loss.focal_gamma = -1.0),
        ("loss.classes", |s| s.loss.classes = f32::INFINITY),
        ("loss.class_weights", |s| s.loss.class_weights = vec![1.0, 2.0]),
        ("loss.class_weights.2", |s| s.loss.class_weights = vec![1.0, 2.0, 0.0]),
        ("loss.mixup.alpha", |s| mixed(s, 0.0, 0.5)),
        ("loss.mixup.alpha", |s| mixed(s, 4.5, 0.5)),
        ("loss.mixup.probability", |s| mixed(s, 0.2, 1.5)),
    ];
    for (key, change) in cases {
        assert_eq!(changed(change).0, key);
    }
    assert_eq!(changed(|s| s.lstm.hidden = 0).1, "key `lstm.hidden` must be a whole number from 1 to 65536, found `0`");
    assert_eq!(
        changed(|s| s.pool = 60).1,
        "key `pool` must be small enough to leave a step of 6720 behind 3 blocks, found `60`"
    );
}
