//! Decoders of every family, parts of them, and LoRA, against transformers, PyTorch and PEFT: loss, every gradient, and the
//! weights after twenty updates, whatever the plan. Texts are ragged, with labels ignored, or packed.
//!
//! One test, because importing transformers takes longer than all cases do.

mod decoder;
mod fixture;
mod random;

use decoder::card::{card, on_card, read, start, update as update_there};
use decoder::peer::{Question, Tensors, ask, labels, texts};
use decoder::texts::{packed, ragged};
use decoder::{Samples, lora, specs, update, weights, with};
use fixture::{choices, distance};
use plimsoll_engine::{MicroStep, Updated};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{DecoderFamily, DecoderSpec, ModelSpec};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, TrainSpec, stored};
use random::Stream;
use serde_json::{Value, json};

const UPDATES: usize = 20;
const ROWS: usize = 4;
const MOST: usize = 23;
const TEXTS: usize = 4;

struct Case {
    name: String,
    job: Job,
    batches: Vec<Samples>,
    clip_norm: Option<f64>,
    updates: usize,
}

fn adamw() -> OptimizerSpec {
    OptimizerSpec::AdamW { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 }
}

fn case(name: impl Into<String>, spec: impl Into<ModelSpec>, train: TrainSpec, pack: bool) -> Case {
    let spec = spec.into();
    let mut stream = Stream(77);
    let batch = |_| match (&spec, pack) {
        (ModelSpec::T5(_), _) => Samples::Pairs(random::batches(&spec, 1, ROWS, (MOST, 17), true, 9).remove(0)),
        (_, true) => Samples::Texts(packed(&mut stream, spec.vocab(), ROWS, MOST, TEXTS)),
        _ => Samples::Texts(ragged(&mut stream, spec.vocab(), ROWS, MOST)),
    };
    let batches = (0..3).map(batch).collect();
    let documents = if pack { TEXTS } else { 1 };
    let job = Job { train, documents, ..decoder::job(spec, MOST, ROWS, adamw()) };
    Case { name: name.into(), job, batches, clip_norm: None, updates: UPDATES }
}

impl Case {
    fn with(mut self, optimizer: OptimizerSpec) -> Case {
        self.name = format!("{}_{}", self.name, optimizer.name());
        self.job.optimizer = optimizer;
        self
    }

    fn clipped(mut self, norm: f64) -> Case {
        self.name += "_clipped";
        (self.job.clip, self.clip_norm) = (true, Some(norm));
        self
    }

    fn question(&self) -> Question {
        let batch = |samples: &Samples| match samples {
            Samples::Texts(samples) => texts(samples),
            Samples::Pairs(batch) => {
                let pairs = batch.sources.iter().zip(&batch.targets);
                pairs.map(|(source, target)| json!({"source": source, "labels": labels(target)})).collect()
            }
        };
        let mut options = serde_json::to_value(&self.job.optimizer).unwrap();
        options.as_object_mut().unwrap().remove("name");
        let mut case = json!({
            "config": specs::config(&self.job.spec),
            "batches": self.batches.iter().map(batch).collect::<Vec<_>>(),
            "updates": self.updates, "optimizer": self.job.optimizer.name(), "options": options,
            "clip_norm": self.clip_norm,
        });
        match &self.job.train {
            TrainSpec::All => {}
            TrainSpec::Freeze(_) => {
                let list = stored(&self.job.spec, &self.job.train, &self.job.storage);
                let names = list.into_iter().filter(|held| held.trained).map(|held| held.param.name);
                case["trained"] = names.collect::<Vec<_>>().into();
            }
            TrainSpec::Lora(lora) => case["lora"] = self.peft(lora),
        }
        Question { name: self.name.clone(), weights: weights(&self.job, 5), case }
    }

    fn peft(&self, lora: &LoraSpec) -> Value {
        let in_out = self.job.spec.decoder().is_some_and(|d| d.weights_are_in_out());
        json!({
            "r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": 0.0, "use_rslora": lora.rslora,
            "target_modules": lora.targets, "fan_in_fan_out": in_out,
        })
    }

    /// Plans with gradients to look at, then plans whose gradients are gone as soon as they are used.
    fn plans(&self) -> (Vec<Choices>, Vec<Choices>) {
        let blocks = self.job.spec.blocks();
        let kept = vec![
            choices(ROWS),
            Choices { recompute: blocks, loss_chunk: 5, ..choices(ROWS / 2) },
            Choices { recompute_attention: blocks, ..choices(3) },
        ];
        let swept = vec![
            Choices { optimizer_in_backward: true, recompute: 1, recompute_attention: 1, ..choices(1) },
            Choices { optimizer_in_backward: true, ..choices(ROWS) },
        ];
        (kept, swept)
    }

    fn gradients_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        with(&self.job, plan, None, &weights(&self.job, 5), |engine| {
            let (mut sum, mut tokens) = (0.0, 0);
            let batch = &self.batches[0];
            for first in (0..batch.len()).step_by(plan.micro_batch) {
                let end = (first + plan.micro_batch).min(batch.len());
                batch.stage(engine, first..end);
                let step = MicroStep { update: 0, samples: end - first, first_sample: first as u32, lr: Some(0.0) };
                let loss = engine.micro_step(step).unwrap();
                (sum, tokens) = (sum + loss.sum, tokens + loss.tokens);
            }
            let (loss, exact) = (sum / tokens as f64, f64::from(expected["loss"].1[0]));
            let apart = (loss - exact).abs() / exact;
            assert!(apart < 1e-5, "{}: the loss is {loss}, not {exact}", self.name);
            let mut worst = (0.0, "");
            let params = &engine.program().store.params;
            for (index, place) in params.iter().enumerate().filter(|(_, place)| place.trained) {
                let name = &place.param.name;
                let mean: Vec<f32> = engine.gradient(index).unwrap().iter().map(|g| g / tokens as f32).collect();
                let far = distance(&mean, &expected[&format!("grad.{name}")].1);
                assert!(far < 1e-4, "{}: the gradient of {name} is {far:e} apart", self.name);
                worst = if far > worst.0 { (far, name.as_str()) } else { worst };
            }
            let answered = expected.keys().filter(|k| k.starts_with("grad.")).count();
            assert_eq!(answered, params.iter().filter(|p| p.trained).count(), "{}: all that is trained", self.name);
            format!("{}: loss {apart:.1e} apart, gradients {:.1e} ({})", self.name, worst.0, worst.1)
        })
    }

    fn updates_agree(&self, plan: &Choices, expected: &Tensors) -> String {
        let before = weights(&self.job, 5);
        with(&self.job, plan, self.clip_norm, &before, |engine| {
            for at in 0..self.updates {
                let batch = &self.batches[at % self.batches.len()];
                let (loss, norm) = update(engine, batch, at as u64, self.job.optimizer.lr());
                let exact = (f64::from(expected["losses"].1[at]), f64::from(expected["grad_norms"].1[at]));
                let near = (loss - exact.0).abs() < 1e-5 * exact.0;
                assert!(near, "{}, {plan:?}: loss {at} is {loss}, not {}", self.name, exact.0);
                let near = (norm - exact.1).abs() < 1e-4 * exact.1;
                assert!(near, "{}, {plan:?}: norm {at} is {norm}, not {}", self.name, exact.1);
            }
            let (mut worst, mut worst_move) = ((0.0, ""), 0.0f64);
            for (index, place) in engine.program().store.params.iter().enumerate() {
                let (name, start) = (&place.param.name, &before[index].1);
                if !place.trained {
                    assert_eq!(engine.param(index), start, "{}: {name} is frozen", self.name);
                    continue;
                }
                let of = |values: &[f32]| without_key_bias(&self.job.spec, name, values);
                let (after, exact) = (of(engine.param(index)), of(&expected[&format!("after.{name}")].1));
                let far = distance(&after, &exact);
                assert!(far < 1e-4, "{}, {plan:?}: {name} is {far:e} apart", self.name);
                let start = of(start);
                let moved = |to: &[f32]| to.iter().zip(&start).map(|(a, b)| a - b).collect::<Vec<f32>>();
                let far_move = distance(&moved(&after), &moved(&exact));
                assert!(far_move < 1e-2, "{}, {plan:?}: the move of {name} is {far_move:e} apart", self.name);
                worst = if far > worst.0 { (far, name.as_str()) } else { worst };
                worst_move = worst_move.max(far_move);
            }
            format!("{}: weights {:.1e} apart ({}), moves {worst_move:.1e}", self.name, worst.0, worst.1)
        })
    }
}

impl Case {
    /// The same updates on a card, in f32.
    fn updates_agree_on_a_card(&self, plan: &Choices, expected: &Tensors) -> String {
        let before = weights(&self.job, 5);
        let mut engine = start(&on_card(&self.job, Dtype::F32), plan, self.clip_norm, &before, false);
        let (mut worst_loss, mut worst, mut worst_move) = (0.0f64, (0.0, String::new()), 0.0f64);
        for at in 0..self.updates {
            let batch = &self.batches[at % self.batches.len()];
            let updated = update_there(&mut engine, batch, at as u64, self.job.optimizer.lr());
            let Updated::Done { loss, norm } = updated else { panic!("{}: {updated:?}", self.name) };
            let exact = (f64::from(expected["losses"].1[at]), f64::from(expected["grad_norms"].1[at]));
            let apart = (loss.mean() - exact.0).abs() / exact.0;
            assert!(apart < 1e-5, "{}, {plan:?}: loss {at} is {}, not {}", self.name, loss.mean(), exact.0);
            assert!((norm - exact.1).abs() < 1e-4 * exact.1, "{}: norm {at} is {norm}, not {}", self.name, exact.1);
            worst_loss = worst_loss.max(apart);
        }
        for (index, (param, start)) in before.iter().enumerate() {
            let (name, after) = (&param.name, read(&engine, index));
            let Some((_, exact)) = expected.get(&format!("after.{name}")) else {
                assert_eq!(&after, start, "{}: {name} is frozen", self.name);
                continue;
            };
            let of = |values: &[f32]| without_key_bias(&self.job.spec, name, values);
            let (after, exact, start) = (of(&after), of(exact), of(start));
            let far = distance(&after, &exact);
            let moved = |to: &[f32]| to.iter().zip(&start).map(|(a, b)| a - b).collect::<Vec<f32>>();
            let far_move = distance(&moved(&after), &moved(&exact));
            assert!(far < 1e-4, "{}, {plan:?}: {name} is {far:e} apart", self.name);
            assert!(far_move < 1e-2, "{}, {plan:?}: the move of {name} is {far_move:e} apart", self.name);
            worst = if far > worst.0 { (far, name.clone()) } else { worst };
            worst_move = worst_move.max(far_move);
        }
        let (far, name) = worst;
        format!("{}: losses {worst_loss:.1e}, weights {far:.1e} apart ({name}), moves {worst_move:.1e}", self.name)
    }
}

/// A bias of GPT-2's keys adds the same to every score of a query: its true gradient is zero, and AdamW makes steps of the
/// rounding. Rotary keys are turned with their bias, so theirs counts.
fn without_key_bias(spec: &ModelSpec, name: &str, values: &[f32]) -> Vec<f32> {
    match spec.decoder() {
        Some(d) if d.family == DecoderFamily::Gpt2 && name.ends_with("c_attn.bias") => {
            [&values[..d.q_width()], &values[d.q_width() + d.kv_width()..]].concat()
        }
        _ => values.to_vec(),
    }
}

/// Texts longer than attention works on at a time, with and without a window.
fn long(name: &str, spec: DecoderSpec) -> Case {
    const LONG: usize = 700;
    let spec = DecoderSpec { layers: 2, max_positions: LONG + 1, ..spec };
    let texts = packed(&mut Stream(5), spec.vocab, ROWS, LONG, 2);
    let job = Job { documents: 2, ..decoder::job(spec, LONG, ROWS, adamw()) };
    Case { name: name.into(), job, batches: vec![Samples::Texts(texts)], clip_norm: None, updates: 2 }
}

fn freeze(patterns: &[&str]) -> TrainSpec {
    TrainSpec::Freeze(patterns.iter().map(|p| p.to_string()).collect())
}

fn every_linear(spec: &DecoderSpec) -> Vec<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap().to_string();
    spec.linears(0).iter().map(|(name, ..)| last(name)).collect()
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (nth, (name, spec)) in specs::all().into_iter().enumerate() {
        let one = case(name, spec.clone(), TrainSpec::All, false);
        cases.push(if nth.is_multiple_of(2) { one.clipped(0.7) } else { one });
        cases.push(case(format!("{name}_packed"), spec, TrainSpec::All, true));
    }
    cases.push(long("llama_long", specs::llama()));
    for window in [130, 600] {
        let spec = DecoderSpec { windows: vec![Some(window); 2], ..specs::mistral() };
        cases.push(long(&format!("mistral_long_{window}"), spec));
    }
    let adafactor = OptimizerSpec::adafactor(1e-3);
    let sgd = OptimizerSpec::Sgd { lr: 1e-2, momentum: 0.9, dampening: 0.1, nesterov: false, weight_decay: 0.01 };
    // Adafactor would scale the whole of a bias by the size of an update that is part rounding; see `without_key_bias`.
    cases.push(case("gpt2", specs::gpt2(), freeze(&["*.c_attn.bias"]), false).with(adafactor.clone()));
    cases.push(case("gpt2", specs::gpt2(), TrainSpec::All, false).with(sgd.clone()));
    cases.push(case("llama", specs::llama(), TrainSpec::All, false).with(adafactor));
    cases.push(case("qwen3", specs::qwen3(), TrainSpec::All, false).with(sgd));
    for (name, spec) in specs::families() {
        let few: &[&str] = if spec.gated() { &["q_proj", "v_proj"] } else { &["c_attn"] };
        let every = LoraSpec { targets: every_linear(&spec), rslora: true, ..lora(&[]) };
        cases.push(case(format!("{name}_lora"), spec.clone(), TrainSpec::Lora(lora(few)), false));
        cases.push(case(format!("{name}_lora_all"), spec, TrainSpec::Lora(every), true).clipped(0.2));
    }
    let t5 = random::v10(0.0);
    cases.push(case("t5_lora", t5.clone(), TrainSpec::Lora(lora(&["q", "v"])), false));
    let every = lora(&["q", "k", "v", "o", "wi", "wo"]);
    cases.push(case("t5_lora_all", t5.clone(), TrainSpec::Lora(every), false).clipped(0.2));
    cases.push(case("t5_frozen", t5, freeze(&["encoder.*", "shared"]), false));
    cases.push(case("gpt2_frozen", specs::gpt2(), freeze(&["transformer.w*", "transformer.h.0", "*.ln_1.bias"]), true));
    cases.push(case(
        "llama_frozen",
        specs::llama_biased(),
        freeze(&["*.k_proj.weight", "*.up_proj", "lm_head"]),
        false,
    ));
    cases.push(
        case("qwen2_frozen", specs::qwen2(), freeze(&["model.embed_tokens", "model.layers.1.*"]), false).clipped(0.5),
    );
    cases.push(case("qwen3_frozen", specs::qwen3(), freeze(&["*.self_attn", "lm_head"]), false));
    cases
}

#[test]
fn losses_gradients_and_twenty_updates_agree() {
    let cases = cases();
    let questions: Vec<Question> = cases.iter().map(Case::question).collect();
    let answers = match ask("decoder_parity", &questions) {
        Ok(answers) => answers,
        Err(why) => return println!("skipped: {why}"),
    };
    for (case, expected) in cases.iter().zip(&answers) {
        let (kept, swept) = case.plans();
        kept.iter().for_each(|plan| println!("{}", case.gradients_agree(plan, expected)));
        let plans = kept[1..].iter().chain(&swept);
        plans.for_each(|plan| println!("{}", case.updates_agree(plan, expected)));
    }
}

/// Beside PyTorch on the same card, where `PLIMSOLL_PEER_DEVICE` is `cuda`; LoRA aside, since PEFT may not be there.
#[test]
fn twenty_updates_on_a_card_agree() {
    let Some(_card) = card() else { return };
    let cases: Vec<Case> = cases().into_iter().filter(|case| !matches!(case.job.train, TrainSpec::Lora(_))).collect();
    let questions: Vec<Question> = cases.iter().map(Case::question).collect();
    let answers = match ask("decoder_parity_card", &questions) {
        Ok(answers) => answers,
        Err(why) => return println!("skipped: {why}"),
    };
    for (case, expected) in cases.iter().zip(&answers) {
        let (kept, swept) = case.plans();
        for plan in [&kept[0], &kept[1], &swept[0]] {
            println!("{}", case.updates_agree_on_a_card(plan, expected));
        }
    }
}
