//! What is frozen costs its weights and nothing else: no gradient, no state, and no activation of a part whose backward pass
//! nobody needs. And what is trained gets the gradient that it gets in the whole model.

mod decoder;
mod fixture;
mod random;

use decoder::texts::ragged;
use decoder::{Samples, lora, specs, weights, with};
use fixture::choices;
use plimsoll_engine::MicroStep;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::op::Op;
use plimsoll_plan::program::{Job, Program, compile};
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::tape::Role;
use plimsoll_plan::train::OptimizerSpec;
use plimsoll_plan::trained::TrainSpec;
use random::Stream;

const MOST: usize = 19;
const ROWS: usize = 4;

fn freeze(patterns: &[&str]) -> TrainSpec {
    TrainSpec::Freeze(patterns.iter().map(|p| p.to_string()).collect())
}

fn job(spec: impl Into<ModelSpec>, train: TrainSpec) -> Job {
    Job { train, ..decoder::job(spec, MOST, ROWS, OptimizerSpec::adamw(1e-3)) }
}

/// Words of activations that live from before op `from` to behind the loss.
fn kept_from_before(program: &Program, from: usize) -> usize {
    let tape = &program.micro.as_ref().unwrap().tape;
    let loss = tape.ops.iter().position(|op| matches!(op, Op::Loss { .. })).unwrap();
    let spans = tape.lifetimes();
    let crosses = |span: &Option<(usize, usize)>| span.is_some_and(|(first, last)| first < from && last > loss);
    tape.tensors.iter().zip(&spans).filter(|(_, span)| crosses(span)).map(|(tensor, _)| tensor.words).sum()
}

/// The first op that reads a parameter.
fn first_use(program: &Program, name: &str) -> usize {
    let place = program.store.params.iter().find(|p| p.param.name == name).unwrap();
    let ops = &program.micro.as_ref().unwrap().tape.ops;
    let uses = |op: &Op| {
        let mut found = false;
        op.reads(&mut |id| found |= id == place.weight);
        found
    };
    ops.iter().position(uses).unwrap()
}

/// Store: no gradient and no state but those of what is trained.
fn holds_only_what_is_trained(program: &Program, in_backward: bool) {
    let store = &program.store;
    let trained: usize = store.params.iter().filter(|p| p.trained).map(|p| p.param.elements()).sum();
    let all: usize = store.params.iter().map(|p| p.param.elements()).sum();
    assert!(trained < all);
    assert_eq!(store.words(Role::Weight), trained);
    assert_eq!(store.words(Role::Frozen), all - trained);
    assert_eq!(store.words(Role::Gradient), if in_backward { 0 } else { trained });
    assert_eq!(store.words(Role::Optimizer), 2 * trained);
    for place in &store.params {
        assert_eq!(place.state.len(), if place.trained { 2 } else { 0 }, "{}", place.param.name);
        assert_eq!(store.gradients[place.weight.0 as usize].is_some(), place.trained && !in_backward);
    }
}

#[test]
fn a_frozen_encoder_keeps_its_output_and_nothing_else() {
    let spec = random::v11(0.1);
    let (rows, width) = (ROWS * MOST, spec.d_model);
    for in_backward in [false, true] {
        let how = Choices { optimizer_in_backward: in_backward, ..choices(ROWS) };
        let frozen = compile(&job(spec.clone(), freeze(&["encoder.*", "shared"])), &how);
        let whole = compile(&job(spec.clone(), TrainSpec::All), &how);
        holds_only_what_is_trained(&frozen, in_backward);
        let name = "decoder.block.0.layer.0.layer_norm.weight";
        let at = |program: &Program| kept_from_before(program, first_use(program, name));
        // The encoder's output, the decoder's input, and its position bias by distance.
        let bias = spec.heads * (2 * MOST - 1);
        assert!(at(&frozen) <= 2 * rows * width + bias, "{} words", at(&frozen));
        assert!(at(&whole) > 4 * at(&frozen), "{} and {} words", at(&whole), at(&frozen));
        assert!(frozen.parts.transient < whole.parts.transient);
        let uses = |program: &Program| program.micro.as_ref().unwrap().tape.ops.len();
        assert!(uses(&frozen) < uses(&whole), "there is less to do");
    }
}

#[test]
fn frozen_first_blocks_of_a_decoder_keep_nothing() {
    for (name, spec) in specs::all() {
        let last = spec.layers - 1;
        let mut patterns: Vec<String> = (0..last).map(|block| spec.block_stem(block)).collect();
        patterns.extend([spec.table_name().into(), "transformer.wpe".into()]);
        let train = TrainSpec::Freeze(patterns);
        let frozen = compile(&job(spec.clone(), train), &choices(ROWS));
        let whole = compile(&job(spec.clone(), TrainSpec::All), &choices(ROWS));
        holds_only_what_is_trained(&frozen, false);
        let norm = if spec.layer_norm() { "ln_1" } else { "input_layernorm" };
        let name_of = format!("{}.{norm}.weight", spec.block_stem(last));
        let at = |program: &Program| kept_from_before(program, first_use(program, &name_of));
        // The block's input, and the table of angles.
        let most = ROWS * MOST * spec.d_model + MOST * spec.d_head;
        assert!(at(&frozen) <= most, "{name}: {} of {most} words", at(&frozen));
        assert!(at(&whole) > 3 * at(&frozen), "{name}: {} and {}", at(&whole), at(&frozen));
        assert!(frozen.parts.words() < whole.parts.words(), "{name}");
    }
}

#[test]
fn lora_keeps_no_gradient_and_no_state_of_the_model() {
    for (name, spec) in specs::families() {
        let few: &[&str] = if spec.gated() { &["q_proj", "v_proj"] } else { &["c_attn"] };
        let program = compile(&job(spec.clone(), TrainSpec::Lora(lora(few))), &choices(ROWS));
        holds_only_what_is_trained(&program, false);
        let whole = compile(&job(spec, TrainSpec::All), &choices(ROWS));
        assert!(program.parts.words() < whole.parts.words(), "{name}");
    }
}

#[test]
fn what_is_trained_gets_the_gradient_of_the_whole_model() {
    let patterns: [&[&str]; 4] =
        [&["*.k_proj", "*.up_proj.weight"], &["model.layers.0"], &["lm_head", "model.norm"], &["*_proj"]];
    for (name, spec) in specs::all().into_iter().filter(|(_, spec)| spec.gated()) {
        let samples = Samples::Texts(ragged(&mut Stream(3), spec.vocab, ROWS, MOST));
        let gradients = |train: TrainSpec| {
            let job = job(spec.clone(), train);
            with(&job, &choices(ROWS), None, &weights(&job, 3), |engine| {
                samples.stage(engine, 0..ROWS);
                engine.micro_step(MicroStep { update: 0, samples: ROWS, first_sample: 0, lr: None }).unwrap();
                let count = engine.program().store.params.len();
                (0..count).map(|i| engine.gradient(i).map(<[f32]>::to_vec)).collect::<Vec<_>>()
            })
        };
        let whole = gradients(TrainSpec::All);
        for frozen in patterns {
            let some = gradients(freeze(frozen));
            let mut trained = 0;
            for (a, b) in some.iter().zip(&whole).filter_map(|(a, b)| Some((a.as_ref()?, b.as_ref()?))) {
                let far = fixture::distance(a, b);
                assert!(far < 1e-6, "{name}, {frozen:?}: {far:e} apart");
                trained += 1;
            }
            assert!(trained > 0 && trained < whole.len(), "{name}, {frozen:?}");
        }
    }
}
