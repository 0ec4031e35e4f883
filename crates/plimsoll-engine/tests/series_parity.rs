//! `cnn-lstm` models against PyTorch modules of the same build and the same names: number of parameters, loss, every
//! gradient, twenty updates of AdamW with running statistics, and the loss of an evaluation, whatever the plan.
//!
//! One test, because importing torch takes longer than all cases do.

mod fixture;
mod series;

use fixture::distance;
use plimsoll_engine::cpu::mixing::mixing;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{Mixup, Param, SeriesLoss, SeriesSpec};
use plimsoll_plan::trained::TrainSpec;
use series::{Question, SEED, Stream, Tensors, Windows, ask, job, long, others, update, v1, v2, weights, with};

const UPDATES: usize = 20;
const SAMPLES: usize = 6;
/// Samples of the models that are as large as the guide's.
const FEW: usize = 2;
/// Updates of those: of AdamW's, the sign of gradients that are nearly nothing makes whole steps, and there are many of them.
const FEW_UPDATES: usize = 4;

struct Case {
    name: String,
    spec: SeriesSpec,
    weights: Vec<(Param, Vec<f32>)>,
    batches: Vec<Windows>,
    samples: usize,
    micro: usize,
    clip_norm: Option<f64>,
}

fn case(name: &str, spec: SeriesSpec, micro: usize, clip_norm: Option<f64>) -> Case {
    let mut stream = Stream(77);
    let batches = (0..3).map(|nth| Windows::draw(&spec, SAMPLES, &mut stream, nth == 1)).collect();
    Case { name: name.into(), weights: weights(&spec, 5), batches, samples: SAMPLES, micro, clip_norm, spec }
}

/// A model of the guide as large as it is: 825 and 840 steps of an LSTM, with fewer samples.
fn whole(name: &str, mut spec: SeriesSpec) -> Case {
    spec.set_dropout(0.0);
    let mut stream = Stream(78);
    let batches = (0..2).map(|_| Windows::draw(&spec, FEW, &mut stream, false)).collect();
    Case {
        name: name.into(),
        weights: weights(&spec, 6),
        batches,
        samples: FEW,
        micro: FEW,
        clip_norm: Some(1.0),
        spec,
    }
}

fn cases() -> Vec<Case> {
    let mut list = vec![
        case("v1", v1(), SAMPLES, None),
        case("v2", v2(), SAMPLES, Some(0.7)),
        case("v1_accumulated", v1(), SAMPLES / 2, Some(0.5)),
        case("v2_accumulated", v2(), SAMPLES / 2, None),
        case("v1_long", long(v1()), SAMPLES, None),
        case("v2_long", long(v2()), SAMPLES / 2, None),
    ];
    list.extend(others().into_iter().map(|(name, spec)| case(name, spec, SAMPLES, None)));
    let mixup = Some(Mixup { alpha: 0.4, probability: 0.7 });
    for (name, spec) in [("v1_mixed", v1()), ("v2_mixed", v2())] {
        let loss = SeriesLoss { label_smoothing: 0.1, focal_gamma: 1.5, mixup, ..spec.loss.clone() };
        list.push(case(name, SeriesSpec { loss, ..spec }, SAMPLES, None));
    }
    list.extend([whole("v1_whole", SeriesSpec::hybrid_v1(110)), whole("v2_whole", SeriesSpec::hybrid_v2(112))]);
    list
}

/// Parameters whose true gradient is zero, and of whose rounding AdamW would make whole steps: what a batch norm takes away
/// again, what a softmax does not see. Their gradients are looked at; in the updates they are frozen on both sides, since
/// running means would move with them.
fn is_idle(spec: &SeriesSpec, name: &str) -> bool {
    let normed = spec.norm == plimsoll_plan::spec::ConvNorm::Batch && name.ends_with(".conv.bias");
    normed || name == "attention.attention.2.bias" || name == "attention.k_proj.bias"
}

impl Case {
    fn question(&self) -> Question<'_> {
        let Case { name, spec, weights, batches, micro, clip_norm, .. } = self;
        let (frozen, updates) = (self.idle(), self.updates());
        let mix = |update: u64| mixing(spec.loss.mixup?, SEED, update, 0..self.samples as u32);
        let mixes = (0..updates as u64).map(mix).collect();
        Question { name, spec, weights, batches, micro: *micro, updates, clip_norm: *clip_norm, frozen, mixes }
    }

    fn updates(&self) -> usize {
        if self.samples == FEW { FEW_UPDATES } else { UPDATES }
    }

    fn idle(&self) -> Vec<String> {
        self.weights.iter().map(|(p, _)| p.name.clone()).filter(|name| is_idle(&self.spec, name)).collect()
    }

    fn plans(&self) -> Vec<Choices> {
        let plain = Choices::plain(self.micro);
        if self.samples == FEW {
            return vec![Choices { recompute: 1, lstm_every: 3 * LSTM_BLOCK, ..plain }];
        }
        vec![
            plain,
            Choices { recompute: self.spec.conv.len(), lstm_every: LSTM_BLOCK, ..plain },
            Choices { recompute: 1.min(self.spec.conv.len()), lstm_every: 2 * LSTM_BLOCK, ..plain },
        ]
    }

    fn gradients_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        let job = job(&self.spec, self.samples);
        with(&job, plan, None, &self.weights, |engine| {
            let (loss, _) = update(engine, &self.batches[0], 0, 0.0);
            let exact = f64::from(expected["loss"][0]);
            assert!((loss - exact).abs() < 1e-5 * exact.abs(), "{}: the loss is {loss}, not {exact}", self.name);
            let mut worst = (0.0, 0.0, String::new());
            for (index, place) in engine.program().store.params.iter().enumerate().filter(|(_, p)| p.trained) {
                let name = &place.param.name;
                let mean: Vec<f32> = engine.gradient(index).unwrap().iter().map(|g| g / self.samples as f32).collect();
                let exact = &expected[&format!("grad.{name}")];
                if is_idle(&self.spec, name) {
                    let most = mean.iter().chain(exact).map(|g| g.abs()).fold(0.0, f32::max);
                    assert!(most < 1e-6, "{}: the gradient of {name} is {most:e}, not 0", self.name);
                    continue;
                }
                // Some are small differences of sums over all steps: there PyTorch's own rounding says what can be expected.
                let doubles = &expected[&format!("exact.{name}")];
                let (far, theirs) = (distance(&mean, doubles), distance(exact, doubles));
                let most = f64::max(1e-4, 2.0 * theirs);
                assert!(
                    far < most,
                    "{}, {plan:?}: the gradient of {name} is {far:e} off, PyTorch's {theirs:e}",
                    self.name
                );
                worst = if far > worst.0 { (far, theirs, name.clone()) } else { worst };
            }
            let (far, theirs, name) = worst;
            format!("{}: loss {loss:.6}, gradients {far:.1e} off, PyTorch's {theirs:.1e} ({name})", self.name)
        })
    }

    fn updates_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        let job = Job { train: TrainSpec::Freeze(self.idle()), ..job(&self.spec, self.samples) };
        with(&job, plan, self.clip_norm, &self.weights, |engine| {
            let mut worst_loss = 0.0f64;
            for nth in 0..self.updates() {
                let (loss, norm) = update(engine, &self.batches[nth % self.batches.len()], nth as u64, 1e-3);
                let exact = (f64::from(expected["losses"][nth]), f64::from(expected["grad_norms"][nth]));
                let apart = (loss - exact.0).abs() / exact.0.abs();
                assert!(apart < 2e-5, "{}: loss {nth} is {loss}, not {}", self.name, exact.0);
                assert!(
                    (norm - exact.1).abs() < 2e-4 * exact.1,
                    "{}: norm {nth} is {norm}, not {}",
                    self.name,
                    exact.1
                );
                worst_loss = worst_loss.max(apart);
            }
            let mut worst = (0.0, String::new());
            for index in 0..self.weights.len() {
                let place = &engine.program().store.params[index];
                let (name, after) = (place.param.name.clone(), engine.param(index));
                let exact = &expected[&format!("after.{name}")];
                let far = distance(after, exact);
                let most = if self.samples == FEW { 5e-4 } else { 1e-4 };
                assert!(far < most, "{}, {plan:?}: {name} is {far:e} apart", self.name);
                worst = if far > worst.0 { (far, name) } else { worst };
            }
            self.batches[0].stage(engine, 0..self.micro);
            if self.micro == self.samples {
                let (loss, exact) = (engine.eval(self.samples).unwrap().mean(), f64::from(expected["eval"][0]));
                assert!((loss - exact).abs() < 1e-4 * exact.abs(), "{}: evaluated {loss}, not {exact}", self.name);
            }
            format!("{}: losses {worst_loss:.1e}, weights {:.1e} apart ({})", self.name, worst.0, worst.1)
        })
    }
}

#[test]
fn losses_gradients_and_twenty_updates_agree() {
    let cases = cases();
    let questions: Vec<Question> = cases.iter().map(Case::question).collect();
    let answers = match ask("series_parity", &questions) {
        Ok(answers) => answers,
        Err(why) => return println!("skipped: {why}"),
    };
    for (case, expected) in cases.iter().zip(&answers) {
        for plan in case.plans() {
            println!("{}", case.gradients_agree(&plan, expected));
            println!("{}", case.updates_agree(&plan, expected));
        }
    }
}
