//! Decoders generate the ids of transformers: greedy and with beams, from prompts of different lengths, with windows shorter
//! than the text and several end tokens; and neither grouping nor training around it changes an answer.

mod decoder;
mod fixture;
mod random;

use decoder::peer::{Question, ask};
use decoder::{Samples, fill, lora, specs, update, weights};
use fixture::choices;
use plimsoll_engine::{Engine, EngineError, GenerateOptions, Sampling, Updates, with_cores};
use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::program::{EvalJob, InferenceJob, Job, compile, compile_inference};
use plimsoll_plan::spec::{DecoderSpec, Param};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::TrainSpec;
use random::Stream;
use serde_json::json;

const SOURCE_LEN: usize = 15;
const MAX_NEW: usize = 14;
const ENDS: [u32; 3] = [1, 5, 17];

/// A spec with several end tokens, and with weights that come to them now and then.
fn model(spec: DecoderSpec, train: TrainSpec) -> (Job, Vec<(Param, Vec<f32>)>) {
    let spec = DecoderSpec { eos_ids: ENDS.to_vec(), ..spec };
    let (head, width) = (spec.head_name(), spec.d_model);
    let job = Job { train, ..decoder::job(spec.clone(), SOURCE_LEN, 4, OptimizerSpec::adamw(1e-3)) };
    let mut list = weights(&job, 8);
    let (_, table) = list.iter_mut().find(|(param, _)| param.name == head).unwrap();
    // Logits wide enough apart that no rounding chooses between them; the ends a little above the rest.
    for (row, weights) in table.chunks_exact_mut(width).enumerate() {
        let factor = if ENDS.contains(&(row as u32)) { 3.3 } else { 2.0 };
        weights.iter_mut().for_each(|w| *w *= factor);
    }
    (job, list)
}

/// Prompts of 1 to `SOURCE_LEN` tokens.
fn prompts(count: usize, vocab: usize) -> Vec<Vec<u32>> {
    let mut stream = Stream(31);
    let prompt = |nth: usize| {
        let length = if nth == 0 { 1 } else { stream.between(1, SOURCE_LEN) };
        (0..length).map(|_| stream.between(0, vocab - 1) as u32).collect()
    };
    (0..count).map(prompt).collect()
}

/// An engine that only generates, for `group` prompts at a time.
fn generator<R: Send>(
    job: &Job,
    weights: &[(Param, Vec<f32>)],
    group: usize,
    f: impl FnOnce(&mut Engine) -> R + Send,
) -> R {
    let shape = GenerateShape { prompts: group, beams: 4, source_len: SOURCE_LEN, max_new: MAX_NEW };
    let inference = InferenceJob {
        train: job.train.clone(),
        ..InferenceJob::new(job.spec.clone(), None, Some(shape), (job.threads, job.simd))
    };
    let program = compile_inference(&inference);
    let run = move || {
        let mut engine = Engine::start(program, None).unwrap();
        fill(&mut engine, weights);
        f(&mut engine)
    };
    with_cores(job.threads, || {}, run).unwrap()
}

fn ways() -> [GenerateOptions; 4] {
    let beam = |beams, length_penalty, early_stopping| GenerateOptions {
        length_penalty,
        early_stopping,
        ..GenerateOptions::beam(beams, MAX_NEW)
    };
    [GenerateOptions::greedy(MAX_NEW), beam(4, 1.0, false), beam(3, 0.5, true), beam(2, 2.0, false)]
}

#[test]
fn generated_ids_are_those_of_transformers() {
    let mut models: Vec<_> =
        specs::all().into_iter().map(|(name, spec)| (name.to_string(), model(spec, TrainSpec::All))).collect();
    models.push(("gpt2_lora".into(), model(specs::gpt2(), TrainSpec::Lora(lora(&["c_attn", "c_proj"])))));
    models.push(("qwen2_lora".into(), model(specs::qwen2(), TrainSpec::Lora(lora(&["q_proj", "down_proj"])))));
    let question = |(name, (job, weights)): &(String, (Job, Vec<_>))| {
        let generate = ways().map(|way| {
            let mut options = json!({
                "prompts": prompts(13, job.spec.vocab()), "max_new_tokens": MAX_NEW, "num_beams": way.beams,
                "eos_token_id": ENDS, "pad_token_id": 0,
            });
            if way.beams > 1 {
                options["length_penalty"] = way.length_penalty.into();
                options["early_stopping"] = way.early_stopping.into();
            }
            options
        });
        let mut case = json!({"config": specs::config(&job.spec), "generate": generate.to_vec()});
        if let TrainSpec::Lora(lora) = &job.train {
            case["lora"] = json!({
                "r": lora.r, "lora_alpha": lora.alpha, "target_modules": lora.targets,
                "fan_in_fan_out": name.starts_with("gpt2"), "task_type": "CAUSAL_LM",
            });
        }
        Question { name: name.clone(), weights: weights.clone(), case }
    };
    let questions: Vec<Question> = models.iter().map(question).collect();
    let answers = match ask("decoder_generation", &questions) {
        Ok(answers) => answers,
        Err(why) => return println!("skipped: {why}"),
    };
    let (mut ended, mut whole) = (0, 0);
    for ((name, (job, weights)), expected) in models.iter().zip(&answers) {
        let prompts = prompts(13, job.spec.vocab());
        for group in [1, 5] {
            generator(job, weights, group, |engine| {
                for (nth, way) in ways().iter().enumerate() {
                    let (shape, ids) = &expected[&format!("generated.{nth}")];
                    let rows = ids.chunks_exact(shape[1]);
                    let exact: Vec<Vec<u32>> = rows
                        .map(|row| row.iter().take_while(|id| **id >= 0.0).map(|id| *id as u32).collect())
                        .collect();
                    let got = engine.generate(&prompts, way).unwrap();
                    assert_eq!(got, exact, "{name}, groups of {group}, {way:?}");
                    let ends = exact.iter().filter(|ids| ENDS.contains(ids.last().unwrap())).count();
                    (ended, whole) = (ended + ends, whole + exact.len() - ends);
                }
            });
        }
    }
    println!("{ended} answers ended, {whole} went on");
    assert!(ended > 100 && whole > 100, "{ended} answers ended, {whole} went on");
}

#[test]
fn the_likeliest_of_one_is_greedy_and_draws_repeat_whatever_the_group() {
    for (name, spec) in specs::families() {
        let (job, weights) = model(spec, TrainSpec::All);
        let prompts = prompts(9, job.spec.vocab());
        let sampled = |sampling| GenerateOptions { sampling: Some(sampling), ..GenerateOptions::greedy(MAX_NEW) };
        let one = sampled(Sampling { temperature: 0.7, top_k: 1, top_p: 1.0, seed: 3 });
        let some = sampled(Sampling { temperature: 1.3, top_k: 20, top_p: 0.9, seed: 3 });
        let run = |group| {
            generator(&job, &weights, group, |engine| {
                let greedy = engine.generate(&prompts, &GenerateOptions::greedy(MAX_NEW)).unwrap();
                assert_eq!(engine.generate(&prompts, &one).unwrap(), greedy, "{name}");
                let drawn = engine.generate(&prompts, &some).unwrap();
                assert_ne!(drawn, greedy, "{name}: it is hot enough to differ");
                drawn
            })
        };
        assert_eq!(run(1), run(4), "{name}");
    }
}

/// Training writes the batch where generation writes its prompts; neither may read what the other left.
#[test]
fn generation_between_updates_changes_no_loss_and_no_answer() {
    for (name, spec) in specs::families() {
        let (mut job, weights) = model(spec, TrainSpec::All);
        (job.documents, job.eval) = (4, Some(EvalJob { beams: 4, max_new: MAX_NEW }));
        let batch = Samples::Texts(decoder::texts::packed(&mut Stream(4), job.spec.vocab(), 4, SOURCE_LEN, 4));
        let prompts = prompts(9, job.spec.vocab());
        let run = |generate: bool| {
            let program = compile(&job, &choices(2));
            let work = || {
                let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: None, seed: 1 };
                let mut engine = Engine::start(program, Some(updates)).unwrap();
                fill(&mut engine, &weights);
                let mut losses = Vec::new();
                for at in 0..4 {
                    if generate {
                        let now: Vec<_> = (0..weights.len())
                            .map(|i| (engine.program().store.params[i].param.clone(), decoder::read(&engine, i)))
                            .collect();
                        for way in ways() {
                            let got = engine.generate(&prompts, &way).unwrap();
                            if at < 2 {
                                let alone = generator(&job, &now, 4, |e| e.generate(&prompts, &way)).unwrap();
                                assert_eq!(got, alone, "{name}, update {at}");
                            }
                        }
                    }
                    losses.push(update(&mut engine, &batch, at, Some(1e-3)));
                }
                losses
            };
            with_cores(job.threads, || {}, work).unwrap()
        };
        assert_eq!(run(true), run(false), "{name}");
    }
}

/// What a generation knows of its hypotheses may be larger than a batch, and lie where the batch's lengths were.
#[test]
fn long_answers_may_follow_a_small_batch() {
    for (name, spec) in specs::families() {
        let spec = DecoderSpec { eos_ids: vec![], ..spec };
        let eval = Some(EvalJob { beams: 4, max_new: 60 });
        let job = Job { eval, ..decoder::job(spec.clone(), 4, 1, OptimizerSpec::adamw(1e-3)) };
        let batch = Samples::Texts(decoder::texts::ragged(&mut Stream(4), spec.vocab, 1, 4));
        let prompts: Vec<_> = prompts(5, spec.vocab).into_iter().map(|p| p[..p.len().min(4)].to_vec()).collect();
        let answers = |update_first: bool| {
            decoder::with(&job, &choices(1), None, &weights(&job, 8), |engine| {
                if update_first {
                    update(engine, &batch, 0, Some(0.0));
                }
                engine.generate(&prompts, &GenerateOptions::beam(4, 60)).unwrap()
            })
        };
        assert_eq!(answers(true), answers(false), "{name}");
    }
}

#[test]
fn a_prompt_longer_than_planned_is_refused() {
    let (job, weights) = model(specs::llama(), TrainSpec::All);
    generator(&job, &weights, 2, |engine| {
        let refused = engine.generate(&[vec![3; SOURCE_LEN + 1]], &GenerateOptions::greedy(1)).unwrap_err();
        assert!(matches!(refused, EngineError::Batch { expected: SOURCE_LEN, .. }), "{refused}");
    });
}
