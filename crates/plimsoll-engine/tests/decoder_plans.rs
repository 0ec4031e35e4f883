//! Plans of one decoder's job that differ only in same-result rungs give one result: to rounding where sums are split
//! differently, to the bit where they are not. Dropout is on, where a model has it and in LoRA's factors.

mod decoder;
mod fixture;
mod random;

use decoder::texts::{Sample, packed};
use decoder::{Course, Samples, furthest, lora, read, specs, train, update, weights, with};
use fixture::choices;
use plimsoll_engine::MicroStep;
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::spec::{DecoderSpec, Dropouts, ModelSpec, Param};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec};
use random::Stream;

const MOST: usize = 21;
const EFFECTIVE: usize = 8;
const UPDATES: usize = 30;
const BIT_UPDATES: usize = 6;

fn dropping() -> DecoderSpec {
    DecoderSpec { dropout: Dropouts { embedding: 0.1, attention: 0.15, residual: 0.2 }, ..specs::gpt2_untied() }
}

fn all_linears(dropout: f32) -> TrainSpec {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    TrainSpec::Lora(LoraSpec { dropout, ..lora(&names) })
}

/// Jobs with packed samples and every kind of dropout.
fn jobs() -> Vec<(&'static str, Job)> {
    let job =
        |spec, train| Job { train, documents: 3, ..decoder::job(spec, MOST, EFFECTIVE, OptimizerSpec::adamw(1e-3)) };
    let few = TrainSpec::Lora(LoraSpec { dropout: 0.2, ..lora(&["c_attn", "c_fc"]) });
    vec![
        ("gpt2", job(dropping(), TrainSpec::All)),
        ("gpt2 lora", job(dropping(), few)),
        ("qwen2 lora", job(specs::qwen2(), all_linears(0.1))),
        ("qwen3", job(specs::qwen3_biased(), TrainSpec::All)),
        ("mistral frozen", job(specs::mistral(), TrainSpec::Freeze(vec!["model.layers.0".into(), "*.q_proj".into()]))),
    ]
}

fn batches(spec: &ModelSpec) -> Vec<Samples> {
    let mut stream = Stream(15);
    let batch = |_| Samples::Texts(packed(&mut stream, spec.vocab(), EFFECTIVE, MOST, 3));
    (0..5).map(batch).collect()
}

fn run(job: &Job, how: &Choices, clip_norm: Option<f64>, updates: usize) -> Course {
    train(job, how, clip_norm, &weights(job, 3), &batches(&job.spec), updates)
}

#[test]
fn random_plans_of_one_job_give_the_same_losses() {
    let mut stream = Stream(2);
    for (name, mut job) in jobs() {
        for clip_norm in [None, Some(0.6)] {
            job.clip = clip_norm.is_some();
            let first = run(&job, &choices(EFFECTIVE), clip_norm, UPDATES);
            let learns = first.losses[UPDATES - 5..] < first.losses[..5];
            assert!(learns && first.losses.iter().all(|l| l.is_finite()), "{name}: {:?}", first.losses);
            for nth in 0..5 {
                let blocks = job.spec.blocks();
                let recompute = stream.between(0, blocks);
                let recompute_attention = stream.between(0, blocks - recompute);
                let how = Choices {
                    micro_batch: [1, 2, 4, 8][stream.between(0, 3)],
                    recompute,
                    recompute_attention,
                    recompute_feed_forward: stream.between(0, blocks - recompute - recompute_attention),
                    loss_chunk: stream.between(1, 60),
                    optimizer_in_backward: nth % 2 == 0,
                    loader_threads: 1,
                    lean: false,
                    keep_norms: stream.between(0, 1) == 1,
                    lstm_every: 0,
                };
                let job = Job { threads: stream.between(1, 4), ..job.clone() };
                let other = run(&job, &how, clip_norm, UPDATES);
                let apart = furthest(&other, &first);
                assert!(apart < 1e-5, "{name}, {} threads, {how:?}: {apart:e}", job.threads);
                for (a, b) in other.norms.iter().zip(&first.norms) {
                    assert!((a - b).abs() < 1e-4 * b, "{name}, {how:?}: norms {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn threads_and_recomputed_blocks_repeat_every_bit() {
    for (name, job) in jobs() {
        let blocks = job.spec.blocks();
        for (micro_batch, optimizer_in_backward) in [(8, false), (3, false), (2, true)] {
            let plain = Choices { optimizer_in_backward, ..choices(micro_batch) };
            let first = run(&job, &plain, None, BIT_UPDATES);
            for threads in [1, 3, 4] {
                let other = run(&Job { threads, ..job.clone() }, &plain, None, BIT_UPDATES);
                assert!(other == first, "{name}, micro-batch {micro_batch}, {threads} threads");
            }
            for (recompute, recompute_attention, recompute_feed_forward) in
                [(blocks, 0, 0), (0, blocks, 0), (1, 1, 0), (0, 0, blocks), (0, 1, 1), (1, 0, 1)]
            {
                let keep_norms = recompute_attention == 1;
                let how = Choices { recompute, recompute_attention, recompute_feed_forward, keep_norms, ..plain };
                let other = run(&job, &how, None, BIT_UPDATES);
                assert!(other == first, "{name}, {how:?}");
            }
        }
    }
}

#[test]
fn updates_in_the_backward_pass_repeat_losses_and_weights_to_the_bit() {
    for (name, job) in jobs() {
        let after = run(&job, &choices(EFFECTIVE), None, BIT_UPDATES);
        let how = Choices { optimizer_in_backward: true, recompute: 1, ..choices(EFFECTIVE) };
        let within = run(&job, &how, None, BIT_UPDATES);
        assert!((&within.losses, &within.weights) == (&after.losses, &after.weights), "{name}");
    }
}

/// The gradient is that of the very loss that dropout left: what was dropped on the way up is dropped on the way down.
#[test]
fn with_dropout_every_gradient_is_the_slope_of_the_loss() {
    let t5 = Job {
        train: TrainSpec::Lora(LoraSpec { dropout: 0.2, ..lora(&["q", "k", "v", "o", "wi", "wo"]) }),
        ..decoder::job(random::v10(0.1), MOST, EFFECTIVE, OptimizerSpec::adamw(1e-3))
    };
    let pairs = Samples::Pairs(random::batches(&t5.spec, 1, EFFECTIVE, (MOST, MOST), true, 9).remove(0));
    let decoders = jobs().into_iter().map(|(name, job)| {
        let batch = batches(&job.spec).remove(0);
        (name, job, batch)
    });
    for (name, mut job, batch) in decoders.chain([("t5 lora", t5, pairs)]) {
        job.optimizer = OptimizerSpec::sgd(0.0);
        let start = weights(&job, 3);
        with(&job, &choices(EFFECTIVE), None, &start, |engine| {
            let step = MicroStep { update: 0, samples: EFFECTIVE, first_sample: 0, lr: Some(0.0) };
            batch.stage(engine, 0..EFFECTIVE);
            engine.micro_step(step).unwrap();
            let trained: Vec<usize> = (0..start.len()).filter(|i| engine.program().store.params[*i].trained).collect();
            let gradients: Vec<Vec<f32>> = trained.iter().map(|i| engine.gradient(*i).unwrap().to_vec()).collect();
            engine.finish_update(step).unwrap();
            let (mut worst, mut checked) = (0.0f64, 0);
            for (index, gradient) in trained.into_iter().zip(&gradients) {
                let (param, values) = &start[index];
                let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                let size = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                let reach = 1e-3 * size;
                let mut loss_at = |sign: f64| {
                    let moved = engine.param_mut(index).iter_mut().zip(values).zip(gradient);
                    moved.for_each(|((w, v), g)| *w = v + (sign * reach * f64::from(*g) / norm) as f32);
                    batch.stage(engine, 0..EFFECTIVE);
                    let loss = engine.micro_step(step).unwrap().sum;
                    engine.finish_update(step).unwrap();
                    engine.param_mut(index).copy_from_slice(values);
                    loss
                };
                let slope = (loss_at(1.0) - loss_at(-1.0)) / (2.0 * reach);
                let far = (slope - norm).abs() / norm;
                // The loss is a sum of some hundred numbers of f32: where it hardly moves, rounding is all there is to see.
                if norm * reach > 4e-3 {
                    assert!(far < 2e-2, "{name}: {} has a gradient of {norm}, the slope is {slope}", param.name);
                    (worst, checked) = (worst.max(far), checked + 1);
                }
            }
            println!("{name}: {checked} of {} gradients checked, {worst:.1e} apart", gradients.len());
            assert!(checked * 3 > gradients.len() * 2, "{name}: {checked} of {} were checked", gradients.len());
        });
    }
}

/// Rounds to bf16, to nearest.
fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

#[test]
fn frozen_weights_stored_in_half_the_bytes_change_no_bit() {
    for (name, job) in jobs().into_iter().filter(|(_, job)| job.train != TrainSpec::All) {
        let mut start: Vec<(Param, Vec<f32>)> = weights(&job, 3);
        let matrices = start.iter_mut().filter(|(param, _)| param.shape.len() == 2 && !param.name.contains("lora_"));
        // Few of their bits, so that f16 holds them too.
        matrices.for_each(|(_, values)| values.iter_mut().for_each(|v| *v = bf16((*v * 256.0).round() / 256.0)));
        for how in [choices(4), Choices { optimizer_in_backward: true, recompute: 2, ..choices(4) }] {
            let stored = |frozen| {
                let job = Job { storage: Storage { frozen, ..Storage::default() }, ..job.clone() };
                train(&job, &how, None, &start, &batches(&job.spec), BIT_UPDATES)
            };
            let plain = stored(Dtype::F32);
            assert!(stored(Dtype::Bf16) == plain, "{name}: bf16");
            assert!(stored(Dtype::F16) == plain, "{name}: f16");
        }
    }
}

#[test]
fn packed_texts_cost_what_they_cost_alone() {
    for (name, spec) in specs::all() {
        let samples = packed(&mut Stream(6), spec.vocab, 4, MOST, 4);
        let alone: Vec<Sample> = samples.iter().flatten().map(|text| vec![text.clone()]).collect();
        let sum = |samples: Vec<Sample>, documents: usize| {
            let eval = Some(EvalJob { beams: 1, max_new: 0 });
            let count = samples.len();
            let job = Job { documents, eval, ..decoder::job(spec.clone(), MOST, count, OptimizerSpec::sgd(0.0)) };
            let samples = Samples::Texts(samples);
            with(&job, &choices(count), None, &weights(&job, 3), |engine| {
                samples.stage(engine, 0..count);
                let loss = engine.eval(count).unwrap();
                let (mean, norm) = update(engine, &samples, 0, Some(0.0));
                assert!((mean - loss.mean()).abs() < 1e-9, "{name}: evaluation and training see one loss");
                (loss.sum, loss.tokens, norm)
            })
        };
        let ((a, tokens, norm), (b, other, alone_norm)) = (sum(samples, 4), sum(alone, 1));
        assert_eq!(tokens, other);
        assert!((a - b).abs() < 1e-6 * b, "{name}: {a} and {b}");
        assert!((norm - alone_norm).abs() < 1e-5 * norm, "{name}: norms {norm} and {alone_norm}");
    }
}

#[test]
fn a_text_behind_another_sees_nothing_of_it() {
    let spec = specs::qwen3();
    let mut samples = packed(&mut Stream(6), spec.vocab, 1, MOST, 3);
    assert!(samples[0].len() > 1, "two texts at least");
    let job = Job { documents: 3, ..decoder::job(spec.clone(), MOST, 1, OptimizerSpec::sgd(0.0)) };
    // Only the second text's loss counts; the first changes.
    samples[0][0].labels.fill(IGNORE);
    samples[0][1].labels = samples[0][1].tokens.clone();
    let mut other = samples.clone();
    other[0][0].tokens.iter_mut().for_each(|t| *t = (*t + 11) % spec.vocab as u32);
    let run = |samples: &Vec<Sample>| {
        let samples = Samples::Texts(samples.clone());
        with(&job, &choices(1), None, &weights(&job, 3), |engine| {
            let (loss, _) = update(engine, &samples, 0, Some(0.0));
            (loss, read(engine, 0))
        })
    };
    assert_eq!(run(&samples), run(&other));
}

/// With updates in the backward pass the slot holds the whole effective batch, and evaluation is handed as much.
#[test]
fn evaluation_of_all_that_the_slot_holds_is_one_loss_whatever_the_plan() {
    let t5 = decoder::job(random::v10(0.1), MOST, EFFECTIVE, OptimizerSpec::adamw(1e-3));
    let pairs = Samples::Pairs(random::batches(&t5.spec, 1, EFFECTIVE, (MOST, MOST), true, 9).remove(0));
    let decoders = jobs().into_iter().map(|(name, job)| {
        let batch = batches(&job.spec).remove(0);
        (name, job, batch)
    });
    for (name, mut job, batch) in decoders.chain([("t5", t5, pairs)]) {
        job.eval = Some(EvalJob { beams: 1, max_new: 0 });
        let start = weights(&job, 3);
        let eval = |how: &Choices| {
            with(&job, how, None, &start, |engine| {
                batch.stage(engine, 0..EFFECTIVE);
                engine.eval(EFFECTIVE).unwrap()
            })
        };
        let whole = eval(&choices(EFFECTIVE));
        for micro_batch in [1, 4] {
            let parts = eval(&Choices { optimizer_in_backward: true, ..choices(micro_batch) });
            assert_eq!(parts.tokens, whole.tokens, "{name}");
            let apart = (parts.sum - whole.sum).abs() / whole.sum;
            assert!(apart < 1e-6, "{name}, micro-batch {micro_batch}: {} and {}", parts.sum, whole.sum);
        }
    }
}

#[test]
fn a_batch_that_is_not_full_is_trained_alike_in_parts_and_at_once() {
    for (name, job) in jobs() {
        // Some parts are empty, one is half full, and one has no label at all.
        let mut samples = packed(&mut Stream(8), job.spec.vocab(), 5, MOST, 3);
        samples[2..4].iter_mut().flatten().for_each(|text| text.labels.fill(IGNORE));
        let batch = [Samples::Texts(samples)];
        for clip_norm in [None, Some(0.5)] {
            let job = Job { clip: clip_norm.is_some(), ..job.clone() };
            let run = |how: &Choices| train(&job, how, clip_norm, &weights(&job, 3), &batch, BIT_UPDATES);
            let whole = run(&choices(EFFECTIVE));
            for (micro_batch, optimizer_in_backward) in [(2, true), (1, true), (2, false), (1, false)] {
                let apart = furthest(&run(&Choices { optimizer_in_backward, ..choices(micro_batch) }), &whole);
                assert!(apart < 1e-5, "{name}, {micro_batch}, in the backward pass {optimizer_in_backward}: {apart:e}");
            }
        }
    }
}
