//! Every op over series on the CPU and on a card, by one body: the same tape over the same random tensors, in f32 and with
//! activations of 16 bits. What an op does not write must stay as it was. Without a card each test says so and passes.
#![allow(clippy::print_stdout)] // what the card made of it is worth seeing

mod fixture;
mod series;

use plimsoll_engine::cpu::weights::{Weights, encode};
use plimsoll_engine::cuda::{CudaEngine, LossScale};
use plimsoll_engine::{Engine, EngineError, MicroStep, Updates, simd, with_cores};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::device::{CudaForm, Device};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::{
    Answer, BatchNormed, Cols, ConvShape, LstmShape, LstmWeights, Op, Place, PoolShape, Running, SeriesOp, Side, Write,
};
use plimsoll_plan::program::Program;
use plimsoll_plan::spec::{Activation, Init, Mixup, Param, SeriesLoss, SeriesSpec};
use plimsoll_plan::tape::{Id, ParamPlace, Role, Store, Tape, Tensor};
use plimsoll_plan::train::OptimizerSpec;
use series::card::{Way, card, options, put};
use series::{Stream, Windows, v1};

/// What a tensor of a case holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Activations, in the form under test.
    Act,
    /// Weights that a product reads, in the form under test.
    Weight,
    /// Always f32.
    Wide,
    /// Always f32, and above 0.
    Positive,
}
use Kind::{Act, Positive, Weight, Wide};

struct Case {
    name: String,
    spec: SeriesSpec,
    tensors: Vec<(Kind, usize)>,
    ops: Vec<SeriesOp>,
}

const SAMPLES: usize = 5;
/// Which tensor of an LSTM carries gradients from stretch to stretch.
const CARRY: usize = 8;
const DROP: Option<Place> = Some(Place { key: 17, rate: 0.3 });

impl Case {
    fn program(&self, form: Dtype, device: Device) -> Program {
        let mut store = Store::default();
        for (kind, elements) in &self.tensors {
            let dtype = if matches!(kind, Wide | Positive) { Dtype::F32 } else { form };
            let words = dtype.words(*elements);
            store.tensors.push(Tensor { name: "t".into(), words, role: Role::Weight, dtype });
            store.elements.push(*elements);
        }
        let count = store.tensors.len();
        (store.gradients, store.copies) = (vec![None; count], vec![None; count]);
        let param = Param { name: "p".into(), shape: vec![self.tensors[0].1], init: Init::Zeros };
        let state = (0..count as u32).map(Id).collect();
        let (offset, trained, adapter) = (0, true, false);
        store.params.push(ParamPlace { param, weight: Id(0), offset, trained, adapter, state, running: false });
        let mut tape = Tape::over(&store);
        self.ops.iter().for_each(|op| tape.push(Op::Series(op.clone())));
        let shape = BatchShape { samples: SAMPLES, source_len: self.spec.window, target_len: 1, documents: 1 };
        let optimizer = OptimizerSpec::sgd(1e-2);
        Program::of_tape(self.spec.clone().into(), store, tape, shape, Some(&optimizer), device, (1, simd::detect()))
    }

    fn step(&self) -> MicroStep {
        MicroStep { update: 3, samples: SAMPLES, first_sample: 6, lr: Some(1e-2) }
    }

    fn batch(&self) -> Windows {
        Windows::draw(&self.spec, SAMPLES, &mut Stream(5), true)
    }

    /// What the tensors hold before: numbers that 16 bits hold exactly.
    fn values(&self) -> Vec<Vec<f32>> {
        let mut stream = Stream(77);
        let half = |v: f32| f32::from_bits(v.to_bits() & 0xFFFF_0000);
        let mut of = |kind: Kind| match kind {
            Positive => half(0.5 + stream.normal().abs()),
            Weight => half(0.1 * stream.normal()),
            _ => half(0.5 * stream.normal()),
        };
        self.tensors.iter().map(|(kind, n)| (0..*n).map(|_| of(*kind)).collect()).collect()
    }

    fn updates() -> Updates {
        Updates { optimizer: OptimizerSpec::sgd(1e-2), clip_norm: None, seed: 5 }
    }

    fn here(&self, values: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let run = move || {
            let mut engine = Engine::start(self.program(Dtype::F32, Device::Cpu), Some(Case::updates())).unwrap();
            values.iter().enumerate().for_each(|(nth, v)| engine.state_mut(0, nth).copy_from_slice(v));
            self.batch().stage(&mut engine, 0..SAMPLES);
            engine.micro_step(self.step()).unwrap();
            (0..values.len()).map(|nth| engine.state(0, nth).to_vec()).collect()
        };
        with_cores(1, || {}, run).unwrap()
    }

    fn there(&self, form: Dtype, way: Way, values: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let program = self.program(form, Device::Cuda(CudaForm::of(form)));
        let dtypes: Vec<Dtype> = program.store.tensors.iter().map(|t| t.dtype).collect();
        let mut engine = CudaEngine::start(program, Some(Case::updates()), &options(way))?;
        engine.set_loss_scale(LossScale { scale: 1.0, good: 0 });
        for (nth, v) in values.iter().enumerate() {
            let mut words = vec![0.0; dtypes[nth].words(v.len())];
            encode(simd::detect(), dtypes[nth], v.len(), 0, v, &mut words);
            let put = |first: usize, out: &mut [f32]| -> Result<(), EngineError> {
                out.copy_from_slice(&words[first..first + out.len()]);
                Ok(())
            };
            engine.fill_state(0, nth, put)??;
        }
        put(&self.batch(), engine.series_slot()?, 0..SAMPLES);
        engine.micro_step(self.step())?;
        let read = |nth: usize| {
            let (words, n) = (engine.state(0, nth)?, values[nth].len());
            let mut out = vec![0.0; n];
            Weights::new(&words, dtypes[nth], n).decode(simd::detect(), 0, &mut out);
            Ok(out)
        };
        (0..values.len()).map(read).collect()
    }

    /// What is too far apart; prints how far everything is.
    fn compare(&self, form: Dtype, way: Way, tolerance: f64) -> Vec<String> {
        let values = self.values();
        let here = self.here(&values);
        let there = match self.there(form, way, &values) {
            Ok(there) => there,
            Err(e) => return vec![format!("{} {form:?} {way:?}: {e}", self.name)],
        };
        let (mut failed, mut worst) = (Vec::new(), 0.0f64);
        // What a carry holds at the end of the way back nobody asks for.
        let asked = |nth: &usize| *nth != CARRY || !self.name.contains("lstm");
        for (nth, (a, b)) in there.iter().zip(&here).enumerate().filter(|(nth, _)| asked(nth)) {
            let size = b.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-6);
            let off = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt() / size;
            worst = if off > worst || off.is_nan() { off } else { worst };
            if off.is_nan() || off > tolerance {
                let at = a.iter().zip(b).position(|(a, b)| (a - b).abs() > 1e-3 * b.abs().max(0.1) || a.is_nan());
                let pair = at.map(|at| (at, a[at], b[at]));
                failed.push(format!(
                    "{} {form:?} {way:?}: tensor {nth} is {off:.2e} apart, first at {pair:?}",
                    self.name
                ));
            }
        }
        println!("{:<44} {form:?} {way:?}: {worst:.1e} apart", self.name);
        failed
    }
}

fn id(nth: u32) -> Id {
    Id(nth)
}

fn set(nth: u32) -> Option<(Id, Write)> {
    Some((Id(nth), Write::Set))
}

fn add(nth: u32) -> Option<(Id, Write)> {
    Some((Id(nth), Write::Add))
}

/// Widths of none of which a piece of a row is a divisor, and widths as models have them.
fn specs() -> Vec<(&'static str, SeriesSpec)> {
    let mixup = Some(Mixup { alpha: 0.4, probability: 1.0 });
    let mut wide = SeriesSpec { window: 12, ..SeriesSpec::plain(16, [64, 128, 256], 256) };
    wide.set_dropout(0.0);
    let mut small = v1();
    small.loss = SeriesLoss {
        label_smoothing: 0.1,
        focal_gamma: 1.5,
        class_weights: vec![0.5, 1.25, 2.0],
        mixup,
        ..SeriesLoss::default()
    };
    vec![("small", small), ("wide", wide)]
}

fn cases() -> Vec<Case> {
    specs().into_iter().flat_map(|(name, spec)| cases_of(name, &spec)).collect()
}

fn cases_of(of: &str, spec: &SeriesSpec) -> Vec<Case> {
    let mut list = Vec::new();
    let mut push = |name: String, tensors: Vec<(Kind, usize)>, ops: Vec<SeriesOp>| {
        list.push(Case { name: format!("{of} {name}"), spec: spec.clone(), tensors, ops });
    };
    let width = spec.window * spec.features;
    let input = SeriesOp::Input { out: id(0), width, mixup: spec.loss.mixup };
    push("input".into(), vec![(Act, SAMPLES * width)], vec![input]);
    for (nth, block) in spec.conv.iter().enumerate() {
        let (inputs, steps) = spec.at_block(nth);
        let (outputs, kernel) = (block.channels, block.kernel);
        let (shape, rows) = (ConvShape { steps, inputs, outputs, kernel }, SAMPLES * steps);
        push(
            format!("conv {inputs} x {outputs} x {kernel}"),
            vec![
                (Act, rows * inputs),
                (Wide, shape.weights()),
                (Wide, outputs),
                (Act, rows * outputs),
                (Act, rows * inputs),
                (Wide, shape.weights()),
            ],
            vec![
                SeriesOp::Conv { shape, x: id(0), weight: id(1), bias: id(2), out: id(3) },
                SeriesOp::ConvInput { shape, dy: id(3), weight: id(1), dx: id(4), add: true },
                SeriesOp::ConvWeight { shape, dy: id(3), x: id(0), grad: id(5), write: Write::Add },
            ],
        );
        for (activation, normed, skipped, drop) in [
            (Activation::Relu, true, false, DROP),
            (Activation::Gelu, true, true, DROP),
            (Activation::Gelu, false, true, None),
        ] {
            let shape = PoolShape { steps, width: outputs, pool: spec.pool, activation };
            let pooled = SAMPLES * (steps / spec.pool) * outputs;
            let norm = normed.then_some(BatchNormed { stats: id(1), weight: id(2), bias: id(3) });
            let running = Running { now: [id(4), id(5), id(6)], next: [id(7), id(8), id(9)] };
            let (side, eps, momentum) = (Side::Steps(steps), 1e-5, 0.1);
            let stats = SeriesOp::BatchStats { side, x: id(0), width: outputs, eps, momentum, running, stats: id(1) };
            push(
                format!("pooling of {outputs}, {activation:?}, norm {normed}, skip {skipped}"),
                vec![
                    (Act, rows * outputs),
                    (Wide, 2 * outputs),
                    (Wide, outputs),
                    (Wide, outputs),
                    (Wide, outputs),
                    (Positive, outputs),
                    (Wide, 1),
                    (Wide, outputs),
                    (Positive, outputs),
                    (Wide, 1),
                    (Act, rows * outputs),
                    (Act, pooled),
                    (Act, pooled),
                    (Act, rows * outputs),
                    (Act, rows * outputs),
                    (Wide, outputs),
                    (Wide, outputs),
                ],
                vec![
                    stats,
                    SeriesOp::NormPool { shape, x: id(0), norm, skip: skipped.then_some(id(10)), out: id(11), drop },
                    SeriesOp::NormPoolBackward {
                        shape,
                        dout: id(12),
                        x: id(0),
                        norm,
                        skip: skipped.then_some(id(10)),
                        dx: id(13),
                        dskip: skipped.then_some(id(14)),
                        weight_grad: add(15).filter(|_| normed),
                        bias_grad: set(16).filter(|_| normed),
                        drop,
                    },
                ],
            );
        }
    }
    push(
        "running statistics".into(),
        vec![(Wide, 70), (Positive, 70), (Wide, 140), (Wide, 70)],
        vec![
            SeriesOp::RunningStats { mean: id(0), variance: id(1), stats: id(2), width: 70, eps: 1e-5 },
            SeriesOp::Commit { from: id(0), to: id(3) },
        ],
    );
    let (inputs, steps) = spec.at_block(spec.conv.len());
    let rows = SAMPLES * steps;
    for hidden in [spec.lstm.hidden, 128, 40] {
        for (reverse, cuts) in [(false, vec![]), (true, vec![]), (false, vec![3, 7]), (true, vec![4])] {
            lstm_case(&mut push, (inputs, steps, hidden), reverse, &cuts);
        }
    }
    for side in [Side::Steps(1), Side::Steps(steps)] {
        for wide in [9, 64, 256] {
            let count = if side == Side::Steps(1) { SAMPLES } else { rows };
            push(
                format!("gelu of {wide}"),
                vec![(Act, count * wide), (Act, count * wide), (Act, count * wide)],
                vec![
                    SeriesOp::GeluErf { side, h: id(0), out: id(1), width: wide, drop: DROP },
                    SeriesOp::GeluErfBackward { side, dh: id(2), h: id(0), width: wide, drop: DROP },
                ],
            );
        }
    }
    for (wide, units) in [(20, 7), (512, 128)] {
        push(
            format!("additive attention of {wide}"),
            vec![
                (Act, rows * wide),
                (Act, rows * units),
                (Weight, units),
                (Wide, 1),
                (Wide, rows),
                (Act, SAMPLES * wide),
                (Act, SAMPLES * wide),
                (Act, rows * wide),
                (Wide, units),
            ],
            vec![
                SeriesOp::AdditivePool {
                    steps,
                    width: wide,
                    units,
                    x: id(0),
                    u: id(1),
                    weight: id(2),
                    bias: id(3),
                    weights: id(4),
                    out: id(5),
                },
                SeriesOp::AdditivePoolBackward {
                    steps,
                    width: wide,
                    units,
                    dout: id(6),
                    x: id(0),
                    u: id(1),
                    weight: id(2),
                    weights: id(4),
                    dx: id(7),
                    weight_grad: add(8),
                    bias_grad: None,
                },
            ],
        );
        for mean in [false, true] {
            push(
                format!("summary of {wide}"),
                vec![(Act, rows * wide), (Act, SAMPLES * wide), (Act, rows * wide)],
                vec![
                    SeriesOp::Summary { steps, width: wide, mean, x: id(0), out: id(1) },
                    SeriesOp::SummaryBackward { steps, width: wide, mean, dout: id(1), dx: id(2) },
                ],
            );
        }
        push(
            format!("positions of {wide}"),
            vec![(Act, rows * wide), (Wide, (steps + 3) * wide), (Act, rows * wide), (Wide, (steps + 3) * wide)],
            vec![
                SeriesOp::Positions { steps, width: wide, x: id(0), table: id(1), out: id(2) },
                SeriesOp::PositionsBackward { steps, width: wide, dy: id(0), grad: id(3), write: Write::Set },
            ],
        );
    }
    let answer = |out: u32, grad: u32, outputs: usize| Some(Answer { out: id(out), grad: Some(id(grad)), outputs });
    let mut mixed = vec![SeriesOp::Input { out: id(7), width, mixup: spec.loss.mixup }];
    mixed.push(SeriesOp::Loss {
        classes: answer(0, 3, 3),
        confidence: answer(1, 4, 1),
        values: answer(2, 5, 1),
        losses: id(6),
        terms: spec.loss.clone(),
    });
    let heads = [3, 1, 1, 3, 1, 1].map(|n| (Act, SAMPLES * n));
    push("loss".into(), [&heads[..], &[(Wide, SAMPLES), (Act, SAMPLES * width)]].concat(), mixed);
    list
}

/// Forward in stretches, then back, with all gradients.
fn lstm_case(
    push: &mut impl FnMut(String, Vec<(Kind, usize)>, Vec<SeriesOp>),
    (inputs, steps, hidden): (usize, usize, usize),
    reverse: bool,
    cuts: &[usize],
) {
    let (stride, rows) = (2 * hidden, SAMPLES * steps);
    let mut tensors = vec![
        (Act, rows * inputs),
        (Weight, 4 * hidden * inputs),
        (Weight, 4 * hidden * hidden),
        (Wide, 4 * hidden),
        (Wide, 4 * hidden),
        (Act, rows * stride),
        (Act, rows * stride),
        (Act, rows * inputs),
        (Wide, SAMPLES * 2 * hidden),
        (Wide, 4 * hidden * inputs),
        (Wide, 4 * hidden * hidden),
        (Wide, 4 * hidden),
        (Wide, 4 * hidden),
    ];
    let weights = LstmWeights { input: id(1), state: id(2), input_bias: id(3), state_bias: id(4) };
    let cols = |of: u32| Cols { id: id(of), start: hidden, stride };
    let ends: Vec<usize> = [0].iter().chain(cuts).chain([&steps]).copied().collect();
    let (mut ops, mut held, mut start) = (Vec::new(), Vec::new(), None);
    for (nth, pair) in ends.windows(2).enumerate() {
        let (from, to) = if reverse { (steps - pair[1], steps - pair[0]) } else { (pair[0], pair[1]) };
        let shape = LstmShape { steps, inputs, hidden, reverse, from, to };
        let mut make = |kind: Kind, n: usize| {
            tensors.push((kind, n));
            id(tensors.len() as u32 - 1)
        };
        let gates = make(Act, SAMPLES * shape.gate_words());
        let cells = make(Wide, SAMPLES * shape.count() * hidden);
        let end = (nth + 2 < ends.len()).then(|| make(Wide, SAMPLES * hidden));
        ops.push(SeriesOp::Lstm { shape, x: id(0), weights, gates, cells, start, end, out: cols(5) });
        held.push((shape, gates, cells, start));
        start = end;
    }
    for (nth, (shape, gates, cells, start)) in held.into_iter().rev().enumerate() {
        let last = nth == 0;
        let (state_weight, dout, carry) = (id(2), cols(6), id(CARRY as u32));
        ops.push(SeriesOp::LstmBackward { shape, gates, cells, start, state_weight, dout, carry, last });
        ops.push(SeriesOp::LstmInput { shape, dgates: gates, input_weight: id(1), dx: id(7), add: true });
        let grads = [9, 10, 11, 12].map(add);
        ops.push(SeriesOp::LstmWeight { shape, dgates: gates, x: id(0), out: cols(5), grads });
    }
    let parts = ends.len() - 1;
    push(format!("lstm of {hidden}, reverse {reverse}, {parts} stretches"), tensors, ops);
}

#[test]
fn every_case_does_something_on_the_cpu_and_can_be_planned_for_a_card() {
    for case in cases() {
        let values = case.values();
        let here = case.here(&values);
        assert!(here.iter().flatten().all(|v| v.is_finite()), "{}", case.name);
        assert!(here != values, "{} does something", case.name);
        for form in [Dtype::F32, Dtype::Bf16] {
            let parts = case.program(form, Device::Cuda(CudaForm::of(form))).parts;
            let tensors: usize = values.iter().map(Vec::len).sum();
            assert!(parts.store + parts.transient >= form.words(tensors), "{}: {parts:?}", case.name);
        }
    }
}

fn all_at(form: Dtype, tolerance: f64) {
    let Some(_card) = card() else { return };
    let mut failed = Vec::new();
    let is_lstm = |case: &Case| case.name.contains("lstm");
    for way in [Way::Stepwise, Way::Eager] {
        for case in cases().into_iter().filter(|case| is_lstm(case) || way == Way::Stepwise) {
            failed.extend(case.compare(form, way, tolerance));
        }
    }
    failed.iter().for_each(|line| println!("{line}"));
    assert!(failed.is_empty(), "{} tensors apart", failed.len());
}

#[test]
fn every_op_of_series_agrees_in_f32() {
    all_at(Dtype::F32, 1e-4);
}

#[test]
fn every_op_of_series_agrees_in_bf16() {
    all_at(Dtype::Bf16, 4e-2);
}

#[test]
fn every_op_of_series_agrees_in_f16() {
    all_at(Dtype::F16, 1e-2);
}
