//! A program: every tape of a run with the place of every tensor. The engine executes exactly this.
//!
//! The arena has four parts, in this order: the store (weights, gradients, optimizer state), one transient region that
//! all tapes share because only one runs at a time, the workspace of the running op, and the staging area of the batch.

use crate::batch::BatchShape;
use crate::op::{MaxRows, Op, ParamShape};
use crate::place::{Places, aligned, place};
use crate::spec::T5Spec;
use crate::t5::{self, Choices, GenerateShape, Generation};
use crate::tape::{Id, Role, Store, Tape};
use crate::tiles::{Simd, Tiles};
use crate::train::OptimizerSpec;

/// What evaluation runs besides the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalJob {
    /// Hypotheses per prompt.
    pub beams: usize,
    /// Most new tokens; 0: no generation.
    pub max_new: usize,
}

/// What is to be trained, apart from the choices that leave the result alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub spec: T5Spec,
    /// Longest source, in tokens.
    pub source_len: usize,
    /// Longest target, in tokens.
    pub target_len: usize,
    /// Samples per update.
    pub effective_batch: usize,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// Gradients are clipped by their global norm.
    pub clip: bool,
    /// Evaluation during the run.
    pub eval: Option<EvalJob>,
    /// Compute threads.
    pub threads: usize,
    /// Instruction set level.
    pub simd: Simd,
}

impl Job {
    /// The optimizer may run inside the backward pass: one micro-batch per update, and no norm to wait for.
    pub fn may_update_in_backward(&self, micro_batch: usize) -> bool {
        micro_batch == self.effective_batch && !self.clip
    }
}

/// A tape with the place of each of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The ops.
    pub tape: Tape,
    /// The places.
    pub places: Places,
    /// Rows it is planned for.
    pub rows: MaxRows,
}

/// Generation with its places.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedGeneration {
    /// Both passes.
    pub placed: Placed,
    /// First op of the decoding step.
    pub split: usize,
    /// Where the step leaves its logits.
    pub logits: Id,
    /// What it is planned for.
    pub shape: GenerateShape,
}

/// Every tape of a run, placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The model.
    pub spec: T5Spec,
    /// What outlives a step.
    pub store: Store,
    /// Offset of each persistent tensor.
    pub store_offsets: Vec<usize>,
    /// Forward and backward of one micro-batch; none in a program that only generates or evaluates.
    pub micro: Option<Placed>,
    /// The update, where it is not part of the backward pass.
    pub update: Option<Placed>,
    /// Forward pass and loss.
    pub eval: Option<Placed>,
    /// Generation.
    pub generation: Option<PlacedGeneration>,
    /// Batch that the staging area holds.
    pub shape: BatchShape,
    /// Compute threads that the workspace is for.
    pub threads: usize,
    /// Instruction set level that the workspace is for.
    pub simd: Simd,
    /// Sizes of the arena's parts, in elements.
    pub parts: ArenaParts,
}

/// Sizes of the arena's parts, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaParts {
    /// Weights, gradients, optimizer state.
    pub store: usize,
    /// Shared by all tapes.
    pub transient: usize,
    /// Scratch of the running op.
    pub workspace: usize,
    /// The batch: tokens, lengths, row maps.
    pub staging: usize,
}

impl ArenaParts {
    /// The whole arena.
    pub fn words(&self) -> usize {
        self.store + self.transient + self.workspace + self.staging
    }
}

/// Words of the staging area: tokens of both sides and the decoder's inputs, lengths and first rows of each sample, and for
/// each row its sample and position; or, for generation, the prompts and what is known of each hypothesis.
pub fn staging_words(shape: &BatchShape, generate: Option<&GenerateShape>) -> usize {
    let (source, target) = (shape.samples * shape.source_len, shape.samples * shape.target_len);
    let batch = 3 * aligned(source) + 4 * aligned(target) + 4 * aligned(shape.samples + 1);
    let generation = generate.map_or(0, |g| {
        let (source, rows) = (g.prompts * g.source_len, g.prompts * g.beams);
        3 * aligned(source) + aligned(g.prompts + 1) + 2 * aligned(rows) + 2 * aligned(rows * g.max_new)
    });
    batch.max(generation)
}

/// Offsets of the persistent tensors, and their total.
pub(crate) fn store_places(store: &Store) -> (Vec<usize>, usize) {
    let mut at = 0;
    let offsets = store
        .tensors
        .iter()
        .map(|t| {
            let here = at;
            at += aligned(t.words);
            here
        })
        .collect();
    (offsets, at)
}

pub(crate) fn rows_of(shape: &BatchShape) -> MaxRows {
    MaxRows { source: shape.samples * shape.source_len, target: shape.samples * shape.target_len, beam: 0 }
}

fn workspace(tape: &Tape, store: &Store, rows: &MaxRows, simd: Simd, threads: usize) -> usize {
    let shape = |param: usize| -> ParamShape { t5::matrix(&store.params[param].param) };
    let tiles = Tiles::of(simd);
    aligned(tape.ops.iter().map(|op| op.workspace(rows, &tiles, threads, &shape)).max().unwrap_or(0))
}

/// Workspace of one op of a job.
pub(crate) fn op_workspace(op: &Op, job: &Job, store: &Store, rows: &MaxRows) -> usize {
    let shape = |param: usize| -> ParamShape { t5::matrix(&store.params[param].param) };
    op.workspace(rows, &Tiles::of(job.simd), job.threads, &shape)
}

/// What outlives a step of a job: without gradients where each is used up on the way.
pub(crate) fn store_of(job: &Job, optimizer_in_backward: bool) -> Store {
    t5::store(&job.spec, Some(&job.optimizer), !optimizer_in_backward)
}

fn generation_rows(shape: &GenerateShape) -> MaxRows {
    MaxRows { source: shape.prompts * shape.source_len, target: 0, beam: shape.prompts * shape.beams }
}

/// Places every tape of a job.
pub fn compile(job: &Job, choices: &Choices) -> Program {
    let shape = BatchShape {
        samples: choices.micro_batch,
        source_len: job.source_len,
        target_len: job.target_len,
        documents: 1,
    };
    let rows = rows_of(&shape);
    let store = store_of(job, choices.optimizer_in_backward);
    let micro = t5::micro_tape(&job.spec, &store, shape, choices);
    let update = (!choices.optimizer_in_backward).then(|| t5::update_tape(&store));
    let space = |tape: &Tape, rows: &MaxRows| workspace(tape, &store, rows, job.simd, job.threads);
    let placed = |tape: Tape| Placed { places: place(&tape), tape, rows };
    let (micro, update) = (placed(micro), update.map(placed));
    let mut transient = micro.places.words;
    let mut work = space(&micro.tape, &rows).max(update.as_ref().map_or(0, |u| space(&u.tape, &rows)));
    let eval = job.eval.map(|_| placed(t5::eval_tape(&job.spec, &store, shape, choices.loss_chunk)));
    if let Some(eval) = &eval {
        transient = transient.max(eval.places.words);
        work = work.max(space(&eval.tape, &rows));
    }
    let generation = job.eval.filter(|e| e.max_new > 0).map(|e| fit_generation(job, &store, &shape, e, transient));
    if let Some(generation) = &generation {
        transient = transient.max(generation.placed.places.words);
        work = work.max(space(&generation.placed.tape, &generation.placed.rows));
    }
    let (store_offsets, store_words) = store_places(&store);
    let parts = ArenaParts {
        store: store_words,
        transient: aligned(transient),
        workspace: work,
        staging: staging_words(&shape, generation.as_ref().map(|g| &g.shape)),
    };
    Program {
        spec: job.spec.clone(),
        store,
        store_offsets,
        micro: Some(micro),
        update,
        eval,
        generation,
        shape,
        threads: job.threads,
        simd: job.simd,
        parts,
    }
}

/// As many prompts at a time as fit into what training needs anyway; one at least.
fn fit_generation(job: &Job, store: &Store, shape: &BatchShape, eval: EvalJob, room: usize) -> PlacedGeneration {
    let mut prompts = shape.samples;
    loop {
        let wanted = GenerateShape { prompts, beams: eval.beams, source_len: job.source_len, max_new: eval.max_new };
        let placed = place_generation(&job.spec, store, wanted);
        if placed.placed.places.words <= room || prompts == 1 {
            return placed;
        }
        prompts = prompts.div_ceil(2);
    }
}

fn place_generation(spec: &T5Spec, store: &Store, shape: GenerateShape) -> PlacedGeneration {
    let Generation { tape, split, logits } = t5::generation(spec, store, shape);
    let placed = Placed { places: place(&tape), tape, rows: generation_rows(&shape) };
    PlacedGeneration { placed, split, logits, shape }
}

/// A program without training: the loss of a batch, and generation.
pub fn compile_inference(
    spec: &T5Spec,
    eval: Option<(BatchShape, usize)>,
    generate: Option<GenerateShape>,
    threads: usize,
    simd: Simd,
) -> Program {
    let store = t5::store(spec, None, false);
    let (mut transient, mut work) = (0, 0);
    let staged = eval.map_or(BatchShape { samples: 1, source_len: 1, target_len: 1, documents: 1 }, |(shape, _)| shape);
    let eval = eval.map(|(shape, chunk)| {
        let tape = t5::eval_tape(spec, &store, shape, chunk);
        Placed { places: place(&tape), tape, rows: rows_of(&shape) }
    });
    let generation = generate.map(|shape| place_generation(spec, &store, shape));
    for placed in eval.iter().chain(generation.iter().map(|g| &g.placed)) {
        transient = transient.max(placed.places.words);
        work = work.max(workspace(&placed.tape, &store, &placed.rows, simd, threads));
    }
    let (store_offsets, store_words) = store_places(&store);
    let parts = ArenaParts {
        store: store_words,
        transient: aligned(transient),
        workspace: work,
        staging: staging_words(&staged, generate.as_ref()),
    };
    Program {
        spec: spec.clone(),
        store,
        store_offsets,
        micro: None,
        update: None,
        eval,
        generation,
        shape: staged,
        threads,
        simd,
        parts,
    }
}

impl Program {
    /// Elements of a role in the store.
    pub fn store_words(&self, role: Role) -> usize {
        self.store.words(role)
    }
}
