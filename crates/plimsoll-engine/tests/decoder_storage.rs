//! Weights and states that take fewer bytes: trained in bf16, optimizer states of 8 bits, Lion, and frozen weights in int8
//! and NF4 below LoRA. They learn, they repeat to the bit whatever the threads, and go on where they were stopped.

mod decoder;
mod fixture;
mod random;

use decoder::texts::ragged;
use decoder::{Samples, lora, read, specs, train, update, weights, with};
use fixture::choices;
use plimsoll_engine::cpu::weights::{Weights, encode};
use plimsoll_engine::{Engine, MicroStep};
use plimsoll_plan::choices::Choices;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Job;
use plimsoll_plan::spec::{DecoderSpec, Param};
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::{Storage, TrainSpec, is_linear};
use random::Stream;

const MOST: usize = 20;
const ROWS: usize = 4;

/// Large enough that some parameters have 8-bit states and some do not.
fn larger(spec: DecoderSpec) -> DecoderSpec {
    DecoderSpec { vocab: 190, d_ff: 130, ..spec }
}

fn optimizers() -> [OptimizerSpec; 6] {
    [
        OptimizerSpec::adamw(3e-3),
        OptimizerSpec::adafactor(3e-3),
        OptimizerSpec::adamw16bit(3e-3),
        OptimizerSpec::adamw8bit(3e-3),
        OptimizerSpec::lion(5e-4),
        OptimizerSpec::Sgd { lr: 5e-2, momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 },
    ]
}

/// Jobs that store what they train in f32 and in bf16, under every optimizer.
fn jobs() -> Vec<(String, Job)> {
    let mut list = Vec::new();
    for (name, spec) in [("gpt2", larger(specs::gpt2())), ("qwen3", larger(specs::qwen3_biased()))] {
        for optimizer in optimizers() {
            for trained in [Dtype::F32, Dtype::Bf16] {
                let storage = Storage { trained, ..Storage::default() };
                let name = format!("{name}, {}, {trained:?}", optimizer.name());
                list.push((name, Job { storage, ..decoder::job(spec.clone(), MOST, ROWS, optimizer.clone()) }));
            }
        }
    }
    list
}

fn batch(job: &Job) -> Vec<Samples> {
    vec![Samples::Texts(ragged(&mut Stream(7), job.spec.vocab(), ROWS, MOST))]
}

#[test]
fn every_optimizer_learns_a_batch_by_heart_in_f32_and_in_bf16() {
    for (name, job) in jobs() {
        let how = Choices { optimizer_in_backward: true, ..choices(2) };
        let course = train(&job, &how, None, &weights(&job, 3), &batch(&job), 60);
        let (first, last) = (course.losses[0], course.losses[59]);
        println!("{name}: {first:.3} to {last:.3}");
        assert!(last < 0.5 * first, "{name}: {first} to {last}");
    }
}

#[test]
fn threads_change_no_bit_of_any_of_them() {
    for (name, job) in jobs() {
        let on = |threads| {
            let job = Job { threads, ..job.clone() };
            train(&job, &choices(2), None, &weights(&job, 3), &batch(&job), 5)
        };
        let one = on(1);
        for threads in [2, 4] {
            assert!(on(threads) == one, "{name}, {threads} threads");
        }
    }
}

/// Bytes of every parameter and words of every state.
fn copied(engine: &Engine) -> (Vec<Vec<u8>>, Vec<Vec<u32>>) {
    let params = &engine.program().store.params;
    let bytes = (0..params.len()).map(|i| engine.param_bytes(i).to_vec()).collect();
    let states = params.iter().enumerate().flat_map(|(i, p)| (0..p.state.len()).map(move |nth| (i, nth)));
    let words = states.map(|(i, nth)| engine.state(i, nth).iter().map(|w| w.to_bits()).collect()).collect();
    (bytes, words)
}

/// Fills an engine from what another was left with.
fn restore(engine: &mut Engine, (bytes, states): &(Vec<Vec<u8>>, Vec<Vec<u32>>)) {
    let mut states = states.iter();
    for (index, bytes) in bytes.iter().enumerate() {
        let dtype = engine.dtype(index);
        let put = |first: usize, out: &mut [f32]| -> Result<(), ()> {
            for (at, out) in out.iter_mut().enumerate() {
                *out = match dtype {
                    Dtype::F32 => f32::from_le_bytes(bytes[4 * (first + at)..][..4].try_into().unwrap()),
                    _ => f32::from_bits(
                        u32::from(u16::from_le_bytes(bytes[2 * (first + at)..][..2].try_into().unwrap())) << 16,
                    ),
                };
            }
            Ok(())
        };
        engine.fill_param(index, put).unwrap();
        for nth in 0..engine.program().store.params[index].state.len() {
            let from = states.next().unwrap();
            engine.state_mut(index, nth).iter_mut().zip(from).for_each(|(w, bits)| *w = f32::from_bits(*bits));
        }
    }
}

#[test]
fn stopped_and_resumed_is_never_stopped_to_the_bit() {
    for (name, job) in jobs() {
        let (start, batch, lr) = (weights(&job, 3), &batch(&job)[0], job.optimizer.lr());
        let steps = |engine: &mut Engine, range: std::ops::Range<u64>| {
            range.map(|at| update(engine, batch, at, lr)).collect::<Vec<_>>()
        };
        let whole = with(&job, &choices(ROWS), None, &start, |engine| {
            steps(engine, 0..4);
            (steps(engine, 4..8), copied(engine))
        });
        let half = with(&job, &choices(ROWS), None, &start, |engine| {
            steps(engine, 0..4);
            copied(engine)
        });
        let resumed = with(&job, &choices(ROWS), None, &start, |engine| {
            restore(engine, &half);
            assert!(copied(engine) == half, "{name}: what went in comes out");
            (steps(engine, 4..8), copied(engine))
        });
        assert!(resumed == whole, "{name}");
    }
}

/// A job of LoRA over all linears of a base that is stored so.
fn lora_job(spec: &DecoderSpec, quantised: Option<Dtype>) -> Job {
    let last = |name: &str| name.rsplit('.').next().unwrap().to_string();
    let targets: Vec<String> = spec.linears(0).iter().map(|(name, ..)| last(name)).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    Job {
        train: TrainSpec::Lora(lora(&targets)),
        storage: Storage { quantised, ..Storage::default() },
        ..decoder::job(spec.clone(), MOST, ROWS, OptimizerSpec::adamw(3e-3))
    }
}

#[test]
fn a_quantised_base_reads_back_as_it_was_encoded_and_costs_little_more() {
    for (name, spec) in specs::families() {
        let spec = DecoderSpec { vocab: 190, d_model: 96, d_ff: 200, init_std: 0.08, ..spec };
        let spec = if spec.gated() { spec } else { DecoderSpec { d_head: 32, ..spec } };
        let samples = &batch(&lora_job(&spec, None))[0];
        let run = |quantised: Option<Dtype>| {
            let job = lora_job(&spec, quantised);
            let start = weights(&job, 3);
            with(&job, &choices(ROWS), None, &start, |engine| {
                let mut quantised_count = 0;
                for (index, (param, values)) in start.iter().enumerate() {
                    let exact = match quantised.filter(|_| is_linear(&param.name) && param.shape.len() == 2) {
                        Some(dtype) if !param.name.contains("lora_") => {
                            assert_eq!(engine.dtype(index), dtype, "{name}: {}", param.name);
                            quantised_count += 1;
                            decoded(dtype, param, values)
                        }
                        _ => values.clone(),
                    };
                    assert_eq!(read(engine, index), exact, "{name}: {}", param.name);
                }
                assert_eq!(quantised_count, if quantised.is_some() { spec.layers * spec.linears(0).len() } else { 0 });
                samples.stage(engine, 0..ROWS);
                let step = MicroStep { update: 0, samples: ROWS, first_sample: 0, lr: Some(3e-3) };
                let loss = engine.micro_step(step).unwrap().mean();
                let trained = (0..start.len()).filter(|i| engine.program().store.params[*i].trained);
                for index in trained {
                    let gradient = engine.gradient(index).unwrap();
                    assert!(gradient.iter().all(|g| g.is_finite()) && gradient.iter().any(|g| *g != 0.0));
                }
                engine.finish_update(step).unwrap();
                let frozen = |engine: &Engine| {
                    let count = start.iter().filter(|(p, _)| !p.name.contains("lora_")).count();
                    (0..count).map(|i| read(engine, i)).collect::<Vec<_>>()
                };
                let before = frozen(engine);
                let last = (1..60).map(|at| update(engine, samples, at, Some(3e-3)).0).last().unwrap();
                assert!(frozen(engine) == before, "{name}: the base stays as it is");
                assert!(last < 0.5 * loss, "{name}, {quantised:?}: {loss} to {last}");
                loss
            })
        };
        let plain = run(None);
        for (dtype, most) in [(Dtype::Int8, 2e-3), (Dtype::Nf4, 3e-2)] {
            let loss = run(Some(dtype));
            let apart = (loss - plain).abs() / plain;
            println!("{name}: {dtype:?} is {apart:.1e} from f32");
            assert!(apart < most, "{name}: {loss} in {dtype:?}, {plain} in f32");
        }
    }
}

/// What a tensor of its own decodes to.
fn decoded(dtype: Dtype, param: &Param, values: &[f32]) -> Vec<f32> {
    let simd = plimsoll_engine::simd::detect();
    let elements = param.elements();
    let mut words = vec![0.0; dtype.words(elements)];
    encode(simd, dtype, elements, 0, values, &mut words);
    let mut out = vec![0.0; elements];
    Weights::new(&words, dtype, elements).decode(simd, 0, &mut out);
    out
}

#[test]
fn a_quantised_base_repeats_to_the_bit_whatever_threads_and_recompute() {
    let spec = specs::qwen2();
    for dtype in [Dtype::Int8, Dtype::Nf4] {
        let job = lora_job(&spec, Some(dtype));
        let run = |threads, how: &Choices| {
            let job = Job { threads, ..job.clone() };
            train(&job, how, None, &weights(&job, 3), &batch(&job), 5)
        };
        let first = run(1, &choices(ROWS));
        assert!(run(3, &choices(ROWS)) == first, "{dtype:?}: threads");
        assert!(run(2, &Choices { recompute: 3, ..choices(ROWS) }) == first, "{dtype:?}: recompute");
    }
}

/// A step of thousands of tokens needs no more than what grows with them.
#[test]
fn four_thousand_tokens_train_in_an_arena_that_grows_with_their_number() {
    const LONG: usize = 4096;
    for windows in [vec![], vec![Some(256); 2]] {
        let spec = DecoderSpec { d_model: 32, heads: 2, kv_heads: 1, d_head: 16, windows, ..specs::llama() };
        let spec = DecoderSpec { max_positions: LONG, ..spec };
        let job = |len: usize| decoder::job(spec.clone(), len, 1, OptimizerSpec::adamw(1e-2));
        let how = Choices { recompute: 1, ..choices(1) };
        let words = |len| plimsoll_plan::program::compile(&job(len), &how).parts;
        let (half, whole) = (words(LONG / 2), words(LONG));
        assert!(whole.transient < 2 * half.transient + half.transient / 20, "{half:?} and {whole:?}");
        assert!(whole.workspace <= half.workspace, "{half:?} and {whole:?}");
        let text = decoder::texts::Text::random(&mut Stream(1), spec.vocab, LONG + 1, 0);
        let course = train(&job(LONG), &how, None, &weights(&job(LONG), 3), &[Samples::Texts(vec![vec![text]])], 3);
        assert!(course.losses[2] < course.losses[0], "{:?}", course.losses);
    }
}
