//! Generation: the ids that transformers generates, whatever the grouping, from a cache that equals a full forward pass.

mod fixture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::{Batch, Fixture, choices, sgd, tensors, with_job};
use plimsoll_engine::{Engine, EngineError, GenerateOptions, MicroStep, with_cores};
use plimsoll_plan::batch::BatchShape;
use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::program::{InferenceJob, compile_inference};
use plimsoll_plan::spec::T5Spec;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const SOURCE_LEN: usize = 16;
const MAX_NEW: usize = 12;
const PEERS: [&str; 2] = ["v10_tied_padded", "v11_untied_padded"];

/// Runs `f` with a program that evaluates and generates, `prompts` at a time, planned for `beams`.
fn with_generator<R: Send>(
    fixture: &Fixture,
    prompts: usize,
    beams: usize,
    f: impl FnOnce(&mut Engine) -> R + Send,
) -> R {
    let eval = BatchShape { samples: 6, source_len: SOURCE_LEN, target_len: MAX_NEW, documents: 1 };
    let shape = GenerateShape { prompts, beams, source_len: SOURCE_LEN, max_new: MAX_NEW };
    let program = compile_inference(&InferenceJob::new(
        fixture.spec.clone(),
        Some((eval, 32)),
        Some(shape),
        (2, plimsoll_engine::simd::detect()),
    ));
    let run = move || {
        let mut engine = Engine::start(program, None).unwrap();
        fixture.fill(&mut engine);
        f(&mut engine)
    };
    with_cores(2, || {}, run).unwrap()
}

/// Rows of generated ids without the start token, up to the end token.
fn answers(rows: &(Vec<usize>, Vec<f32>)) -> Vec<Vec<u32>> {
    let cut = |row: &[f32]| -> Vec<u32> {
        assert_eq!(row[0], 0.0, "the start token is first");
        let end = row.iter().position(|id| *id == 1.0).map_or(row.len(), |at| at + 1);
        row[1..end].iter().map(|id| *id as u32).collect()
    };
    rows.1.chunks(rows.0[1]).map(cut).collect()
}

#[test]
fn greedy_ids_are_those_of_transformers() {
    for name in PEERS {
        let fixture = Fixture::load(name);
        let got =
            with_generator(&fixture, 6, 1, |e| e.generate(&fixture.batch().sources, &GenerateOptions::greedy(12)));
        assert_eq!(got.unwrap(), answers(&fixture.case["generate.greedy"]), "{name}");
    }
}

#[test]
fn beam_ids_are_those_of_transformers() {
    for name in PEERS {
        let fixture = Fixture::load(name);
        let got =
            with_generator(&fixture, 6, 4, |e| e.generate(&fixture.batch().sources, &GenerateOptions::beam(4, 12)));
        assert_eq!(got.unwrap(), answers(&fixture.case["generate.beam"]), "{name}");
    }
}

#[test]
fn a_training_program_generates_the_same_between_micro_batches() {
    let fixture = Fixture::load("v11_untied_padded");
    let batch = fixture.batch();
    let rows = batch.sources.len();
    with_job(&fixture.job(rows, sgd(0.0), false), &choices(rows), None, |engine| {
        fixture.fill(engine);
        let step = MicroStep { update: 0, samples: rows, first_sample: 0, lr: Some(0.0) };
        for _ in 0..2 {
            batch.stage(engine);
            let before = engine.micro_step(step).unwrap();
            let gradient = engine.gradient(3).unwrap().to_vec();
            let got = engine.generate(&batch.sources, &GenerateOptions::beam(4, 12)).unwrap();
            assert_eq!(got, answers(&fixture.case["generate.beam"]));
            assert_eq!(engine.gradient(3).unwrap(), gradient, "what training holds stays as it is");
            batch.stage(engine);
            assert_eq!(engine.eval(rows).unwrap(), before);
            engine.finish_update(step).unwrap();
        }
    });
}

#[test]
fn neither_grouping_nor_order_nor_the_planned_beams_change_an_answer() {
    for name in PEERS {
        let fixture = Fixture::load(name);
        let prompts = prompts(23, 13, fixture.spec.vocab as u32);
        for beams in 1..=4 {
            let options = GenerateOptions::beam(beams, MAX_NEW);
            let one = with_generator(&fixture, 1, beams, |e| e.generate(&prompts, &options)).unwrap();
            for group in [4, 13] {
                let got = with_generator(&fixture, group, 4, |e| e.generate(&prompts, &options)).unwrap();
                assert_eq!(got, one, "{name}: {beams} beams, groups of {group}");
            }
            let turned: Vec<_> = prompts.iter().rev().cloned().collect();
            let mut got = with_generator(&fixture, 5, 4, |e| e.generate(&turned, &options)).unwrap();
            got.reverse();
            assert_eq!(got, one, "{name}: {beams} beams, turned round");
        }
    }
}

#[test]
fn a_call_leaves_nothing_behind_for_the_next() {
    let fixture = Fixture::load("v11_untied_padded");
    let prompts = prompts(5, 6, 97);
    let wanted = [GenerateOptions::beam(4, 12), GenerateOptions::greedy(7), GenerateOptions::beam(2, 3)];
    with_generator(&fixture, 6, 4, |engine| {
        let first: Vec<_> = wanted.iter().map(|o| engine.generate_scored(&prompts, o).unwrap()).collect();
        for (options, first) in wanted.iter().zip(&first).rev() {
            assert_eq!(&engine.generate_scored(&prompts, options).unwrap(), first, "{options:?}");
        }
    });
}

/// Loss of each (prompt, answer) by a full forward pass, as log-probability.
fn full_log_probabilities(engine: &mut Engine, prompts: &[Vec<u32>], answers: &[Vec<u32>]) -> Vec<f64> {
    let pairs = prompts.iter().zip(answers);
    let log = |(prompt, answer): (&Vec<u32>, &Vec<u32>)| {
        Batch { sources: vec![prompt.clone()], targets: vec![answer.clone()] }.stage(engine);
        -engine.eval(1).unwrap().sum
    };
    pairs.map(log).collect()
}

#[test]
fn scores_from_the_cache_equal_those_of_a_full_forward_pass() {
    for name in fixture::CASES {
        let fixture = Fixture::load(name);
        let prompts = prompts(7, 6, fixture.spec.vocab as u32);
        with_generator(&fixture, 6, 4, |engine| {
            for (beams, length_penalty) in [(1, 1.0), (2, 0.0), (4, 1.0), (4, 2.0)] {
                let options = GenerateOptions { length_penalty, ..GenerateOptions::beam(beams, MAX_NEW) };
                let scored = engine.generate_scored(&prompts, &options).unwrap();
                let ids: Vec<_> = scored.iter().map(|a| a.tokens.clone()).collect();
                for (answer, full) in scored.iter().zip(full_log_probabilities(engine, &prompts, &ids)) {
                    let length = answer.tokens.len() as f64;
                    let divisor = if beams == 1 { 1.0 } else { length.powf(f64::from(length_penalty)) };
                    let cached = f64::from(answer.score) * divisor;
                    assert!(
                        (cached - full).abs() < 1e-5 * full.abs().max(1.0),
                        "{name}, {options:?}: {cached} and {full}"
                    );
                }
            }
        });
    }
}

#[test]
fn every_greedy_token_is_the_likeliest_of_a_full_forward_pass() {
    let fixture = Fixture::load("v11_tied_unscaled");
    let prompts = prompts(3, 3, fixture.spec.vocab as u32);
    with_generator(&fixture, 3, 1, |engine| {
        let answers = engine.generate(&prompts, &GenerateOptions::greedy(6)).unwrap();
        for (prompt, answer) in prompts.iter().zip(&answers) {
            for length in 1..=answer.len() {
                let mut with = |token: u32| {
                    let mut ids = answer[..length].to_vec();
                    ids[length - 1] = token;
                    full_log_probabilities(engine, std::slice::from_ref(prompt), &[ids])[0]
                };
                let chosen = with(answer[length - 1]);
                let best = (0..fixture.spec.vocab as u32).map(&mut with).fold(f64::NEG_INFINITY, f64::max);
                assert!(chosen >= best - 1e-5, "{answer:?} at {length}: {chosen}, but {best} was there");
            }
        }
    });
}

#[test]
fn one_new_token_is_the_first_of_many() {
    let fixture = Fixture::load("v11_untied_padded");
    let sources = fixture.batch().sources;
    with_generator(&fixture, 6, 4, |engine| {
        let greedy = engine.generate(&sources, &GenerateOptions::greedy(1)).unwrap();
        let expected: Vec<_> = answers(&fixture.case["generate.greedy"]).into_iter().map(|a| a[..1].to_vec()).collect();
        assert_eq!(greedy, expected);
        // With one token to choose, the best of a beam is the likeliest token too.
        assert_eq!(engine.generate(&sources, &GenerateOptions::beam(4, 1)).unwrap(), expected);
        assert_eq!(engine.generate(&sources, &GenerateOptions::greedy(0)).unwrap(), vec![Vec::<u32>::new(); 6]);
        assert_eq!(engine.generate(&[], &GenerateOptions::beam(4, 5)).unwrap(), Vec::<Vec<u32>>::new());
    });
}

#[test]
fn what_was_not_planned_is_refused_with_both_numbers() {
    let fixture = Fixture::load("v10_tied_padded");
    let eval = BatchShape { samples: 1, source_len: 4, target_len: 4, documents: 1 };
    let program = compile_inference(&InferenceJob::new(
        fixture.spec.clone(),
        Some((eval, 32)),
        None,
        (2, plimsoll_engine::simd::detect()),
    ));
    with_cores(
        2,
        || {},
        || {
            let refused =
                Engine::start(program, None).unwrap().generate(&[vec![1]], &GenerateOptions::greedy(1)).unwrap_err();
            assert!(matches!(refused, EngineError::NotPlanned { what: "generation" }), "{refused}");
        },
    )
    .unwrap();
    with_generator(&fixture, 2, 4, |engine| {
        let mut refused = |prompts: &[Vec<u32>], beams, max_new| {
            engine.generate(prompts, &GenerateOptions::beam(beams, max_new)).unwrap_err()
        };
        let short = [vec![5, 1]];
        for (refusal, most, count) in [
            (refused(&[short[0].clone(), vec![2; 17]], 1, 1), 16, 17),
            (refused(&[vec![]], 1, 1), 16, 0),
            (refused(&short, 5, 1), 4, 5),
            (refused(&short, 0, 1), 4, 0),
            (refused(&short, 4, 13), 12, 13),
        ] {
            let EngineError::Batch { expected, found, .. } = refusal else { panic!("{refusal}") };
            assert_eq!((expected, found), (most, count));
        }
        assert!(matches!(refused(&[short[0].clone(), vec![97]], 1, 1), EngineError::Token { token: 97, vocab: 97 }));
    });
}

#[test]
fn a_model_that_diverged_still_answers() {
    let fixture = Fixture::load("v10_tied_padded");
    with_generator(&fixture, 3, 4, |engine| {
        engine.param_mut(0).fill(f32::NAN);
        let prompts = prompts(1, 4, 97);
        assert_eq!(engine.generate(&prompts, &GenerateOptions::greedy(4)).unwrap(), vec![vec![0; 4]; 4]);
        assert_eq!(engine.generate(&prompts, &GenerateOptions::beam(4, 4)).unwrap().len(), 4);
    });
}

/// Random prompts of 1 to `SOURCE_LEN` tokens that end with the end token.
fn prompts(seed: u64, count: usize, vocab: u32) -> Vec<Vec<u32>> {
    let mut state = seed;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    let mut prompt = |_| {
        let body = draw(SOURCE_LEN as u32);
        (0..body).map(|_| 2 + draw(vocab - 2)).chain([1]).collect()
    };
    (0..count).map(&mut prompt).collect()
}

/// The Python with transformers, or why there is none.
fn python() -> Result<PathBuf, String> {
    let path = match std::env::var_os("PLIMSOLL_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    };
    if path.is_file() { Ok(path) } else { Err(format!("no Python at `{}`; scripts/test makes one", path.display())) }
}

/// Writes the prompts as a padded batch with its mask.
fn write_batch(prompts: &[Vec<u32>], path: &Path) {
    let bytes = |cell: &dyn Fn(&[u32], usize) -> u32| -> Vec<u8> {
        let row = |p: &Vec<u32>| (0..SOURCE_LEN).flat_map(|i| cell(p, i).to_le_bytes()).collect::<Vec<u8>>();
        prompts.iter().flat_map(row).collect()
    };
    let ids = bytes(&|p, i| p.get(i).copied().unwrap_or(0));
    let mask = bytes(&|p, i| u32::from(i < p.len()));
    let view = |data| TensorView::new(Dtype::I32, vec![prompts.len(), SOURCE_LEN], data).unwrap();
    let file = HashMap::from([("input_ids", view(&ids)), ("attention_mask", view(&mask))]);
    fs_err::write(path, safetensors::serialize(file, None).unwrap()).unwrap();
}

#[test]
fn random_prompts_get_the_answers_of_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generation-{}", std::process::id()));
    fs_err::create_dir_all(&folder).unwrap();
    let (batch, out) = (folder.join("batch.safetensors"), folder.join("out.safetensors"));
    let ways = [(4, 1.0, false), (3, 0.5, false), (2, 2.0, true), (4, -1.0, true)];
    for (round, (beams, length_penalty, early_stopping)) in ways.into_iter().enumerate() {
        let fixture = Fixture::load(["v11_untied_padded", "v11_tied_unscaled"][round % 2]);
        let prompts = prompts(100 + round as u64, 48, fixture.spec.vocab as u32);
        write_batch(&prompts, &batch);
        let mut peer = Command::new(&python);
        peer.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/generate.py")).env("HF_HUB_OFFLINE", "1");
        peer.args(["--model".as_ref(), fixture.folder.as_os_str(), "--batch".as_ref(), batch.as_os_str()]);
        peer.args(["--out".as_ref(), out.as_os_str(), "--max-new-tokens".as_ref(), MAX_NEW.to_string().as_ref()]);
        peer.args([format!("--num-beams={beams}"), format!("--length-penalty={length_penalty}")]);
        if early_stopping {
            peer.arg("--early-stopping");
        }
        let done = peer.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let expected = tensors(&out);
        let options = GenerateOptions { length_penalty, early_stopping, ..GenerateOptions::beam(beams, MAX_NEW) };
        with_generator(&fixture, 7, 4, |engine| {
            let greedy = engine.generate(&prompts, &GenerateOptions::greedy(MAX_NEW)).unwrap();
            assert_eq!(greedy, answers(&expected["greedy"]), "round {round}");
            assert_eq!(
                engine.generate(&prompts, &options).unwrap(),
                answers(&expected["beam"]),
                "round {round}: {options:?}"
            );
        });
    }
    fs_err::remove_dir_all(&folder).unwrap();
}

thread_local! {
    /// Bytes that this thread holds, and the most it held.
    static HEAP: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    let _ = HEAP.try_with(|heap| {
        let (live, peak) = heap.get();
        heap.set((live + bytes, peak.max(live + bytes)));
    });
}

struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches no allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most heap that a call takes on the engine's thread, for a vocabulary of this size.
fn heap_of_a_call(vocab: usize, beams: usize) -> isize {
    let spec = T5Spec { vocab, ..Fixture::load("v10_tied_padded").spec };
    let shape = GenerateShape { prompts: 4, beams: 4, source_len: SOURCE_LEN, max_new: MAX_NEW };
    let program =
        compile_inference(&InferenceJob::new(spec.clone(), None, Some(shape), (2, plimsoll_engine::simd::detect())));
    let run = move || {
        let mut engine = Engine::start(program, None).unwrap();
        for index in 0..engine.program().store.params.len() {
            let weights = engine.param_mut(index).iter_mut().enumerate();
            weights.for_each(|(i, w)| *w = ((i as u32).wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 - 0.5);
        }
        let (prompts, options) = (prompts(9, 4, vocab as u32), GenerateOptions::beam(beams, MAX_NEW));
        let first = engine.generate(&prompts, &options).unwrap();
        HEAP.with(|heap| heap.set((0, 0)));
        assert_eq!(engine.generate(&prompts, &options).unwrap(), first);
        HEAP.with(|heap| heap.get().1)
    };
    with_cores(2, || {}, run).unwrap()
}

#[test]
fn the_heap_of_a_call_does_not_grow_with_the_vocabulary() {
    for beams in [1, 4] {
        let (small, large) = (heap_of_a_call(100, beams), heap_of_a_call(50_000, beams));
        // Answers, hypotheses and candidates, in words; 16 rows of the large vocabulary would be 3 MB.
        println!("{beams} beams: {small} and {large} bytes");
        assert!(small.max(large) < 16 << 10, "{beams} beams: {small} and {large} bytes");
    }
}
