//! `cnn-lstm` models against PyTorch modules of the same build and the same names: number of parameters, loss, every
//! gradient, twenty updates of AdamW with running statistics, and the loss of an evaluation, whatever the plan.
//!
//! One test, because importing torch takes longer than all cases do.

mod fixture;
mod series;

use fixture::distance;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{Param, SeriesSpec};
use plimsoll_plan::trained::TrainSpec;
use series::{Question, Stream, Tensors, Windows, ask, job, long, others, update, v1, v2, weights, with};

const UPDATES: usize = 20;
const SAMPLES: usize = 6;

struct Case {
    name: String,
    spec: SeriesSpec,
    weights: Vec<(Param, Vec<f32>)>,
    batches: Vec<Windows>,
    micro: usize,
    clip_norm: Option<f64>,
}

fn case(name: &str, spec: SeriesSpec, micro: usize, clip_norm: Option<f64>) -> Case {
    let mut stream = Stream(77);
    let batches = (0..3).map(|nth| Windows::draw(&spec, SAMPLES, &mut stream, nth == 1)).collect();
    Case { name: name.into(), weights: weights(&spec, 5), batches, micro, clip_norm, spec }
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
        let Case { name, spec, weights, batches, micro, clip_norm } = self;
        let (frozen, updates) = (self.idle(), UPDATES);
        Question { name, spec, weights, batches, micro: *micro, updates, clip_norm: *clip_norm, frozen }
    }

    fn idle(&self) -> Vec<String> {
        self.weights.iter().map(|(p, _)| p.name.clone()).filter(|name| is_idle(&self.spec, name)).collect()
    }

    fn plans(&self) -> Vec<Choices> {
        let plain = Choices::plain(self.micro);
        vec![
            plain,
            Choices { recompute: self.spec.conv.len(), lstm_every: LSTM_BLOCK, ..plain },
            Choices { recompute: 1.min(self.spec.conv.len()), lstm_every: 2 * LSTM_BLOCK, ..plain },
        ]
    }

    fn gradients_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        let job = job(&self.spec, SAMPLES);
        with(&job, plan, None, &self.weights, |engine| {
            let (loss, _) = update(engine, &self.batches[0], 0, 0.0);
            let exact = f64::from(expected["loss"][0]);
            assert!((loss - exact).abs() < 1e-5 * exact.abs(), "{}: the loss is {loss}, not {exact}", self.name);
            let mut worst = (0.0, String::new());
            for (index, place) in engine.program().store.params.iter().enumerate().filter(|(_, p)| p.trained) {
                let name = &place.param.name;
                let mean: Vec<f32> = engine.gradient(index).unwrap().iter().map(|g| g / SAMPLES as f32).collect();
                let exact = &expected[&format!("grad.{name}")];
                if is_idle(&self.spec, name) {
                    let most = mean.iter().chain(exact).map(|g| g.abs()).fold(0.0, f32::max);
                    assert!(most < 1e-6, "{}: the gradient of {name} is {most:e}, not 0", self.name);
                    continue;
                }
                let far = distance(&mean, exact);
                assert!(far < 1e-4, "{}, {plan:?}: the gradient of {name} is {far:e} apart", self.name);
                worst = if far > worst.0 { (far, name.clone()) } else { worst };
            }
            format!("{}: loss {loss:.6}, gradients {:.1e} apart ({})", self.name, worst.0, worst.1)
        })
    }

    fn updates_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        let job = Job { train: TrainSpec::Freeze(self.idle()), ..job(&self.spec, SAMPLES) };
        with(&job, plan, self.clip_norm, &self.weights, |engine| {
            let mut worst_loss = 0.0f64;
            for nth in 0..UPDATES {
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
                assert!(far < 1e-4, "{}, {plan:?}: {name} is {far:e} apart", self.name);
                worst = if far > worst.0 { (far, name) } else { worst };
            }
            self.batches[0].stage(engine, 0..SAMPLES.min(self.micro));
            if self.micro == SAMPLES {
                let (loss, exact) = (engine.eval(SAMPLES).unwrap().mean(), f64::from(expected["eval"][0]));
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
